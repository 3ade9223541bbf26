"""Ranks that wait much for data or for gradients are told of when it lasts, once, with what helps."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.operator.world import World, started

from ddpjob_api.efficiency import DATA_PERCENT, EXPOSED_PERCENT, Efficiency
from ddpjob_api.report import JobReport, Progress, RunState
from ddpjob_operator.events import between
from ddpjob_operator.lasting import LASTING, noted
from ddpjob_operator.model import Status, Waiting

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WELL = Efficiency(exposed_communication_percent=9, data_wait_percent=4, ddp_efficiency_percent=91)
GRADIENTS = Efficiency(exposed_communication_percent=40, data_wait_percent=4, ddp_efficiency_percent=60)
DATA = Efficiency(exposed_communication_percent=9, data_wait_percent=35, ddp_efficiency_percent=91)
OLDER = Efficiency(exposed_communication_percent=40, data_wait_percent=4)
"""As a launcher says it that knows no DDP efficiency."""
STRAGGLER = replace(GRADIENTS, slowest_rank=1, slowest_rank_cause="forward")


def report(
    efficiency: Efficiency | None, state: RunState = RunState.RUNNING, *, hung: bool = False
) -> JobReport:
    return JobReport(
        protocol=1, name="train", state=state, term=1, generation=1, nodes_joined=2, nodes_expected=2,
        efficiency=efficiency, hung=hung,
    )  # fmt: skip


def events(*minutes: JobReport) -> list[tuple[int, str]]:
    """What is told in which minute, while the coordinator says one of these in each."""
    status, told = Status(), []
    for minute, said in enumerate(minutes):
        waiting = noted(status.waiting, said, now=NOW + timedelta(minutes=minute))
        new = replace(status, waiting=waiting, efficiency=said.efficiency or status.efficiency)
        told += [(minute, event.message) for event in between(status, new) if event.reason == "LowEfficiency"]
        status = new
    return told


LONG = LASTING // timedelta(minutes=1)
TIMES: list[tuple[str, list[JobReport], list[int]]] = [
    # what is met, what the coordinator says in each minute, and the minutes in which it is told
    ("well all the time", [report(WELL)] * 60, []),
    ("gradients all the time", [report(GRADIENTS)] * 60, [LONG]),
    ("data, then gradients, then both", [*[report(DATA), report(GRADIENTS)] * 20, report(replace(DATA, exposed_communication_percent=40))], [LONG]),
    ("not for long enough", [*[report(DATA)] * LONG, *[report(WELL)] * 60], []),
    ("above and below the limits", [report(DATA), report(DATA), report(WELL)] * 30, []),
    ("told, then above and below", [*[report(DATA)] * (LONG + 1), *[report(WELL), report(DATA)] * 60], [LONG]),
    ("again after it was well for long", [*[report(DATA)] * (LONG + 1), *[report(WELL)] * (LONG + 1), *[report(DATA)] * (LONG + 1)], [LONG, 3 * LONG + 2]),
    ("nothing is known for a while", [*[report(DATA)] * 5, *[report(None)] * 3, *[report(DATA)] * 60], [LONG]),
    ("restarted meanwhile", [*[report(DATA)] * 5, *[report(WELL, RunState.WAITING)] * 3, *[report(DATA)] * 60], [LONG]),
    ("a hang: nobody waits for gradients in it", [*[report(GRADIENTS)] * 2, *[report(GRADIENTS, hung=True)] * 60], []),
    ("a slow rank, of which another event tells", [report(STRAGGLER)] * 60, []),
    ("a slow rank, and all wait for data", [report(replace(STRAGGLER, data_wait_percent=30))] * 60, [LONG]),
    ("an older launcher", [report(OLDER)] * 60, [LONG]),
    ("just below", [report(Efficiency(exposed_communication_percent=EXPOSED_PERCENT - 1, data_wait_percent=DATA_PERCENT - 1))] * 60, []),
    ("just there", [report(Efficiency(data_wait_percent=DATA_PERCENT))] * 60, [LONG]),
]  # fmt: skip


@pytest.mark.parametrize(("minutes", "told"), [case[1:] for case in TIMES], ids=[case[0] for case in TIMES])
def test_it_is_told_when_it_has_lasted_and_once(minutes: list[JobReport], told: list[int]) -> None:
    assert [minute for minute, _ in events(*minutes)] == told


SAID: list[tuple[Efficiency, str, list[str]]] = [
    (
        GRADIENTS,
        "for 10 minutes ranks have waited much (DDP efficiency 60 %): waiting for gradients takes 40 % of the time",
        ["ddpjob tune", "gradientAsBucketView", "gradientAccumulationSteps"],
    ),
    (
        DATA,
        "for 10 minutes ranks have waited much (DDP efficiency 91 %): waiting for data takes 35 % of the time",
        ["more DataLoader workers"],
    ),
    (
        replace(OLDER, data_wait_percent=20),
        "for 10 minutes ranks have waited much: waiting for data takes 20 % of the time",
        ["more DataLoader workers", "; waiting for gradients takes 40 %", "ddpjob tune"],
    ),
]


@pytest.mark.parametrize(("found", "begin", "words"), SAID)
def test_it_names_the_percentage_and_what_helps(found: Efficiency, begin: str, words: list[str]) -> None:
    [(_, message)] = events(*[report(found)] * 20)
    assert message.startswith(begin)
    assert all(word in message for word in words)


def told(world: World) -> list[str]:
    return [event for event in world.events() if event.startswith("LowEfficiency: ")]


async def train(world: World, efficiency: Efficiency, *, minutes: int, step: int) -> int:
    for _ in range(6 * minutes):
        step += 20
        await world.passes(10)
        await world.say(state=RunState.RUNNING, progress=Progress(step=step), efficiency=efficiency)
    return step


async def hush(world: World, *, minutes: int) -> None:
    """The coordinator does not answer."""
    for _ in range(6 * minutes):
        await world.passes(10)
        await world.ask()


async def test_an_operator_that_began_meanwhile_tells_it_and_none_tells_it_twice() -> None:
    world = await started()
    step = await train(world, GRADIENTS, minutes=LONG // 2, step=0)
    assert told(world) == []
    world.operators.clear()
    await world.start()
    step = await train(world, GRADIENTS, minutes=LONG, step=step)
    (event,) = told(world)
    assert "waiting for gradients takes 40 % of the time" in event
    assert world.status["waiting"] == {"told": True}
    assert world.status["efficiency"]["ddpEfficiencyPercent"] == GRADIENTS.ddp_efficiency_percent
    world.operators.clear()
    await world.start()
    step = await train(world, GRADIENTS, minutes=2 * LONG, step=step)
    assert told(world) == [event]
    await world.patch(suspend=True)
    for index in (0, 1):
        await world.stopped(f"train-{index}")
    await world.patch(suspend=False)
    await world.run()
    assert "waiting" not in world.status, "what former pods did"


async def test_minutes_in_which_the_coordinator_is_silent_are_not_told_of() -> None:
    world = await started()
    step = await train(world, GRADIENTS, minutes=2, step=0)
    await hush(world, minutes=LONG)
    await world.delete("pods", "train-1")  # a look at the job, whatever for
    assert told(world) == []
    await world.run()
    step = await train(world, GRADIENTS, minutes=LONG - 1, step=step)
    assert told(world) == [], "ten minutes begin anew"
    step = await train(world, GRADIENTS, minutes=2, step=step)
    assert len(told(world)) == 1
    await hush(world, minutes=2)
    await train(world, GRADIENTS, minutes=LONG + 1, step=step)
    assert len(told(world)) == 1, "what was told before a silence is not told again"


def test_a_note_of_another_version_is_one_of_a_wait_that_begins_now() -> None:
    assert noted(Waiting(since="yesterday"), report(DATA), now=NOW) == Waiting(since="2026-01-02T03:04:05Z")
