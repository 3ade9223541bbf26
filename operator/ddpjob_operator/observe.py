"""Kubernetes objects as the few typed fields the operator works with.

Why apart: everything behind this edge is typed and small (10,000 pods stay in memory as these views); nothing but
this module knows where in a Pod a fact stands. Must not: compare, decide, or keep anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddpjob_api.codec import Invalid, parse
from ddpjob_api.names import FINALIZER_TRACKING, LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, TRAINER_CONTAINER
from ddpjob_api.report import MAX_TERMINATION_BYTES, Outcome, TerminationMessage
from ddpjob_api.spec import API_VERSION, KIND, Spec
from ddpjob_operator.model import Status, moment_of, read_status
from ddpjob_operator.words import read

WORDS_MAX = 1024


@dataclass(frozen=True, order=True)
class Key:
    """A job's namespace and name: the unit of work."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A DDPJob."""

    key: Key
    uid: str
    version: int
    """resourceVersion."""
    generation: int
    created: datetime
    deleting: bool
    spec: Spec | None
    """None: it cannot be read; `problem` says why."""
    problem: str
    status: Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What holds a pod up, in the cluster's own words."""

    reason: str
    """The kubelet's (`ErrImagePull`), or `Unschedulable`."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How the trainer container, or the pod without it, ended."""

    exit_code: int | None
    signal: int | None
    reason: str
    """`OOMKilled`, `Error`, `Evicted` …"""
    words: str
    """The tail of its log, or the kubelet's message, where there is no report."""
    report: TerminationMessage | None

    @property
    def done(self) -> bool:
        return self.report is not None and self.report.outcome is Outcome.DONE


@dataclass(frozen=True, kw_only=True, slots=True)
class PodView:
    """A pod of a job."""

    key: Key
    """Of the job."""
    name: str
    uid: str
    version: int
    owner_uid: str | None
    index: int
    incarnation: int
    created: datetime
    tracked: bool
    """Whether it carries our finalizer: its outcome is not yet in the job's status."""
    deleting: bool
    over: bool
    """Its deletion's grace period is over, whatever its status says."""
    leave_by: datetime | None
    """Until when it may take to end, once it is being deleted."""
    phase: str
    ready: bool
    started: bool
    """The trainer container runs."""
    started_at: datetime | None
    address: str | None
    host_node: str | None
    scheduled_at: datetime | None
    waiting: Waiting | None
    disruption: str | None
    """What the DisruptionTarget condition or the kubelet says, e.g. `EvictionByEvictionAPI: …`."""
    memory_limit: str | None
    end: End | None
    lost: str | None = None
    """Its node is lost, in words; a judgement of ours (`lost.py`), not the cluster's."""

    @property
    def ended(self) -> bool:
        return self.end is not None or self.over

    @property
    def live(self) -> bool:
        """It runs or will."""
        return not self.ended and not self.deleting and self.lost is None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceView:
    """A job's Service."""

    key: Key
    uid: str
    version: int
    owner_uid: str | None
    ports: tuple[tuple[str, int], ...]
    selector: tuple[tuple[str, str], ...]
    headless: bool
    not_ready_addresses: bool


