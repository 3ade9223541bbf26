"""Commands that are launchers themselves, and Accelerate, in pods: settings, ranks, and the loss of a pod."""

from __future__ import annotations

import pytest
from tests.cluster.installation import Installation
from tests.cluster.jobs import script_job, submit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.images("frameworks"),
    pytest.mark.timeout(600),
]

LOOP = """
import os, time, torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=3,
    kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=50, find_unused_parameters=True)],
)
model = torch.nn.Linear(16, 4)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
peers = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
assert peers == list(range(4)), peers
first = os.environ["DDPJOB_GENERATION"] == "1"
for step in range(100_000 if first else 20):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(8, 16)).sum())
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.05)
import ddpjob_trainer
ddpjob_trainer.report(peers=len(peers), local_rank=os.environ["LOCAL_RANK"])
"""


@pytest.mark.parametrize(
    "command",
    [
        ["accelerate", "launch", "train.py"],
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "4", "train.py"],
        ["torchrun", "train.py"],
        ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
    ],
    ids=["accelerate", "multi_gpu", "torchrun", "module"],
)
def test_a_command_spans_two_nodes_and_survives_the_loss_of_a_pod(
    installation: Installation, command: list[str]
) -> None:
    cluster = installation.cluster
    with cluster.namespace("command") as namespace:
        job = submit(
            cluster,
            namespace,
            *script_job(
                "program",
                LOOP,
                image=cluster.images.frameworks,
                command=command,
                processesPerNode=2,
                ddp={
                    "gradientAccumulationSteps": 2,
                    "bucketCapMB": 1,
                    "findUnusedParameters": False,
                    "timeoutSeconds": 120,
                },
            ),
        )
        seen = job.until_step(4, 240)["status"]
        in_effect = {"backend": "gloo", "gradientAccumulationSteps": 2, "bucketCapMB": 1, "worldSize": 4}
        assert seen["ddp"].items() >= in_effect.items()
        assert {"gradientAccumulationSteps", "bucketCapMB", "findUnusedParameters"} <= {
            each["setting"] for each in seen["ddp"]["overrides"]
        }
        survivor = job.live()[0]["metadata"]["uid"]
        cluster.kubectl("delete", "pod", "program-1", "-n", namespace, "--wait=false")
        status = job.until_true("Complete", 300)["status"]
        assert job.pods()[0]["metadata"]["uid"] == survivor
    assert (status["disruptions"], status["restarts"]) == (1, 0)
    assert status["result"] == {"peers": 4, "local_rank": "0"}
