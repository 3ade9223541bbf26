"""What metrics cost a training step, and that they change none: `python -m benchmarks.metrics_overhead` (5 minutes).

Interleaved blocks in one process: with our hooks, and with torch's own functions put back in their place. Each pair of
neighbouring blocks gives one difference of mean step times (a mean, for what is done once in many steps counts as well),
which the machine's slower swings do not touch. Shown is the median of the differences with its 95 % interval by order
statistics, which assumes nothing about their distribution. The same program then runs under plain python, for as many
of the first steps as `PLAIN_PAIRS` take, and every loss is compared to the last bit.

Two times are taken: wall time, and CPU time of the thread that trains, in which other processes of the machine do not
show. One rank waits for nobody, so the goal is asked of its CPU time; of several ranks' wall time, which has what one
waits longer for another.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median

from tests.trainer.worker.ranks import Rank, run

PROGRAM = str(Path(__file__).with_name("metrics_overhead_program.py"))
MODELS = (("tiny", 16, 200), ("small", 512, 100))
"""Name, width, steps of a block: enough for a sample of the reducer in each, which is taken once in 100 steps or in a
quarter of a second, and once or twice more where a backward pass takes half or twice as long as the sampled."""
PLAIN_PAIRS = 4
PAIRS, PAIRS_OF_SEVERAL = 36, 100
"""Of one rank, and of several: there a wait of one for another is in each difference, ten times what is looked for."""
LEAST_PAIRS = 6
"""The extremes of fewer do not enclose the median with 95 %."""
GOAL_MICROSECONDS = 100
MEMORY = Path("/dev/shm")
"""Where the page of a rank lies, as in a pod."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Microseconds per step of rank 0, in one sort of time: without us, and what is added."""

    bare: list[float]
    added: list[float]

    def columns(self) -> str:
        low, high = interval(self.added)
        return f"{median(self.bare):>8.0f}{median(self.added):>10.1f}{f'{low:.1f} … {high:.1f}':>20}"


def interval(values: list[float]) -> tuple[float, float]:
    """Between which two of the sorted values the median lies with at least 95 %."""
    count, ordered = len(values), sorted(values)
    outside, cut = 0.0, 0
    while outside + 2 * comb(count, cut) / 2**count <= 0.05:
        outside += 2 * comb(count, cut) / 2**count
        cut += 1
    return ordered[cut - 1], ordered[count - cut]


def train(args: list[str], world_size: int, *, bootstrap: bool) -> list[Rank]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        ranks = run(Path(folder), [PROGRAM, *args], world_size=world_size, bootstrap=bootstrap)
    for rank in ranks:
        assert rank.returncode == 0, rank.stderr
        assert rank.printed["there"] is bootstrap
    return ranks


def measure(width: int, steps: int, pairs: int, world_size: int) -> tuple[Cost, Cost, bool]:
    """The cost in CPU and in wall time, and whether all losses are equal."""
    args = ["--width", str(width), "--steps", str(steps), "--pairs"]
    ours = train([*args, str(pairs)], world_size, bootstrap=True)
    plain = train([*args, str(min(pairs, PLAIN_PAIRS))], world_size, bootstrap=False)
    cpu, wall = (
        Cost(
            bare=[1e6 * bare[kind] for bare, _ in ours[0].printed["pairs"]],
            added=[1e6 * (with_us[kind] - bare[kind]) for bare, with_us in ours[0].printed["pairs"]],
        )
        for kind in ("cpu", "wall")
    )
    equal = all(
        one.printed["losses"][: len(other.printed["losses"])] == other.printed["losses"]
        for one, other in zip(ours, plain, strict=True)
    )
    return cpu, wall, equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pairs", type=int, help=f"{PAIRS} for one rank, {PAIRS_OF_SEVERAL} for several if absent"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    if chosen.pairs is not None and chosen.pairs < LEAST_PAIRS:
        parser.error(f"--pairs: an interval of 95 % needs {LEAST_PAIRS} at least")
    print("µs per step: without metrics, added by them, and the 95 % interval of that")
    print(f"{'model':8}{'ranks':>6}  {'CPU time':>38}  {'wall time':>38}  losses")
    good = True
    for name, width, steps in MODELS:
        for world_size in chosen.ranks:
            pairs = chosen.pairs or (PAIRS if world_size == 1 else PAIRS_OF_SEVERAL)
            cpu, wall, equal = measure(width, steps, pairs, world_size)
            asked = cpu if world_size == 1 else wall
            good = good and equal and median(asked.added) <= GOAL_MICROSECONDS
            print(
                f"{name:8}{world_size:>6}  {cpu.columns()}  {wall.columns()}  {'equal' if equal else 'DIFFERENT'}",
                flush=True,
            )
    print(
        f"goal: at most {GOAL_MICROSECONDS} µs added (CPU time of 1 rank, wall time of several), losses equal to the last "
        f"bit: {'met' if good else 'MISSED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
