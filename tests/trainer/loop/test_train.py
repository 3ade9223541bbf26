"""The module as it is started: through the bootstrap, with a launcher's environment, and alone."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ddpjob_api.page import Fact, Slot
from ddpjob_trainer.checkpoints import complete_steps
from ddpjob_trainer.page import Page
from ddpjob_trainer.train import StopWish

BOOTSTRAP = ["-m", "ddpjob_trainer.bootstrap", "-m", "ddpjob_trainer.train"]
ALONE = ["-m", "ddpjob_trainer.train"]


def environment(directory, port, **more):
    task = {"entrypoint": "ddpjob_trainer.tasks.digits:task", "maxSteps": 9, "globalBatchSize": 64}
    return {
        **os.environ,
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DDPJOB_TASK": json.dumps(task),
        "DDPJOB_SETTINGS": '{"backend": "Gloo", "bucketCapMB": 1, "gradientAccumulationSteps": 2}',
        "DDPJOB_CHECKPOINT": '{"everySteps": 4}',
        "DDPJOB_CHECKPOINT_DIR": str(directory / "checkpoints"),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def run(arguments, environ):
    return subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=150, check=False
    )


@pytest.mark.timeout(400)
def test_a_rank_stops_on_the_launchers_word_and_goes_on_from_there(tmp_path, unused_tcp_port_factory):
    port = unused_tcp_port_factory
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.STOP_AT] = 5
        environ = environment(tmp_path, port(), DDPJOB_PAGE=str(page.path), DDPJOB_GENERATION="1")
        stopped = run(BOOTSTRAP, environ)
        assert stopped.returncode == 85, stopped.stdout + stopped.stderr
        assert page[Slot.STEP] == 5
        assert page[Slot.ALL_REDUCES] == 5, "two micro-batches a step, one synchronised backward pass"
        assert page[Slot.MICRO_BATCHES] == 10
        in_effect = page.facts()[Fact.DDP]
        assert in_effect["gradientAsBucketView"] is True
        assert in_effect["bucketCapMB"] == 1
    assert complete_steps(tmp_path / "checkpoints") == (4, 5)

    # Without a launcher, the newest checkpoint that all ranks have is the one to go on from.
    finished = run(ALONE, environment(tmp_path, port()))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "resumed from the checkpoint of step 5: epoch 1, 320 samples" in finished.stdout
    assert "epoch 1 step 9/9 loss" in finished.stdout
    assert complete_steps(tmp_path / "checkpoints") == (5, 8, 9)


def test_without_a_launcher_sigterm_is_a_wish_to_stop():
    wish = StopWish()
    assert not wish()
    wish.on_signal(signal.SIGTERM, None)
    assert wish()
