"""Resources and the command, for the tests of the command line."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from ddpjob_cli.main import main

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


def inside(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, from what is typed to the exit code: what a second costs in a process of its own."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    typed = ["ddpjob", *map(str, arguments)]
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, env),
        mock.patch.object(sys, "argv", typed),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as way_out:
            code = way_out.code or 0
    assert isinstance(code, int)
    texts = [stream.buffer.getvalue().decode() for stream in (output, errors)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(typed, code, *texts)


def last_json(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one line that `ddpjob run --json` prints."""
    assert result.stdout.count("\n") == 1, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found
