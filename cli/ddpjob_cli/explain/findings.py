"""Why a job is as it is: a pure function from what was seen to findings, the weightiest first.

Why apart: this is what `ddpjob explain` knows; each row of its test is a case that somebody met. Must not: ask anybody,
read the clock, or print.
"""

from collections.abc import Iterator

from ddpjob_api.blame import blame
from ddpjob_api.conditions import ADVICE, Condition, Reason
from ddpjob_api.efficiency import LOW_EFFICIENCY, STRAGGLER
from ddpjob_api.report import Failure
from ddpjob_cli.explain import advice
from ddpjob_cli.explain.finding import Finding, Weight
from ddpjob_cli.explain.holding import standing
from ddpjob_cli.explain.observation import Observation
from ddpjob_cli.explain.speed import speed
from ddpjob_cli.local import words

JUDGED = frozenset({STRAGGLER, LOW_EFFICIENCY})
"""Reasons of events whose subject `speed` judges itself, by what the ranks do now."""


def findings(seen: Observation) -> list[Finding]:
    """What there is to say, by weight; never empty."""
    found = [
        *standing(seen),
        *advised(seen),
        *failures(seen),
        *speed(seen),
        *settings(seen),
        *cluster_words(seen),
        *(Finding(weight=Weight.NOTES, what=text) for text in seen.blind),
    ]
    worst = min((finding.weight for finding in found), default=Weight.FINE)
    efficiency = seen.ddp_efficiency_percent
    if efficiency is not None and any(finding.weight is Weight.SLOWS for finding in found):
        what = f"DDP efficiency {efficiency} %: alone, a process would make such a step in {efficiency} % of the time, at best"
        found.append(Finding(weight=Weight.NOTES, what=what, where="status.efficiency"))
    if worst > Weight.SLOWS or (worst is Weight.FAILS and seen.is_true(Condition.RUNNING)):
        found.append(well(seen, alone=not found))
    return sorted(found, key=lambda finding: finding.weight)


def advised(seen: Observation) -> Iterator[Finding]:
    """What somebody should do something about although it runs."""
    running = seen.condition(Condition.RUNNING)
    if running is None or running.status != "True" or running.reason not in ADVICE:
        return
    reason = Reason(running.reason)
    rows, otherwise = advice.RUNNING[reason]
    yield Finding(
        # A checkpoint that was passed over is behind it; the others cost steps with the next failure.
        weight=Weight.NOTES if reason is Reason.CHECKPOINT_DAMAGED else Weight.FAILS,
        what=f"{reason}: {running.message}",
        where="Running",
        do=advice.advise(rows, running.message, otherwise),
    )


def failures(seen: Observation) -> Iterator[Finding]:
    """What failed on the way, in a job that has not ended by it."""
    failure = seen.last_failure
    if failure is not None:
        yield blamed(seen, failure)
    if seen.disruptions and not seen.is_true(Condition.COMPLETE):
        yield Finding(
            weight=Weight.NOTES,
            what=f"pods were lost {seen.disruptions} {'time' if seen.disruptions == 1 else 'times'}",
            where="disruptions",
            do=saving_advice(seen),
        )
    if seen.spec is not None and seen.restarts and seen.spec.checkpoint is None and not seen.finished:
        yield Finding(
            weight=Weight.NOTES,
            what="each restart begins at the beginning: no checkpoint is configured",
            where="spec.checkpoint",
            do="checkpoint: {persistentVolumeClaim: NAME, everySteps: 100}",
        )


