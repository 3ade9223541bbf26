"""One local run from its first process to its last: start, watch, stop on request, replace, conclude.

Why apart: this is the operator's part on a machine that has none. Must not: decide what the launchers decide among
themselves (restarts, culprits, resume steps), or how things look (`view.py`).
"""

import asyncio
import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpjob_api.codec import render
from ddpjob_api.names import LauncherEnv
from ddpjob_api.plan import plan
from ddpjob_api.report import JobReport, Outcome
from ddpjob_api.spec import DDPJob
from ddpjob_cli.local.directory import JobDirectory, shown
from ddpjob_cli.local.environment import launcher_environment, left_to_a_cluster
from ddpjob_cli.local.nodes import Launch, Nodes
from ddpjob_cli.local.ports import HOST, free_ports
from ddpjob_cli.local.reports import Coordinator, read_termination
from ddpjob_cli.local.summary import Summary, summarize
from ddpjob_cli.local.view import View

POLL_SECONDS = 0.3
UNHEARD_SECONDS = 5.0
"""How long a stop request may find nobody before the launchers are told by signal."""
MARGIN_SECONDS = 15.0
"""Beyond the grace period, before what should have ended is ended."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run, and where."""

    job: DDPJob
    command: str
    """What the user would type again to go on."""
    work: Path
    """The programs' working directory: that of the resource's file."""
    state: Path
    fresh: bool


