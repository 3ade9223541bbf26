"""Why a job does not run: its end, its spec, a queue, the cluster's own words about pods, ranks that do not join.

Why apart: of these causes the first that applies is said, and no other. Must not: ask anybody, or print.
"""

from collections.abc import Iterator

from ddpjob_api.conditions import Condition, Reason
from ddpjob_cli.explain import advice
from ddpjob_cli.explain.finding import Finding, Weight
from ddpjob_cli.explain.observation import Observation, PodSeen
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
    if running is not None and running.status == "Unknown":
        yield Finding(
            weight=Weight.STOPS,
            what=f"whether it runs is not known: {running.message}",
            where="Running",
            do=f"ddpjob logs {seen.name} shows whether it does; a NetworkPolicy between the operator and its pods "
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
            do=f"ddpjob logs {seen.name} shows what they say; if launchers cannot connect, a NetworkPolicy between the pods "
            "(port coordinator, and the 64 from rendezvous) or DNS is in the way",
        )


def counted(pods_held: list[PodSeen]) -> str:
    return f"{len(pods_held)} pod{'s' if len(pods_held) > 1 else ''}"
