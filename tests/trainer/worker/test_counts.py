"""What is counted, and that it is torch's own count."""

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.worker.ranks import Rank

from ddpjob_api.page import STEP_BOUNDS, Fact, Slot, WorkerState
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker

MIB = 1024 * 1024
pytestmark = pytest.mark.timeout(400)

REBUILD = 2
"""Collectives with which torch agrees on the order of rebuilt buckets, once."""


@pytest.mark.parametrize(
    ("program", "accumulation", "synchronised", "buckets"),
    [("overridden", 4, 10, 12), ("untouched", 1, 40, 2)],
)
def test_synchronised_backward_passes_are_counted_exactly(
    program: str, accumulation: int, synchronised: int, buckets: int, request: pytest.FixtureRequest
) -> None:
    rank: Rank = request.getfixturevalue(program)[0]
    assert rank.effect.all_reduces == rank[Slot.MICRO_BATCHES_SYNCED] == synchronised
    assert rank[Slot.MICRO_BATCHES] == rank[Slot.BACKWARDS] == 40
    assert rank[Slot.OBSERVED_ACCUMULATION] == rank.effect.gradient_accumulation_steps == accumulation
    assert rank[Slot.ALL_REDUCE_BYTES] == synchronised * 12 * MIB


def test_the_process_group_counts_the_same_collectives(overridden: list[Rank]) -> None:
    # No buffers are broadcast here: one collective for the first pass (a single bucket), 12 for each after it.
    assert overridden[0].printed["collectives"] == 1 + REBUILD + 9 * 12


@pytest.fixture
def effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Effect:
    worker = Worker(Page(tmp_path / "page", create=True), {})
    notices = Notices(worker)
    made = Effect(worker, notices, Clock(worker, notices), Guard(worker, notices))
    monkeypatch.setattr(made, "publish", lambda: None)
    return made


