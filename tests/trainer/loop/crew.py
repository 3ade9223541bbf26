"""Four processes that are ranks of one training after another, so that torch is imported once for all tests."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 120.0
SIZE = 4

context = multiprocessing.get_context("forkserver")


class JobFailed(Exception):
    """What a rank raised: its type's name, its words, and the traceback."""

    def __init__(self, rank: int, kind: str, words: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {kind}: {words}\n{trace}")
        self.rank, self.kind, self.words = rank, kind, words


class Crew:
    """The processes. `crew.run(2, job, x=1)` has two of them call `job(rank, x=1)` as a process group of two."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs = 0
        self.members: list[tuple[Any, Connection]] = []

    def hire(self) -> None:
        """Start those that are not there."""
        context.set_forkserver_preload(["torch", "torch._dynamo", "tests.trainer.loop.jobs"])
        while len(self.members) < SIZE:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,))
            process.start()
            theirs.close()
            self.members.append((process, ours))

    def run(self, world_size: int, job: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Each rank's result.

        Raises:
            JobFailed: of the lowest rank that raised. The crew is replaced: its group is broken.
        """
        self.hire()
        self.jobs += 1
        meeting = f"file://{self.directory / f'meeting-{self.jobs}'}"
        for rank, (_, pipe) in enumerate(self.members[:world_size]):
            pipe.send((job, meeting, rank, world_size, arguments))
        answers = []
        for rank, (_, pipe) in enumerate(self.members[:world_size]):
            if not pipe.poll(DEADLINE_SECONDS):
                self.dismiss()
                raise TimeoutError(
                    f"rank {rank} of {world_size} did not answer to {job.__name__} {arguments}"
                )
            answers.append(pipe.recv())
        failed = [(rank, answer) for rank, (good, answer) in enumerate(answers) if not good]
        if failed:
            rank, (kind, words, trace) = failed[0]
            raise JobFailed(rank, kind, words, trace)
        return [answer for _, answer in answers]

    def dismiss(self) -> None:
        for process, pipe in self.members:
            pipe.close()
            process.join(0.1 if process.is_alive() else None)
            if process.is_alive():
                process.kill()
                process.join()
        self.members = []


def work(pipe: Connection) -> None:
    """A member's life: jobs until the pipe closes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            job, meeting, rank, world_size, arguments = pipe.recv()
        except EOFError:
            return
        try:
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
            answer = True, job(rank, world_size, **arguments)
        except BaseException as error:
            answer = False, (type(error).__name__, str(error), traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(answer)
