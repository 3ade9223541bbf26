"""The ranks below a command: which of them live, which say where the training stands, and which have ended.

Their pages and claims are made here; a process beside this one holds the claims of those that live.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.trainer.launcher.local import eventually

from ddpjob_api.page import Phase, Slot, WorkerState
from ddpjob_api.report import Cause, WorkerExit
from ddpjob_trainer.files import Files, agent_file
from ddpjob_trainer.launcher import autopsy, culprit
from ddpjob_trainer.launcher.children import Process
from ddpjob_trainer.launcher.examination import Examination
from ddpjob_trainer.launcher.postmortems import PostMortems
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.launcher.watchdog import Watchdog
from ddpjob_trainer.launcher.workers import Worker
from ddpjob_trainer.page import Page

HOLDS = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
Live = Callable[[int], subprocess.Popen[str]]
LIMIT = 10.0


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Worker]:
    """A command that lives, with pages for ranks 2, 3 and 4."""
    first, *others = (
        Rank(rank=rank, files=files, page=Page(files.page, create=True))
        for rank in (2, 3, 4)
        for files in [Files.of(tmp_path, 1, rank)]
    )
    worker = Worker(
        rank=2,
        files=first.files,
        page=first.page,
        others=tuple(others),
        agent=agent_file(tmp_path, 1),
        pumps=(),
        process=Process(1),
    )
    yield worker
    for rank in worker.ranks:
        rank.page.close()


@pytest.fixture
def live(command: Worker) -> Iterator[Live]:
    """Gives a rank a process."""
    with ExitStack() as stack:

        def begin(rank: int) -> subprocess.Popen[str]:
            found = of(command, rank)
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", HOLDS, str(found.files.claim)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            found.page[Slot.PID] = process.pid
            found.page[Slot.STATE] = WorkerState.RUNNING
            return process

        yield begin


def of(command: Worker, rank: int) -> Rank:
    return next(each for each in command.ranks if each.rank == rank)


def living(command: Worker) -> dict[int, Page]:
    return {rank.rank: rank.page for rank in command.ranks if command.pid_of(rank)}


def says(command: Worker, rank: int, **slots: float) -> None:
    for name, value in slots.items():
        of(command, rank).page[Slot[name]] = value


def found(command: Worker) -> culprit.Finding:
    async def glance() -> culprit.Finding:
        post_mortems = PostMortems(Path("/nonexistent"), say=print, in_log=False)
        views = Examination([command], 1, node=0, post_mortems=post_mortems).glance()
        return culprit.find({view.rank: view for view in views})

    return asyncio.run(glance())


def test_a_rank_lives_as_long_as_it_holds_its_claim(command: Worker, live: Live) -> None:
    assert living(command) == {}
    process = live(2)
    says(command, 3, PID=process.pid)  # of one that has ended; another process has its pid now
    assert list(living(command)) == [2]
    assert command.pid_of(of(command, 2)) == process.pid
    process.kill()
    process.wait()
    assert living(command) == {}


def test_a_rank_that_has_ended_is_not_waited_for(command: Worker, live: Live) -> None:
    ended, goes_on = live(2), live(3)
    watchdog = Watchdog(LIMIT)
    for rank in (2, 3):
        says(command, rank, GENERATION_STEPS=5)
    assert watchdog.overdue(living(command), 0) is None
    ended.kill()
    ended.wait()
    says(command, 2, STATE=WorkerState.EXITING)
    says(command, 3, GENERATION_STEPS=6)
    assert watchdog.overdue(living(command), 1000) is None
    goes_on.kill()
    goes_on.wait()
    assert watchdog.overdue(living(command), 9000) is None


def test_a_rank_that_torchrun_starts_again_has_the_time_that_a_start_takes(
    command: Worker, live: Live
) -> None:
    watchdog = Watchdog(LIMIT)
    first = live(2)  # stands before its first step, as its successor will
    says(command, 2, TORCH_IMPORTED_AT=1)
    assert watchdog.overdue(living(command), 0) is None
    assert watchdog.overdue(living(command), 95) is None
    first.kill()
    first.wait()
    live(2)
    assert watchdog.overdue(living(command), 96) is None
    assert watchdog.overdue(living(command), 195) is None
    assert watchdog.overdue(living(command), 196) == 100


def test_a_rank_that_came_again_while_nobody_looked_does_not_inherit_the_wait(
    command: Worker, live: Live
) -> None:
    watchdog = Watchdog(LIMIT)
    first = live(2)
    says(command, 2, GENERATION_STEPS=5)
    assert watchdog.overdue(living(command), 0) is None
    first.kill()
    first.wait()
    assert watchdog.overdue(living(command), 9) is None
    live(2)  # and its page still says what the first one had made
    assert watchdog.overdue(living(command), 12) is None


def test_the_rank_that_is_behind_is_named_among_those_that_are_there(command: Worker, live: Live) -> None:
    """Rank 4 is never seen: a program may start fewer, or one that we do not see."""
    for rank, step in ((2, 7), (3, 6)):
        live(rank)
        says(command, rank, STEP=step, GENERATION_STEPS=step, PROCESS_GROUP_AT=1)
    finding = found(command)
    assert finding.rank is not None and finding.rank.rank == 3
    assert "the others have made step 7" in finding.words


def test_a_rank_that_does_not_come_is_named_where_torchrun_starts_it(command: Worker, live: Live) -> None:
    for rank in (2, 3):
        live(rank)
        in_init = (
            'Current thread 0x1 (most recent call first):\n  File "/x/torch/distributed/a.py", line 1 in init'
        )
        of(command, rank).files.stacks.write_text(in_init)
    assert found(command).rank is None  # of a shell nobody knows what it starts
    assert command.agent is not None
    command.agent.write_text("[]")
    finding = found(command)
    assert finding.rank is not None and finding.rank.rank == 4
    assert finding.words == "it stands still before its first step; the others wait in a collective"


@pytest.mark.parametrize(
    ("told", "error", "ended"),
    [("[]", False, True), (json.dumps([{"rank": 2, "exitCode": 3}]), False, False), ("[]", True, False)],
    ids=["torchrun goes on", "with 3", "with an exception"],
)
def test_a_rank_that_ended_early_is_named(
    command: Worker, live: Live, told: str, error: bool, ended: bool
) -> None:
    assert command.agent is not None
    command.agent.write_text(told)
    early = live(2)
    for rank in (3, 4):
        live(rank)
        says(command, rank, STEP=6, PROCESS_GROUP_AT=1, PHASE=Phase.BACKWARD)
    says(command, 2, STEP=6, PROCESS_GROUP_AT=1, STATE=WorkerState.EXITING)
    assert not command.finished(of(command, 2)), "it still is on its way out"
    early.kill()
    early.wait()
    if error:
        of(command, 2).files.error.write_text("{}")
    assert command.finished(of(command, 2)) is ended
    if ended:
        finding = found(command)
        assert finding.rank is not None and finding.rank.rank == 2
        assert finding.words.startswith(
            "it had ended with exit code 0 after step 6, while ranks 3, 4 went on"
        )


@pytest.mark.parametrize(("code", "ended"), [(0, True), (1, False)])
def test_ranks_of_a_command_that_has_ended_have_ended_as_it_says(
    command: Worker, code: int, ended: bool
) -> None:
    says(command, 2, PID=1, STATE=WorkerState.EXITING)
    command.exit = WorkerExit(rank=2, returncode=code, cause=Cause.OWN)
    assert command.finished(of(command, 2)) is ended


def test_a_stopped_rank_is_named(command: Worker, live: Live) -> None:
    """Its state is that of the process whose pid it left, not of the command."""
    for rank in (2, 3):
        live(rank)
        says(
            command, rank, STEP=6, PROCESS_GROUP_AT=1, STATE=WorkerState.NONE
        )  # has no handler for the signal
    stopped = live(4)
    says(command, 4, STEP=6, PROCESS_GROUP_AT=1, STATE=WorkerState.NONE)
    stopped.send_signal(signal.SIGSTOP)
    eventually(lambda: autopsy.state_of(stopped.pid) == "T", "the process to stop")

    async def examined() -> culprit.Finding:
        post_mortems = PostMortems(Path("/nonexistent"), say=print, in_log=False)
        examination = Examination([command], 1, node=0, post_mortems=post_mortems)
        await examination.examine(post_mortem=False)
        return culprit.find(examination.views)

    finding = asyncio.run(examined())
    assert finding.rank is not None and (finding.rank.rank, finding.words) == (
        4,
        "its process is stopped (SIGSTOP)",
    )


@pytest.mark.parametrize(("code", "step"), [(-signal.SIGABRT, 7), (-signal.SIGTERM, 6)])
def test_a_rank_that_was_aborted_after_it_was_looked_at_stands_where_it_was_aborted(
    command: Worker, code: int, step: int
) -> None:
    """What the others do after they are told to end says nothing of where they waited."""
    for rank in (2, 3, 4):
        says(command, rank, PID=1, STEP=6, PROCESS_GROUP_AT=1)

    async def examined() -> dict[int, int]:
        post_mortems = PostMortems(Path("/nonexistent"), say=print, in_log=False)
        examination = Examination([command], 1, node=0, post_mortems=post_mortems)
        await examination.examine(post_mortem=False)
        says(command, 3, STEP=7)
        command.exit = WorkerExit(rank=2, returncode=code, cause=Cause.OWN)
        return {view.rank: view.step for view in examination.glance()}

    assert asyncio.run(examined()) == {2: 6, 3: step, 4: 6}