class Group:
    """A process group with a count; None: its backend has none."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def _get_sequence_number_for_group(self) -> int:
        if self.count is None:
            raise RuntimeError("not implemented")
        return self.count


def test_a_group_that_is_destroyed_counts_no_more_and_is_not_kept_alive(effect: Effect) -> None:
    member = SimpleNamespace(WORLD=Group(7))
    c10d: Any = SimpleNamespace(GroupMember=member, get_world_size=lambda: 2)
    assert effect.collective_sequence() == 0
    effect.group_made(c10d)
    assert [effect.collective_sequence() for _ in range(2)] == [7, 7]
    gone, member.WORLD = weakref.ref(member.WORLD), None
    gc.collect()
    assert gone() is None
    assert effect.collective_sequence() == 0
    kept = []
    for count, told in ((None, 0), (3, 3), (1, 1)):
        kept.append(Group(count))
        member.WORLD = kept[-1]
        effect.group_made(c10d)
        assert effect.collective_sequence() == told, "each group is asked anew"
    member.WORLD = None
    assert effect.collective_sequence() == 0, "a model of the destroyed group keeps it alive"


def test_a_group_that_does_not_count_leaves_the_others_their_counts(effect: Effect) -> None:
    default, other = Group(7), Group(5)
    groups = {default: "gloo", other: "gloo"}
    c10d: Any = SimpleNamespace(
        GroupMember=SimpleNamespace(WORLD=default),
        get_world_size=lambda: 2,
        _world=SimpleNamespace(pg_map=groups),
    )
    effect.group_made(c10d)
    assert effect.collectives() == 0, "without a DDP model all steps count"
    effect.model_made(Model())
    assert effect.collectives() == 12
    groups[Group(None)] = "fake"
    assert (effect.collectives(), effect.collective_sequence()) == (0, 7)


class Model:
    """A DDP object without a reducer."""

    def __init__(self) -> None:
        self.held = [SimpleNamespace(requires_grad=True) for _ in range(3)]
        self.walked = 0

    @property
    def module(self) -> "Model":
        return self

    def parameters(self) -> list[SimpleNamespace]:
        self.walked += 1
        return self.held


def test_whose_parameters_an_optimizer_has_is_known_without_a_walk_through_the_models(effect: Effect) -> None:
    model, probe = Model(), Model()
    optimizers = [SimpleNamespace(param_groups=[{"params": each.held}]) for each in (model, probe)]
    effect.model_made(model)
    for _ in range(3):
        assert [effect.trains_a_model(each) for each in optimizers] == [True, False]
    assert model.walked == 1
    del model
    assert not effect.trains_a_model(optimizers[0]), "the model is gone"


def test_steps_samples_and_loss_are_on_the_page(untouched: list[Rank]) -> None:
    for rank in untouched:
        assert rank[Slot.STEP] == rank[Slot.GENERATION_STEPS] == rank[Slot.BOUNDARY] == 40
        assert rank[Slot.SAMPLES] == 40 * 4
        assert rank[Slot.TOKENS] == 0
        assert rank[Slot.LEARNING_RATE] == 1e-3
        assert rank[Slot.WORLD_SIZE] == 2
        assert float.fromhex(rank.printed["losses"][-1]) > 0


def test_phases_add_up_to_the_time_between_steps(untouched: list[Rank]) -> None:
    rank = untouched[0]
    phases = (
        Slot.DATA_SECONDS,
        Slot.FORWARD_SECONDS,
        Slot.BACKWARD_SECONDS,
        Slot.COMM_EXPOSED_SECONDS,
        Slot.OPTIMIZER_SECONDS,
    )
    assert all(rank[phase] > 0 for phase in phases)
    whole = sum(rank[phase] for phase in (*phases, Slot.OTHER_SECONDS))
    assert whole >= rank[Slot.STEP_SECONDS] > 0


def test_every_step_is_in_the_histogram(untouched: list[Rank]) -> None:
    for rank in untouched:
        first = Slot.STEP_DURATIONS
        counts = list(rank.page.slots[first : first + len(STEP_BOUNDS) + 1])
        assert sum(counts) == rank[Slot.STEP] - 1, "the first step has no beginning"
        shortest = sum(bound * count for bound, count in zip((0.0, *STEP_BOUNDS), counts, strict=True))
        assert shortest <= rank[Slot.STEP_SECONDS]


def test_the_reducers_clock_stands_for_every_iteration(untouched: list[Rank]) -> None:
    rank = untouched[0]
    assert rank[Slot.REDUCER_ITERATIONS] == 40
    assert rank[Slot.REDUCER_COMM_NS] >= rank[Slot.REDUCER_OVERLAP_NS] > 0
    assert rank[Slot.REDUCER_BACKWARD_NS] > 0 and rank[Slot.REDUCER_FORWARD_NS] > 0


def test_the_life_of_a_worker_is_on_its_page(untouched: list[Rank]) -> None:
    rank = untouched[1]
    times = [
        rank[slot]
        for slot in (
            Slot.STARTED_AT, Slot.TORCH_IMPORT_AT, Slot.TORCH_IMPORTED_AT, Slot.PROCESS_GROUP_AT, Slot.DDP_AT, Slot.FIRST_STEP_AT,
            Slot.LAST_STEP_AT,
        )
    ]  # fmt: skip
    assert times == sorted(times)
    assert (rank[Slot.RANK], rank[Slot.GENERATION], rank[Slot.EXIT_CODE]) == (1, 1, 0)
    assert rank[Slot.STATE] == WorkerState.FINISHED


def test_accumulation_other_than_asked_is_a_warning_with_advice(failed: list[Rank]) -> None:
    warnings = failed[0].effect.warnings
    assert any(
        "resource says 4 and the program makes 2 backward passes" in text
        and "DDPJOB_GRADIENT_ACCUMULATION_STEPS" in text
        for text in warnings
    )
    assert any("accumulation without no_sync: 2 all-reduces per optimizer step" in text for text in warnings)
    assert all(failed[0].stderr.count(f"warning: {text}") == 1 for text in warnings)


def test_a_static_graph_under_no_sync_synchronises_its_first_window(stopped: list[Rank]) -> None:
    rank = stopped[0]
    assert rank.effect.static_graph is True
    assert rank.effect.all_reduces == 4 + (rank[Slot.STEP] - 1), "4 in the first window, then one per step"
    assert sum("first window is synchronised" in text for text in rank.effect.warnings) == 1


def test_all_ranks_stop_after_the_same_step_and_save(stopped: list[Rank]) -> None:
    assert [rank.returncode for rank in stopped] == [85, 85]
    assert stopped[0][Slot.STEP] == stopped[1][Slot.STEP] == stopped[0][Slot.STOP_AT]
    for rank in stopped:
        assert rank.printed["saved"] and rank.printed["replicas_equal"]


def test_what_the_program_reports_is_its_result(stopped: list[Rank]) -> None:
    assert stopped[0].facts[Fact.RESULT] == {"kind": "stopped", "share": 0.5}
    json.dumps(stopped[0].facts, allow_nan=False)


def test_a_failure_names_its_line_and_its_victim_is_known(failed: list[Rank]) -> None:
    victim, culprit = failed
    assert (victim.returncode, culprit.returncode) == (1, 1)
    words = culprit.error["ddpjob"]
    assert (words["type"], words["message"], words["peerLost"]) == ("ValueError", "bad sample 17", False)
    assert words["location"].partition(":")[0].endswith("program.py")
    assert words["step"] == 4
    assert culprit.error["message"]["message"] == "ValueError: bad sample 17"
    assert "bad sample 17" in culprit.error["message"]["extraInfo"]["py_callstack"]
    assert victim.error["ddpjob"]["peerLost"] is True
