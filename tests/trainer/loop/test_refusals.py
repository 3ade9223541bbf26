"""What cannot work is refused in a sentence that says what to do."""

import json

import pytest
from tests.trainer.loop.crew import JobFailed
from tests.trainer.loop.jobs import training

from ddpjob_trainer import train
from ddpjob_trainer.errors import DeviceGone, Refused
from ddpjob_trainer.loop.entrypoint import make_task
from ddpjob_trainer.loop.process import cores, join
from ddpjob_trainer.loop.told import told

pytestmark = pytest.mark.timeout(180)
TOYS = "tests.trainer.loop.toys"
TASK = {"entrypoint": f"{TOYS}:plain", "epochs": 1, "globalBatchSize": 8}


@pytest.mark.parametrize(
    ("entrypoint", "params", "words"),
    [
        (
            "nowhere.at.all:task",
            {},
            "there is no module nowhere here; put it into the image or the workspace",
        ),
        (f"{TOYS}:tsak", {}, "module tests.trainer.loop.toys has no tsak; it has "),
        (f"{TOYS}:NUMBER", {}, "is a value of type int; expected a callable returning a Task"),
        (f"{TOYS}:not_a_task", {}, "returned a value of type Linear; expected a ddpjob_trainer.task.Task"),
        (f"{TOYS}:noisy", {"wide": 3}, "spec.task.params do not fit .* unexpected keyword argument 'wide'"),
        (f"{TOYS}:counted", {}, "spec.task.params do not fit .* missing a required argument: 'size'"),
        (f"{TOYS}:empty", {}, "Task.train_dataset is empty"),
        (f"{TOYS}:frozen", {}, "Task.model has no parameter that requires a gradient"),
        (f"{TOYS}:lines", {"clip_norm": -1}, "Task.clip_norm is -1; expected a number above 0"),
    ],
)
def test_a_task_that_cannot_be_made(entrypoint, params, words):
    with pytest.raises(Refused, match=words):
        make_task(entrypoint, params, seed=0)


def test_a_module_that_lacks_something_itself_keeps_its_own_traceback(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import something_that_is_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_that_is_not_installed"):
        make_task("lacking:task", {}, seed=0)


@pytest.mark.parametrize(
    ("entrypoint", "options", "words"),
    [
        (
            "plain",
            {"task": {"globalBatchSize": 32}},
            "globalBatchSize is 32 and Task.train_dataset has 16 samples",
        ),
        ("plain", {"task": {"gradientCheckpointing": "Reentrant"}}, "Linear has no blocks to recompute"),
        ("sync_batch_norm", {}, "SyncBatchNorm needs an accelerator"),
        ("uneven", {}, "has 17 samples on rank 1 and 16 on rank 0"),
        (
            "bad_loss",
            {"params": {"kind": "number"}},
            "Task.loss returned a Tensor; expected .loss_sum, count.",
        ),
        ("bad_loss", {"params": {"kind": "three"}}, "Task.loss returned a tuple of 3"),
        ("bad_loss", {"params": {"kind": "vector"}}, r"Task.loss returned a loss_sum of shape \(2,\)"),
        ("bad_loss", {"params": {"kind": "detached"}}, "a loss_sum that no parameter has a part in"),
        ("bad_loss", {"params": {"kind": "text"}}, "Task.loss returned a count that is a str"),
    ],
)
def test_a_task_that_cannot_be_trained(crew, tmp_path, entrypoint, options, words):
    with pytest.raises(JobFailed, match=words) as failed:
        crew.run(2, training, entrypoint=entrypoint, page=tmp_path / "page", **options)
    assert failed.value.kind == "Refused"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "DDPJOB_TASK is not set"),
        ({"DDPJOB_TASK": "{"}, "DDPJOB_TASK is not JSON"),
        ({"DDPJOB_TASK": "{}"}, "DDPJOB_TASK: entrypoint: missing"),
        ({"DDPJOB_TASK": json.dumps(TASK), "RANK": "first"}, "RANK is 'first'; expected a whole number"),
        (
            {"DDPJOB_TASK": json.dumps(TASK), "DDPJOB_CHECKPOINT": "{}"},
            "DDPJOB_CHECKPOINT_DIR is not; set it",
        ),
    ],
)
def test_an_environment_that_says_no_task(environment, words):
    with pytest.raises(Refused, match=words):
        told(environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"DDPJOB_SETTINGS": '{"backend": "NCCL"}'},
            "spec.ddp.backend: NCCL needs a GPU and torch sees none",
        ),
        (
            {"DDPJOB_SETTINGS": '{"backend": "CNCL"}'},
            "spec.ddp.backend: this torch does not have the backend",
        ),
        (
            {"DDPJOB_ACCELERATOR": "nvidia.com/gpu"},
            "spec.ddp.backend: resourcesPerNode asks for nvidia.com/gpu and torch sees no cuda device",
        ),
        ({"WORLD_SIZE": "3"}, "globalBatchSize 8 cannot be divided over 3 ranks .* use 6 or 9"),
    ],
)
def test_settings_that_this_machine_cannot_serve(environment, words, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Refused, match=words):
        join(told({"DDPJOB_TASK": json.dumps(TASK), **environment}))


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({"DDPJOB_ACCELERATOR": "nvidia.com/gpu"}, DeviceGone),
        ({"DDPJOB_SETTINGS": '{"backend": "NCCL"}', "DDPJOB_GENERATION": "1"}, Refused),
        ({"DDPJOB_SETTINGS": '{"backend": "NCCL"}', "WORLD_SIZE": "3"}, Refused),
    ],
    ids=["a device that is gone", "the first generation", "something else too"],
)
def test_after_a_restart_a_device_that_is_gone_is_no_refusal(environment, kind, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(kind, match="torch sees no"):
        join(told({"DDPJOB_TASK": json.dumps(TASK), "DDPJOB_GENERATION": "2", **environment}))


def test_without_a_launcher_a_refusal_is_a_sentence_and_exit_86(monkeypatch, capsys):
    monkeypatch.delenv("DDPJOB_TASK", raising=False)
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 86
    assert capsys.readouterr().err.startswith("DDPJOB_TASK is not set")


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 64), ("200000 100000", 2), ("50000 100000", 1)]
)
def test_a_containers_cpu_limit_bounds_the_threads(tmp_path, monkeypatch, quota, expected):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr("ddpjob_trainer.loop.process.CGROUP_CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert cores() == expected
