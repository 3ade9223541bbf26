"""A job that asks for an accelerator does not train on the CPU without a word."""

from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP, Backend, Overrides

pytestmark = pytest.mark.timeout(400)
NVIDIA, ASCEND, GAUDI = "nvidia.com/gpu", "huawei.com/Ascend910", "habana.ai/gaudi"
NOT_SEEN = (
    "resourcesPerNode asks for {} and torch sees no {} device, so the program {} on the CPU; install {} in"
)
PLAIN = """
import torch
torch.distributed.init_process_group({})
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
print("trained")
"""
ACCELERATOR = "from accelerate import Accelerator; Accelerator({}); print('trained')"
STATE = "from accelerate import PartialState; PartialState({}); print('trained')"
ARGUMENTS = "from transformers import TrainingArguments; TrainingArguments({}); print('trained')"
LIGHTNING = "from lightning.pytorch import Trainer; Trainer(logger=False, {}); print('trained')"
FABRIC = "from lightning.fabric import Fabric; Fabric({}); print('trained')"


def rank_of(
    folder: Path, program: str, resource: str | None, ddp: DDP | None = None, *, generation: int = 1
) -> Rank:
    (folder / "train.py").write_text(dedent(program))
    extra = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    extra[WorkerEnv.GENERATION] = str(generation)
    if resource is not None:
        extra[WorkerEnv.ACCELERATOR] = resource
    [rank] = run(folder, ["train.py"], world_size=1, ddp=ddp, extra=extra)
    return rank


def needed(program: str) -> None:
    for package in ("accelerate", "transformers", "lightning"):
        if f"from {package}" in program and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(
    ("program", "resource", "device", "package"),
    [
        (PLAIN.format(""), NVIDIA, "cuda", "a torch build for CUDA"),
        (PLAIN.format("'cpu:gloo,cuda:nccl'"), NVIDIA, "cuda", "a torch build for CUDA"),
        (PLAIN.format(""), ASCEND, "npu", "torch_npu"),
        (ACCELERATOR.format(""), NVIDIA, "cuda", "a torch build for CUDA"),
        (STATE.format(""), GAUDI, "hpu", "habana_frameworks.torch"),
        (ARGUMENTS.format("'out'"), ASCEND, "npu", "torch_npu"),
        (LIGHTNING.format(""), NVIDIA, "cuda", "a torch build for CUDA"),
        (FABRIC.format(""), NVIDIA, "cuda", "a torch build for CUDA"),
    ],
    ids=[
        "torch",
        "both devices",
        "a plugin",
        "Accelerator",
        "PartialState",
        "Trainer",
        "Lightning",
        "Fabric",
    ],
)
def test_without_its_device_a_program_is_refused_before_the_first_step(
    tmp_path: Path, program: str, resource: str, device: str, package: str
) -> None:
    needed(program)
    rank = rank_of(tmp_path, program, resource)
    assert (rank.returncode, rank.stdout) == (86, ""), rank.stderr
    said = NOT_SEEN.format(resource, device, "would train", package)
    assert f"[ddpjob] refused: spec.ddp.backend: {said}" in rank.stderr
    assert "Traceback" not in rank.stderr
    assert rank.error["ddpjob"]["refused"] is True
    assert rank[Slot.STEP] == 0


@pytest.mark.parametrize(
    ("program", "ddp"),
    [
        (PLAIN.format(""), DDP()),
        (PLAIN.format(""), DDP(backend=Backend.NCCL)),
        (ACCELERATOR.format(""), DDP()),
    ],
    ids=["torch", "the resource names NCCL", "Accelerator"],
)
def test_after_a_restart_a_device_that_is_gone_is_a_failure_of_its_rank(
    tmp_path: Path, program: str, ddp: DDP
) -> None:
    """A broken driver on one node must not end a job that has trained: the next try counts, and may work."""
    needed(program)
    rank = rank_of(tmp_path, program, NVIDIA, ddp, generation=2)
    assert (rank.returncode, rank.stdout) == (1, ""), rank.stderr
    assert "[ddpjob] DeviceGone: spec.ddp.backend: " in rank.stderr
    assert "torch sees no" in rank.stderr and "look at its device and driver" in rank.stderr
    told = rank.error["ddpjob"]
    assert (told["type"], told["refused"], told["peerLost"]) == ("DeviceGone", False, False)


@pytest.mark.parametrize(
    ("program", "ddp"),
    [
        (PLAIN.format("'gloo'"), DDP()),
        (PLAIN.format(""), DDP(overrides=Overrides.REPORT)),
        (ACCELERATOR.format("cpu=True"), DDP()),
        (ARGUMENTS.format("'out', use_cpu=True"), DDP()),
        (LIGHTNING.format("accelerator='cpu'"), DDP()),
    ],
    ids=["names Gloo", "overrides: Report", "Accelerator", "Trainer", "Lightning"],
)
def test_a_program_that_means_the_cpu_is_warned(tmp_path: Path, program: str, ddp: DDP) -> None:
    needed(program)
    rank = rank_of(tmp_path, program, NVIDIA, ddp)
    assert (rank.returncode, rank.stdout) == (0, "trained\n"), rank.stderr
    said = NOT_SEEN.format(NVIDIA, "cuda", "trains", "a torch build for CUDA")
    assert rank.stderr.count(f"[ddpjob] warning: spec.ddp.backend: {said}") == 1
    assert rank[Slot.WARNINGS] == 1


@pytest.mark.parametrize(
    ("program", "resource", "ddp"),
    [
        ("import torch; print('trained')", NVIDIA, DDP()),
        (PLAIN.format("'gloo'"), NVIDIA, DDP(backend=Backend.GLOO)),
        (PLAIN.format(""), None, DDP()),
        (PLAIN.format(""), "vendor.example/of-a-newer-ddpjob", DDP()),
    ],
    ids=["no DDP", "the resource names Gloo", "a CPU job", "unknown"],
)
def test_elsewhere_nothing_is_said(tmp_path: Path, program: str, resource: str | None, ddp: DDP) -> None:
    rank = rank_of(tmp_path, program, resource, ddp)
    assert (rank.returncode, rank.stdout) == (0, "trained\n"), rank.stderr
    assert "torch sees no" not in rank.stderr and rank[Slot.WARNINGS] == 0


PLUGIN = """
import types, torch
torch.npu = types.SimpleNamespace(is_available=lambda: {})
print("imported")
"""


@pytest.mark.parametrize("works", [True, False])
def test_an_installed_plugin_is_imported_before_the_judgement(tmp_path: Path, works: bool) -> None:
    (tmp_path / "torch_npu.py").write_text(PLUGIN.format(works))
    rank = rank_of(tmp_path, PLAIN.format("" if not works else "'gloo'"), ASCEND)
    if works:
        assert (rank.returncode, rank.stdout) == (0, "imported\ntrained\n"), rank.stderr
        assert rank[Slot.WARNINGS] == 0, "torch sees the device: the script keeps its own backend"
    else:
        assert (rank.returncode, rank.stdout) == (86, "imported\n"), rank.stderr