def job_of(body: Mapping[str, Any]) -> JobView:
    """The view of a DDPJob."""
    meta = body.get("metadata") or {}
    spec, problem = None, ""
    try:
        spec = parse(
            {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": body.get("spec")}
        ).spec
    except Invalid as invalid:
        problem = "; ".join(str(each) for each in invalid.problems[:8])
    return JobView(
        key=Key(str(meta["namespace"]), str(meta["name"])),
        uid=str(meta["uid"]),
        version=version_of(meta),
        generation=int(meta.get("generation") or 0),
        created=created_of(meta),
        deleting="deletionTimestamp" in meta,
        spec=spec,
        problem=problem,
        status=read_status(body.get("status")),
    )


def pod_of(body: Mapping[str, Any]) -> PodView | None:
    """The view of a pod; None where its labels are not those of a job's pod."""
    meta, spec, status = body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}
    labels = meta.get("labels") or {}
    index, incarnation = labels.get(LABEL_INDEX, ""), labels.get(LABEL_INCARNATION, "")
    if not (labels.get(LABEL_JOB) and index.isdigit() and incarnation.isdigit()):
        return None
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    container: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == TRAINER_CONTAINER), {}
    )
    state: Mapping[str, Any] = container.get("state") or {}
    deleting = "deletionTimestamp" in meta
    return PodView(
        key=Key(str(meta["namespace"]), labels[LABEL_JOB]),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        version=version_of(meta),
        owner_uid=owner_of(meta),
        index=int(index),
        incarnation=int(incarnation),
        created=created_of(meta),
        tracked=FINALIZER_TRACKING in (meta.get("finalizers") or []),
        deleting=deleting,
        over=deleting and meta.get("deletionGracePeriodSeconds", 0) == 0,
        leave_by=moment_of(meta.get("deletionTimestamp")),
        phase=str(status.get("phase") or "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        started="running" in state,
        started_at=moment_of((state.get("running") or {}).get("startedAt")),
        address=status.get("podIP") or None,
        host_node=spec.get("nodeName") or None,
        scheduled_at=scheduled_at_of(conditions),
        waiting=waiting_of(status, conditions, container),
        disruption=disruption_of(status, conditions),
        memory_limit=memory_limit_of(spec),
        end=end_of(status, container),
    )


def service_of(body: Mapping[str, Any]) -> ServiceView | None:
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    job = (meta.get("labels") or {}).get(LABEL_JOB)
    if not job or meta.get("name") != job:
        return None
    return ServiceView(
        key=Key(str(meta["namespace"]), job),
        uid=str(meta["uid"]),
        version=version_of(meta),
        owner_uid=owner_of(meta),
        ports=tuple(sorted((str(p.get("name")), int(p.get("port") or 0)) for p in spec.get("ports") or [])),
        selector=tuple(sorted((spec.get("selector") or {}).items())),
        headless=spec.get("clusterIP") == "None",
        not_ready_addresses=bool(spec.get("publishNotReadyAddresses")),
    )


def scheduled_at_of(conditions: Mapping[str, Any]) -> datetime | None:
    found = conditions.get("PodScheduled") or {}
    return moment_of(found.get("lastTransitionTime")) if found.get("status") == "True" else None


def waiting_of(
    status: Mapping[str, Any], conditions: Mapping[str, Any], container: Mapping[str, Any]
) -> Waiting | None:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and scheduled.get("reason") in ("Unschedulable", "SchedulingGated"):
        return Waiting(reason="Unschedulable", message=str(scheduled.get("message") or ""))
    for one in [
        *(status.get("initContainerStatuses") or []),
        container,
        *(status.get("containerStatuses") or []),
    ]:
        waiting = (one.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing"):
            return Waiting(reason=str(waiting["reason"]), message=str(waiting.get("message") or ""))
    return None


def disruption_of(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> str | None:
    target = conditions.get("DisruptionTarget") or {}
    if target.get("status") == "True":
        return f"{target.get('reason')}: {target.get('message')}"[:WORDS_MAX]
    if status.get("phase") == "Failed" and status.get("reason"):
        # The kubelet's Evicted, Preempting, NodeShutdown, Terminated, UnexpectedAdmissionError …
        return f"{status['reason']}: {status.get('message') or ''}"[:WORDS_MAX]
    return None


def end_of(status: Mapping[str, Any], container: Mapping[str, Any]) -> End | None:
    terminated = (container.get("state") or {}).get("terminated")
    if terminated:
        text = str(terminated.get("message") or "")
        exit_code = terminated.get("exitCode")
        signal = terminated.get("signal") or (
            exit_code - 128 if isinstance(exit_code, int) and exit_code > 128 else None
        )
        return End(
            exit_code=exit_code,
            signal=signal if signal in range(1, 65) else None,
            reason=str(terminated.get("reason") or ""),
            words=text[-WORDS_MAX:].strip(),
            report=report_of(text),
        )
    if status.get("phase") in ("Failed", "Succeeded"):
        words = str(status.get("message") or "") or init_failure(status)
        return End(
            exit_code=None,
            signal=None,
            reason=str(status.get("reason") or ""),
            words=words[:WORDS_MAX],
            report=None,
        )
    return None


def init_failure(status: Mapping[str, Any]) -> str:
    """The words of the init container that failed; empty where none did."""
    for one in status.get("initContainerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            said = str(ended.get("message") or "").strip()
            return f"init container {one.get('name')} ended with exit code {ended['exitCode']}: {said}"
    return ""


def report_of(text: str) -> TerminationMessage | None:
    """The launcher's report in a termination message; None where something else stands there."""
    if not text.startswith("{") or len(text) > MAX_TERMINATION_BYTES:
        return None
    try:
        return read(TerminationMessage, text)
    except (Invalid, ValueError, OverflowError, RecursionError):
        return None


def memory_limit_of(spec: Mapping[str, Any]) -> str | None:
    for container in spec.get("containers") or []:
        if container.get("name") == TRAINER_CONTAINER:
            limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
            return str(limit) if limit is not None else None
    return None


def owner_of(meta: Mapping[str, Any]) -> str | None:
    """The uid of the DDPJob that controls an object."""
    for owner in meta.get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == KIND:
            return str(owner.get("uid"))
    return None


def version_of(meta: Mapping[str, Any]) -> int:
    """The resourceVersion; those of one type are comparable numbers (Kubernetes 1.35 says so; it was true before)."""
    text = str(meta.get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


def created_of(meta: Mapping[str, Any]) -> datetime:
    found = moment_of(meta.get("creationTimestamp"))
    if found is None:
        raise ValueError(f"{meta.get('name')}: no creationTimestamp")
    return found
