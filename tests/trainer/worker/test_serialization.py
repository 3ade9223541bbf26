"""`torch.save` into a file is a phase of its own, and otherwise torch's."""

import inspect
import io
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.worker.ranks import run

from ddpjob_api.page import Fact, Phase, Slot
from ddpjob_trainer.instrumentation import serialization
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker

pytestmark = pytest.mark.timeout(400)


class Patched:
    """A rank, and a torch of which only `save` is there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker = Worker(Page(folder / "page", create=True), {})
        self.page = self.worker.page
        notices = Notices(self.worker)
        guard = Guard(self.worker, notices)
        self.clock = Clock(self.worker, notices)
        self.compiling = False
        self.during: list[Phase] = []
        self.within: Callable[[], object] = lambda: None
        page, during = self.page, self.during

        def save(obj: object, f: object, pickle_protocol: int = 2) -> str:
            during.append(Phase(int(page[Slot.PHASE])))
            self.within()
            return "what torch returns"

        self.original = save
        compiler = types.SimpleNamespace(is_dynamo_compiling=lambda: self.compiling)
        torch: Any = types.ModuleType("a_torch")
        torch.compiler, torch.save = compiler, save
        monkeypatch.setitem(sys.modules, "a_torch", torch)
        module: Any = types.SimpleNamespace(save=save, torch=torch)
        serialization.patch(module, self.worker, Saving(self.worker, notices, self.clock, guard))
        assert torch.save is module.save is not save
        self.save = torch.save

    @property
    def phase(self) -> Phase:
        return Phase(int(self.page[Slot.PHASE]))


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patched:
    return Patched(tmp_path, monkeypatch)


FILES: list[tuple[str, Any, Phase]] = [
    ("a path", "/x/model.pt", Phase.CHECKPOINT),
    ("a Path", Path("/x/model.pt"), Phase.CHECKPOINT),
    ("an open file", open(os.devnull, "wb"), Phase.CHECKPOINT),  # noqa: SIM115
    ("a buffer", io.BytesIO(), Phase.BETWEEN),
]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("file", "phase"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_saving_into_a_file_is_a_phase_and_into_memory_is_none(
    rank: Patched, file: Any, phase: Phase, named: bool
) -> None:
    result = rank.save({}, f=file) if named else rank.save({}, file)
    assert result == "what torch returns"
    assert (rank.during, rank.phase) == ([phase], Phase.BETWEEN)
    saved = phase is Phase.CHECKPOINT
    for slot in (Slot.CHECKPOINT_SECONDS, Slot.CHECKPOINT_DURATION_SECONDS):
        assert (rank.page[slot] > 0) == saved


def test_the_files_of_one_checkpoint_took_as_long_as_all_of_them(
    rank: Patched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(serialization, "monotonic", lambda: now)
    for name, seconds in (("model.pt", 4.0), ("optimizer.pt", 2.0)):

        def write(seconds: float = seconds) -> None:
            nonlocal now
            now += seconds

        rank.within = write
        rank.save({}, name)
        now += 1.0
    assert rank.page[Slot.CHECKPOINT_DURATION_SECONDS] == 7.0
    rank.clock.all_steps += 1
    rank.save({}, "model.pt")
    assert rank.page[Slot.CHECKPOINT_DURATION_SECONDS] == 2.0, "the next one"


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.EVALUATION, Phase.LOADING])
def test_the_rank_goes_on_with_what_it_did_before(rank: Patched, phase: Phase) -> None:
    rank.clock.enter(phase)
    rank.save({}, "/x")
    assert (rank.during, rank.phase) == ([Phase.CHECKPOINT], phase)


def test_a_framework_that_saves_keeps_its_phase(rank: Patched) -> None:
    rank.clock.enter(Phase.CHECKPOINT)
    since = rank.page[Slot.PHASE_SINCE]
    rank.save({}, "/x")
    assert (rank.phase, rank.page[Slot.PHASE_SINCE]) == (Phase.CHECKPOINT, since)


def unseen(rank: Patched, why: str) -> None:
    """One call that is none of ours."""
    if why == "another thread":
        thread = threading.Thread(target=rank.save, args=({}, "/x"))
        thread.start()
        thread.join()
        return
    rank.worker.steps_owned = why == "a loop that owns its steps"
    rank.worker.measured = why != "a fault of ours, or a forked child"
    rank.compiling = why == "traced by dynamo"
    rank.save({}, "/x")


@pytest.mark.parametrize(
    "why",
    [
        "another thread",
        "a loop that owns its steps",
        "a fault of ours, or a forked child",
        "traced by dynamo",
    ],
)
def test_who_does_not_write_the_page_here_saves_as_without_us(rank: Patched, why: str) -> None:
    unseen(rank, why)
    assert rank.during == [Phase.BETWEEN]
    assert rank.page[Slot.PHASE_SINCE] == rank.page[Slot.CHECKPOINT_DURATION_SECONDS] == 0


def test_an_error_is_the_programs_and_ends_the_phase(rank: Patched) -> None:
    full = OSError(28, "No space left on device")

    def fail() -> None:
        raise full

    rank.within = fail
    with pytest.raises(OSError) as caught:
        rank.save({}, "/x")
    assert caught.value is full and full.__context__ is None
    assert rank.phase is Phase.BETWEEN
    assert rank.page[Slot.CHECKPOINT_DURATION_SECONDS] == 0, "nothing was written"


def test_it_looks_like_torchs_own(rank: Patched) -> None:
    assert inspect.signature(rank.save) == inspect.signature(rank.original)
    assert (rank.save.__name__, rank.save.__doc__) == (rank.original.__name__, rank.original.__doc__)


PROGRAM = """
import collections, inspect, io, json, torch
from torch import save
from ddpjob_api.page import Phase, Slot
from ddpjob_trainer import worker

