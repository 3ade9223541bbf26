"""`ddpjob run` of the examples: real torch, two ranks, through the whole line from YAML to the summary."""

import os
import signal
from pathlib import Path

import jsonschema
import pytest
from tests.cli.jobs import ddpjob, last_json
from tests.cli.running import Running, processes_with
from tests.cli.test_run import ENDING

EXAMPLES = Path(__file__).parents[2] / "examples"
COLD = ("--set", "recovery.warmStandby=false")
"""Where nothing is restarted: standbys would import torch once more in each rank, on the test's time."""
pytestmark = pytest.mark.timeout(600)


def test_a_killed_rank_costs_a_restart_and_the_result_is_the_same(tmp_path: Path) -> None:
    with Running(EXAMPLES / "digits.yaml", cwd=tmp_path, seconds=480) as run:
        assert "bucketCapMB 1, broadcastBuffers true" in run.wait_for("DDP settings in effect")
        token = str(tmp_path / ".ddpjob/digits/token")
        checkpoints = str(tmp_path / ".ddpjob/digits/node-1/checkpoints")
        launchers = [processes_with(DDPJOB_NODE_INDEX=node, DDPJOB_TOKEN_FILE=token) for node in "01"]
        run.wait_for("[rank 0] epoch 3 step 69/138")
        for pid in processes_with(DDPJOB_CHECKPOINT_DIR=checkpoints, RANK="1"):
            os.kill(pid, signal.SIGKILL)
        line = run.wait_for("[rank 0] resumed from the checkpoint of step ")
        resumed = int(line.partition(" of step ")[2].partition(":")[0])
        assert launchers == [processes_with(DDPJOB_NODE_INDEX=node, DDPJOB_TOKEN_FILE=token) for node in "01"]
        code, ending = run.end()
    jsonschema.validate(ending, ENDING)
    assert (code, ending["outcome"], ending["ranks"], ending["steps"]) == (0, "Done", 2, 138)
    assert ending["accuracy"] == ending["result"]["accuracy"] >= 0.95
    assert resumed in (50, 100), "of the last one before the kill, which a busy machine may delay"
    assert ending["allReduces"] == 138 - resumed
    assert ending["ddp"].items() >= {"backend": "gloo", "bucketCapMB": 1, "timeoutSeconds": 120}.items()
    assert ending["restarts"] == 1
    assert [(failure["rank"], failure["signal"]) for failure in ending["failures"]] == [(1, "SIGKILL")]
    assert any("survived: rank 1 (node 1): died of SIGKILL at step " in line for line in run.lines)
    goodput = next(line for line in run.lines if "goodput" in line)
    last = run.lines[-1]
    assert last.startswith("done: 138 steps, loss 0.")
    assert last.endswith(" s, restarts 1")
    uses = ending["time"]
    assert all(uses[f"{use}Seconds"] > 0 for use in ("useful", "start", "restart"))
    assert uses["repeatedSeconds"] > 0 or resumed == 100
    assert uses["hangSeconds"] == 0
    assert ending["seconds"] - 10 < sum(uses.values()) <= ending["seconds"]
    assert ending["goodputPercent"] == int(100 * uses["usefulSeconds"] / sum(uses.values()))
    assert f"goodput {ending['goodputPercent']} %: useful " in goodput


def test_ctrl_c_saves_and_the_same_command_goes_on_from_there(tmp_path: Path) -> None:
    options = ("--nodes", "1", "--processes-per-node", "2", *COLD, "--set", "task.seed=1")
    with Running(EXAMPLES / "digits.yaml", *options, cwd=tmp_path, seconds=480) as run:
        run.wait_for("[rank 0] epoch 1 step 23/138")
        run.signal(signal.SIGINT)
        code, ending = run.end()
    step = ending["steps"]
    assert (code, ending["outcome"]) == (85, "Stopped")
    assert 23 <= step < 138
    kept = next(line for line in run.lines if "is kept; `ddpjob run" in line)
    assert f"the checkpoint of step {step} is kept" in kept
    assert kept.endswith("--set task.seed=1 --json` goes on from it")

    other = ddpjob("run", EXAMPLES / "digits.yaml", "--nodes", "1", "--json", cwd=tmp_path)
    assert last_json(other)["outcome"] == "Refused"
    assert "(task.seed was 1 and is not given)" in other.stderr

    again = ddpjob("run", EXAMPLES / "digits.yaml", *options, "--json", cwd=tmp_path)
    ending = last_json(again)
    assert f"resuming from step {step}; --fresh starts over" in again.stderr
    assert f"resumed from the checkpoint of step {step}" in again.stderr
    assert (again.returncode, ending["steps"], ending["restarts"]) == (0, 138, 0)
    assert ending["accuracy"] >= 0.95


