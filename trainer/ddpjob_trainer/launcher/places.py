"""The place of each rank before it begins: no file of an earlier one, a page, and the words before its lines.

Why apart: what is prepared on the disk is one thing, the processes that use it (`crew.py`) another.
Must not: start anything.
"""

from ddpjob_trainer.files import Files, agent_file, command_error_file
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.page import Page


def cleared(config: Config, generation: int, rank: int) -> Files:
    """The files of a rank, with nothing of an earlier run in them; its page is not there yet."""
    files = Files.of(config.run_dir, generation, rank)
    for stale in (files.page, files.error, files.stacks, files.claim):
        stale.unlink(missing_ok=True)
    return files


def others(config: Config, generation: int, first: int) -> tuple[Rank, ...]:
    """The ranks that a `command` starts beside its first, each with a page."""
    if config.spec.command is None:
        return ()
    for path in (agent_file, command_error_file):
        path(config.run_dir, generation).unlink(missing_ok=True)
    found = []
    for rank in range(first + 1, first + config.plan.processes_per_node):
        files = cleared(config, generation, rank)
        found.append(Rank(rank=rank, files=files, page=Page(files.page, create=True)))
    return tuple(found)


def prefix(config: Config, rank: int) -> bytes:
    """What stands before a worker's lines; those of a `command` come from any of its ranks."""
    several = config.processes < config.plan.processes_per_node
    return (f"[node {config.node}] " if several else f"[rank {rank}] ").encode()
