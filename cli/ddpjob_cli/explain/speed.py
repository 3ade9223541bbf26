"""What makes a job slow while it runs: the metrics of its ranks against each other and against thresholds.

Why apart: the only findings that follow from numbers. Must not: ask anybody, read the clock, or print.
"""

from collections.abc import Iterable, Iterator

from ddpjob_api.conditions import Condition
from ddpjob_api.efficiency import ADVICE, for_data, for_gradients
from ddpjob_api.metrics import STARTING
from ddpjob_api.page import PATIENCE, PATIENT
from ddpjob_cli import ranks
from ddpjob_cli.explain.finding import Finding, Weight
from ddpjob_cli.explain.observation import Observation
from ddpjob_cli.local import words

SAVING_SHARE = 0.15
"""From which part of the wall time on saving or evaluating is worth a word; waiting is (`ddpjob_api.efficiency`)."""
STALLED_STEPS, STALLED_SECONDS = 10, 60.0
"""No step for so many usual steps, and at least so long: something is stuck."""
WITHOUT_STEPS = frozenset({STARTING, *(phase.name.lower() for phase in PATIENT)})
"""What takes long by design: the launcher's watchdog waits there, too, `PATIENCE` times as long."""
PATIENT_SECONDS = 3600.0
"""How long that may take where recovery.progressTimeoutSeconds says nothing; then it is stuck like anything else."""

Slow = tuple[ranks.Rank, str, float, float]
"""A slow rank, in which phase it is, its seconds there in a step, and those of the others."""


def slow_rank(seen: Observation) -> Slow | None:
    """The rank that the others wait for by what was measured here, while no coordinator has judged.

    A coordinator that names nobody has said so: means since the pods began still show who was slow once.
    """
    return ranks.straggler(seen.ranks) if seen.efficiency is None else None


def slowest_words(slow: Slow) -> str:
    rank, phase, seconds, usual = slow
    return (
        f"rank {rank.rank} is the slowest: {phase} {words.milliseconds(seconds)} a step, "
        f"the others {words.milliseconds(usual)}"
    )


def speed(seen: Observation) -> Iterator[Finding]:
    """What makes it slow, while it runs."""
    if seen.finished or not seen.ranks:
        return
    yield from stalled(seen)
    slow = slow_rank(seen)
    told = seen.efficiency if seen.efficiency and seen.efficiency.slowest_rank is not None else None
    if told is not None:
        yield Finding(
            weight=Weight.SLOWS,
            what=f"rank {told.slowest_rank} makes the others wait, in {told.slowest_rank_cause}",
            where=f"on {told.slowest_node}" if told.slowest_node else "",
            do=f"{told.advice()}; ddpjob top {seen.argument} shows where its time goes",
        )
    elif slow is not None:
        rank, phase, _, _ = slow
        yield Finding(
            weight=Weight.SLOWS,
            what=slowest_words(slow),
            where=at(rank.pod, rank.host),
            do=ADVICE[phase],
        )
    paces = [rank.usual for rank in seen.ranks if rank.usual is not None]
    data, exposed = waiting(seen)
    wait = for_data(data)
    if wait is not None:
        yield Finding(weight=Weight.SLOWS, what=wait.what, where="all ranks", do=wait.do)
    for phase, do in (
        ("checkpoint", "saving takes long: checkpoint.everySteps less often, or a faster volume"),
        ("evaluation", "evaluation takes long: less often, or on fewer samples"),
    ):
        part = percent(pace.share(phase) for pace in paces)
        if part is not None and part >= 100 * SAVING_SHARE:
            what = f"{phase} takes {part:.0f} % of the time on the median rank"
            yield Finding(weight=Weight.SLOWS, what=what, where="all ranks", do=do)
    wait = for_gradients(exposed)
    if wait is not None and slow is None and told is None:
        yield Finding(weight=Weight.SLOWS, what=wait.what, where="all ranks", do=f"{wait.do}{on_gpu(seen)}")


def waiting(seen: Observation) -> tuple[float | None, float | None]:
    """Percent of the time in which the median rank waits, for data and for others.

    The coordinator's are of the last minute: means since the pods began hide what is new, and show what is over.
    """
    if seen.efficiency is not None:
        return seen.efficiency.data_wait_percent, seen.efficiency.exposed_communication_percent
    paces = [rank.usual for rank in seen.ranks if rank.usual is not None]
    return percent(pace.share("data_wait") for pace in paces), percent(pace.exposed for pace in paces)


def percent(shares: Iterable[float | None]) -> float | None:
    """That of the median rank; None where none is known."""
    known = [share for share in shares if share is not None]
    return 100 * ranks.median(known) if known else None


def on_gpu(seen: Observation) -> str:
    gloo = seen.ddp is not None and seen.ddp.backend == "gloo"
    gpu = seen.spec is not None and any("gpu" in name for name in seen.spec.resources_per_node.limits)
    return "; backend Gloo on GPUs copies through the host: use NCCL" if gloo and gpu else ""


def stalled(seen: Observation) -> Iterator[Finding]:
    """No step for long."""
    ages = [(seen.now - rank.last_step_at, rank) for rank in seen.ranks if rank.last_step_at]
    steps = [step for rank in seen.ranks if rank.usual and (step := rank.usual.step_seconds)]
    if not ages or not steps or not seen.is_true(Condition.RUNNING):
        return
    age, _ = min(ages, key=lambda pair: pair[0])
    usual = ranks.median(steps)
    if age < max(STALLED_SECONDS, STALLED_STEPS * usual):
        return
    stands = f"no step for {words.duration(age)}, usually {words.milliseconds(usual)}"
    patient = next((rank for rank in seen.ranks if rank.phase in WITHOUT_STEPS), None)
    if patient is not None:
        busy = [rank.rank for rank in seen.ranks if rank.phase == patient.phase]
        late = age >= patience(seen)
        yield Finding(
            weight=Weight.STOPS if late else Weight.NOTES,
            what=f"{stands}; {named(busy)} in {patient.phase}",
            where=at(patient.pod, patient.host),
            do=f"that is too long: does what it reads or writes still answer? ddpjob logs {seen.argument} shows where it "
            f"stands{'' if limit(seen) else '; recovery.progressTimeoutSeconds would end it'}"
            if late
            else f"no steps are made meanwhile, and the other ranks wait; ddpjob logs {seen.argument} shows whether it "
            "goes on",
        )
        return
    phases: dict[str, list[int]] = {}
    for rank in seen.ranks:
        phases.setdefault(rank.phase, []).append(rank.rank)
    odd = min(phases.items(), key=lambda pair: len(pair[1]))
    behind = min(seen.ranks, key=lambda rank: rank.step)
    name, members = odd if len(phases) > 1 else (behind.phase, [behind.rank])
    yield Finding(
        weight=Weight.STOPS,
        what=f"{stands}; {named(members)} in {name}" + (", the others elsewhere" if len(phases) > 1 else ""),
        where=at(behind.pod, behind.host),
        do="a collective that not all ranks reach is the usual cause: look at the log of the odd rank; ddp.timeoutSeconds "
        "ends the wait",
    )


def patience(seen: Observation) -> float:
    """Seconds without a step that are normal while a rank does what takes long by design."""
    return PATIENCE * limit(seen) or PATIENT_SECONDS


def limit(seen: Observation) -> float:
    """`recovery.progressTimeoutSeconds`; 0 where it is off or not known."""
    return seen.spec.recovery.progress_timeout.total_seconds() if seen.spec is not None else 0.0


def named(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {words.listed(numbers[:8])}"


def at(pod: str, host: str) -> str:
    return f"pod {pod} on {host}" if host else pod
