"""A post-mortem as a line of a log."""

import random

import pytest

from ddpjob_api.conditions import Reason
from ddpjob_api.packing import MAX_WORD_BYTES, pack_document
from ddpjob_api.postmortem import PostMortem, RankKept, pack, unpack
from ddpjob_api.report import Failure, RankView

MAIN = 'Current thread 0x1 (most recent call first):\n  File "t.py", line 3 in load\n'
OTHER = 'Thread 0x2 (most recent call first):\n  File "queue.py", line 9 in get\n\n'


def kept(rank: int, stacks: str = OTHER + MAIN) -> RankKept:
    view = RankView(
        rank=rank, step=7, phase="data", phase_seconds=61.5, place="t.py:3 in load", in_collective=False
    )
    return RankKept(view=view, node=rank // 8, page={"step": 7.0, "loss": 0.5}, stacks=stacks)


def noise(length: int) -> str:
    """Text that cannot be compressed much."""
    return "".join(random.Random(length).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def test_what_is_packed_is_read_back() -> None:
    found = PostMortem(generation=3, at="2026-01-01T00:00:00Z", ranks=(kept(0), kept(9)))
    assert unpack(pack(found)) == found
    verdict = PostMortem(generation=3, verdict=Failure(reason=Reason.NO_PROGRESS, rank=1, also=(2,)))
    assert unpack(pack(verdict)) == verdict


@pytest.mark.parametrize(
    ("stacks", "ranks", "left"),
    [
        (OTHER * 2000 + MAIN, 8, OTHER * 2000 + MAIN),
        (f"{noise(20_000)}\n{MAIN}", 1, MAIN),
        (MAIN + noise(20_000), 1, (MAIN + noise(20_000))[:2000]),
        (MAIN + noise(20_000), 16, (MAIN + noise(20_000))[:2000]),
        (MAIN, 256, MAIN),
    ],
    ids=["what repeats is short", "main thread", "its innermost frames", "of all ranks", "many ranks"],
)
def test_it_fits_a_line_and_the_least_needed_goes_first(stacks: str, ranks: int, left: str) -> None:
    word = pack(PostMortem(generation=1, ranks=tuple(kept(rank, stacks) for rank in range(ranks))))
    assert len(word) <= MAX_WORD_BYTES
    found = unpack(word)
    assert found is not None and len(found.ranks) == ranks
    assert {rank.stacks for rank in found.ranks} == {left}
    assert [rank.view for rank in found.ranks] == [kept(rank).view for rank in range(ranks)]


@pytest.mark.parametrize("word", ["", "no word", "eJw=", pack_document({"history": 1}), pack_document([])])
def test_another_word_is_none(word: str) -> None:
    assert unpack(word) is None
