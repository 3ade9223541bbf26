"""Why a job does not run: its end, its spec, a queue, the cluster's own words about pods, ranks that do not join.

Why apart: of these causes the first that applies is said, and no other. Must not: ask anybody, or print.
"""

import re
from collections.abc import Iterator

from ddpjob_api.conditions import WAITING, Condition, Reason
from ddpjob_cli.explain import advice
from ddpjob_cli.explain.finding import Finding, Weight
from ddpjob_cli.explain.observation import Observation, PodSeen, argument
from ddpjob_cli.local import words

UNSEEN_SECONDS = 20.0
"""A job that no operator has written a status for by then is not being looked at."""


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
            do=f'kubectl patch ddpjob {seen.argument} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
        )
    elif not seen.finished and not seen.local:
        yield from pods(seen)


def ended(seen: Observation, reason: str, message: str) -> Finding:
    """The verdict on a failed job, with advice by the program's own words, or the cluster's, where there are some."""
    failure = seen.last_failure
    if (
        reason == Reason.RENDEZVOUS_TIMEOUT
    ):  # no program has failed: its sentence is the operator's or a launcher's
        cause = "" if seen.local else against_absence(message)
    else:
        said = f"{failure.message} {failure.signal or ''}" if failure else ""
        cause = advice.advise(advice.PROGRAM, f"{said} {message}", "")
    do = "; ".join(part for part in (cause, ending_advice(reason)) if part)
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
    if ready.reason != Reason.PODS_STARTING:
        who, _, rest = ready.message.partition(": ")
        named = who.startswith("pod ")
        own_way = advice.advise(advice.BY_ITSELF.get(ready.reason, ()), ready.message, "")
        yield Finding(
            # Ranks may train on a node that is away.
            weight=Weight.NOTES if seen.is_true(Condition.RUNNING) else Weight.STOPS,
            what=f"{ready.reason}: {rest if named else ready.message}",
            where=who if named else "PodsReady",
            do="; ".join(part for part in (remedy(ready.reason, ready.message), own_way) if part),
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
                do=advice.advise(rows, said, f"kubectl describe pod {argument(pod.name, seen.namespace)}"),
            )
            return
    yield from joining(seen)


def remedy(reason: str, message: str) -> str:
    """What helps against what keeps pods from being ready."""
    if reason == Reason.RENDEZVOUS_TIMEOUT:
        return against_absence(message)
    rows, otherwise = advice.HELD.get(reason, ((), ""))
    return advice.advise(rows, message, otherwise)


def against_absence(message: str) -> str:
    """What helps ranks meet that did not in time, by the cluster's words at the end of the operator's sentence."""
    cause = re.search(r"pod \S+: (\w+)", message)
    if cause is None:
        return advice.advise(advice.REFUSED, message, advice.UNMET)
    reason = Reason.NODE_NOT_READY if cause[1] == "node" else WAITING.get(cause[1])
    return remedy(reason, message[cause.start() :]) if reason is not None else advice.UNMET


def joining(seen: Observation) -> Iterator[Finding]:
    """Pods that are there, and ranks that are not."""
    joined, running = seen.condition(Condition.RENDEZVOUS_READY), seen.condition(Condition.RUNNING)
    up = [pod for pod in seen.pods if pod.phase == "Running" and not pod.leaving]
    if running is not None and running.status == "True":
        return
    if running is not None and running.status == "Unknown":
        yield Finding(
            weight=Weight.STOPS,
            what=f"whether it runs is not known: {running.message}",
            where="Running",
            do=f"ddpjob logs {seen.argument} shows whether it does; a NetworkPolicy between the operator and its pods "
            "(port metrics), or a node that has no time to answer, is in the way",
        )
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
            do=f"ddpjob logs {seen.argument} shows what they say; {advice.UNMET}",
        )


def counted(pods_held: list[PodSeen]) -> str:
    return f"{len(pods_held)} pod{'s' if len(pods_held) > 1 else ''}"
