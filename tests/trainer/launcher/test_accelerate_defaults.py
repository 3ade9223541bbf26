"""What accelerate's default configuration says, as accelerate reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_api.nested import Place, completed
from ddpjob_trainer.launcher.accelerate_defaults import default_file, says_its_kind

LOCAL = "compute_environment: LOCAL_MACHINE\n"


def written(folder: Path, text: str) -> dict[str, str]:
    """The environment of a container whose default configuration this is."""
    environ = {"HF_HOME": str(folder), "HOME": "/nowhere"}
    file = default_file(environ)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return environ


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (f"{LOCAL}distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", True),
        (f"{LOCAL}distributed_type: 'DEEPSPEED'  # not MULTI_GPU\n", True),
        ('{"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP"}', True),
        (f"{LOCAL}distributed_type: MULTI_GPU\n", False),
        (f"{LOCAL}distributed_type: NO\n", False),
        (f"{LOCAL}# distributed_type: FSDP\n", False),
        ("", False),
        ("\0\xff", False),
    ],
)
def test_another_kind_than_ddp_is_seen(tmp_path: Path, text: str, own: bool) -> None:
    assert says_its_kind(written(tmp_path, text)) is own


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/x", "HOME": "/home/u"}, "/hf"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/home/u"}, "/x/huggingface"),
        ({"HOME": "/home/u"}, "/home/u/.cache/huggingface"),
        ({"HF_HOME": "~/hf", "HOME": "/home/u"}, "/home/u/hf"),
    ],
)
def test_it_is_looked_for_where_accelerate_does(environ: dict[str, str], folder: str) -> None:
    assert default_file(environ) == Path(folder, "accelerate/default_config.yaml")
    assert says_its_kind(environ) is False


ASKED = """
import json, sys
from accelerate.commands.config import config_args
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
args, _, _ = _validate_launch_command(launch_command_parser().parse_args(sys.argv[1:]))
names = ("use_fsdp", "multi_gpu", "num_processes", "num_machines", "machine_rank", "main_process_ip")
print(json.dumps([config_args.default_config_file, *(getattr(args, name) for name in names)]))
"""


@pytest.mark.parametrize(("kind", "fsdp"), [("FSDP", True), ("MULTI_GPU", False)])
def test_accelerate_makes_of_the_completed_line_what_the_file_says(
    tmp_path: Path, kind: str, fsdp: bool
) -> None:
    environ = written(
        tmp_path, f"{LOCAL}distributed_type: {kind}\nnum_machines: 1\nnum_processes: 8\nmachine_rank: 0\n"
    )
    place = Place(node=1, nodes=2, processes=2, port=29503, address="h0", run_id="u1")
    line = completed(["accelerate", "launch", "t.py"], place, kind_is_told=says_its_kind(environ))
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *line[2:]], env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    file, *asked = json.loads(done.stdout.splitlines()[-1])
    assert file == str(default_file(environ))
    assert asked == [fsdp, not fsdp, 4, 2, 1, "h0"]
