"""Resources and the command, for the tests of the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

COMMAND = (sys.executable, "-m", "ddpjob_cli")
TASK: dict[str, Any] = {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 64}


def document(spec: dict[str, Any], name: str = "job") -> dict[str, Any]:
    return {"apiVersion": "ddpjob.dev/v1alpha1", "kind": "DDPJob", "metadata": {"name": name}, "spec": spec}


def write(folder: Path, spec: dict[str, Any], name: str = "job", file: str = "ddpjob.yaml") -> Path:
    path = folder / file
    path.write_text(yaml.safe_dump(document(spec, name), sort_keys=False))
    return path


def ddpjob(
    *arguments: str | Path, cwd: Path | None = None, input: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as users have it."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        input=input,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def last_json(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one line that `ddpjob run --json` prints."""
    assert result.stdout.count("\n") == 1, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found
