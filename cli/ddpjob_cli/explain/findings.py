"""Why a job is as it is: a pure function from what was seen to findings, the weightiest first.

Why apart: this is what `ddpjob explain` knows; each row of its test is a case that somebody met. Must not: ask anybody,
read the clock, or print.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.efficiency import ADVICE
from ddpjob_api.report import Failure
from ddpjob_cli import ranks
from ddpjob_cli.explain import advice
from ddpjob_cli.explain.observation import Observation, PodSeen
from ddpjob_cli.local import words

UNSEEN_SECONDS = 20.0
"""A job that no operator has written a status for by then is not being looked at."""
DATA_SHARE, EXPOSED_SHARE, SAVING_SHARE = 0.2, 0.25, 0.15
"""From which part of the wall time on waiting for data, for gradients, and saving or evaluating is worth a word."""
STALLED_STEPS, STALLED_SECONDS = 10, 60.0
"""No step for so many usual steps, and at least so long: something is stuck."""


class Weight(IntEnum):
    """How much a finding matters; the first is shown first."""

    STOPS = 0
    """Why it does not run."""
    FAILS = 1
    """Why it failed on the way."""
    SLOWS = 2
    NOTES = 3
    """Worth knowing."""
    FINE = 4

    @property
    def word(self) -> str:
        return {0: "stops", 1: "fails", 2: "slows", 3: "note", 4: "fine"}[self.value]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know."""

    weight: Weight
    what: str
    where: str = ""
    do: str = ""

    def json(self) -> dict[str, Any]:
        return {"weight": self.weight.word, "what": self.what, "where": self.where, "do": self.do}


def findings(seen: Observation) -> list[Finding]:
    """What there is to say, by weight; never empty."""
    found = [
        *standing(seen),
        *failures(seen),
        *speed(seen),
        *settings(seen),
        *cluster_words(seen),
        *(Finding(weight=Weight.NOTES, what=text) for text in seen.blind),
    ]
    worst = min((finding.weight for finding in found), default=Weight.FINE)
    if worst > Weight.SLOWS or (worst is Weight.FAILS and seen.is_true(Condition.RUNNING)):
        found.append(well(seen))
    return sorted(found, key=lambda finding: finding.weight)


def standing(seen: Observation) -> Iterator[Finding]:
    """Why it does not run, if it does not."""
    failed, admitted = seen.condition(Condition.FAILED), seen.condition(Condition.ADMITTED)
    if not seen.managed:
        if seen.age_seconds > UNSEEN_SECONDS:
            yield Finding(
                weight=Weight.STOPS,
                what=f"no operator has looked at it for {words.duration(seen.age_seconds)}",
                where="status",
                do="is the operator installed, does it run and watch this namespace? "
                "kubectl get deployments -A -l app.kubernetes.io/name=ddpjob",
            )
        else:
            yield Finding(weight=Weight.NOTES, what="it has just been made", do="look again in a few seconds")
        return
    if failed is not None and failed.status == "True":
        yield ended(seen, failed.reason, failed.message)
    elif admitted is not None and admitted.status == "False":
        yield Finding(
            weight=Weight.STOPS,
            what=admitted.message or admitted.reason,
            where="Admitted",
            do=ending_advice(admitted.reason),
        )
    elif seen.spec is not None and seen.spec.suspend:
        yield Finding(
            weight=Weight.STOPS,
            what="it is suspended",
            where="spec.suspend",
            do=f'kubectl patch ddpjob {seen.name} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
        )
    elif not seen.finished and not seen.local:
        yield from pods(seen)


def ended(seen: Observation, reason: str, message: str) -> Finding:
    """The verdict on a failed job, with advice by the program's own words where there are some."""
    failure = seen.last_failure
    said = f"{failure.message} {failure.signal or ''}" if failure else ""
    program = advice.advise(advice.PROGRAM, f"{said} {message}", "")
    do = "; ".join(part for part in (program, ending_advice(reason)) if part)
    return Finding(
        weight=Weight.STOPS,
        what=f"failed: {message.removeprefix('failed: ') or reason}",
        where=f"Failed/{reason}",
        do=do,
    )


def ending_advice(reason: str) -> str:
    try:
        return advice.ENDINGS.get(Reason(reason), "")
    except ValueError:
        return ""


