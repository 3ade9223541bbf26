"""What `benchmarks/recovery.py` runs beside ours, and how it compares medians that are only known to be longer."""

import pytest
from benchmarks.recovery import SIDES, Recovery, median, ratio


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([[8.0], [9.0], [7.0]], [[20.0], [16.0], [10.0]], "8.00 s, 0.50"),
        ([[8.0], [9.0], [7.0]], [[20.0], [16.0, None], [10.0]], "8.00 s, 0.50"),
        ([[8.0], [9.0], [7.0]], [[None], [160.0], [100.0]], "8.00 s, ≤ 0.05"),
        ([[8.0], [None], [7.0]], [[20.0], [16.0], [10.0]], "≥ 8.00 s, ≥ 0.50"),
        ([[None], [None], [7.0]], [[None], [None], [None]], "≥ 180.00 s, ? 1.00"),
    ],
)
def test_a_ratio_to_what_was_given_up_is_an_upper_bound(
    ours: list[list[float | None]], theirs: list[list[float | None]], said: str
) -> None:
    one, base = (
        median([[Recovery(seconds or 180.0, limited=seconds is None) for seconds in run] for run in runs], 0)
        for runs in (ours, theirs)
    )
    assert f"{one} s, {ratio(one, base)}" == said


def test_a_run_that_was_given_up_before_counts_with_its_limit() -> None:
    found = median([[Recovery(1.0), Recovery(180.0, limited=True)], [Recovery(1.0)] * 5], 4)
    assert (found.total, found.limited) == (90.5, True)


@pytest.mark.parametrize(("key", "restarts"), [("torchrun", "1000"), ("job", "0")])
def test_who_restarts_a_worker_is_torchrun_on_one_side_and_the_kubelet_on_the_other(
    key: str, restarts: str
) -> None:
    *_, job = SIDES[key].documents("one", "image")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert f" --max-restarts {restarts} " in pod["containers"][0]["command"][-1]
