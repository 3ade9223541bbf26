"""`ddpjob explain`: what makes a job slow, or stand, by the metrics of its ranks."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.cli.observations import RUNNING, SPEC, first_is, rank

from ddpjob_api.efficiency import Efficiency
from ddpjob_cli.explain.finding import Weight
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import EventSeen, Observation

LIMITED = {
    seconds: replace(
        RUNNING,
        namespace="team",
        spec=replace(SPEC, recovery=replace(SPEC.recovery, progress_timeout=timedelta(seconds=seconds))),
    )
    for seconds in (0, 60, 600)
}
"""By recovery.progressTimeoutSeconds."""
CASES: list[tuple[str, Observation, Weight, str, str]] = [
    # what is met, the observation, and the first finding: weight, words in what, words in do
    (
        "one rank waits for its data",
        replace(RUNNING, ranks=tuple(rank(n, data_wait=1.0 if n == 2 else 0.1, forward=0.6, backward_compute=0.4, comm_exposed=0.0 if n == 2 else 0.9) for n in range(4))),
        Weight.SLOWS,
        "rank 2 is the slowest: data_wait 50 ms a step, the others 5 ms",
        "DataLoader",
    ),
    (
        "one rank computes longer",
        replace(
            RUNNING,
            ranks=tuple(
                rank(n, forward=0.4, backward_compute=1.4 if n == 3 else 0.6, comm_exposed=0.0 if n == 3 else 0.8)
                for n in range(4)
            ),
        ),
        Weight.SLOWS,
        "rank 3 is the slowest: backward_compute 70 ms a step, the others 30 ms",
        "look at its node",
    ),
    (
        "all ranks wait for data",
        replace(RUNNING, ranks=tuple(rank(n, data_wait=1.2, forward=0.4, backward_compute=0.4) for n in range(2))),
        Weight.SLOWS,
        "waiting for data takes 60 % of the time",
        "DataLoader workers",
    ),
    (
        "all ranks wait for gradients",
        replace(RUNNING, ranks=tuple(rank(n, comm_exposed=1.0, forward=0.6, backward_compute=0.2) for n in range(2))),
        Weight.SLOWS,
        "waiting for gradients takes 50 %",
        "ddpjob tune",
    ),
    (
        "no step for minutes",
        replace(
            RUNNING,
            ranks=(
                rank(0, last=700.0, phase="backward", forward=0.5),
                rank(1, last=700.0, phase="backward", forward=0.5),
                rank(2, last=700.0, phase="data", forward=0.5),
            ),
        ),
        Weight.STOPS,
        "no step for 5 min 0 s, usually 100 ms; rank 2 in data",
        "collective",
    ),
    *(
        (
            f"no step while ranks are in {phase}",
            replace(RUNNING, ranks=(rank(0, last=905.0, phase=phase, forward=0.5), rank(1, last=905.0, phase=other, forward=0.5))),
            Weight.NOTES,
            f"no step for 1 min 35 s, usually 100 ms; {who} in {phase}",
            "",
        )
        for phase, other, who in (
            ("evaluation", "evaluation", "ranks 0, 1"),
            ("checkpoint", "backward", "rank 0"),
            ("loading", "loading", "ranks 0, 1"),
            ("starting", "starting", "ranks 0, 1"),
        )
    ),
    *(
        (
            f"no step for {hours} while a rank is in {phase}, {limit or 'no'} seconds allowed",
            replace(
                LIMITED[limit],
                now=100_000.0,
                ranks=(rank(0, last=100_000.0 - age, phase=phase, forward=0.5), rank(1, last=100_000.0 - age, phase="comm_exposed", forward=0.5)),
            ),
            weight,
            f"no step for {hours}, usually 100 ms; rank 0 in {phase}",
            "ddpjob logs digits -n team",
        )
        for phase in ("checkpoint", "evaluation", "loading", "starting")
        for limit, age, hours, weight in (
            (0, 3500, "58 min 20 s", Weight.NOTES),
            (0, 6 * 3600, "6 h 0 min", Weight.STOPS),
            (600, 5000, "1 h 23 min", Weight.NOTES),
            (600, 6 * 3600, "6 h 0 min", Weight.STOPS),
            (60, 700, "11 min 40 s", Weight.STOPS),
        )
    ),
    (
        "the operator has found the slow one",
        replace(RUNNING, efficiency=Efficiency(slowest_rank=5, slowest_rank_cause="data_wait", slowest_node="w7"), ranks=(rank(0),)),
        Weight.SLOWS,
        "rank 5 makes the others wait, in data_wait",
        "ddpjob top digits",
    ),
    (
        "who was slow for long is not any more, and all wait for gradients",
        replace(
            RUNNING,
            efficiency=Efficiency(exposed_communication_percent=50, data_wait_percent=0),
            ranks=tuple(rank(n, data_wait=0.6 if n == 2 else 0.0, forward=0.4, comm_exposed=0.4 if n == 2 else 1.0) for n in range(4)),
        ),
        Weight.SLOWS,
        "waiting for gradients takes 50 %",
        "ddpjob tune",
    ),
    (
        "healthy ranks, unevenly busy",
        replace(RUNNING, ranks=tuple(rank(n, forward=0.6 + 0.04 * n, backward_compute=0.8, data_wait=0.02 * n) for n in range(4))),
        Weight.FINE,
        "nothing is in its way",
        "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "weight", "what", "do"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_makes_it_slow_or_stand_is_the_first_finding(
    seen: Observation, weight: Weight, what: str, do: str
) -> None:
    first_is(seen, weight, what, do)


def test_what_waiting_costs_is_noted_beside_what_makes_it_slow() -> None:
    told = Efficiency(exposed_communication_percent=50, ddp_efficiency_percent=48)
    waiting = tuple(rank(n, comm_exposed=1.0, forward=0.6, backward_compute=0.2) for n in range(2))
    found = findings(replace(RUNNING, efficiency=told, ranks=waiting))
    assert [(f.weight, f.what.partition(":")[0]) for f in found] == [
        (Weight.SLOWS, "waiting for gradients takes 50 % of the time on the median rank"),
        (Weight.NOTES, "DDP efficiency 48 %"),
    ]


@pytest.mark.parametrize(
    ("now", "since_it_began", "said"),
    [
        (
            35,
            {"data_wait": 0.05, "forward": 0.95},
            ["waiting for data takes 35 % of the time on the median rank"],
        ),
        (4, {"data_wait": 0.5, "forward": 0.5}, []),
    ],
    ids=["it has begun", "it is over"],
)
def test_waiting_is_that_of_the_last_minute_where_the_coordinator_says_it(
    now: int, since_it_began: dict[str, float], said: list[str]
) -> None:
    """The event that tells of it is left out for the same reason."""
    told = Efficiency(exposed_communication_percent=9, data_wait_percent=now)
    event = EventSeen(about="job digits", reason="LowEfficiency", message="ranks waited much", warning=True)
    ranks = tuple(rank(n, **since_it_began) for n in range(2))
    found = findings(replace(RUNNING, efficiency=told, ranks=ranks, events=(event,)))
    assert [f.what for f in found if f.weight is not Weight.FINE] == said


@pytest.mark.parametrize("ranks_seen", [True, False])
def test_an_event_about_speed_is_told_only_where_the_ranks_themselves_are_not_seen(ranks_seen: bool) -> None:
    events = tuple(
        EventSeen(about="job digits", reason=reason, message=f"{reason} once", warning=True)
        for reason in ("Straggler", "LowEfficiency")
    )
    ranks = tuple(rank(n, forward=0.6, backward_compute=0.8) for n in range(2)) if ranks_seen else ()
    found = findings(replace(RUNNING, events=events, ranks=ranks))
    told = [f.what for f in found if f.weight is Weight.NOTES]
    assert told == ([] if ranks_seen else ["LowEfficiency: LowEfficiency once", "Straggler: Straggler once"])
