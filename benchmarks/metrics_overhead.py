"""What metrics cost a training step, and that they change none: `python -m benchmarks.metrics_overhead` (3 minutes).

Interleaved blocks in one process: with our hooks, and with torch's own functions put back in their place. Each pair of
neighbouring blocks gives one difference of median step times, which the machine's slower swings do not touch. Shown is
the median of the differences with its 95 % interval by order statistics, which assumes nothing about their
distribution. The same program then runs under plain python, for as many of the first steps as `PLAIN_PAIRS` take, and
every loss is compared to the last bit.
"""

import argparse
import sys
import tempfile
from math import comb
from pathlib import Path
from statistics import median

from tests.trainer.worker.ranks import Rank, run

PROGRAM = str(Path(__file__).with_name("metrics_overhead_program.py"))
MODELS = (("tiny", 16, 100), ("small", 512, 24))
"""Name, width, steps of a block."""
PLAIN_PAIRS = 4
GOAL_MICROSECONDS = 100


def interval(values: list[float]) -> tuple[float, float]:
    """Between which two of the sorted values the median lies with at least 95 %."""
    count, ordered = len(values), sorted(values)
    outside, cut = 0.0, 0
    while outside + 2 * comb(count, cut) / 2**count <= 0.05:
        outside += 2 * comb(count, cut) / 2**count
        cut += 1
    return ordered[cut - 1], ordered[count - cut]


def train(args: list[str], world_size: int, *, bootstrap: bool) -> list[Rank]:
    with tempfile.TemporaryDirectory() as folder:
        ranks = run(Path(folder), [PROGRAM, *args], world_size=world_size, bootstrap=bootstrap)
    for rank in ranks:
        assert rank.returncode == 0, rank.stderr
        assert rank.printed["there"] is bootstrap
    return ranks


def measure(width: int, steps: int, pairs: int, world_size: int) -> tuple[list[float], list[float], bool]:
    """Step times without us and the differences, in microseconds, of rank 0; and whether all losses are equal."""
    args = ["--width", str(width), "--steps", str(steps), "--pairs"]
    ours = train([*args, str(pairs)], world_size, bootstrap=True)
    plain = train([*args, str(min(pairs, PLAIN_PAIRS))], world_size, bootstrap=False)
    found = [(bare * 1e6, instrumented * 1e6) for bare, instrumented in ours[0].printed["pairs"]]
    equal = all(
        one.printed["losses"][: len(other.printed["losses"])] == other.printed["losses"]
        for one, other in zip(ours, plain, strict=True)
    )
    return [bare for bare, _ in found], [instrumented - bare for bare, instrumented in found], equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=36)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    print(f"{'model':8}{'ranks':>6}{'bare':>12}{'added per step':>18}{'95 % interval':>24}  losses")
    good = True
    for name, width, steps in MODELS:
        for world_size in chosen.ranks:
            bare, added, equal = measure(width, steps, chosen.pairs, world_size)
            low, high = interval(added)
            good = good and equal and median(added) <= GOAL_MICROSECONDS
            print(
                f"{name:8}{world_size:>6}{median(bare):>9.0f} µs{median(added):>15.1f} µs"
                f"{f'{low:.1f} … {high:.1f} µs':>24}  {'equal' if equal else 'DIFFERENT'}",
                flush=True,
            )
    print(
        f"goal: at most {GOAL_MICROSECONDS} µs, losses equal to the last bit: {'met' if good else 'MISSED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