def pods(seen: Observation) -> Iterator[Finding]:
    """What holds pods, or the ranks in them, up."""
    ready = seen.condition(Condition.PODS_READY)
    gated = [pod for pod in seen.pods if pod.gated]
    if gated:
        yield Finding(
            weight=Weight.STOPS,
            what=f"a queue holds {counted(gated)} back (scheduling gates)",
            where=f"pod {gated[0].name}",
            do="kubectl get workloads (Kueue) says what it waits for",
        )
    if ready is None or ready.status == "True" or gated:
        return
    table = {
        Reason.UNSCHEDULABLE: (advice.SCHEDULER, "kubectl describe pod shows the scheduler's words in full"),
        Reason.IMAGE_PULL_FAILED: (advice.IMAGE, "check spec.image and imagePullSecrets"),
        Reason.CONTAINER_CONFIG_ERROR: (advice.CONTAINER, "check env, envFrom and template"),
        Reason.VOLUME_NOT_READY: (advice.VOLUME, "kubectl describe pod has the storage's words"),
        Reason.QUOTA_EXCEEDED: (advice.REFUSED, "ask for less, or for a larger quota"),
        Reason.POD_REFUSED: (advice.REFUSED, "the words are the API server's; change what they name"),
    }
    known = next((kind for kind in table if kind == ready.reason), None)
    if known is not None:
        rows, otherwise = table[known]
        who, _, rest = ready.message.partition(": ")
        named = who.startswith("pod ")
        yield Finding(
            weight=Weight.STOPS,
            what=f"{ready.reason}: {rest if named else ready.message}",
            where=who if named else "PodsReady",
            do=advice.advise(rows, ready.message, otherwise),
        )
        return
    for pod in seen.pods:
        if (
            pod.phase == "Pending"
            and pod.reason
            and pod.reason not in ("ContainerCreating", "PodInitializing")
        ):
            rows = advice.SCHEDULER if pod.reason == "Unschedulable" else (*advice.IMAGE, *advice.VOLUME)
            said = f"{pod.reason}: {pod.message}".removesuffix(": ")
            yield Finding(
                weight=Weight.STOPS,
                what=said,
                where=f"pod {pod.name}",
                do=advice.advise(rows, said, f"kubectl describe pod {pod.name}"),
            )
            return
    yield from joining(seen)


def joining(seen: Observation) -> Iterator[Finding]:
    """Pods that are there, and ranks that are not."""
    joined, running = seen.condition(Condition.RENDEZVOUS_READY), seen.condition(Condition.RUNNING)
    up = [pod for pod in seen.pods if pod.phase == "Running" and not pod.leaving]
    if running is not None and running.status == "True":
        return
    if len(up) < seen.nodes:
        there = f"{len(up)} of {seen.nodes} pods run"
        oldest = max((pod.age_seconds for pod in seen.pods if pod.phase == "Pending"), default=0.0)
        late = oldest > 120
        yield Finding(
            weight=Weight.STOPS if late else Weight.NOTES,
            what=f"it is starting: {there}",
            where="PodsReady",
            do="images are large and are pulled once per node; kubectl describe pod shows how far it is"
            if late
            else "look again in a few seconds",
        )
    elif joined is not None and joined.status == "False":
        yield Finding(
            weight=Weight.STOPS,
            what=f"all pods run and ranks are missing: {joined.message}",
            where="RendezvousReady",
            do=f"ddpjob logs {seen.name} shows what they say; if launchers cannot connect, a NetworkPolicy between the pods "
            "(port coordinator, and the 64 from rendezvous) or DNS is in the way",
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
    more = f"ddpjob logs {seen.name}{rank} has the traceback"
    if failure.reason is Reason.NO_PROGRESS:
        more = f"ddpjob explain {seen.name} --stacks has the stacks of all ranks"
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
        what=f"{'survived' if seen.is_true(Condition.COMPLETE) else 'last failure'}: {words.blame(failure)}{spent}",
        where=place,
        do="; ".join(part for part in (do, more) if part),
    )


def saving_advice(seen: Observation) -> str:
    shared = seen.spec is not None and seen.spec.checkpoint and seen.spec.checkpoint.persistent_volume_claim
    return "" if shared else "a checkpoint on a shared claim lets the job go on from it"


