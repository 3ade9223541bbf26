"""Images that know nothing of DDPJob, as users bring them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.installation import Installation
from tests.cluster.jobs import condition, script_job, submit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.images("foreign", "pythonless"),
]

SEEN = """
import getpass, json, os, sys, tempfile
import prometheus_client, yaml, own_module, torch, torch.distributed as dist
import ddpjob_trainer
from torch._inductor.runtime.cache_dir_utils import cache_dir

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), bucket_cap_mb=50)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
for folder in (os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME", "/tmp"), cache_dir(), "/tmp"):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
ddpjob_trainer.report(
    uid=os.getuid(),
    user=getpass.getuser(),
    home=os.path.expanduser("~"),
    yaml=yaml.__version__,
    client=os.path.basename(os.path.dirname(prometheus_client.__file__)),
    has_older_client=not hasattr(prometheus_client, "disable_created_metrics"),
    own=own_module.HERE,
    entrypoint=os.environ.get("FROM_ENTRYPOINT", "no"),
    torch_in=torch.__file__.startswith(sys.prefix),
)
"""


def test_a_foreign_image_with_any_uid_trains_with_its_own_packages(installation: Installation) -> None:
    """Old packages of its own, a home that is root's, a uid without a name, a root that is read-only."""
    image = installation.cluster.images.foreign
    with installation.cluster.namespace("foreign") as namespace:
        job = submit(
            installation.cluster,
            namespace,
            *script_job(
                "foreign",
                SEEN,
                image=image,
                ddp={"bucketCapMB": 1},
                template={"spec": {"securityContext": {"runAsUser": 12345}}},
            ),
        )
        status = job.until_true("Complete", 240)["status"]
    assert status["runtime"]["image"] == image
    assert status["runtime"]["trainerFrom"] == installation.cluster.images.operator
    assert status["ddp"]["bucketCapMB"] == 1
    expected = {
        "uid": 12345, "user": "ddpjob", "home": "/tmp", "yaml": "6.0", "has_older_client": True, "own": "the image",
        "entrypoint": "no", "torch_in": True,
    }  # fmt: skip
    assert status["result"].items() >= expected.items()


def test_an_images_entrypoint_is_kept_on_request(installation: Installation) -> None:
    with installation.cluster.namespace("entrypoint") as namespace:
        job = submit(
            installation.cluster,
            namespace,
            *script_job("wrapped", SEEN, image=installation.cluster.images.foreign, keepEntrypoint=True),
        )
        status = job.until_true("Complete", 240)["status"]
    assert (status["result"]["entrypoint"], status["result"]["uid"]) == ("yes", 4711)


@pytest.mark.parametrize("spec", [{}, {"python": "/opt/none/bin/python"}], ids=["searched", "named"])
def test_an_image_without_python_is_refused_in_words(
    installation: Installation, spec: dict[str, Any]
) -> None:
    with installation.cluster.namespace("pythonless") as namespace:
        image = installation.cluster.images.pythonless
        fails = {"recovery": {"maxRestarts": 0}}
        job = submit(
            installation.cluster,
            namespace,
            *script_job("pythonless", "print(1)", image=image, **fails, **spec),
        )
        failed = condition(job.until_true("Failed", 120), "Failed")
    if spec:
        assert "/opt/none/bin/python" in failed["message"]
    else:
        assert failed["reason"] == "ConfigurationRefused"
        assert "the image has no Python" in failed["message"]
        assert "spec.python" in failed["message"]
