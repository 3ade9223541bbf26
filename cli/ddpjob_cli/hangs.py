"""A hang as several nodes have kept it, put together: the verdict and every rank, the culprit first.

Why apart: the parts come from files or from logs, and read the same. Must not: read anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddpjob_api.codec import render
from ddpjob_api.postmortem import PostMortem, RankKept
from ddpjob_api.report import Failure
from ddpjob_cli.local import words


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The newest one."""

    generation: int
    at: str
    verdict: Failure | None
    ranks: tuple[RankKept, ...]
    """The culprit first."""

    def json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "at": self.at,
            "verdict": render(self.verdict) if self.verdict else None,
            "ranks": [
                {"node": rank.node, **render(rank.view), "page": dict(rank.page), "stacks": rank.stacks}
                for rank in self.ranks
            ],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.verdict is not None:
            yield f"generation {self.generation}, {self.at}: {words.in_short(self.verdict)}"
        else:
            unknown = "the verdict is not known: node 0 has not given one, or its log cannot be read"
            yield f"generation {self.generation}, {self.at}: {unknown}"
        for rank in self.ranks:
            yield ""
            yield f"rank {rank.view.rank} (node {rank.node}): {standing(rank)}"
            yield from (f"  {line}" for line in rank.stacks.rstrip().splitlines() or ["no stacks"])


def put_together(parts: Iterable[PostMortem]) -> Hang | None:
    """The newest hang of which a part is there; None where none is."""
    parts = list(parts)
    newest = max(parts, key=lambda part: (part.at, part.generation), default=None)
    if newest is None:
        return None
    mine = [part for part in parts if part.generation == newest.generation]
    verdict = next((part.verdict for part in mine if part.verdict is not None), None)
    kept = {rank.view.rank: rank for part in mine for rank in part.ranks}
    blamed = (verdict.rank, *verdict.also) if verdict is not None else ()
    order = sorted(kept, key=lambda rank: (blamed.index(rank) if rank in blamed else len(blamed), rank))
    return Hang(
        generation=newest.generation,
        at=newest.at,
        verdict=verdict,
        ranks=tuple(kept[rank] for rank in order),
    )


def standing(rank: RankKept) -> str:
    """`step 7, in data for 61 s, collective 14, stopped (SIGSTOP), in load (train.py:20)`."""
    view = rank.view
    parts = [f"step {view.step}"]
    parts += [f"in {view.phase} for {words.duration(view.phase_seconds)}"] if view.phase_seconds else []
    parts += [f"collective {view.sequence}"] if view.sequence else []
    parts += [] if view.joined else ["not in the process group"]
    parts += ["stopped (SIGSTOP)"] if view.stopped else []
    parts += ["ended with exit code 0"] if view.ended else []
    parts += [f"at {view.place}"] if view.place else []
    return ", ".join(parts)
