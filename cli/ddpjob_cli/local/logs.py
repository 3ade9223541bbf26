"""The output of a run on this machine, from the logs in its folder.

Why apart: files that grow and are turned over, in place of streams. Must not: print.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ddpjob_api.plan import plan
from ddpjob_cli.errors import Unusable
from ddpjob_cli.lines import Line, Wanted, read
from ddpjob_cli.local.look import LocalRun

POLL_SECONDS = 0.2


def lines(run: LocalRun, wanted: Wanted, *, follow: bool) -> Iterator[Line]:
    """The lines wanted; with `follow` until the run ends.

    Raises:
        Unusable: nothing of that kind is there.
    """
    found = run.logs(previous=wanted.previous)
    if wanted.failed:
        observed = run.observe()
        failure = observed.last_failure
        if failure is None or failure.rank is None:
            raise Unusable(f"{run.shown}: no failure is known that has a rank")
        wanted = replace(wanted, rank=failure.rank)
    spec = run.parsed()
    ranks = plan(spec).world_size if spec is not None else None
    if wanted.rank is not None and ranks is not None and wanted.rank >= ranks:
        raise Unusable(f"{run.shown} has ranks 0 to {ranks - 1}; there is no rank {wanted.rank}")
    if wanted.node is not None:
        found = {node: file for node, file in found.items() if node == wanted.node}
    if not found:
        raise Unusable(f"{run.shown}: no such log; it has nodes {', '.join(map(str, run.logs())) or 'none'}")
    if follow:
        yield from followed(run, found, replace(wanted, tail=None))
        return
    for node, log in found.items():
        yield from read(texts(log), node=node, pod=f"node {node}", wanted=wanted)


def texts(log: Path) -> Iterator[str]:
    """The lines of a log and, before them, of the part that was turned over."""
    for file in (log.with_name(log.name + ".1"), log):
        if file.is_file():
            with file.open("rb") as stream:
                yield from (line.decode(errors="replace").rstrip("\n") for line in stream)


def followed(run: LocalRun, found: dict[int, Path], wanted: Wanted) -> Iterator[Line]:
    """What is there, then what comes."""
    tails = {node: Tail(log) for node, log in found.items()}
    try:
        while True:
            goes_on = run.running()  # asked before the last look, so that nothing said in between is missed
            for node, tail in tails.items():
                yield from read(tail.lines(), node=node, pod=f"node {node}", wanted=wanted)
            if not goes_on:
                return
            time.sleep(POLL_SECONDS)
    finally:
        for tail in tails.values():
            tail.close()


class Tail:
    """A growing file, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """What has come since."""
        if self._file is None:
            if not self._path.is_file():
                return
            self._file = self._path.open("rb")
        turned = self._turned()
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
        if turned:
            self.close()

    def close(self) -> None:
        """Let go of the file; the next look opens it anew."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _turned(self) -> bool:
        """Whether another file has the name now."""
        import os

        assert self._file is not None
        try:
            return os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino
        except OSError:
            return False
