"""A training that was interrupted ends as if it had not been."""

import os
from types import SimpleNamespace

import pytest
import torch
from tests.trainer.loop.crew import JobFailed
from tests.trainer.loop.jobs import equal, same_losses, training

from ddpjob_trainer.checkpoints import MANIFEST, complete_steps, step_path
from ddpjob_trainer.loop import saving

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def run(crew, tmp_path):
    """Train `noisy` for 10 steps on two ranks: 4 a epoch, the last of them incomplete."""

    def run(**options):
        options = {"entrypoint": "noisy", "task": {"maxSteps": 10}, "checkpoint": {}} | options
        options.setdefault("directory", tmp_path / "checkpoints")
        return crew.run(2, training, page=tmp_path / f"page-{crew.jobs}", **options)

    return run


@pytest.mark.parametrize("ddp", [{}, {"broadcastBuffers": False, "gradientAccumulationSteps": 2}])
@pytest.mark.parametrize("at", [4, 5])
def test_ten_steps_are_five_and_five(run, tmp_path, at, ddp):
    straight = run(ddp=ddp, checkpoint=None)
    # A resumed run: its first part saved after step `at`, then went on to 7 and was lost.
    run(ddp=ddp, checkpoint={"everySteps": at}, stop=(0, at), directory=tmp_path / "part")
    assert complete_steps(tmp_path / "part") == (at,)
    resumed = run(ddp=ddp, resume=at, directory=tmp_path / "part")
    assert same_losses(straight[0].losses[at:], resumed[0].losses)
    assert straight[0].result["parameterHash"] == resumed[0].result["parameterHash"]
    assert equal(straight[0], resumed[0])
    assert equal(*resumed)
    assert resumed[0].slots["RESUMED_STEP"] == at
    assert (resumed[0].slots["STEP"], resumed[0].slots["GENERATION_STEPS"]) == (10, 10 - at)


def test_a_training_goes_on_with_another_number_of_ranks(crew, run, tmp_path):
    straight = run(entrypoint="lines", task={"maxSteps": 6}, checkpoint=None)
    run(entrypoint="lines", task={"maxSteps": 6}, stop=(0, 2))
    resumed = crew.run(
        4,
        training,
        entrypoint="lines",
        task={"maxSteps": 6},
        checkpoint={},
        directory=tmp_path / "checkpoints",
        resume=2,
        page=tmp_path / "page-of-four",
    )
    assert resumed[0].losses == pytest.approx(straight[0].losses[2:], rel=1e-12)


def test_each_node_or_the_first_one_writes(run, tmp_path):
    run(checkpoint={"everySteps": 4, "keep": 2})
    assert complete_steps(tmp_path / "checkpoints") == (8, 10)
    outcomes = run(checkpoint={"persistentVolumeClaim": "shared", "everySteps": 4, "keep": 1})
    assert complete_steps(tmp_path / "checkpoints")[-1:] == (10,)
    for outcome in outcomes:
        assert outcome.slots["CHECKPOINTS"] == 3
        assert outcome.slots["CHECKPOINT_STEP"] == 10
        assert outcome.slots["CHECKPOINT_BYTES"] > 1000
        assert outcome.slots["CHECKPOINT_FAILURES"] == 0
    assert [outcome.slots["CHECKPOINT_DURATION_SECONDS"] > 0 for outcome in outcomes] == [True, False], (
        "only the first writes"
    )


def test_time_makes_a_checkpoint_due_on_all_ranks(run, monkeypatch):
    outcomes = run(checkpoint={"everySeconds": 1}, entrypoint="slow")
    assert outcomes[0].slots["CHECKPOINTS"] == outcomes[1].slots["CHECKPOINTS"] >= 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_wish_to_stop_stops_all_at_the_same_step_and_saves(run, tmp_path, rank):
    outcomes = run(stop=(rank, 3))
    assert [(each.done, each.steps) for each in outcomes] == [(False, 3), (False, 3)]
    assert complete_steps(tmp_path / "checkpoints") == (3,)


def test_a_wish_to_stop_during_an_evaluation_ends_it_on_all_ranks_and_saves(run, tmp_path):
    task = {"entrypoint": "counted", "params": {"size": 11}, "task": {"epochs": 2}}
    outcomes = run(**task, stop=(1, 3))
    assert [(each.done, each.steps) for each in outcomes] == [(False, 2), (False, 2)]
    assert [each.slots["CAN_STOP_AT"] for each in outcomes] == [0, 0]
    assert complete_steps(tmp_path / "checkpoints") == (2,)
    assert "sum" in run(**task, resume=2)[0].result


