"""`everySeconds` for scripts: saves in time, on all ranks after the same step, with few meetings."""

import sys
import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.framework_doubles import shared

from ddpjob_trainer.instrumentation.frameworks import huggingface_trainer, lightning_fit
from ddpjob_trainer.instrumentation.frameworks.interval import Interval
from ddpjob_trainer.script_checkpoints import find

EVERY = 600.0


class Ranks:
    """Three ranks whose clocks go wrong, and what rank 0 has told them."""

    def __init__(self, every: float = EVERY) -> None:
        self.now = 0.0
        rates = (1.0, 1.3, 0.6)
        self.each = [
            Interval(timedelta(seconds=every), clock=lambda rate=rate: 1000 * rate + self.now * rate)
            for rate in rates
        ]
        self.meetings = 0
        self._told = 0

    def step(self, step: int) -> bool:
        """Whether they save after it."""
        before = self.meetings
        met: list[int] = []

        def from_first(number: int) -> int:
            if not met:
                self.meetings += 1
                self._told = number
            met.append(number)
            return self._told

        answers = [rank.due(step, from_first) for rank in self.each]
        assert len(set(answers)) == 1, "they save after the same step"
        assert len(met) == len(self.each) * (self.meetings - before), "all meet, or none"
        return answers[0]

    def saved(self) -> None:
        for rank in self.each:
            rank.saved()


def run(ranks: Ranks, pace: Callable[[int], float], steps: int, saving: float = 0.0) -> list[float]:
    """Seconds from one save to the next."""
    last, gaps = 0.0, []
    for step in range(1, steps + 1):
        ranks.now += pace(step)
        if ranks.step(step):
            gaps.append(ranks.now - last)
            ranks.now += saving
            ranks.saved()
            last = ranks.now
    return gaps


@pytest.mark.parametrize(
    ("pace", "steps", "slowest"),
    [
        pytest.param(lambda step: 1.0, 10_000, 1.0, id="even"),
        pytest.param(lambda step: 0.05, 120_000, 0.05, id="fast"),
        pytest.param(lambda step: 45.0, 300, 45.0, id="slow"),
        pytest.param(lambda step: 700.0, 20, 700.0, id="longer than the interval"),
        pytest.param(
            lambda step: 0.001 if step < 10 else 0.5, 20_000, 0.5, id="the device is behind at first"
        ),
        pytest.param(lambda step: 60.0 if step < 3 else 0.5, 20_000, 60.0, id="compiles at first"),
        pytest.param(lambda step: 0.5 + 0.5 * (step // 2000 % 2), 20_000, 1.0, id="twice as slow and back"),
        pytest.param(lambda step: 30.0 if step % 500 == 0 else 0.5, 20_000, 30.0, id="evaluates"),
    ],
)
def test_a_save_comes_within_a_tenth_and_a_step_of_the_interval(
    pace: Callable[[int], float], steps: int, slowest: float
) -> None:
    ranks = Ranks()
    gaps = run(ranks, pace, steps, saving=20.0)
    assert len(gaps) >= 9
    assert EVERY * 0.9 - slowest <= min(gaps) and max(gaps) <= EVERY * 1.1 + slowest, (min(gaps), max(gaps))


def test_the_ranks_meet_seldom() -> None:
    ranks = Ranks()
    gaps = run(ranks, lambda step: 0.1, 100_000)
    assert ranks.meetings <= 7 * len(gaps) + 20
    assert ranks.meetings < 100_000 / 500


def test_a_save_for_another_reason_begins_the_interval_again_also_where_a_step_was_named() -> None:
    ranks = Ranks()
    for step in range(1, 596):
        ranks.now += 1
        assert not ranks.step(step)
    ranks.saved()
    last = ranks.now
    for step in range(596, 1300):
        ranks.now += 1
        if ranks.step(step):
            break
    assert EVERY * 0.9 <= ranks.now - last <= EVERY * 1.1


def test_a_training_whose_steps_begin_again_and_batches_without_a_step() -> None:
    ranks = Ranks(10.0)
    saves = []
    for step in (*range(1, 400), *range(1, 200)):
        for _batch in range(3):
            ranks.now += 0.1
            if ranks.step(step):
                saves.append(step)
                ranks.saved()
    assert len(saves) == pytest.approx(598 * 0.3 / 10, abs=2)
    assert max(saves) > 360 and saves[-1] < 200


class Meetings:
    """`torch.distributed` of one rank, which counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "broadcast", self.broadcast)

    def broadcast(self, tensor: Any, src: int) -> None:
        assert src == 0
        self.count += 1


class Time:
    """A tenth of a second for each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        real = Interval.__init__
        monkeypatch.setattr(
            Interval, "__init__", lambda made, every: real(made, every, clock=lambda: self.now)
        )


def test_hugging_faces_trainer_meets_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = types.SimpleNamespace(TrainerCallback=object)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", there)
    meetings, time = Meetings(monkeypatch), Time(monkeypatch)
    found = shared(tmp_path, directory=tmp_path / "checkpoints", checkpoint={"everySeconds": 60})
    made = huggingface_trainer.callback(found)
    args = types.SimpleNamespace(device="cpu")
    saves = []
    for step in range(1, 3001):
        time.now += 0.1
        control = types.SimpleNamespace(should_save=False)
        state = types.SimpleNamespace(global_step=step, epoch=None)
        if made.on_step_end(args, state, control).should_save:
            saves.append(step)
            made.on_save(args, state, control)
    assert [round(step / 600) for step in saves] == [1, 2, 3, 4, 5][: len(saves)] and len(saves) >= 4
    assert meetings.count < 60


@pytest.mark.filterwarnings("ignore")
def test_lightning_meets_seldom_and_leaves_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")
    found = shared(tmp_path, directory=tmp_path / "checkpoints", checkpoint={"everySeconds": 60, "keep": 2})

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            time.now += 5.0
            return self.net(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    meetings: list[int] = []

    def say(number: int) -> int:
        meetings.append(number)
        return number

    time = Time(monkeypatch)
    monkeypatch.setattr(lightning_fit, "from_rank_0", lambda device: say)
    lightning_fit.put_callbacks(trainer, "lightning.pytorch", found)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(60, 2), batch_size=1))
    saved = [each.step for each in find(tmp_path / "checkpoints") if each.problem is None]
    assert len(saved) == 2, "as many as checkpoint.keep says"
    assert 5 <= saved[1] - saved[0] <= 7
    assert 0 < len(meetings) < 30
