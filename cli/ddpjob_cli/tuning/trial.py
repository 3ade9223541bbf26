"""One short run on this machine, measured after its first steps and stopped.

Why apart: a process that runs, and is watched from outside as any local run is. Must not: judge.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpjob_api.report import BUCKETS_MAX
from ddpjob_cli.errors import CommandError, Unusable
from ddpjob_cli.local import strays
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.ranks import Pace, Place, Scrape, median, pace, parse
from ddpjob_cli.tuning.verdict import Measured

POLL_SECONDS = 0.1
WARM_FRACTION = 0.2
WARM_STEPS = 5
END_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is run, each time with other settings."""

    file: Path
    options: Sequence[str]
    """Of `ddpjob run`."""
    steps: int
    """To measure, after those to get warm."""

    def run(self, fields: Mapping[str, Any]) -> tuple[Measured, int | None]:
        """Run once with these fields of `ddp`; the measurement, and `gradient_bytes`.

        Raises:
            Unusable: the run fails, or is over before anything could be measured.
        """
        given = [
            word for name, value in fields.items() for word in ("--set", f"ddp.{name}={json.dumps(value)}")
        ]
        with tempfile.TemporaryDirectory(prefix="ddpjob-tune-") as folder:
            command = [sys.executable, "-m", "ddpjob_cli", "run", str(self.file), *self.options, *given]
            with Path(folder, "output").open("wb") as output:
                process = subprocess.Popen(
                    [*command, "--dir", f"{folder}/run", "--json"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=strays.die_with_parent(),  # noqa: PLW1509 - there is no other thread here
                )
                try:
                    paces = self._watch(process, LocalRun(path=Path(folder, "run")))
                finally:
                    ending = end(process)
            if not paces:
                tail = Path(folder, "output").read_text(errors="replace").splitlines()[-12:]
                raise Unusable(
                    "\n".join([*tail, f"{self.file}: it ended before {self.steps} steps could be measured"])
                )
        exposed = [value for one in paces if (value := one.exposed) is not None]
        times = [value for one in paces if (value := one.step_seconds) is not None]
        measured = Measured(
            step_seconds=median(times), exposed=median(exposed) if exposed else None, steps=paces[0].steps
        )
        return measured, gradient_bytes(ending)

    def _watch(self, process: "subprocess.Popen[bytes]", run: LocalRun) -> list[Pace]:
        """The pace of each rank between the first warm look and the one after enough steps (or the last there was)."""
        warm = max(WARM_STEPS, int(WARM_FRACTION * self.steps))
        first: dict[int, Scrape] = {}
        last: dict[int, Scrape] = {}
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            for place in run.places():
                with contextlib.suppress(CommandError):
                    look(run, place, warm, first, last)
            if (
                last
                and len(last) == len(run.places())
                and all(made(last[node]) - made(first[node]) >= self.steps for node in first)
            ):
                break
        found = [
            one
            for node in first
            for rank in last[node].ranks()
            if made(last[node]) > made(first[node])
            and (one := pace(first[node], last[node], rank)) is not None
        ]
        return found if len(first) == len(last) else []


def gradient_bytes(ending: Mapping[str, Any]) -> int | None:
    """What all buckets hold; None where not all of them may have been reported."""
    sizes: Sequence[int] = (ending.get("ddp") or {}).get("bucketBytes") or ()
    return sum(sizes) if 0 < len(sizes) < BUCKETS_MAX else None


def look(run: LocalRun, place: Place, warm: int, first: dict[int, Scrape], last: dict[int, Scrape]) -> None:
    """One more answer of one launcher."""
    scrape = parse(run.ask(place), time.monotonic())
    if not scrape.ranks() or made(scrape) < warm:
        return
    first.setdefault(place.node, scrape)
    last[place.node] = scrape


def made(scrape: Scrape) -> float:
    """Steps that the slowest rank of a node has made."""
    from ddpjob_api.metrics import OPTIMIZER_STEPS

    return min(scrape.of(OPTIMIZER_STEPS, rank=str(rank)) or 0.0 for rank in scrape.ranks())


def end(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Stop the run in order; its line of `--json`."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
