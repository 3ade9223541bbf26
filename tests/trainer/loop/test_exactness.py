"""The same training whoever does it: any number of ranks, any accumulation, any way of computing a gradient."""

import pytest
from tests.trainer.loop.jobs import equal, farthest, same_losses, training

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page"


LAYOUTS = {"2×4": (2, 1), "4×2": (4, 1), "2×2×accumulation 2": (2, 2), "1×2×accumulation 4": (1, 4)}


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_gradients_do_not_depend_on_the_number_of_ranks_or_micro_batches(crew, page, clip_norm):
    # 20 samples: the last step has 4, so that some ranks have none. Lines differ in length.
    run = {"entrypoint": "lines", "params": {"clip_norm": clip_norm}, "task": {"epochs": 2}, "page": page}
    alone = crew.run(1, training, **run)[0]
    assert len(alone.gradients) == 6
    for name, (ranks, accumulation) in LAYOUTS.items():
        outcomes = crew.run(ranks, training, ddp={"gradientAccumulationSteps": accumulation}, **run)
        distance = max(farthest(alone, each) for each in outcomes)
        print(f"gradients of 1×8 and {name} (float64, variable length): largest difference {distance:.1e}")
        assert distance < 1e-12
        assert all(equal(outcomes[0], each) for each in outcomes), "replicas differ"
        assert max(abs(a - b) for a, b in zip(alone.losses, outcomes[0].losses, strict=True)) < 1e-12


def test_accumulation_synchronises_one_backward_pass_per_step(crew, page):
    outcome = crew.run(
        2,
        training,
        entrypoint="lines",
        params={"size": 80},
        ddp={"gradientAccumulationSteps": 4},
        page=page,
    )[0]
    assert outcome.steps == 10
    assert outcome.synchronised == 10
    assert outcome.slots["SAMPLES"] == 40


@pytest.mark.parametrize(
    ("name", "task", "ddp"),
    [
        ("static graph", {}, {"staticGraph": True}),
        ("find unused", {}, {"findUnusedParameters": True}),
        ("no bucket view", {}, {"gradientAsBucketView": False}),
        ("non-reentrant", {"gradientCheckpointing": "NonReentrant"}, {}),
        ("reentrant", {"gradientCheckpointing": "Reentrant"}, {}),
        ("reentrant, static", {"gradientCheckpointing": "Reentrant"}, {"staticGraph": True}),
    ],
)
def test_settings_change_how_gradients_are_computed_and_not_what_they_are(crew, page, name, task, ddp):
    run = {"entrypoint": "lines", "page": page}
    plain = crew.run(2, training, ddp={"gradientAccumulationSteps": 2}, **run)[0]
    other = crew.run(2, training, task=task, ddp={"gradientAccumulationSteps": 2, **ddp}, **run)[0]
    assert farthest(plain, other) < 1e-12
    assert other.result["replicasEqual"] is True


@pytest.mark.parametrize("mode", ["NonReentrant", "Reentrant"])
def test_recomputation_updates_running_statistics_once(crew, page, mode):
    run = {"entrypoint": "noisy", "params": {"dropout": 0.0}, "page": page}
    plain = crew.run(2, training, **run)[0]
    other = crew.run(2, training, task={"gradientCheckpointing": mode}, **run)[0]
    assert equal(plain, other)


def test_a_run_is_the_same_with_any_number_of_loader_processes(crew, page):
    run = {"entrypoint": "noisy", "page": page}
    plain, other = (crew.run(2, training, params={"workers": workers}, **run)[0] for workers in (0, 2))
    assert equal(plain, other)
    assert same_losses(plain.losses, other.losses)


def test_one_sample_left_for_a_rank_is_normed_by_the_running_statistics(crew, page):
    # 27 samples by 8: the last step has 3, so rank 1 of 2 with micro-batches of 2 has 1.
    outcomes = crew.run(
        2, training, entrypoint="noisy", ddp={"gradientAccumulationSteps": 2}, task={"epochs": 2}, page=page
    )
    assert [each.steps for each in outcomes] == [8, 8]
    assert [each.slots["SAMPLES"] for each in outcomes] == [28, 26]
    assert equal(*outcomes)


@pytest.mark.parametrize(("ranks", "size", "batch_size"), [(1, 10, 3), (2, 11, None), (4, 3, 2), (4, 10, 1)])
def test_evaluation_measures_every_sample_once(crew, page, ranks, size, batch_size):
    outcomes = crew.run(
        ranks, training, entrypoint="counted", params={"size": size, "batch_size": batch_size}, page=page
    )
    for outcome in outcomes:
        assert outcome.result["sum"] == pytest.approx(sum(range(size)))
        assert outcome.result["squares"] == pytest.approx(sum(n * n for n in range(size)))
