"""A DDPJob on a cluster as an observation: its status, pods, events and ranks.

Why apart: the only place where the CLI reads Kubernetes' objects, with their many optional fields. What the user may not
read is left out and said (`blind`). Must not: judge.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ddpjob_api.codec import Invalid, load, parse_spec
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Times
from ddpjob_api.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, TRAINER_CONTAINER
from ddpjob_api.report import Failure, InEffect
from ddpjob_api.spec import Ports, Spec
from ddpjob_cli import ranks
from ddpjob_cli.cluster.access import Access, Body, NotThere, core_path, jobs_path
from ddpjob_cli.errors import Forbidden
from ddpjob_cli.explain.observation import ConditionSeen, EventSeen, Observation, PodSeen
from ddpjob_cli.ranks import Place
from ddpjob_cli.scraping import Scraper

MAX_SCRAPED = 64
"""Pods whose ranks are read; a thousand answers a second are no use to a reader."""


def job_of(access: Access, name: str) -> Body:
    """The DDPJob.

    Raises:
        NotThere: there is none; other CommandErrors as `Access`.
    """
    where = f"in namespace {access.namespace}"
    try:
        return access.get(jobs_path(access.namespace, name), f"DDPJob {name} {where}")
    except NotThere:
        raise NotThere(
            f"there is no DDPJob {name} {where}; ddpjob top -A lists those of all namespaces"
        ) from None


def pods_of(access: Access, job: Body) -> list[Body]:
    """Its pods, ended ones included, by index and incarnation.

    Those of an earlier job of its name, which may still be saving, have the same labels and are not its own.
    """
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    path = core_path(access.namespace, "pods")
    found = access.items(path, f"the pods of {name}", labelSelector=f"{LABEL_JOB}={name}")
    mine = [pod for pod in found if controller_of(pod) == uid]
    return sorted(mine, key=lambda pod: (number(pod, LABEL_INDEX), number(pod, LABEL_INCARNATION)))


def controller_of(pod: Body) -> str | None:
    """The uid of the object that it belongs to."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def read(access: Access, name: str) -> tuple[Body, list[Body], list[str]]:
    """The DDPJob, its pods as far as the user may see them, and what the user may not see.

    Raises:
        CommandError: the job itself cannot be read.
    """
    job = job_of(access, name)
    try:
        return job, pods_of(access, job), []
    except Forbidden as error:
        return job, [], [str(error)]


def number(pod: Body, label: str) -> int:
    text = (pod["metadata"].get("labels") or {}).get(label, "")
    return int(text) if text.isdecimal() else 0


def observe(access: Access, name: str, scraper: Scraper | None = None) -> Observation:
    """Everything that can be seen of one job; with the scraper of an earlier look, rates are of the time since.

    Raises:
        CommandError: the job itself cannot be read.
    """
    job, pods, blind = read(access, name)
    events = seen_events(access, name, job, pods, blind)
    spec = spec_of(job)
    places = (scraper or scraper_of(access)).look(places_of(pods, (spec.ports if spec else Ports()).metrics))
    blind += [place.problem for place in places if place.problem][:1]
    return observation(
        job, pods, events, ranks.ranks(places), blind, namespace=access.namespace, now=time.time()
    )


def observation(
    job: Body,
    pods: Sequence[Body],
    events: Sequence[EventSeen],
    found: Sequence[ranks.Rank],
    blind: Sequence[str],
    *,
    namespace: str,
    now: float,
) -> Observation:
    """The job's objects as one value."""
    status: Body = job.get("status") or {}
    progress: Body = status.get("progress") or {}
    conditions = {
        item["type"]: ConditionSeen(
            status=item["status"], reason=item.get("reason", ""), message=item.get("message", "")
        )
        for item in status.get("conditions") or ()
    }
    spec = spec_of(job)
    nodes = status.get("nodes") or {}
    return Observation(
        name=job["metadata"]["name"],
        place=f"namespace {namespace}",
        namespace=namespace,
        uid=job["metadata"].get("uid", ""),
        age_seconds=age(job["metadata"].get("creationTimestamp"), now),
        spec=spec,
        managed=bool(status.get("state") or conditions),
        state=status.get("state") or "",
        conditions=conditions,
        nodes=nodes.get("desired") or (spec.nodes if spec else 0),
        ready=nodes.get("ready") or 0,
        restarts=status.get("restarts") or 0,
        disruptions=status.get("disruptions") or 0,
        step=progress.get("step") or 0,
        total_steps=progress.get("totalSteps"),
        checkpoint_step=progress.get("checkpointStep"),
        samples_per_second=progress.get("samplesPerSecond"),
        loss=progress.get("loss"),
        eta_seconds=progress.get("etaSeconds"),
        goodput_percent=status.get("goodputPercent"),
        time=tolerant(Times, status.get("time")),
        efficiency=tolerant(Efficiency, status.get("efficiency")),
        last_failure=tolerant(Failure, status.get("lastFailure")),
        ddp=tolerant(InEffect, status.get("ddp")),
        pods=tuple(pod_seen(pod, now) for pod in pods),
        events=tuple(events),
        ranks=tuple(found),
        blind=tuple(blind),
        now=now,
    )


