"""Lists that other programs read: page slots, metric names, exit codes, reasons."""

import operator
import re
import sysconfig
from pathlib import Path

from ddpjob_api.exits import Exit, exit_code
from ddpjob_api.metrics import METRICS, PREFIX, MetricKind
from ddpjob_api.page import FACTS_BASE, PAGE_BYTES, SLOT_BASE, SLOT_COUNT, Slot


def test_slots_are_distinct_aligned_and_before_the_facts() -> None:
    assert len({slot.value for slot in Slot}) == len(Slot)
    assert SLOT_BASE % 8 == 0
    assert max(Slot) < SLOT_COUNT
    assert SLOT_BASE + 8 * SLOT_COUNT <= FACTS_BASE < PAGE_BYTES


def test_metrics_follow_prometheus_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(PREFIX + r"[a-z][a-z0-9_]*", metric.name), metric.name
        assert not metric.name.endswith("_total"), f"{metric.name}: the exposition adds _total to counters"
        assert not re.search(r"_(ms|milliseconds|minutes|mb|kb|percent)(_|$)", metric.name), metric.name
        assert metric.help.endswith("."), metric.name
        assert metric.kind in MetricKind


def test_exit_codes_are_those_of_the_docs() -> None:
    assert {code.name: code.value for code in Exit} == {
        "DONE": 0,
        "STOPPED": 85,
        "REFUSED": 86,
        "HUNG": 87,
        "PEER_LOST": 88,
    }


def test_a_signal_is_128_and_its_number() -> None:
    assert (exit_code(3), exit_code(-9), exit_code(0)) == (3, 137, 0)


def test_the_folder_operator_does_not_shadow_the_standard_library() -> None:
    assert Path(operator.__file__ or "").is_relative_to(sysconfig.get_path("stdlib"))
