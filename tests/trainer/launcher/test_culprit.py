"""Who kept the others waiting, from where all ranks stood."""

from typing import Any

import pytest

from ddpjob_api.report import RankView
from ddpjob_trainer.launcher.culprit import find


def ranks(*each: dict[str, Any]) -> dict[int, RankView]:
    values = {"step": 5, "sequence": 50, "micro_batches": 6, "joined": True, "in_collective": True}
    return {rank: RankView(rank=rank, **{**values, **more}) for rank, more in enumerate(each)}


CASES: list[tuple[str, dict[int, RankView], int | None, str]] = [
    ("the least steps", ranks({}, {"step": 4}, {}), 1, "after step 4; the others have made step 5"),
    ("the least collectives", ranks({}, {}, {"sequence": 48}), 2, "further in the same step"),
    (
        "the least micro-batches",
        ranks({"micro_batches": 5, "place": "t.py:3 in load", "in_collective": False}, {}),
        0,
        "it stands in t.py:3 in load",
    ),
    (
        "collectives that one rank does not count say nothing",
        ranks({"sequence": 0}, {"sequence": 9}, {"sequence": 7, "micro_batches": 5}),
        2,
        "further in the same step",
    ),
    ("a stopped process, wherever it is", ranks({"step": 4}, {"stopped": True}), 1, "SIGSTOP"),
    ("a rank that never joined", ranks({}, {"joined": False, "step": 0}), 1, "before its first step"),
    (
        "the one outside of a collective",
        ranks({}, {"in_collective": False, "place": "t.py:9 in save"}, {}),
        1,
        "t.py:9 in save after step 5; the others wait in a collective",
    ),
    (
        "two of them",
        ranks({}, {"step": 4, "in_collective": False}, {"step": 4, "in_collective": False}),
        1,
        "(as rank 2)",
    ),
    (
        "a collective between forward and backward that the others skip",
        ranks(
            {"backward_passes": 7},
            {"backward_passes": 6, "place": "t.py:8 in settle"},
            {"backward_passes": 7},
        ),
        1,
        "t.py:8 in settle",
    ),
    (
        "the one that skips a collective in which the others wait",
        ranks({"place": "t.py:8 in settle"}, {"micro_batches": 7, "place": "t.py:9 in go"}, {}, {}),
        1,
        "it went on past a collective in which ranks 0, 2, 3 wait (t.py:8 in settle); it stands in t.py:9 in go",
    ),
    ("half of them wait for the other half", ranks({"step": 4}, {}, {"step": 4}, {}), 0, "(as rank 2)"),
    (
        "most are behind, and not in a collective",
        ranks({}, {"step": 4, "in_collective": None}, {"step": 4}),
        1,
        "(as rank 2)",
    ),
    ("nobody", ranks({}, {}, {}), None, "the fabric or a collective is stuck"),
    (
        "one that ended early",
        ranks({}, {"ended": True, "step": 3}, {}),
        1,
        "it had ended with exit code 0 after step 3, while ranks 0, 2 went on to step 6",
    ),
    (
        "one that made more steps",
        ranks({"ended": True}, {"ended": True}, {"step": 5, "micro_batches": 7}),
        2,
        "it went on after step 5, when ranks 0, 1 had ended",
    ),
    ("a rank alone", ranks({"place": "t.py:1 in f"}), 0, "it stands in t.py:1 in f after step 5"),
    ("no rank", {}, None, "nothing is known"),
]


@pytest.mark.parametrize(
    ("views", "culprit", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_rank_that_is_behind_is_named(
    views: dict[int, RankView], culprit: int | None, words: str
) -> None:
    finding = find(views)
    assert (finding.rank.rank if finding.rank else None) == culprit
    assert words in finding.words
