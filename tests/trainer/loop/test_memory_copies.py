"""Copies in memory between two checkpoints: two of them, where there is room, and resumed from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.loop.jobs import equal, same_losses, training
from tests.trainer.steps import position

from ddpjob_api.spec import Checkpoint, Task
from ddpjob_trainer.checkpoints import complete_steps
from ddpjob_trainer.loop import memory
from ddpjob_trainer.loop.memory import MemoryCopies, free_memory
from ddpjob_trainer.loop.told import Told

SIZE = 1000


def copies(folder: Path) -> MemoryCopies:
    task = Task(entrypoint="x:y", max_steps=1, global_batch_size=1)
    return MemoryCopies(Told(task=task, checkpoint=Checkpoint(in_memory_every_steps=1), memory_dir=folder))


def write(copy: MemoryCopies, step: int) -> None:
    copy.write(position(step), {"state.pt": lambda stream: stream.write(b"x" * SIZE)}, SIZE)


def test_two_copies_are_kept(tmp_path: Path) -> None:
    copy = copies(tmp_path / "memory")
    for step in (1, 2, 3):
        write(copy, step)
    assert complete_steps(tmp_path / "memory") == (2, 3)


def test_no_copy_is_written_that_would_not_leave_room_for_another_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copies(tmp_path)
    write(copy, 1)
    monkeypatch.setattr(memory, "free_memory", lambda folder: 2 * SIZE - 1)
    write(copy, 2)
    write(copy, 3)
    assert complete_steps(tmp_path) == (1,)
    said = capsys.readouterr()
    assert (said.out + said.err).count("WARNING no copy of the state in memory") == 1


@pytest.fixture
def run(crew: Any, tmp_path: Path) -> Callable[..., Any]:
    """Train `noisy` for 10 steps on two ranks of one node."""

    def run(**options: Any) -> Any:
        options = {"entrypoint": "noisy", "task": {"maxSteps": 10}, **options}
        return crew.run(2, training, page=tmp_path / f"page-{crew.jobs}", **options)

    return run


@pytest.mark.timeout(180)
def test_where_no_checkpoint_is_due_the_state_is_copied_and_a_training_that_goes_on_from_it_is_the_same(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    folders = {"directory": tmp_path / "checkpoints", "memory": tmp_path / "memory"}
    checkpoint = {"everySteps": 6, "inMemoryEverySteps": 3}
    straight = run(checkpoint=checkpoint, **folders)
    assert complete_steps(folders["directory"]) == (6, 10)
    assert complete_steps(folders["memory"]) == (3, 9)
    resumed = run(checkpoint=checkpoint, **folders, resume=9, resume_dir=folders["memory"])
    assert resumed[0].slots["RESUMED_STEP"] == 9
    assert same_losses(straight[0].losses[9:], resumed[0].losses)
    assert equal(straight[0], resumed[0])
    assert equal(*resumed)


@pytest.mark.timeout(180)
def test_what_was_gone_on_from_in_memory_only_is_saved_where_it_ends(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    checkpoint, memory = {"inMemoryEverySteps": 5}, tmp_path / "memory"
    run(checkpoint=checkpoint, directory=tmp_path / "checkpoints", memory=memory)
    assert complete_steps(memory) == (5, 10)
    # The ranks ended between the copy and the checkpoint of the last step.
    lost = tmp_path / "without-the-last"
    (ended, _) = run(checkpoint=checkpoint, directory=lost, memory=memory, resume=10, resume_dir=memory)
    assert (ended.done, ended.losses) == (True, [])
    assert complete_steps(lost) == (10,)
    assert ended.slots["CHECKPOINTS"] == 1


@pytest.mark.parametrize(
    ("listing", "group", "limit", "use", "cache", "unlimited"),
    [
        ("0::/\n", ".", "memory.max", "memory.current", "", "max"),
        ("0::/pod/trainer\n", "pod/trainer", "memory.max", "memory.current", "", "max"),
        (
            "4:memory:/pod/trainer\n0::/\n",
            "memory/pod/trainer",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_",
            "9223372036854771712",
        ),
        (
            "4:memory:/not/seen/from/within\n0::/\n",
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_",
            "9223372036854771712",
        ),
    ],
    ids=["version 2, its own namespace", "version 2", "version 1", "version 1, its own namespace"],
)
def test_what_is_free_is_the_least_of_volume_machine_and_limit(
    tmp_path: Path, listing: str, group: str, limit: str, use: str, cache: str, unlimited: str
) -> None:
    meminfo, cgroup, mount = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "mount"

    def free() -> int:
        return free_memory(tmp_path, meminfo=meminfo, cgroup=cgroup, mount=mount)

    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable:    4 kB\n")
    assert free() == 4096
    folder = mount / group
    folder.mkdir(parents=True)
    cgroup.write_text(listing)
    (folder / limit).write_text("5000\n")
    (folder / use).write_text("3000\n")
    assert free() == 2000
    (folder / "memory.stat").write_text(f"anon 2000\n{cache}inactive_file 500\n{cache}active_file 400\n")
    assert free() == 2900
    (folder / limit).write_text(f"{unlimited}\n")
    assert free() == 4096
