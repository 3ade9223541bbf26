"""How often torch's logger of a model is sampled."""

from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_trainer.instrumentation import reducer
from ddpjob_trainer.instrumentation.reducer import FULLY_SAMPLED, Reducer


@pytest.mark.parametrize(
    ("device", "seconds", "rate"),
    [("cpu", 0.0005, 100), ("cpu", 0.005, 50), ("cpu", 0.03125, 8), ("cpu", 0.1, 2), ("cuda", 0.4, 20)],
)
def test_a_sample_is_taken_every_quarter_of_a_second_and_at_most_once_in_100_steps(
    device: str, seconds: float, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, asked, told = 0, list[int](), list[int]()
    monkeypatch.setattr(reducer, "monotonic", lambda: 1000 + step * seconds)
    data = SimpleNamespace(ints_map={}, strs_map={})
    model: Any = SimpleNamespace(
        device_type=device,
        _module_parameters=[],
        logger=SimpleNamespace(_get_ddp_logging_data=lambda: data),
        reducer=SimpleNamespace(_set_ddp_runtime_logging_sample_rate=told.append),
    )
    worker: Any = SimpleNamespace(page=SimpleNamespace(slots=[0] * 400))
    reading = Reducer(worker, model)
    for step in range(1, 1001):
        if reading.prepared(seconds / 2):
            asked.append(step)
    assert asked[: FULLY_SAMPLED - 1] == list(range(2, FULLY_SAMPLED + 1))
    apart = [later - earlier for earlier, later in zip(asked[-6:], asked[-5:], strict=False)]
    assert apart == [rate] * 5
    assert told[-1] == rate, "torch records at the same rate"
