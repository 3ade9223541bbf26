"""What is not finite or not equal is seen by all ranks together."""

import math

import pytest
import torch
from tests.trainer.loop.crew import JobFailed
from tests.trainer.loop.jobs import equal, training

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def run(crew, tmp_path):
    def run(entrypoint, **options):
        return crew.run(2, training, entrypoint=entrypoint, page=tmp_path / f"page-{crew.jobs}", **options)

    return run


def test_a_nan_on_one_rank_skips_the_step_on_all_and_spoils_nothing(run):
    outcomes = run("poisoned", task={"epochs": 2})
    for outcome in outcomes:
        assert outcome.slots["NON_FINITE_STEPS"] == 2
        assert outcome.steps == 8
        assert sum(math.isnan(loss) for loss in outcome.losses) == 2
        assert all(torch.isfinite(value).all() for value in outcome.parameters.values()), (
            "BatchNorm kept a NaN"
        )
    assert equal(*outcomes)


def test_a_training_that_is_never_finite_ends_in_a_sentence(run):
    with pytest.raises(
        JobFailed, match="were not finite in the 100 steps up to 100; lower the learning"
    ) as failed:
        run("hopeless", task={"maxSteps": 200})
    assert failed.value.kind == "Diverged"


@pytest.mark.parametrize("precision", ["BF16", "FP16"])
def test_low_precision_trains(run, precision):
    reference = run("noisy", task={"epochs": 3})[0]
    outcomes = run("noisy", task={"epochs": 3, "precision": precision})
    finite = [loss for loss in outcomes[0].losses if not math.isnan(loss)]
    assert finite[-1] == pytest.approx(reference.losses[-1], rel=0.05)
    assert equal(*outcomes)
    assert not equal(reference, outcomes[0])
    assert all(value.dtype != torch.bfloat16 for value in outcomes[0].parameters.values())


def test_the_loss_scale_falls_together_and_is_saved(run, tmp_path):
    options = {"task": {"maxSteps": 8, "precision": "FP16"}, "params": {"factor": 1e3}}
    straight = run("steep", **options)
    assert straight[0].slots["NON_FINITE_STEPS"] >= 1
    assert straight[0].scale == straight[1].scale == 65536 / 2 ** straight[0].slots["NON_FINITE_STEPS"]
    run("steep", checkpoint={}, directory=tmp_path / "checkpoints", stop=(0, 5), **options)
    resumed = run("steep", checkpoint={}, directory=tmp_path / "checkpoints", resume=5, **options)
    assert equal(straight[0], resumed[0])
    assert straight[0].scale == resumed[0].scale


def test_replicas_that_drift_apart_are_found_and_named(run):
    with pytest.raises(
        JobFailed, match="after step 4 rank 1 of 2 holds other parameters than the rest"
    ) as failed:
        run("drifting", task={"maxSteps": 4})
    assert failed.value.kind == "ReplicasDiffer"


def test_equal_replicas_have_the_hash_that_is_reported(run):
    first, second = run("plain")
    assert first.result["replicasEqual"] is True
    assert first.result["parameterHash"] == second.result["parameterHash"]
    assert run("plain", task={"seed": 1})[0].result["parameterHash"] != first.result["parameterHash"]


def test_the_page_says_where_the_training_is(run):
    slots = run("noisy", task={"epochs": 2})[0].slots
    assert (slots["STEP"], slots["TOTAL_STEPS"], slots["GENERATION_STEPS"], slots["EPOCH"]) == (8, 8, 8, 2)
    assert slots["GRAD_NORM"] > 0
    assert 0 < slots["LEARNING_RATE"] <= 0.01
    assert slots["SAMPLES"] == 30, (
        "27 samples by 8: rank 0 has 4 three times and then the 3 that are left, twice"
    )
    phases = [f"{name}_SECONDS" for name in ("DATA", "FORWARD", "BACKWARD", "OPTIMIZER", "OTHER")]
    assert all(slots[name] > 0 for name in phases)
    assert slots["FIRST_STEP_AT"] < slots["LAST_STEP_AT"]


def test_digits_are_learned(run):
    outcome = run(
        "ddpjob_trainer.tasks.digits:task", task={"epochs": 4, "globalBatchSize": 64}, ddp={"bucketCapMB": 1}
    )[0]
    assert outcome.result["accuracy"] >= 0.95


def test_characters_are_learned(run):
    outcome = run(
        "ddpjob_trainer.tasks.characters:task",
        params={"context": 32, "width": 32, "layers": 1},
        task={"maxSteps": 25, "globalBatchSize": 32, "gradientCheckpointing": "NonReentrant"},
        ddp={"gradientAccumulationSteps": 2},
    )[0]
    assert outcome.losses[-1] < outcome.losses[0] - 1
    assert outcome.result["perplexity"] == pytest.approx(math.exp(outcome.result["testLoss"]))
