"""What a local run needs from this machine, asked before any process starts.

Why apart: each of these would otherwise fail in every rank, after seconds, several times over. Must not: import torch
or the trainer.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from ddpjob_api.spec import DDPJob
from ddpjob_cli.errors import RefusedJob
from ddpjob_cli.local.directory import shown


def check(job: DDPJob, work: Path) -> None:
    """Return if the job can be started here.

    Raises:
        RefusedJob: with the field, and what to do.
    """
    spec = job.spec
    if spec.suspend:
        raise RefusedJob("spec.suspend: true, so the job is not to run; set it to false or take it out")
    if spec.task is not None and importlib.util.find_spec("torch") is None:
        raise RefusedJob(
            f"spec.task: needs torch, which {sys.executable} does not have; pip install 'ddpjob[trainer]'"
        )
    if spec.script is not None and not spec.script.args[0].startswith("-"):
        script = work / spec.script.args[0]
        if not script.is_file():
            raise RefusedJob(
                f"spec.script.args[0]: {spec.script.args[0]}: no such file in {shown(work)}, where programs run "
                "(the folder of the resource's file)"
            )
    if spec.command is not None and not runnable(spec.command[0], work):
        raise RefusedJob(f"spec.command[0]: {spec.command[0]}: no such program on PATH or in {shown(work)}")


def runnable(program: str, work: Path) -> bool:
    if os.sep in program:
        return os.access(work / program, os.X_OK)
    # Launchers search beside their Python too: torchrun and accelerate lie there.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)))
    return shutil.which(program, path=path) is not None