def blamed(seen: Observation, failure: Failure) -> Finding:
    """The newest failure with its culprit."""
    budget = f" of {seen.spec.recovery.max_restarts}" if seen.spec else ""
    spent = f" (restarts {seen.restarts}{budget})" if seen.restarts else ""
    place = ", ".join(
        part
        for part in (
            f"pod {failure.pod}" if failure.pod else "",
            f"on {failure.host_node}" if failure.host_node else "",
            failure.location or "",
        )
        if part
    )
    rank = f" --rank {failure.rank}" if failure.rank is not None else " --failed"
    more = f"ddpjob logs {seen.argument}{rank} has the traceback"
    if failure.reason is Reason.NO_PROGRESS:
        more = f"ddpjob explain {seen.argument} --stacks has the stacks of all ranks"
    said = f"{failure.message} {failure.signal or ''}"
    limit = next((pod.memory_limit for pod in seen.pods if pod.memory_limit), "")
    do = advice.advise(advice.PROGRAM, said, "")
    if failure.reason is Reason.OOM_KILLED:
        do = f"raise resourcesPerNode.limits.memory (now {limit or 'not set'}), or use less: smaller batches, fewer workers"
    elif not do:
        own = {Reason.PROGRAM_FAILED, Reason.NO_PROGRESS}  # of which the command below tells more
        do = advice.ENDINGS.get(failure.reason, "") if failure.reason not in own else ""
    return Finding(
        weight=Weight.NOTES if seen.is_true(Condition.COMPLETE) else Weight.FAILS,
        what=f"{'survived' if seen.is_true(Condition.COMPLETE) else 'last failure'}: {words.in_short(failure)}{spent}",
        where=place,
        do="; ".join(part for part in (do, more) if part),
    )


def saving_advice(seen: Observation) -> str:
    shared = seen.spec is not None and seen.spec.checkpoint and seen.spec.checkpoint.persistent_volume_claim
    return "" if shared else "a checkpoint on a shared claim lets the job go on from it"


def settings(seen: Observation) -> Iterator[Finding]:
    """What the program does otherwise than the resource says, and what costs something."""
    if seen.ddp is None:
        return
    told = seen.condition(Condition.RUNNING)
    for text in seen.ddp.warnings:
        if told is not None and text.removeprefix("not resuming: ") in told.message:
            continue  # the condition says it
        yield Finding(weight=Weight.NOTES, what=text, where="spec.ddp")
    for item in seen.ddp.overrides:
        if not item.applied:
            yield Finding(weight=Weight.NOTES, what=words.override(item), where=item.where)


def cluster_words(seen: Observation) -> Iterator[Finding]:
    """Warnings of the cluster that nothing above repeats, the newest three."""
    said = " ".join(condition.message for condition in seen.conditions.values())
    failure = seen.last_failure
    told: set[str] = set()
    fresh = [event for event in reversed(seen.events) if event.warning and event.message]
    for event in fresh:
        repeated = event.message in said or event.message in told
        repeated = repeated or (
            failure is not None
            and (
                blame(failure) in event.message
                or (bool(failure.message) and failure.message in event.message)
            )
        )
        repeated = repeated or (bool(seen.ranks) and event.reason in JUDGED)
        probe = event.reason == "Unhealthy"  # readiness before the ranks have joined: how it should be
        if repeated or probe or seen.finished or len(told) == 3:
            continue
        told.add(event.message)
        times = f" ({event.count} times)" if event.count > 1 else ""
        yield Finding(weight=Weight.NOTES, what=f"{event.reason}: {event.message}{times}", where=event.about)


def well(seen: Observation, *, alone: bool) -> Finding:
    """Nothing is wrong, or nothing that keeps it from running (`alone`: nothing else is said)."""
    if seen.is_true(Condition.COMPLETE):
        spent = f"{seen.restarts} restart{'s' if seen.restarts > 1 else ''}"
        restarts = f", {spent}" if seen.restarts else ""
        return Finding(weight=Weight.FINE, what=f"it is complete: {seen.step} steps{restarts}")
    facts = (
        [f"step {seen.step}" + (f" of {seen.total_steps}" if seen.total_steps else "")] if seen.step else []
    )
    facts += (
        [f"{words.number(round(seen.samples_per_second, 1))} samples/s"] if seen.samples_per_second else []
    )
    facts += [f"ETA {words.duration(seen.eta_seconds)}"] if seen.eta_seconds else []
    efficiency = seen.ddp_efficiency_percent
    facts += [f"DDP efficiency {efficiency} %"] if efficiency is not None else []
    detail = f": {', '.join(facts)}" if facts else ""
    if seen.is_true(Condition.RUNNING):
        how = "it runs, and nothing is in its way" if alone else "it runs"
        how = "it runs again" if seen.restarts or seen.disruptions else how
        return Finding(weight=Weight.FINE, what=f"{how}{detail}")
    return Finding(weight=Weight.FINE, what=f"nothing is wrong so far; {seen.state or 'Starting'}{detail}")
