"""What a launcher answers to the order to have a step, where another order comes meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.steps import save

from ddpjob_api.messages import Message, Prepare, Prepared, Source, Start
from ddpjob_trainer import checkpoints
from ddpjob_trainer.checkpoints import MANIFEST, OtherFormat, step_path
from ddpjob_trainer.launcher.memory import Memory
from ddpjob_trainer.launcher.peers import shelf
from ddpjob_trainer.launcher.peers.preparation import Preparation
from ddpjob_trainer.launcher.peers.shelf import Cancelled, Shelf, ignore


@dataclass(frozen=True, kw_only=True)
class Slow(Shelf):
    """Its first comparison takes until it is cancelled."""

    begun: threading.Event = field(default_factory=threading.Event)

    def verify(
        self,
        step: int,
        on_bytes: Callable[[int], None] = ignore,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        first = not self.begun.is_set()
        self.begun.set()
        while first:
            if cancelled():
                raise Cancelled
            time.sleep(0.01)
        return Shelf.verify(self, step, on_bytes, cancelled)


def start_at(step: int | None) -> Start:
    """The first generation, from a step or anew."""
    return Start(
        term=1,
        generation=1,
        master_address="here",
        master_port=1,
        restarts=0,
        disruptions=0,
        resume_step=step,
    )


async def answers(shelf: Slow, orders: list[Prepare]) -> list[Prepared]:
    """To orders that follow on each other, the second as soon as the first is under way."""
    sent: list[Message] = []
    tasks: set[asyncio.Task[None]] = set()

    def keep(work: Coroutine[None, None, None]) -> None:
        tasks.add(asyncio.ensure_future(work))

    config: Any = SimpleNamespace(shelf=shelf, token=b"token", node=0, run_dir=shelf.folder)
    memory: Any = SimpleNamespace(stock=lambda: (shelf.steps(), ""), fetched_bytes=0, fetch_seconds=0.0)
    preparation = Preparation(config, memory, say=lambda _text: None, send=sent.append, keep=keep)
    for order in orders:
        preparation.obey(order)
        await asyncio.to_thread(shelf.begun.wait, 30)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    return [message for message in sent if isinstance(message, Prepared)]


def test_an_order_that_is_cancelled_does_not_take_what_it_found_with_it(tmp_path: Path) -> None:
    save(tmp_path, 2)
    (save(tmp_path, 3) / MANIFEST).unlink()
    orders = [Prepare(term=1, attempt=attempt, step=2) for attempt in (1, 2)]
    (told,) = asyncio.run(answers(Slow(folder=tmp_path), orders))
    assert told.attempt == 2
    assert f"checkpoint {step_path(tmp_path, 3)} is damaged (manifest.json is missing)" in told.passed_over


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OtherFormat("not a manifest of format 1")]
)
def test_what_was_found_is_told_also_where_the_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (save(tmp_path, 3) / MANIFEST).unlink()

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(Shelf, "verify", full)
    shelf = Slow(folder=tmp_path)
    shelf.begun.set()
    (told,) = asyncio.run(answers(shelf, [Prepare(term=1, attempt=1, step=2)]))
    assert str(error.args[-1]) in told.refused
    assert "is damaged (manifest.json is missing)" in told.passed_over


def test_a_step_of_another_version_is_refused_in_words_as_long_as_it_is_there(tmp_path: Path) -> None:
    """So the training does not start anew beside it: it goes on from an older one and says so, or waits."""
    other = save(tmp_path, 3) / MANIFEST
    other.write_text(other.read_text().replace('"format": 1', '"format": 2'))
    shelf = Slow(folder=tmp_path)
    shelf.begun.set()
    (told,) = asyncio.run(answers(shelf, [Prepare(term=1, attempt=1, step=3)]))
    assert told.refused == (
        f"{other}: not a manifest of format 1: another version of DDPJob wrote it; go on with that version, or move "
        "step-00000003 away to go on without it"
    )
    assert told.checkpoints == (3,)


def test_where_all_steps_are_torn_and_the_training_starts_anew_it_is_said_what_they_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (save(tmp_path, 3) / MANIFEST).unlink()
    said, sent = list[str](), list[Message]()
    config: Any = SimpleNamespace(shelf=Shelf(folder=tmp_path), token=b"token")
    start = start_at(None)
    torn, slow = Shelf.torn, threading.Event()

    def waits(shelf: Shelf, above: int) -> list[str]:
        assert slow.wait(30)
        return torn(shelf, above)

    monkeypatch.setattr(Shelf, "torn", waits)

    async def begun() -> None:
        tasks: list[asyncio.Future[None]] = []

        def keep(work: Coroutine[None, None, None]) -> None:
            tasks.append(asyncio.ensure_future(work))

        memory: Any = SimpleNamespace(unread=set(), stock=lambda: ((), ""))
        preparation = Preparation(config, memory, say=said.append, send=sent.append, keep=keep)
        assert preparation.begin(start) is None
        await asyncio.sleep(0)
        assert said == [], "a slow volume does not keep the launcher from its beats"
        slow.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 30)

    asyncio.run(begun())
    (sentence,) = said
    assert "is damaged (manifest.json is missing)" in sentence
    assert sent == [Prepared(attempt=0, passed_over=sentence, checkpoints=(), tree="")]


def test_a_newer_step_that_could_not_be_read_when_it_was_told_what_is_here_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 3, 4):
        save(tmp_path, step)
    shelf = Shelf(folder=tmp_path)
    config: Any = SimpleNamespace(
        shelf=shelf, token=b"token", checkpoint_dir=tmp_path, restarts=0, disruptions=0
    )
    memory, said = Memory(config), list[str]()
    preparation = Preparation(
        config, memory, say=said.append, send=lambda _message: None, keep=lambda _work: None
    )
    read = checkpoints.read_manifest

    def stale(path: Path) -> checkpoints.Manifest:
        if path == step_path(tmp_path, 3):
            raise OSError(116, "Stale file handle")
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "read_manifest", stale)
        assert memory.stock()[0] == (2, 4)
    assert memory.stock()[0] == (2, 3, 4), "the decision may have been made by then"
    start = start_at(2)
    assert preparation.begin(start) == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003.unused"]
    kept, deleted = said
    assert deleted == "checkpoints of steps 4 are deleted: the training goes on from step 2"
    assert "steps 3 could not be read when it was decided that the training goes on from step 2" in kept
    assert f"step-….unused in {tmp_path}" in kept
    save(tmp_path, 3)
    assert memory.stock()[0] == (2, 3)
    preparation.begin(start)
    assert shelf.steps() == (2,), "it was known this time"


@pytest.mark.parametrize("resume_step", [None, 2])
def test_a_rename_that_fails_hides_no_other_and_a_training_that_starts_anew_leaves_no_unread_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume_step: int | None
) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    config: Any = SimpleNamespace(
        shelf=Shelf(folder=tmp_path), token=b"token", checkpoint_dir=tmp_path, restarts=0, disruptions=0
    )
    memory, said = Memory(config), list[str]()
    memory.unread = {1, 3, 4}
    rename = shelf.set_aside

    def stale(path: Path, *more: str) -> Path:
        if path == step_path(tmp_path, 3):
            raise OSError(116, "Stale file handle")
        return rename(path, *more)

    monkeypatch.setattr(shelf, "set_aside", stale)
    start = start_at(resume_step)
    Preparation(
        config, memory, say=said.append, send=lambda _message: None, keep=lambda work: work.close()
    ).begin(start)
    names = {1: "step-00000001", 2: "step-00000002", 3: "step-00000003"}
    if resume_step is None:
        expected = {"step-00000001.unused", names[2], names[3], "step-00000004.unused", "step-00000005"}
        assert "steps 1, 4 could not be read when it was decided that the training starts anew" in said[0]
    else:
        expected = {*names.values(), "step-00000004.unused"}
        assert "steps 4 could not be read" in said[0]
        assert "steps 5 are deleted" in said[1]
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert memory.unread == set()


@pytest.mark.parametrize("resume_step", [None, 2])
def test_a_newer_step_that_cannot_be_taken_away_is_named_and_is_not_here_until_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume_step: int | None
) -> None:
    """Else a later generation would go on from it on this node, and on the others from the one that they wrote since."""
    for step in (2, 3):
        save(tmp_path, step)
    config: Any = SimpleNamespace(
        shelf=Shelf(folder=tmp_path), token=b"token", checkpoint_dir=tmp_path, restarts=0, disruptions=0
    )
    memory, said, sent = Memory(config), list[str](), list[Message]()
    memory.unread = {3} if resume_step is None else set()
    preparation = Preparation(
        config, memory, say=said.append, send=sent.append, keep=lambda work: work.close()
    )

    def denied(_path: Path, *_why: str) -> Path:
        raise PermissionError(13, "Permission denied")

    start = start_at(resume_step)
    with monkeypatch.context() as patched:
        patched.setattr(shelf, "set_aside", denied)
        preparation.begin(start)
    (sentence,) = said
    assert sentence == (
        f"checkpoint {step_path(tmp_path, 3)} is not what the training goes on from and cannot be taken away (Permission "
        "denied): it is not used, and none of that step can take its place; delete it before the job is started again"
    )
    assert sent == [Prepared(attempt=0, passed_over=sentence, checkpoints=(2,))]
    assert memory.stock()[0] == (2,)
    assert config.shelf.holder(3) is None
    assert memory.unread == set(), "it is known what it is"
    save(tmp_path, 3)
    assert memory.stock()[0] == (2, 3)


def test_a_folder_in_which_nothing_can_be_looked_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_shelf: Shelf, _above: int) -> list[str]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Shelf, "torn", stale)
    said, sent = list[str](), list[Message]()
    config: Any = SimpleNamespace(shelf=Shelf(folder=tmp_path), token=b"token")
    memory: Any = SimpleNamespace(unread=set())
    start = start_at(None)

    async def begun() -> None:
        tasks: list[asyncio.Future[None]] = []

        def keep(work: Coroutine[None, None, None]) -> None:
            tasks.append(asyncio.ensure_future(work))

        Preparation(config, memory, say=said.append, send=sent.append, keep=keep).begin(start)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)

    asyncio.run(begun())
    assert said == [f"{tmp_path}: what is torn cannot be looked for: Stale file handle"]
    assert sent == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_in_memory_is_offered_taken_by_another_node_and_gone_on_from(
    tmp_path: Path, shared: bool
) -> None:
    def launcher(node: int) -> Any:
        run_dir = tmp_path / f"run-{node}"
        folder = tmp_path / ("shared" if shared else f"disk-{node}")
        folder.mkdir(exist_ok=True)
        return SimpleNamespace(
            shelf=Shelf(folder=folder, memory=run_dir / "memory", shared=shared),
            token=b"token",
            node=node,
            run_dir=run_dir,
            checkpoint_dir=folder,
            bind_host="127.0.0.1",
            plan=SimpleNamespace(nodes=2),
            restarts=0,
            disruptions=0,
        )

    def preparation(config: Any) -> Preparation:
        return Preparation(
            config, memories[config.node], say=lambda _text: None, send=sent.append, keep=tasks.append
        )

    async def taken() -> Prepared:
        here, there = preparation(ours), preparation(theirs)
        there.start()
        try:
            source = Source(node=1, host="127.0.0.1", port=memories[1].giver_port)
            here.obey(Prepare(term=1, attempt=1, step=43, sources=(source,)))
            await asyncio.wait_for(asyncio.gather(*tasks), 30)
        finally:
            there.close()
        start = start_at(43)
        assert here.begin(start) == (ours.run_dir / "memory" if shared else ours.checkpoint_dir)
        assert there.begin(start) == theirs.run_dir / "memory"
        (answer,) = [message for message in sent if isinstance(message, Prepared)]
        return answer

    sent, tasks = list[Message](), list[Coroutine[None, None, None]]()
    ours, theirs = launcher(0), launcher(1)
    memories = {config.node: Memory(config) for config in (ours, theirs)}
    save(ours.checkpoint_dir, 40)
    save(theirs.run_dir / "memory", 43)
    assert [memories[node].stock()[0][-1] for node in (0, 1)] == [40, 43]
    answer = asyncio.run(taken())
    assert (answer.unable, answer.refused, answer.damaged) == ((), "", "")
    assert answer.checkpoints == (40, 43)
