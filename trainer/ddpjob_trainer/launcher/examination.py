"""Where the ranks of a crew stand: stacks, pages and processes, looked at before the crew is ended.

Why apart: the verdict about a hang rests on it, and it must not depend on a rank that answers.
Must not: end a worker (`crew.py`) or say who is to blame (`culprit.py`).
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

from ddpjob_api.page import Slot, WorkerState
from ddpjob_api.postmortem import RankKept
from ddpjob_api.report import RankView
from ddpjob_trainer.launcher import autopsy
from ddpjob_trainer.launcher.cause import STACKS_SIGNAL
from ddpjob_trainer.launcher.postmortems import PostMortems
from ddpjob_trainer.launcher.timing import (
    HELD_SECONDS,
    POST_MORTEM_SECONDS,
    STACKS_LOOK_SECONDS,
    STACKS_SECONDS,
)
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.launcher.workers import Worker, signal_to


class Examination:
    """Of one generation on this node."""

    def __init__(
        self,
        workers: Sequence[Worker],
        generation: int,
        *,
        node: int,
        post_mortems: PostMortems,
    ) -> None:
        """`workers` may still grow."""
        self._workers = workers
        self._generation = generation
        self._node = node
        self._post_mortems = post_mortems
        self.views: dict[int, RankView] = {}
        """Where the ranks stood when they were stopped."""

    @property
    def _present(self) -> list[tuple[Worker, Rank]]:
        return [(worker, rank) for worker in self._workers for rank in worker.present]

    async def examine(self, *, post_mortem: bool) -> None:
        """Have every rank write its stacks, and note where each stands; `post_mortem`: wait longer, and keep it all."""
        loop = asyncio.get_running_loop()
        pids = {rank.rank: worker.pid_of(rank) for worker in self._workers for rank in worker.ranks}
        stopped = {rank for rank, pid in pids.items() if pid and autopsy.state_of(pid) in {"T", "t"}}
        # Before any of them answers: one that was stopped goes on then.
        now = loop.time()
        present = self._present
        views = {
            rank.rank: view_of(worker, rank, stopped=rank.rank in stopped, now=now)
            for worker, rank in present
        }
        snapshots = {rank.rank: autopsy.numbers(rank.page) for _, rank in present}
        asked = self._ask_for_stacks()
        held = {pid for rank in asked if post_mortem and rank.rank in stopped and (pid := pids[rank.rank])}
        seconds = STACKS_SECONDS + (POST_MORTEM_SECONDS if post_mortem else 0.0)
        for _ in range(round(seconds / STACKS_LOOK_SECONDS)):
            if all(
                autopsy.answered(pids[rank.rank] or 0, STACKS_SIGNAL, rank.files.stacks) for rank in asked
            ):
                break
            await asyncio.sleep(STACKS_LOOK_SECONDS)
            if held and loop.time() - now >= HELD_SECONDS:
                for pid in held:
                    signal_to(pid, signal.SIGCONT)  # so that it can answer at all
                held = set()
        self.views = {rank.rank: with_place(views[rank.rank], rank) for _, rank in present}
        if post_mortem:
            self._post_mortems.examined(
                self._generation,
                [
                    RankKept(
                        view=self.views[rank.rank],
                        node=self._node,
                        page=snapshots[rank.rank],
                        stacks=autopsy.read(rank.files.stacks),
                    )
                    for _, rank in present
                ],
            )

    def glance(self) -> tuple[RankView, ...]:
        """Where the ranks stand now, without their stacks; those furthest behind first.

        One that was looked at stands where it stood then: what it does once the others are ended says nothing. But one
        that was aborted (SIGABRT) afterwards went on to where it was aborted.
        """
        now = asyncio.get_running_loop().time()
        views = dict(self.views)
        for worker, rank in self._present:
            if not self.views or aborted(worker):
                fresh = with_place(view_of(worker, rank, stopped=False, now=now), rank)
                before = views.get(
                    rank.rank, fresh
                )  # an abort by another thread leaves no place of the main one
                views[rank.rank] = replace(fresh, place=fresh.place or before.place)
        return tuple(
            sorted(views.values(), key=lambda view: (not view.stopped, view.step, view.micro_batches))[:64]
        )

    def _ask_for_stacks(self) -> list[Rank]:
        """The ranks that were asked: those that have a handler for the signal, because they write their pages."""
        asked = []
        for worker in self._workers:
            for rank in worker.ranks:
                pid = worker.pid_of(rank)
                if pid and rank.page[Slot.STATE] in {WorkerState.STARTED, WorkerState.RUNNING}:
                    worker.is_sent(STACKS_SIGNAL)
                    signal_to(pid, STACKS_SIGNAL)
                    asked.append(rank)
        return asked


def aborted(worker: Worker) -> bool:
    return worker.exit is not None and worker.exit.returncode == -signal.SIGABRT


def view_of(worker: Worker, rank: Rank, *, stopped: bool, now: float) -> RankView:
    """One rank from its page, and from what is known of a process that no page of its own outlives."""
    view = autopsy.view(rank.rank, rank.page, stopped=stopped, now=now)
    return replace(view, ended=view.ended or worker.finished(rank))


def with_place(view: RankView, rank: Rank) -> RankView:
    """And from the stacks it wrote; one whose program has not begun is in no collective, with or without them."""
    seen = autopsy.with_stacks(view, rank.files.stacks)
    return seen if rank.page[Slot.PID] else replace(seen, in_collective=False)