def test_a_script_runs_with_the_resources_settings_and_each_override_has_its_line(tmp_path: Path) -> None:
    result = ddpjob("run", EXAMPLES / "script.yaml", *COLD, "--json", cwd=tmp_path)
    ending = last_json(result)
    assert (result.returncode, ending["steps"], ending["allReduces"]) == (0, 40, 40)
    wanted = {"backend": "gloo", "bucketCapMB": 1, "timeoutSeconds": 120}
    switches = {"broadcastBuffers": False, "findUnusedParameters": False}
    assert ending["ddp"].items() >= {**wanted, **switches}.items()
    script = (EXAMPLES / "scripts" / "plain_ddp.py").read_text().splitlines()
    for item in ending["ddp"]["overrides"]:
        file, _, line = item["where"].rpartition(":")
        assert file == "scripts/plain_ddp.py"
        assert (
            "init_process_group(" in script[int(line) - 1]
            or "DistributedDataParallel(" in script[int(line) - 1]
        )
        said = f"{item['setting']}: the script asked for {item['asked']}, {item['effective']} is in effect"
        assert result.stderr.count(said) == 1


def test_the_guides_values_are_in_effect_on_a_cpu_with_gloo(tmp_path: Path) -> None:
    result = ddpjob("run", EXAMPLES / "hf-guide.yaml", "--backend", "Gloo", *COLD, "--json", cwd=tmp_path)
    ending = last_json(result)
    assert result.returncode == 0, result.stderr
    assert (ending["steps"], ending["allReduces"]) == (10, 10)
    wanted = {"backend": "gloo", "gradientAccumulationSteps": 4, "findUnusedParameters": False}
    assert (
        ending["ddp"].items()
        >= {**wanted, "bucketCapMB": 25, "broadcastBuffers": True, "timeoutSeconds": 1800}.items()
    )


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU, and NCCL would run")
@pytest.mark.parametrize(
    ("name", "options"), [("script", ("--backend", "NCCL")), ("hf-guide", ())], ids=["option", "the guide's"]
)
def test_nccl_without_a_gpu_is_refused_once_and_not_tried_again(
    tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    result = ddpjob("run", EXAMPLES / f"{name}.yaml", "--nodes", "1", *options, "--json", cwd=tmp_path)
    ending = last_json(result)
    assert (result.returncode, ending["outcome"]) == (86, "Refused")
    assert ending["message"].startswith(
        "refused: spec.ddp.backend: NCCL needs a GPU and torch sees none; use Auto"
    )
    assert result.stderr.count("generation 1 starts") == 1
    assert "generation 2" not in result.stderr


@pytest.mark.parametrize("name", ["torchrun", pytest.param("accelerate-launch", marks=pytest.mark.slow)])
def test_a_command_runs_over_two_nodes_with_the_settings_in_effect(tmp_path: Path, name: str) -> None:
    done = ddpjob("run", EXAMPLES / f"{name}.yaml", *COLD, "--json", cwd=tmp_path)
    ending = last_json(done)
    jsonschema.validate(ending, ENDING)
    assert (ending["outcome"], ending["ranks"], ending["steps"]) == ("Done", 2, 20), done.stderr
    in_effect = {"backend": "gloo", "bucketCapMB": 1, "timeoutSeconds": 120, "worldSize": 2}
    assert ending["ddp"].items() >= in_effect.items()
    (asked,) = [
        each
        for each in ending["ddp"]["overrides"]
        if each["setting"] == ("bucketCapMB" if name == "torchrun" else "findUnusedParameters")
    ]
    assert asked["where"].startswith("scripts/" if name == "torchrun" else ""), asked
    line = "runs torchrun --nnodes 2" if name == "torchrun" else "runs accelerate launch --num_machines 2"
    assert line in done.stderr


FALLS = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    here = (os.environ["DDPJOB_GENERATION"], dist.get_rank(), step)
    if here == ("1", 3, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    if here == ("2", 1, 3):
        raise ValueError("bad sample 17")
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate, launch"])
def test_the_culprit_below_a_nested_launcher_is_named(tmp_path: Path, launcher: str) -> None:
    """torchrun ends with 1 whatever happened; which rank, of which signal or exception, comes from below it."""
    (tmp_path / "falls.py").write_text(FALLS)
    (tmp_path / "job.yaml").write_text(
        "{apiVersion: ddpjob.dev/v1alpha1, kind: DDPJob, metadata: {name: falls}, spec: {nodes: 2, "
        f"processesPerNode: 2, command: [{launcher}, falls.py], recovery: {{maxRestarts: 1}}}}}}"
    )
    ending = last_json(ddpjob("run", tmp_path / "job.yaml", "--json", cwd=tmp_path))
    assert (ending["outcome"], ending["exitCode"], ending["restarts"]) == ("Failed", 1, 1)
    found = [(each["rank"], each["node"], each["step"], each.get("signal")) for each in ending["failures"]]
    assert found == [(3, 1, 2, "SIGKILL"), (1, 0, 3, None)]
    last = ending["lastFailure"]
    assert (last["message"], last["location"]) == ("ValueError: bad sample 17", "falls.py:11")
    assert ending["ddp"]["worldSize"] == 4