def test_the_launchers_word_stops_at_its_step(run, tmp_path):
    outcomes = run(stop_at=6)
    assert [(each.done, each.steps) for each in outcomes] == [(False, 6), (False, 6)]
    assert [each.slots["BOUNDARY"] for each in outcomes] == [6, 6]
    assert complete_steps(tmp_path / "checkpoints") == (6,)


def test_a_finished_training_that_is_started_again_only_evaluates(run):
    first = run(entrypoint="counted", params={"size": 11}, task={"epochs": 2})
    again = run(entrypoint="counted", params={"size": 11}, task={"epochs": 2}, resume=2)
    assert again[0].losses == []
    assert again[0].result["parameterHash"] == first[0].result["parameterHash"]
    assert again[0].result["sum"] == first[0].result["sum"]


@pytest.mark.parametrize("full", ["file size limit", "no directory"])
def test_a_full_disk_costs_the_checkpoint_and_not_the_training(run, tmp_path, full):
    if full == "no directory":
        (tmp_path / "checkpoints").write_text("a file where the directory should be")
    straight = run(checkpoint=None, directory=None)
    outcomes = run(checkpoint={"everySteps": 5}, file_size_limit=2000 if full == "file size limit" else None)
    for outcome in outcomes:
        assert outcome.done
        assert outcome.slots["CHECKPOINT_FAILURES"] >= 2
        assert outcome.slots["CHECKPOINTS"] == 0
    cause = "File too large" if full == "file size limit" else "File exists"
    words = (
        f"checkpoints cannot be written to {tmp_path}/checkpoints: {cause}; the training goes on, and after a "
        "failure it would start from its beginning"
    )
    assert outcomes[0].facts == [("checkpoint", words)], "said once, as long as the cause is the same"
    assert equal(straight[0], outcomes[0])
    if full == "file size limit":
        assert os.listdir(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_fails_the_start_and_is_never_used_again(run, tmp_path, damage):
    run(checkpoint={"everySteps": 5})
    path = step_path(tmp_path / "checkpoints", 10) / "state.pt"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content if damage == "flipped" else content[:-10])
    with pytest.raises(JobFailed, match="step-00000010 is damaged") as failed:
        run(resume=10)
    assert failed.value.kind == "CheckpointDamaged"
    assert complete_steps(tmp_path / "checkpoints") == (5,)
    assert run(resume=5)[0].steps == 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"task": {"maxSteps": 10, "globalBatchSize": 4}},
            "with spec.task.globalBatchSize 8 and this run has 4",
        ),
        ({"task": {"maxSteps": 10, "seed": 1}}, "with spec.task.seed 0 and this run has 1"),
        ({"params": {"size": 28}}, "with the length of Task.train_dataset 27 and this run has 28"),
        ({"entrypoint": "plain", "params": {"size": 27}}, "is of another model: weight is missing"),
        ({"entrypoint": "noisy", "params": {"width": 8}}, r"0.0.weight is \(16, 5\) and here \(8, 5\)"),
        ({"params": {"algorithm": "sgd"}}, "its optimizer does not fit"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(run, change, words):
    run(stop=(0, 2))
    with pytest.raises(JobFailed, match=words) as failed:
        run(resume=2, **change)
    assert failed.value.kind == "Refused"


def test_a_checkpoint_of_another_version_is_refused_and_stays(run, tmp_path):
    run(stop=(0, 2))
    manifest = step_path(tmp_path / "checkpoints", 2) / MANIFEST
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        JobFailed, match="another version of DDPJob wrote it; go on with that version"
    ) as failed:
        run(resume=2)
    assert failed.value.kind == "Refused"
    assert manifest.exists()


def test_without_a_launcher_a_checkpoint_of_another_version_is_met_and_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "from_all", lambda mine: [mine, mine])
    step_path(tmp_path, 2).mkdir()
    (step_path(tmp_path, 2) / MANIFEST).write_text('{"format": 2}')
    assert saving.newest_common_step(SimpleNamespace(checkpoint_dir=tmp_path)) == 2


def test_a_schedule_that_could_not_be_loaded_is_refused_before_the_first_step(run):
    with pytest.raises(JobFailed, match=r"state of Task.schedule .* cannot be saved") as failed:
        run(entrypoint="odd_schedule")
    assert failed.value.kind == "Refused"


def test_the_file_holds_tensors_and_plain_values_only(run, tmp_path):
    run(stop=(0, 2))
    state = torch.load(step_path(tmp_path / "checkpoints", 2) / "state.pt", weights_only=True)
    assert set(state) == {"model", "optimizer", "schedule", "scale"}
