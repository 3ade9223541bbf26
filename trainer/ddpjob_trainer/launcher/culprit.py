"""Which rank kept the others waiting, where none of them failed by itself.

Why apart: in a hang, and when collectives time out, every rank says something and the first to speak is a witness.
The culprit is the rank that is behind: stopped, or with the least made of steps, collectives, micro-batches and
backward passes, or the one that is not in a collective while the others are; but where most wait in a collective and
few have gone on, those few skipped it. Must not: know how the views came together (`halt.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpjob_api.report import RankView

MAX_NAMED = 8


@dataclass(frozen=True)
class Finding:
    """Who, if anybody, and in which words."""

    rank: RankView | None
    words: str
    also: tuple[int, ...] = ()
    """Other ranks of which the same is true."""


def find(views: Mapping[int, RankView]) -> Finding:
    """The rank the others waited for."""
    ranks = [views[rank] for rank in sorted(views)]
    if not ranks:
        return Finding(None, "nothing is known of the ranks")
    stopped = [view for view in ranks if view.stopped]
    if stopped:
        return named(stopped, "its process is stopped (SIGSTOP)")
    ended = [view for view in ranks if view.ended]
    going = [view for view in ranks if not view.ended]
    if ended and going:
        return uneven(ended, going)
    late = behind(ranks)
    gone_on = [view for view in ranks if view not in late]
    if late and skipped(late, gone_on):
        where = f" ({late[0].place})" if late[0].place else ""
        return named(
            gone_on,
            f"it went on past a collective in which {numbered(late)} wait{where}; {standing(gone_on[0])}",
        )
    if late:
        return named(late, standing(late[0]) + ahead(late, ranks))
    outside = [view for view in ranks if view.in_collective is False]
    if outside and len(outside) < len(ranks):
        return named(outside, standing(outside[0]) + "; the others wait in a collective")
    alone = len(ranks) == 1
    if alone:
        return named(ranks, standing(ranks[0]))
    where = f" ({ranks[0].place})" if ranks[0].place else ""
    return Finding(
        None,
        f"no rank is behind the others, all stand at step {ranks[0].step}{where}: the fabric or a collective is stuck",
    )


def behind(ranks: Sequence[RankView]) -> list[RankView]:
    """Those with the least made; none where all are equal."""
    counts_collectives = all(view.sequence for view in ranks)

    def made(view: RankView) -> tuple[bool, int, int, int, int]:
        return (
            view.joined,
            view.step,
            view.sequence if counts_collectives else 0,
            view.micro_batches,
            view.backward_passes,
        )

    least = min(map(made, ranks))
    found = [view for view in ranks if made(view) == least]
    return found if len(found) < len(ranks) else []


def skipped(late: Sequence[RankView], gone_on: Sequence[RankView]) -> bool:
    """Whether most ranks wait where a few have not been; two halves blame the half that is behind."""
    return len(late) > len(gone_on) > 0 and all(view.joined and view.in_collective for view in late)


def uneven(ended: Sequence[RankView], going: Sequence[RankView]) -> Finding:
    """Some ranks made fewer steps than the others wanted to make with them."""
    if len(ended) <= len(going):
        first = ended[0]
        return named(
            ended,
            f"it had ended with exit code 0 after step {first.step}, while {numbered(going)} went on to step "
            f"{max(view.step for view in going) + 1}; give every rank the same number of steps",
        )
    return named(
        going,
        f"it went on after step {going[0].step}, when {numbered(ended)} had ended with exit code 0; give every rank "
        "the same number of steps",
    )


def standing(view: RankView) -> str:
    """`it stands in load (train.py:20) after step 7, in phase data`."""
    at = f"it stands in {view.place}" if view.place else "it stands still"
    step = f" after step {view.step}" if view.step else " before its first step"
    phase = f", in phase {view.phase} for {view.phase_seconds:.0f} s" if view.phase_seconds else ""
    return at + step + phase


def ahead(late: Sequence[RankView], ranks: Sequence[RankView]) -> str:
    others = [view for view in ranks if view not in late]
    step = max(view.step for view in others)
    if step > late[0].step:
        return f"; the others have made step {step}"
    if not late[0].joined:
        return "; the others are in the process group"
    return "; the others are further in the same step"


def named(views: Sequence[RankView], words: str) -> Finding:
    also = tuple(view.rank for view in views[1:17])
    more = f" (as {numbered(views[1:])})" if also else ""
    return Finding(views[0], words + more, also)


def numbered(views: Sequence[RankView]) -> str:
    names = ", ".join(str(view.rank) for view in views[:MAX_NAMED])
    return f"rank{'s' if len(views) > 1 else ''} {names}" + (" …" if len(views) > MAX_NAMED else "")
