"""What only a GPU can show. Not run yet: no machine of ours had one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def run(example: str, *options: str, folder: Path) -> dict[str, object]:
    """The JSON line at the end of `ddpjob run`."""
    command = [
        sys.executable,
        "-m",
        "ddpjob_cli",
        "run",
        str(ROOT / "examples" / example),
        "--json",
        *options,
    ]
    done = subprocess.run(
        [*command, "--dir", str(folder)], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def gpus() -> int:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch.cuda.device_count()


@pytest.mark.parametrize("precision", ["FP32", "BF16", "FP16"])
def test_a_task_trains_with_nccl(gpus: int, tmp_path: Path, precision: str) -> None:
    options = [
        "--nodes",
        "1",
        "--processes-per-node",
        str(min(gpus, 8)),
        "--set",
        f"task.precision={precision}",
    ]
    found = run("digits.yaml", *options, folder=tmp_path)
    assert found["ddp"]["backend"] == "nccl"  # type: ignore[index]
    assert found["accuracy"] >= 0.95  # type: ignore[operator]


def test_auto_takes_the_gpu_and_the_guides_values_hold(gpus: int, tmp_path: Path) -> None:
    found = run("hf-guide.yaml", "--nodes", "1", "--processes-per-node", "1", folder=tmp_path)
    asked = {"backend": "nccl", "bucketCapMB": 25, "timeoutSeconds": 1800, "broadcastBuffers": True}
    assert {name: found["ddp"][name] for name in asked} == asked  # type: ignore[index]