def spec_of(job: Body) -> Spec | None:
    """Its spec; None where this version cannot read it."""
    try:
        return parse_spec(job.get("spec") or {})
    except Invalid:
        return None


def tolerant(kind: type[Any], document: object) -> Any:
    """A value of the api, or None where the operator's version says it otherwise."""
    try:
        return load(kind, document) if document else None
    except Invalid:
        return None


def pod_seen(pod: Body, now: float) -> PodSeen:
    """One pod; of its containers the trainer counts, but any that cannot start is named."""
    status, spec, meta = pod.get("status") or {}, pod.get("spec") or {}, pod["metadata"]
    reason, message, code = status.get("reason") or "", status.get("message") or "", None
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in containers:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and not reason:
            reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        if ended and container["name"] == TRAINER_CONTAINER:
            code = ended.get("exitCode")
            reason = reason or ended.get("reason") or ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason, message = condition.get("reason") or reason, condition.get("message") or message
    trainer: Body = next((c for c in spec.get("containers") or () if c["name"] == TRAINER_CONTAINER), {})
    ours: Body = next((c for c in containers if c["name"] == TRAINER_CONTAINER), {})
    return PodSeen(
        name=meta["name"],
        index=number(pod, LABEL_INDEX),
        phase=status.get("phase") or "Pending",
        host=spec.get("nodeName") or "",
        ready=bool(ours.get("ready")),
        leaving="deletionTimestamp" in meta,
        reason=reason,
        message=message,
        exit_code=code,
        gated=reason == "SchedulingGated" or bool(spec.get("schedulingGates")),
        memory_limit=str(((trainer.get("resources") or {}).get("limits") or {}).get("memory") or ""),
        age_seconds=age(meta.get("creationTimestamp"), now),
    )


def seen_events(
    access: Access, name: str, job: Body, pods: Sequence[Body], blind: list[str]
) -> list[EventSeen]:
    """What the cluster says about the job and its pods, oldest first."""
    mine = {job["metadata"].get("uid"): f"DDPJob {name}"}
    mine |= {pod["metadata"]["uid"]: f"pod {pod['metadata']['name']}" for pod in pods}
    try:
        listed = access.items(core_path(access.namespace, "events"), "events")
    except Forbidden as error:
        blind.append(str(error))
        return []
    now = time.time()
    found = [
        EventSeen(
            about=mine[event["involvedObject"].get("uid")],
            reason=event.get("reason") or "",
            message=" ".join((event.get("message") or "").split()),
            warning=event.get("type") == "Warning",
            count=(event.get("series") or {}).get("count") or event.get("count") or 1,
            age_seconds=age(
                event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"), now
            ),
        )
        for event in listed
        if event["involvedObject"].get("uid") in mine
    ]
    return sorted(found, key=lambda event: -event.age_seconds)


def places_of(pods: Sequence[Body], port: int) -> list[Place]:
    """Where ranks may run: the pods that do."""
    running = [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return [
        Place(
            node=number(pod, LABEL_INDEX),
            pod=pod["metadata"]["name"],
            host=(pod.get("spec") or {}).get("nodeName") or "",
            port=port,
        )
        for pod in running[:MAX_SCRAPED]
    ]


def scraper_of(access: Access) -> Scraper:
    """Asks launchers through the API server's proxy."""

    def fetch(place: Place) -> str:
        path = core_path(access.namespace, "pods", f"{place.pod}:{place.port}", "/proxy/metrics")
        return access.text(path, f"the metrics of pod {place.pod}")

    return Scraper(fetch)


def all_jobs(access: Access, namespace: str | None) -> list[Observation]:
    """Every job of a namespace, or of all, by its status alone."""
    found = access.items(jobs_path(namespace), "the jobs")
    now = time.time()
    return [
        observation(job, (), (), (), (), namespace=job["metadata"]["namespace"], now=now)
        for job in sorted(found, key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))
    ]


def age(stamp: str | None, now: float) -> float:
    """Seconds since a time of Kubernetes'; 0 where it is none."""
    if not stamp:
        return 0.0
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return 0.0
    return max(0.0, now - moment.astimezone(UTC).timestamp())
