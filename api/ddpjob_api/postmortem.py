"""What is kept of a hang: where each rank stood, its stacks, and the verdict.

Why apart: launchers write it, as files beside the checkpoints and as a line of their log, and `ddpjob explain --stacks`
reads both; a log can be read with the rights that its job's owner has anyway, also when the pod has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ddpjob_api.codec import Invalid, load, render
from ddpjob_api.fields import Json, limited
from ddpjob_api.packing import MAX_WORD_BYTES, pack_document, unpack_document
from ddpjob_api.report import Failure, RankView

FOLDER = "post-mortem"
VERDICT_FILE = "verdict.json"
"""In the folder of a generation, beside `rank-N.json` and `rank-N.txt`."""
LOG_MARK = "post-mortem: "
"""Begins a launcher's line that carries one."""
MAX_STACKS = 262144
CURRENT = "Current thread "
"""Begins the block of the thread that took the signal, which is the main thread."""


@dataclass(frozen=True, kw_only=True)
class RankKept:
    """One rank."""

    view: RankView
    node: int = 0
    page: Json = limited(factory=dict)
    """Its page's slots that are not 0, by name."""
    stacks: str = limited("", max_length=MAX_STACKS)
    """Of all its threads, as faulthandler writes them; in a file of its own where this is one."""


@dataclass(frozen=True, kw_only=True)
class PostMortem:
    """One generation, as one node has it."""

    generation: int
    at: str = limited("", max_length=40)
    """RFC 3339, UTC."""
    ranks: tuple[RankKept, ...] = limited((), max_items=256)
    verdict: Failure | None = None
    """Of the coordinator, which comes later and from node 0."""


def pack(found: PostMortem) -> str:
    """As one short word: what is least needed goes until it is short enough."""
    for shorten in SHORTER:
        word = pack_document(render(replace(found, ranks=tuple(shorten(rank) for rank in found.ranks))))
        if len(word) <= MAX_WORD_BYTES:
            return word
    return pack_document(render(replace(found, ranks=())))


def unpack(word: str) -> PostMortem | None:
    """What `pack` made; None where it is something else."""
    try:
        return load(PostMortem, unpack_document(word))
    except (ValueError, Invalid):
        return None


def main_thread(rank: RankKept) -> RankKept:
    """Without its other threads."""
    before, mark, block = rank.stacks.rpartition(CURRENT)
    return replace(rank, stacks=mark + block if mark else before + block)


def clipped(limit: int) -> Callable[[RankKept], RankKept]:
    return lambda rank: replace(main_thread(rank), page={}, stacks=main_thread(rank).stacks[:limit])


SHORTER: tuple[Callable[[RankKept], RankKept], ...] = (
    lambda rank: rank,
    main_thread,
    lambda rank: replace(main_thread(rank), page={}),
    clipped(2000),
    clipped(400),
    clipped(0),
)