def speed(seen: Observation) -> Iterator[Finding]:
    """What makes it slow, while it runs."""
    if seen.finished or not seen.ranks:
        return
    yield from stalled(seen)
    slow = ranks.straggler(seen.ranks)
    told = seen.efficiency if seen.efficiency and seen.efficiency.slowest_rank is not None else None
    if told is not None:
        yield Finding(
            weight=Weight.SLOWS,
            what=f"rank {told.slowest_rank} makes the others wait, in {told.slowest_rank_cause}",
            where=f"on {told.slowest_node}" if told.slowest_node else "",
            do=f"{told.advice()}; ddpjob top {seen.name} shows where its time goes",
        )
    elif slow is not None:
        rank, phase, seconds, usual = slow
        yield Finding(
            weight=Weight.SLOWS,
            what=f"rank {rank.rank} is the slowest: {phase} {ms(seconds)} a step, the others {ms(usual)}",
            where=at(rank.pod, rank.host),
            do=ADVICE[phase],
        )
    shares: tuple[tuple[str, float, str], ...] = (
        (
            "data_wait",
            DATA_SHARE,
            "ranks wait for data: more DataLoader workers, pin_memory, a faster volume, or data on the node",
        ),
        (
            "checkpoint",
            SAVING_SHARE,
            "saving takes long: checkpoint.everySteps less often, or a faster volume",
        ),
        ("evaluation", SAVING_SHARE, "evaluation takes long: less often, or on fewer samples"),
    )
    paces = [rank.usual for rank in seen.ranks if rank.usual is not None]
    for phase, limit, do in shares:
        values = [value for pace in paces if (value := pace.share(phase)) is not None]
        if values and ranks.median(values) >= limit:
            doing = "waiting for data" if phase == "data_wait" else phase
            what = f"{doing} takes {100 * ranks.median(values):.0f} % of the time on the median rank"
            yield Finding(weight=Weight.SLOWS, what=what, where="all ranks", do=do)
    exposed = [value for pace in paces if (value := pace.exposed) is not None]
    if exposed and ranks.median(exposed) >= EXPOSED_SHARE and slow is None and told is None:
        yield Finding(
            weight=Weight.SLOWS,
            what=f"waiting for gradients takes {100 * ranks.median(exposed):.0f} % of the time on the median rank",
            where="all ranks",
            do=f"ddpjob tune measures ddp.bucketCapMB and gradientAsBucketView; ddp.gradientAccumulationSteps "
            f"exchanges them less often{on_gpu(seen)}",
        )


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
    phases: dict[str, list[int]] = {}
    for rank in seen.ranks:
        phases.setdefault(rank.phase, []).append(rank.rank)
    odd = min(phases.items(), key=lambda pair: len(pair[1]))
    behind = min(seen.ranks, key=lambda rank: rank.step)
    name, members = odd if len(phases) > 1 else (behind.phase, [behind.rank])
    who = f"rank{'s' if len(members) > 1 else ''} {words.listed(members[:8])}"
    yield Finding(
        weight=Weight.STOPS,
        what=f"no step for {words.duration(age)}, usually {ms(usual)}; {who} in {name}"
        + (", the others elsewhere" if len(phases) > 1 else ""),
        where=at(behind.pod, behind.host),
        do="a collective that not all ranks reach is the usual cause: look at the log of the odd rank; ddp.timeoutSeconds "
        "ends the wait",
    )


def settings(seen: Observation) -> Iterator[Finding]:
    """What the program does otherwise than the resource says, and what costs something."""
    if seen.ddp is None:
        return
    for text in seen.ddp.warnings:
        yield Finding(weight=Weight.NOTES, what=text, where="spec.ddp")
    for item in seen.ddp.overrides:
        if not item.applied:
            yield Finding(weight=Weight.NOTES, what=words.override(item), where=item.where)


def cluster_words(seen: Observation) -> Iterator[Finding]:
    """Warnings of the cluster that nothing above repeats, the newest three."""
    said = " ".join(condition.message for condition in seen.conditions.values())
    failure = seen.last_failure.message if seen.last_failure else ""
    told: set[str] = set()
    fresh = [event for event in reversed(seen.events) if event.warning and event.message]
    for event in fresh:
        repeated = event.message in said or (failure and failure in event.message) or event.message in told
        probe = event.reason == "Unhealthy"  # readiness before the ranks have joined: how it should be
        if repeated or probe or seen.finished or len(told) == 3:
            continue
        told.add(event.message)
        times = f" ({event.count} times)" if event.count > 1 else ""
        yield Finding(weight=Weight.NOTES, what=f"{event.reason}: {event.message}{times}", where=event.about)


def well(seen: Observation) -> Finding:
    """Nothing is wrong."""
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
    detail = f": {', '.join(facts)}" if facts else ""
    if seen.is_true(Condition.RUNNING):
        how = "it runs again" if seen.restarts else "it runs, and nothing is in its way"
        return Finding(weight=Weight.FINE, what=f"{how}{detail}")
    return Finding(weight=Weight.FINE, what=f"nothing is wrong so far; {seen.state or 'Starting'}{detail}")


def counted(pods_held: list[PodSeen]) -> str:
    return f"{len(pods_held)} pod{'s' if len(pods_held) > 1 else ''}"


def at(pod: str, host: str) -> str:
    return f"pod {pod} on {host}" if host else pod


def ms(seconds: float) -> str:
    """`12 ms`, `3.4 s`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
