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

Kill = Callable[[Training, Faults, random.Random], None]


def worker(training: Training, faults: Faults, chance: random.Random) -> None:
    faults.kill_worker(training, chance.randrange(2))


def launcher(training: Training, faults: Faults, chance: random.Random) -> None:
    faults.kill_launcher(training, chance.randrange(2))


def pod(training: Training, faults: Faults, chance: random.Random) -> None:
    faults.delete(training, chance.randrange(2), force=chance.random() < 0.3)


def both(training: Training, faults: Faults, chance: random.Random) -> None:
    if chance.random() < 0.5:
        faults.delete(training, 0, 1)
    else:
        faults.kill_container(training, 0)
        faults.kill_container(training, 1)


def operator(training: Training, faults: Faults, chance: random.Random) -> None:
    """The operator, and a pod that it would have to replace."""
    faults.kill_operator()
    faults.delete(training, chance.randrange(2))


def link(training: Training, faults: Faults, chance: random.Random) -> None:
    join = faults.part(training)
    time.sleep(chance.uniform(0.5, 9))  # shorter and longer than the silence that counts as a loss
    join()


def standstill(training: Training, faults: Faults, chance: random.Random) -> None:
    go_on = faults.freeze(faults.process(training, chance.randrange(2), chance.choice([LAUNCHER, WORKER])))
    time.sleep(chance.uniform(0.5, 9))
    go_on()


def full(training: Training, faults: Faults, chance: random.Random) -> None:
    make_room = faults.fill_disk(training)
    time.sleep(chance.uniform(0.5, 3))
    if chance.random() < 0.5:
        faults.kill_worker(training, chance.randrange(2))
        training.until_first_step(training.journal.newest())
    make_room()


def damaged(training: Training, faults: Faults, chance: random.Random) -> None:
    faults.damage_newest(training)
    faults.kill_worker(training, chance.randrange(2))


QUICK: tuple[Kill, ...] = (worker, launcher, pod, damaged, both)
ALL: tuple[Kill, ...] = (*QUICK, operator, link, standstill, full)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=pytest.mark.timeout(300)),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
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
        began = time.monotonic()
        for number, kill in enumerate(order, 1):
            training.until_stepping()
            time.sleep(chance.uniform(0, 1))
            at = time.time()
            kill(training, faults, chance)
            training.until_next_step(at + 0.5, 120)
            print(f"{number:3d} {kill.__name__:11s} next step after {time.time() - at:5.1f} s", flush=True)
        row.seconds = (time.monotonic() - began) / kills
        status = training.finish(300)
        row.repeated, row.lost = training.journal.repeated_and_lost()
        row.counted = f"{status.get('restarts', 0)} restarts, {status.get('disruptions', 0)} disruptions"
        assert status["result"]["parameterHash"] == calm
        assert (row.repeated, row.lost) == (0, 0)
        training.job.delete()