running, seen = worker.current(), []


class Watching:
    def __reduce__(self):
        seen.append(Phase(int(running.page[Slot.PHASE])).name if running else None)
        return (collections.OrderedDict, ())


for file in ("a.pt", io.BytesIO()):
    save({"weights": torch.ones(3), "watching": Watching()}, file)
with open("b.pt", "wb") as file:
    torch.serialization.save(Watching(), file)
print(json.dumps({
    "during": seen,
    "same": torch.save is torch.serialization.save is save,
    "signature": str(inspect.signature(torch.save)),
    "weights": torch.load("a.pt")["weights"].tolist(),
}), flush=True)
torch.save({}, "missing/a.pt")
"""


def test_a_script_saves_what_it_would_save_without_us(tmp_path: Path) -> None:
    found = []
    for name in ("bare", "ours"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        found += run(folder, ["train.py"], world_size=1, bootstrap=name == "ours")
    bare, ours = found
    assert bare.returncode == ours.returncode == 1
    during = [rank.printed["during"] for rank in found]
    assert during == [[None] * 3, ["CHECKPOINT", "BETWEEN", "CHECKPOINT"]]
    assert ours.printed == {**bare.printed, "during": during[1]}
    assert bare.printed["same"] and bare.printed["weights"] == [1.0] * 3
    assert traceback_of(ours.stderr) == traceback_of(bare.stderr)
    assert "Parent directory missing does not exist" in ours.stderr
    assert ours[Slot.CHECKPOINT_SECONDS] > 0 < ours[Slot.CHECKPOINT_DURATION_SECONDS]
    assert ours.facts[Fact.TORCH][0].isdigit()


def traceback_of(text: str) -> list[str]:
    """Without the folder in which the program stands."""
    lines = text[text.index("Traceback") :].splitlines()
    return [line.replace("/bare/", "/").replace("/ours/", "/") for line in lines if "[ddpjob]" not in line]
