"""What a scrape says of a page."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob_api import __version__, metrics
from ddpjob_api.page import Fact, Phase, Slot, WorkerState
from ddpjob_cli.ranks import Place, Scrape, parse, ranks
from ddpjob_trainer.launcher.exposition import Job, Totals
from ddpjob_trainer.page import Page

JOB = Job(
    restarts=0,
    disruptions=0,
    generation=1,
    fetched_bytes=0,
    fetch_seconds=0.0,
    backend="gloo",
    world_size=2,
    report=None,
)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path / "page", create=True) as made:
        made[Slot.STATE] = WorkerState.RUNNING
        yield made


def scrape(page: Page, totals: Totals | None = None) -> Scrape:
    return parse((totals or Totals()).render({3: page}, JOB, {}), time.monotonic())


GAUGES = [
    (metrics.RESUMED_FROM_STEP, Slot.RESUMED_STEP),
    (metrics.CHECKPOINT_DURATION, Slot.CHECKPOINT_DURATION_SECONDS),
    (metrics.DEVICE_PEAK_BYTES, Slot.DEVICE_PEAK_BYTES),
]


@pytest.mark.parametrize(("metric", "slot"), GAUGES, ids=[metric.name for metric, _ in GAUGES])
def test_what_is_not_known_is_not_said(page: Page, metric: metrics.Metric, slot: Slot) -> None:
    assert scrape(page).of(metric, rank="3") is None
    page[slot] = 7.5
    assert scrape(page).of(metric, rank="3") == 7.5


COUNTERS = [
    (metrics.REPLICA_MISMATCHES, Slot.REPLICA_MISMATCHES),
    (metrics.CUDA_ALLOC_RETRIES, Slot.DEVICE_ALLOC_RETRIES),
    (metrics.CUDA_OOMS, Slot.DEVICE_OOMS),
]


@pytest.mark.parametrize(("metric", "slot"), COUNTERS, ids=[metric.name for metric, _ in COUNTERS])
def test_what_ends_a_generation_is_still_counted_in_the_next(
    page: Page, metric: metrics.Metric, slot: Slot
) -> None:
    totals = Totals()
    assert scrape(page, totals).of(metric, rank="3") == 0
    page[slot] = 1
    totals.add(3, page)
    page[slot] = 2
    assert scrape(page, totals).of(metric, rank="3") == 3


@pytest.mark.parametrize(
    ("facts", "torch", "accumulation"),
    [
        ({}, "", ""),
        ({Fact.TORCH: "2.15.0+cu132", Fact.DDP: {"backend": "gloo"}}, "2.15.0+cu132", ""),
        ({Fact.TORCH: "2.4.1", Fact.DDP: {"gradientAccumulationSteps": 4}}, "2.4.1", "4"),
    ],
)
def test_info_says_which_torch_and_which_accumulation(
    page: Page, facts: dict[str, Any], torch: str, accumulation: str
) -> None:
    page.put_facts(facts)
    labels = {"rank": "3", "version": __version__, "backend": "gloo", "world_size": "2"}
    assert scrape(page).of(metrics.INFO, **labels, torch=torch, accumulation=accumulation) == 1.0


STATES: list[tuple[str, dict[Slot, float], str]] = [
    ("its process begins", {Slot.STATE: WorkerState.NONE}, "starting"),
    ("it imports", {Slot.STATE: WorkerState.STARTED}, "starting"),
    ("it is in init_process_group", {}, "starting"),
    ("it builds its model", {Slot.PROCESS_GROUP_AT: 9.0}, "starting"),
    ("it loads a checkpoint", {Slot.PHASE: Phase.LOADING}, "loading"),
    ("its first forward pass", {Slot.MICRO_BATCHES: 1, Slot.PHASE: Phase.FORWARD}, "forward"),
    ("after a forward pass", {Slot.MICRO_BATCHES: 1}, "between"),
    ("after a step of a model without DDP", {Slot.GENERATION_STEPS: 1}, "between"),
    ("it ends", {Slot.STATE: WorkerState.EXITING}, "ended"),
    ("it has ended", {Slot.STATE: WorkerState.FINISHED, Slot.GENERATION_STEPS: 1}, "ended"),
]


@pytest.mark.parametrize(("says", "state"), [case[1:] for case in STATES], ids=[case[0] for case in STATES])
def test_a_rank_starts_until_its_first_forward_pass_or_step(
    page: Page, says: dict[Slot, float], state: str
) -> None:
    for slot, value in says.items():
        page[slot] = value
    found = scrape(page)
    series = found.by_label(metrics.STATE, "state", 3)
    assert set(series) == {metrics.STARTING, *(phase.name.lower() for phase in Phase)}
    assert sum(series.values()) == (state != "ended")
    (rank,) = ranks([Place(node=0, pod="test-0", scrapes=(found,))])
    assert rank.phase == state, "`top` shows the same"
