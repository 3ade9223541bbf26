"""Two launchers of index 0 at once, and workers that cannot be ended: nobody obeys the past, nobody starts beside it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launcher.coordinating import all_stopped, fail, running, sent
from tests.trainer.launcher.world import coordinator, hello
from tests.trainer.steps import position

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Finish, Pause, Prepare, Start, Stop, StopAt, Stopped, Welcome
from ddpjob_api.names import LauncherEnv
from ddpjob_api.report import Outcome, TerminationMessage
from ddpjob_trainer.checkpoint_writing import write_step
from ddpjob_trainer.checkpoints import complete_steps
from ddpjob_trainer.fence import Fence, Fenced
from ddpjob_trainer.launcher import crew
from ddpjob_trainer.launcher.actions import Refuse
from ddpjob_trainer.launcher.children import Process
from ddpjob_trainer.launcher.config import read
from ddpjob_trainer.launcher.environment import term_file
from ddpjob_trainer.launcher.node import Launcher
from ddpjob_trainer.launcher.output import Sink

NOBODY = 2**22 + 1
"""Above the highest process id of Linux."""


class NoisySink(Sink):
    """Keeps what the launcher says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class StuckLauncher(Launcher):
    """A real launcher without a connection, whose workers never end, whatever is sent to them."""

    def __init__(self, folder: Path, *, on_cluster: bool) -> None:
        self.spawned: list[Process] = []
        token = folder / "token"
        token.write_text("secret\n")
        spec = {"nodes": 2, "command": ["train"], "recovery": {"gracePeriodSeconds": 1}}
        environ = {
            LauncherEnv.SPEC.value: json.dumps(spec),
            LauncherEnv.NODE_INDEX.value: "1",
            LauncherEnv.COORDINATOR.value: "127.0.0.1:9",
            LauncherEnv.TOKEN_FILE.value: str(token),
            LauncherEnv.RUN_DIR.value: str(folder),
        }
        if on_cluster:
            environ |= {LauncherEnv.POD_UID.value: "uid", LauncherEnv.POD_NAME.value: "train-1"}
        self.noisy = NoisySink(asyncio.get_running_loop())
        super().__init__(read(environ), self.noisy)
        self.foreman.children.spawn = self.spawn  # type: ignore[method-assign]

    def spawn(self, *_: Any, **__: Any) -> Process:
        self.spawned.append(Process(NOBODY))
        return self.spawned[-1]


def start(term: int, generation: int) -> Start:
    return Start(
        term=term,
        generation=generation,
        master_address="127.0.0.1",
        master_port=29501,
        restarts=0,
        disruptions=0,
    )


OLD = [
    start(1, 2),
    Stop(term=1, generation=1, why="old"),
    Pause(term=1, generation=1),
    StopAt(term=1, generation=1, step=3),
    Prepare(term=1, attempt=1, step=3),
    Finish(term=1, outcome=Outcome.DONE, exit_code=0, restarts=0, disruptions=0),
]


async def test_a_launcher_that_has_obeyed_a_newer_term_obeys_no_older_one(tmp_path: Path) -> None:
    launcher = StuckLauncher(tmp_path, on_cluster=True)
    launcher.obey(Welcome(term=2, proof=""))
    assert term_file(tmp_path).read_text() == "2"
    for message in OLD:
        launcher.obey(message)
    assert launcher.noisy.said == [
        f"{type(message).__name__} of term 1 ignored: term 2 is obeyed" for message in OLD
    ]
    assert (launcher.foreman.crew, launcher.memory.generation, launcher.spawned) == (None, 0, [])
    launcher.obey(start(2, 1))
    assert len(launcher.spawned) == 1
    launcher.spawned[0].returncode = 0
    launcher.spawned[0].ended.set()
    await asyncio.sleep(0)


def test_a_second_index_0_starts_nothing_beside_what_the_first_one_started() -> None:
    """The old coordinator starts generation 2 while a launcher is on its way to the new one."""
    old = running(2)
    fail(old, 1, 1.0)
    all_stopped(old, 1.1)
    assert old.generation == 2
    new = coordinator(2, incarnation=1)
    new.hello(2.0, 1, hello(0, 1))
    # It obeyed the old Start first: its workers must be ended before anything begins.
    actions = new.hello(2.1, 2, hello(1, term=1, generation=2, running=True))
    assert {link: stop.generation for link, stop in sent(actions, Stop).items()} == {2: 2}
    assert not sent(actions, Start)
    assert not sent(new.tick(60.0), Start), "however long it takes"
    starts = sent(new.received(61.0, 2, Stopped(generation=2)), Start)
    assert {(each.term, each.generation) for each in starts.values()} == {(2, 3)}
    # The old one has lost it, stops what it had begun, and has nobody to begin again with.
    old.closed(2.1, 2)
    assert set(sent(old.tick(4.0), Stop)) == {1}
    old.received(5.0, 1, Stopped(generation=2))
    assert not sent(old.tick(600.0), Start)
    # And should that launcher look for it again, it is told whom to obey.
    refusals = [
        action for action in old.hello(601.0, 3, hello(1, term=2, generation=3)) if isinstance(action, Refuse)
    ]
    assert [each.message for each in refusals] == [
        "this coordinator's term 1 is over; you have obeyed term 2"
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_a_save_that_is_under_way_when_another_term_begins_is_not_kept(tmp_path: Path, shared: bool) -> None:
    mine, folder = tmp_path / "term", tmp_path / "checkpoints"
    folder.mkdir()
    beside = folder / "term" if shared else None
    files = (mine,) if beside is None else (mine, beside)

    def content(stream: Any) -> None:
        stream.write(b"half")
        if beside is not None:  # the new generation runs elsewhere, and shares nothing but the folder
            Fence(term=2, files=(tmp_path / "other", beside), raised=beside).take_over()
        else:
            mine.write_text("2")

    with pytest.raises(Fenced, match="term 2 has taken over from term 1"):
        write_step(
            folder, position(10), {"state.pt": content}, fence=Fence(term=1, files=files, raised=beside)
        )
    assert complete_steps(folder) == ()
    assert not [path for path in folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize(("on_cluster", "outcome"), [(True, Outcome.STOPPED), (False, Outcome.FAILED)])
async def test_a_worker_that_cannot_be_killed_costs_its_launcher_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cluster: bool, outcome: Outcome
) -> None:
    monkeypatch.setattr(crew, "KILL_SECONDS", 0.05)
    launcher = StuckLauncher(tmp_path, on_cluster=on_cluster)
    launcher.obey(start(1, 1))
    launcher.obey(Stop(term=1, generation=1, why="rank 0 failed"))
    message: TerminationMessage = await asyncio.wait_for(launcher.departure.over, 30)
    assert (message.outcome, message.exit_code) == (outcome, 88)
    assert "a worker is still there 0 s after SIGKILL; it waits in the kernel" in message.message
    assert message.failure is not None
    assert (message.failure.reason, message.failure.node) == (Reason.POD_LOST, 1)
    assert message.failure.message == message.message
    assert launcher.foreman.crew is not None, "so that nothing starts beside it"
    launcher.obey(start(1, 2))
    assert len(launcher.spawned) == 1
    launcher.spawned[0].returncode = -9
    launcher.spawned[0].ended.set()
    await asyncio.sleep(0)
