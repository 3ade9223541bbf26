"""`PartialState` before any `Accelerator`: on CPUs too it comes up with the processes of the whole job."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.trainer.programs.matrix import HERE
from tests.trainer.worker.ranks import run

from ddpjob_api.page import Slot

PROGRAM = str(HERE / "partial_state.py")
QUIET = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]


@pytest.mark.parametrize(
    "args", [(), ('{"backend": "gloo"}',), ('{"cpu": true}',)], ids=["bare", "gloo", "cpu"]
)
def test_on_cpus_the_ranks_meet_in_a_partial_state(tmp_path: Path, args: tuple[str, ...]) -> None:
    for number, rank in enumerate(run(tmp_path, [PROGRAM, *args], extra=QUIET)):
        assert rank.returncode == 0, rank.stderr
        assert rank.printed == {
            "state": [2, number, "cpu", "gloo"],
            "model": "DistributedDataParallel",
            "shares": 2,
        }
        assert rank[Slot.STEP] == 1


@pytest.mark.parametrize(
    ("world_size", "extra"), [(1, {}), (2, {"ACCELERATE_USE_CPU": "false"})], ids=["one rank", "told not to"]
)
def test_otherwise_it_is_accelerates_own(tmp_path: Path, world_size: int, extra: dict[str, str]) -> None:
    for rank in run(tmp_path, [PROGRAM], world_size=world_size, extra={**QUIET, **extra}):
        assert rank.returncode == 0, rank.stderr
        assert rank.printed["state"] == [1, 0, "cpu", None]
