"""A run on this machine, seen from outside: by its folder, while it runs and afterwards.

Why apart: `explain`, `top`, `logs` and `report` look at a run that another process has. Must not: change anything in the
folder, or lock it.
"""

import asyncio
import http.client
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddpjob_api.codec import Invalid, load, parse
from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Times
from ddpjob_api.report import Failure, InEffect, JobReport, RunState
from ddpjob_api.running import how_it_runs
from ddpjob_api.spec import Spec
from ddpjob_cli import ranks
from ddpjob_cli.errors import Unreachable, Unusable
from ddpjob_cli.explain.observation import ConditionSeen, Observation
from ddpjob_cli.local.directory import LAST, LIVE, SPEC, shown
from ddpjob_cli.local.ports import HOST
from ddpjob_cli.local.reports import Coordinator
from ddpjob_cli.ranks import Place
from ddpjob_cli.scraping import Scraper

TIMEOUT_SECONDS = 5.0
HOME = Path(".ddpjob")


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """One folder of `ddpjob run`."""

    path: Path

    @property
    def name(self) -> str:
        live = self.live() or {}
        return str(live.get("name") or self.last().get("name") or self.path.name)

    @property
    def shown(self) -> str:
        return shown(self.path)

    def running(self) -> bool:
        """Whether some process has it: a launcher keeps it locked, whatever became of the command.

        The kernel's list of locks is read: taking the lock to try it could turn away a run that starts just now.
        """
        try:
            inode = (self.path / "lock").stat().st_ino
            locks = Path("/proc/locks").read_text()
        except OSError:
            return self._owner_lives()
        return any(
            "FLOCK" in line and line.split()[-3].rpartition(":")[2] == str(inode)
            for line in locks.splitlines()
        )

    def _owner_lives(self) -> bool:
        """By the process number in the lock file, where the kernel has no such list."""
        try:
            os.kill(int((self.path / "lock").read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    def live(self) -> dict[str, Any] | None:
        """Ports of the run that goes on."""
        return read(self.path / "run" / LIVE) or None if self.running() else None

    def last(self) -> dict[str, Any]:
        """How the last run ended, as its line of `--json`; empty while it runs, or if it was killed."""
        return read(self.path / LAST)

    def spec(self) -> str:
        """The resource as it ran, as YAML; empty where none was kept."""
        try:
            return (self.path / SPEC).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def parsed(self) -> Spec | None:
        """Its spec; None where another version kept it."""
        try:
            return parse(yaml.safe_load(self.spec())).spec
        except (Invalid, yaml.YAMLError):
            return None

    def report(self) -> JobReport | None:
        """What the coordinator says."""
        live = self.live()
        try:
            token = (self.path / "token").read_bytes()
        except OSError:
            return None
        if not live or not live.get("ports"):
            return None
        return asyncio.run(Coordinator(port=int(live["ports"][0]), token=token).report())

    def places(self) -> list[Place]:
        """The launchers that run."""
        live = self.live() or {}
        ports = enumerate(live.get("ports") or ())
        return [Place(node=node, pod=f"node {node}", port=int(port)) for node, port in ports]

    def scraper(self) -> Scraper:
        """Asks the launchers on their ports."""
        return Scraper(self.ask)

    def ask(self, place: Place) -> str:
        """The metrics of one launcher.

        Raises:
            Unreachable: it does not answer.
        """
        return fetch(place.port, "/metrics")

    def logs(self, *, previous: bool = False) -> dict[int, Path]:
        """The log of each node, or that of the run before."""
        name = "log.before" if previous else "log"
        found = {folder: folder / name for folder in self.path.glob("node-*")}
        return {
            int(folder.name.removeprefix("node-")): log
            for folder, log in sorted(found.items())
            if folder.name.removeprefix("node-").isdecimal() and log.is_file()
        }

    def observe(self, scraper: Scraper | None = None) -> Observation:
        """Everything that can be seen of it; ranks only with a scraper."""
        now = time.time()
        if self.running():
            report = self.report()
            found = ranks.ranks(scraper.look(self.places())) if scraper is not None else []
            return running(self, report, tuple(found), now)
        return ended(self, self.last(), now)


def find(name: str | None, directory: Path | None) -> LocalRun | None:
    """The run meant by a folder or by a name below `.ddpjob`; None where there is none of that name.

    Raises:
        Unusable: a folder was named and nothing has run in it.
    """
    if directory is not None:
        if not (directory / "state.json").is_file():
            raise Unusable(f"{directory}: nothing has run there; ddpjob run FILE --dir {directory} does")
        return LocalRun(path=directory.absolute())
    if name is None or "/" in name or name in {"", ".", ".."}:
        return None
    path = HOME / name
    return LocalRun(path=path.absolute()) if (path / "state.json").is_file() else None


def every() -> list[LocalRun]:
    """All runs below `.ddpjob` of this folder."""
    return [
        LocalRun(path=path.absolute()) for path in sorted(HOME.glob("*")) if (path / "state.json").is_file()
    ]


def running(
    run: LocalRun, report: JobReport | None, found: tuple[ranks.Rank, ...], now: float
) -> Observation:
    """A run that goes on."""
    if report is None:
        waiting = ConditionSeen(
            status="False", reason=Reason.NOT_STARTED, message="the coordinator does not answer yet"
        )
        return Observation(
            name=run.name,
            place=run.shown,
            local=True,
            state="Starting",
            conditions={Condition.RUNNING.value: waiting},
            now=now,
        )
    runs = report.state is RunState.RUNNING
    reason, message = how_it_runs(report) if runs else (Reason.NOT_STARTED, "")
    is_running = ConditionSeen(status=str(runs), reason=reason, message=message)
    return Observation(
        name=report.name,
        place=run.shown,
        local=True,
        spec=run.parsed(),
        state=report.state.value,
        conditions={Condition.RUNNING.value: is_running},
        nodes=report.nodes_expected,
        ready=report.nodes_joined,
        restarts=report.restarts,
        disruptions=report.disruptions,
        step=report.progress.step,
        total_steps=report.progress.total_steps,
        checkpoint_step=report.progress.checkpoint_step,
        samples_per_second=report.progress.samples_per_second,
        loss=report.progress.loss,
        eta_seconds=report.progress.eta,
        goodput_percent=report.spent.times.goodput if report.spent else None,
        time=report.spent.times if report.spent else None,
        last_failure=report.last_failure,
        ddp=report.ddp,
        efficiency=report.efficiency,
        ranks=found,
        now=now,
    )


def ended(run: LocalRun, last: Mapping[str, Any], now: float) -> Observation:
    """A run that is over."""
    outcome = last.get("outcome") or "Killed"
    done = outcome == "Done"
    failure = tolerant(Failure, last.get("lastFailure"))
    message = str(
        last.get("message") or "the run was killed, and left no word; the log of each node is in its folder"
    )
    stopped = outcome == "Stopped"
    reason = {"Refused": Reason.CONFIGURATION_REFUSED, "Done": Reason.ALL_RANKS_SUCCEEDED}.get(
        outcome, failure.reason if failure else Reason.UNKNOWN
    )
    kind = Condition.COMPLETE if done else Condition.SUSPENDED if stopped else Condition.FAILED
    return Observation(
        name=run.name,
        place=run.shown,
        local=True,
        spec=run.parsed(),
        state={"Done": "Complete", "Stopped": "Stopped"}.get(outcome, "Failed"),
        conditions={kind.value: ConditionSeen(status="True", reason=reason, message=message)},
        nodes=len(run.logs()),
        restarts=int(last.get("restarts") or 0),
        disruptions=int(last.get("disruptions") or 0),
        step=int(last.get("steps") or 0),
        loss=last.get("loss"),
        goodput_percent=last.get("goodputPercent"),
        time=tolerant(Times, last.get("time")),
        last_failure=failure,
        ddp=tolerant(InEffect, last.get("ddp")),
        efficiency=tolerant(Efficiency, last.get("efficiency")),
        now=now,
    )


def fetch(port: int, path: str) -> str:
    """What a launcher on this machine answers.

    Raises:
        Unreachable: nothing.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        data = response.read()
        if response.status == http.HTTPStatus.OK:
            return data.decode(errors="replace")
        words = f"it answers {response.status}"
    except (OSError, http.client.HTTPException) as error:
        words = str(error)
    finally:
        connection.close()
    raise Unreachable(f"the launcher at {HOST}:{port} cannot be asked: {words}")


def tolerant(kind: type[Any], document: object) -> Any:
    """A value of the api, or None where another version wrote it."""
    try:
        return load(kind, document) if document else None
    except Invalid:
        return None


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
