"""Kill after kill, by chance, in one training; its final weights are those of one that nobody disturbed."""

import random
import time
from collections.abc import Callable

import pytest
from tests.chaos.faults import LAUNCHER, WORKER, Faults
from tests.chaos.table import Table
from tests.chaos.training import Training, start
from tests.cluster.installation import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

Kill = Callable[[Training, Faults, random.Random], bool]
"""Does it, and says whether a new generation must follow."""


def worker(training: Training, faults: Faults, chance: random.Random) -> bool:
    faults.kill_worker(training, chance.randrange(2))
    return True


def launcher(training: Training, faults: Faults, chance: random.Random) -> bool:
    faults.kill_launcher(training, chance.randrange(2))
    return True


def pod(training: Training, faults: Faults, chance: random.Random) -> bool:
    faults.delete(training, chance.randrange(2), force=chance.random() < 0.3)
    return True


def both(training: Training, faults: Faults, chance: random.Random) -> bool:
    if chance.random() < 0.5:
        faults.delete(training, 0, 1)
    else:
        faults.kill_containers(training, 0, 1)
    return True


def operator(training: Training, faults: Faults, chance: random.Random) -> bool:
    """The operator, and a pod that it would have to replace."""
    faults.kill_operator()
    faults.delete(training, chance.randrange(2))
    return True


def link(training: Training, faults: Faults, chance: random.Random) -> bool:
    join = faults.part(training)
    time.sleep(chance.uniform(0.5, 9))  # shorter and longer than the silence that counts as a loss
    join()
    return False


def standstill(training: Training, faults: Faults, chance: random.Random) -> bool:
    go_on = faults.freeze(faults.process(training, chance.randrange(2), chance.choice([LAUNCHER, WORKER])))
    time.sleep(chance.uniform(0.5, 9))
    go_on()
    return False


def full(training: Training, faults: Faults, chance: random.Random) -> bool:
    make_room = faults.fill_disk(training)
    time.sleep(chance.uniform(0.5, 3))
    if killed := chance.random() < 0.5:
        before = training.journal.newest()
        faults.kill_worker(training, chance.randrange(2))
        training.until_first_step(before)
    make_room()
    return killed


def damaged(training: Training, faults: Faults, chance: random.Random) -> bool:
    faults.damage_newest(training)
    faults.kill_worker(training, chance.randrange(2))
    return True


QUICK: tuple[Kill, ...] = (worker, launcher, pod, damaged, both)
ALL: tuple[Kill, ...] = (*QUICK, operator, link, standstill, full)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=pytest.mark.timeout(600)),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_the_final_weights_do_not_show_the_kills(
    installation: Installation, namespace: str, faults: Faults, table: Table, calm: str, kills: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 16)
    print(f"\n{kills} kills with seed {seed}")
    chance = random.Random(seed)
    kinds = QUICK if kills <= len(QUICK) else ALL
    order = [kinds[number % len(kinds)] for number in range(kills)]
    chance.shuffle(order)
    with table.row(f"{kills} kills by chance, seed {seed}") as row:
        training = start(installation.cluster, namespace, f"loop{kills}")
        seconds: list[float] = []
        for number, kill in enumerate(order, 1):
            life = training.until_stepping(240)
            time.sleep(chance.uniform(0, 1))
            at = time.time()
            first = training.until_first_step(life, 240) if kill(training, faults, chance) else None
            first = first or training.until_next_step(time.time(), 240)
            seconds.append(first - max(at, training.struck))
            print(f"{number:3d} {kill.__name__:11s} next step after {seconds[-1]:5.1f} s", flush=True)
        row.seconds = sum(seconds) / kills
        status = training.finish(300)
        row.repeated, row.lost = training.journal.repeated_and_lost()
        row.counted = f"{status.get('restarts', 0)} restarts, {status.get('disruptions', 0)} disruptions"
        assert status["result"]["parameterHash"] == calm
        assert (row.repeated, row.lost) == (0, 0)
        training.job.delete()
