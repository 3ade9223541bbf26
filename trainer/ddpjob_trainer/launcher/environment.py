"""What a worker is told: its environment and its command line.

Why apart: scripts and frameworks test for torchrun's names, so each one is a contract; a pure function of the
configuration and the Start message. Must not: touch the file system.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ddpjob_api.codec import render
from ddpjob_api.messages import Start
from ddpjob_api.names import LauncherEnv, WorkerEnv
from ddpjob_api.nested import Place, completed
from ddpjob_trainer.files import Files, command_error_file, term_file
from ddpjob_trainer.launcher.config import Config

TETHER_WORDS = 4
"""How many words of a `command`'s line are ours, in front of it."""
INJECTED = Path(__file__).parents[1] / "injected"


def worker_env(
    config: Config,
    start: Start,
    *,
    local_rank: int,
    files: Files,
    base: Mapping[str, str],
    resume_dir: Path | None = None,
) -> dict[str, str]:
    """The whole environment of one worker; `base` is the launcher's own, `resume_dir` has the step to go on from."""
    ours = {name.value for name in LauncherEnv} | {name.value for name in WorkerEnv}
    env = {name: value for name, value in base.items() if name not in ours}
    env |= torchrun_env(config, start, local_rank=local_rank, error=files.error)
    env |= {
        WorkerEnv.GENERATION.value: str(start.generation),
        WorkerEnv.PAGE.value: str(files.page),
        WorkerEnv.SETTINGS.value: compact(render(config.spec.ddp)),
        WorkerEnv.TERM.value: str(start.term),
        WorkerEnv.TERM_FILE.value: str(term_file(config.run_dir)),
        WorkerEnv.STACKS_FILE.value: str(files.stacks),
        WorkerEnv.GRADIENT_ACCUMULATION_STEPS.value: str(config.plan.accumulation),
        WorkerEnv.JOB_NAME.value: config.name,
    }
    if config.standby:
        env[WorkerEnv.IMPORTS_FILE.value] = str(files.imports)
    if config.plan.accelerator is not None:
        env[WorkerEnv.ACCELERATOR.value] = config.plan.accelerator.resource
    if config.spec.task is not None:
        env[WorkerEnv.TASK.value] = compact(render(config.spec.task))
    if config.spec.checkpoint is not None:
        env[WorkerEnv.CHECKPOINT.value] = compact(render(config.spec.checkpoint))
        env[WorkerEnv.CHECKPOINT_DIR.value] = str(config.checkpoint_dir)
    if start.resume_step is not None:
        env[WorkerEnv.RESUME_STEP.value] = str(start.resume_step)
    if resume_dir is not None:
        env[WorkerEnv.RESUME_DIR.value] = str(resume_dir)
    if config.memory_dir is not None:
        env[WorkerEnv.MEMORY_DIR.value] = str(config.memory_dir)
    # A pipe makes Python buffer whole blocks; a log that lags behind is no help.
    env.setdefault("PYTHONUNBUFFERED", "1")
    if config.spec.command is not None:
        # Which of its processes are ranks is for them to find out (`ddpjob_trainer.nested`).
        for name in (WorkerEnv.PAGE, WorkerEnv.STACKS_FILE):
            del env[name.value]
        env[WorkerEnv.RANK_DIR.value] = str(config.run_dir)
        env["TORCHELASTIC_ERROR_FILE"] = str(command_error_file(config.run_dir, start.generation))
        env["PYTHONPATH"] = joined(str(INJECTED), env.get("PYTHONPATH"))
        # torchrun and accelerate lie beside their Python, which need not be on PATH.
        env["PATH"] = joined(env.get("PATH", os.defpath), str(Path(config.python).parent))
        env |= nested_env(config, start)
        if config.plan.accelerator is None:
            # Without it accelerate makes a world of one out of every rank on a CPU.
            env.setdefault("ACCELERATE_USE_CPU", "true")
    elif config.spec.script is not None and config.plan.processes_per_node > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # torchrun's default: else each rank takes every core
    return env


def torchrun_env(config: Config, start: Start, *, local_rank: int, error: Path) -> dict[str, str]:
    """What torchrun sets. A `command` is one process per node for them."""
    local_size = config.processes
    rank, world = config.node * local_size + local_rank, config.plan.nodes * local_size
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(config.node),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_WORLD_SIZE": str(config.plan.nodes),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": start.master_address,
        "MASTER_PORT": str(start.master_port),
        "TORCHELASTIC_RUN_ID": config.uid or config.name,
        "TORCHELASTIC_RESTART_COUNT": str(start.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(config.spec.recovery.max_restarts),
        "TORCHELASTIC_ERROR_FILE": str(error),
    }


def nested_env(config: Config, start: Start) -> dict[str, str]:
    """What a torchrun inside a `command` reads: the static rendezvous on this generation's port."""
    return {
        "NODE_RANK": str(config.node),
        "PET_NNODES": str(config.plan.nodes),
        "PET_NPROC_PER_NODE": str(config.plan.processes_per_node),
        "PET_NODE_RANK": str(config.node),
        "PET_MASTER_ADDR": start.master_address,
        "PET_MASTER_PORT": str(start.master_port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": config.uid or config.name,
        # The launcher restarts; a nested restart would be invisible and uncounted.
        "PET_MAX_RESTARTS": "0",
        # A reused store hands new ranks their predecessors' addresses.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def command_line(config: Config, start: Start, *, kind_is_told: bool = False) -> list[str]:
    """What a worker runs; `kind_is_told` as of `completed`."""
    spec = config.spec
    if spec.command is not None:
        # -I -S: the tether needs nothing but the standard library and us, and must start at once.
        tether = str(Path(__file__).with_name("tether.py"))
        tied = [config.python, "-I", "-S", tether]
        assert len(tied) == TETHER_WORDS
        return [*tied, *completed(spec.command, place(config, start), kind_is_told=kind_is_told)]
    bootstrap = [config.python, "-m", "ddpjob_trainer.bootstrap"]
    if spec.script is not None:
        return [*bootstrap, *spec.script.args]
    return [*bootstrap, "-m", "ddpjob_trainer.train"]


def joined(*folders: str | None) -> str:
    return os.pathsep.join(folder for folder in folders if folder)


def place(config: Config, start: Start) -> Place:
    return Place(
        node=config.node,
        nodes=config.plan.nodes,
        processes=config.plan.processes_per_node,
        address=start.master_address,
        port=start.master_port,
        run_id=config.uid or config.name,
    )


def compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