class Session:
    """One run. `run` is called once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.job = request.job
        self.grace = request.job.spec.recovery.grace_period.total_seconds()
        self.begun = time.monotonic()
        self.asked_at: float | None = None
        """When the stop was asked for."""
        self.heard = False
        """Whether the coordinator took the request."""
        self.signalled = False
        self.killed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.losses = 0
        self.concluding_at: float | None = None
        """When the first launcher ended in order."""

    def interrupt(self, why: str) -> None:
        """First: save and stop. Again: kill."""
        if self.asked_at is not None:
            self.killed = True
            return
        self.asked_at = time.monotonic()
        self.view.say(f"{why}: saving and stopping; Ctrl-C again kills at once", "yellow")

    def lose_terminal(self) -> None:
        """Nobody can read the output any more; called by whichever thread wrote last."""
        if self.loop is not None and self.asked_at is None:
            self.loop.call_soon_threadsafe(self.interrupt, "the output is closed")

    async def run(self, view: View) -> Summary:
        """Run the job to its end, whatever that is.

        Raises:
            CommandError: it cannot be started.
        """
        self.view = view
        self.loop = loop = asyncio.get_running_loop()
        names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal was closed"}
        # Under nohup SIGHUP is ignored, and is to stay so.
        heeded = [n for n in SIGNALS if n is not signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
        for number in heeded:
            loop.add_signal_handler(number, self.interrupt, names[number])
        try:
            with JobDirectory(self.request.state, self.job) as home:
                return await self._run_in(home)
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)

    async def _run_in(self, home: JobDirectory) -> Summary:
        ports = free_ports(home.nodes)
        with home.in_words():
            beginning = home.begin(fresh=self.request.fresh)
            paths = [home.paths(node) for node in range(home.nodes)]
            self.number = home.started()
            token = home.new_token()
            home.note_live([node.metrics for node in ports])
        run_id = str(uuid.uuid4())
        launches = [
            Launch(
                environment=launcher_environment(
                    self.job,
                    node=node,
                    ports=ports[node],
                    paths=paths[node],
                    token=home.path / "token",
                    run_id=run_id,
                    incarnation=self.number,
                    inherited=os.environ,
                ),
                log=paths[node].log,
            )
            for node in range(home.nodes)
        ]
        self._introduce(home, beginning.sentence, ports[0].metrics)
        self.coordinator = Coordinator(port=ports[0].metrics, token=token)
        async with Nodes(self.view.line) as nodes:
            await nodes.start(launches, directory=self.request.work, lock=home.lock_descriptor)
            await self._watch(nodes, home, launches)
        endings = [read_termination(path.termination) for path in paths]
        self.view.stop()
        summary = summarize(
            name=self.job.metadata.name,
            ranks=plan(self.job.spec).world_size,
            max_restarts=self.job.spec.recovery.max_restarts,
            seconds=time.monotonic() - self.begun,
            last=self.view.last,
            endings=endings,
            returncodes=nodes.returncodes,
            killed=self.killed,
        )
        if summary.ddp is not None:
            self.view.settings(summary.ddp)  # what the last report came too early for
        home.note_end(summary.json())
        if summary.outcome is Outcome.DONE:
            try:
                home.finished()
            except OSError as error:
                self.view.say(
                    f"{home.shown}: that the job is done cannot be noted ({error.strerror}); "
                    "the next run would go on from here, and --fresh starts over",
                    "yellow",
                )
        else:
            self._say_how_to_go_on(summary, home)
        return summary

    async def _watch(self, nodes: Nodes, home: JobDirectory, launches: list[Launch]) -> None:
        while not self.killed:
            over = await nodes.wait(POLL_SECONDS)
            if self.asked_at is None and await self._replace_lost(nodes, home, launches):
                continue
            if over:
                return
            report = await self.coordinator.report()
            if report is not None:
                self.view.report(report)
            if self.asked_at is not None:
                await self._stop(nodes, self.asked_at)
            if self.concluding_at is not None and overdue(self.concluding_at, self.grace):
                self.view.say("not every launcher ended in time; ending what is left", "yellow")
                await nodes.end()

    async def _stop(self, nodes: Nodes, since: float) -> None:
        if not self.heard:
            self.heard = await self.coordinator.stop()
        waited = time.monotonic() - since
        if not self.heard and waited > UNHEARD_SECONDS and not self.signalled:
            self.signalled = True
            nodes.signal(signal.SIGTERM)
        if overdue(since, self.grace):
            self.view.say(f"not stopped within {waited:.0f} s; ending what is left", "yellow")
            await nodes.end()

    async def _replace_lost(self, nodes: Nodes, home: JobDirectory, launches: list[Launch]) -> bool:
        """Launchers that something killed come back, as the operator replaces pods; whether any does.

        None does once one has ended in order: the job is over then.
        """
        lost = {}
        for node, code in enumerate(nodes.returncodes):
            if code is None:
                continue
            left = read_termination(Path(launches[node].environment[LauncherEnv.TERMINATION_LOG]))
            if left is not None or code >= 0:
                self.concluding_at = self.concluding_at or time.monotonic()
            else:
                lost[node] = signal.Signals(-code).name
        if (
            not lost
            or self.concluding_at is not None
            or self.losses >= self.job.spec.recovery.max_disruptions
        ):
            return False
        self.losses += 1
        for node, name in lost.items():
            self.number += 1
            with contextlib.suppress(OSError):  # a full disk must not end the training for this
                self.number = home.started()
            self.view.say(f"the launcher of node {node} died of {name}; starting it again", "yellow")
            launch = Launch(
                environment={
                    **launches[node].environment,
                    **spent(self.view.last, node),
                    LauncherEnv.INCARNATION.value: str(self.number),
                },
                log=launches[node].log,
            )
            await nodes.restart(node, launch, directory=self.request.work, lock=home.lock_descriptor)
        return True

    def _introduce(self, home: JobDirectory, beginning: str | None, metrics_port: int) -> None:
        numbers = plan(self.job.spec)
        shape = f"{numbers.nodes} node{'s' if numbers.nodes > 1 else ''} × {numbers.processes_per_node}"
        ranks = f"{numbers.world_size} rank{'s' if numbers.world_size > 1 else ''} ({shape})"
        # Without an accelerator in the resource, Auto is decided by what torch sees (a task) or the script says.
        backend = numbers.backend if numbers.accelerator else self.job.spec.ddp.backend
        self.view.say(f"{self.job.metadata.name}: {ranks}, backend {backend}, {program(self.job)}")
        self.view.say(f"state in {home.shown}, metrics of node 0 at http://{HOST}:{metrics_port}/metrics")
        ignored = left_to_a_cluster(self.job.spec)
        if ignored:
            self.view.say(
                f"only a cluster reads {', '.join(ignored)}; programs run in {shown(self.request.work)}"
            )
        if beginning is not None:
            self.view.say(beginning)

    def _say_how_to_go_on(self, summary: Summary, home: JobDirectory) -> None:
        again = self.request.command
        if summary.outcome is Outcome.REFUSED:
            return
        step = home.newest_step()
        if step is not None:
            self.view.say(f"the checkpoint of step {step} is kept; `{again}` goes on from it")
        elif self.job.spec.task is not None and self.job.spec.checkpoint is None:
            self.view.say("nothing is saved: the job has no checkpoint (checkpoint: {everySteps: 100} saves)")
        elif summary.outcome is Outcome.STOPPED and self.job.spec.task is None:
            self.view.say(f"what the program saved is its own; `{again}` starts it again")


def program(job: DDPJob) -> str:
    """What runs, in a few words."""
    spec = job.spec
    if spec.task is not None:
        return f"task {spec.task.entrypoint}"
    if spec.script is not None:
        return f"script {' '.join(spec.script.args)}"
    return f"command {' '.join(spec.command or ())}"


def overdue(since: float, grace: float) -> bool:
    return time.monotonic() - since > grace + MARGIN_SECONDS


def spent(last: JobReport | None, node: int) -> Mapping[str, str]:
    """The ledger for a launcher that comes later.

    The coordinator counts every loss but its own: what node 0's successor is told includes that one.
    """
    disruptions = (last.disruptions if last else 0) + (node == 0)
    carried = {}
    if node == 0 and last is not None and last.spent is not None:
        carried = {LauncherEnv.SPENT.value: json.dumps(render(last.spent))}
    return {
        **carried,
        LauncherEnv.RESTARTS.value: str(last.restarts if last else 0),
        LauncherEnv.DISRUPTIONS.value: str(disruptions),
        LauncherEnv.GENERATION.value: str(last.generation if last else 0),
    }
