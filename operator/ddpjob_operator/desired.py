"""What should exist for a job: Service, Secret and pods, as a pure function of what is known of it.

Why apart: what we want must be testable without a cluster and equal for two operators.
Must not: talk to the API, read the clock, or change the status (`status.py` did so before).

The rules of the pod set: one live pod per index; a pod that ended or is being deleted has a successor at once, under
the number that `status.nextIncarnation` gives; that number is past every pod that ended (`ledger.py`), so no name is
used twice, and two operators meet on one name. The tracking finalizer goes when the pod's end is in the status.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ddpjob_api.names import LABEL_JOB, TOKEN_PATH, secret_name, service_name
from ddpjob_api.spec import Spec
from ddpjob_operator.model import Status, moment_of
from ddpjob_operator.observe import JobView, PodView, ServiceView
from ddpjob_operator.pod import labels, owner

Body = dict[str, Any]

LINGER = timedelta(seconds=30)
"""How long the other launchers of a job that reported its end may take to end by themselves."""
RETRY = timedelta(seconds=10)
"""A pod that failed by itself is replaced no sooner than this after it was made: no pod is made in a tight loop."""


@dataclass(frozen=True, kw_only=True)
class PodSet:
    """What to do about a job's pods."""

    create: tuple[int, ...] = ()
    """Indexes without a pod; their incarnation is `status.incarnation`."""
    delete: tuple[PodView, ...] = ()
    release: tuple[PodView, ...] = ()
    """Their outcome is in the status: the tracking finalizer goes."""
    track: tuple[PodView, ...] = ()
    """Live pods without the finalizer (somebody took it away): it comes back."""
    force: tuple[PodView, ...] = ()
    """On a lost node, where nobody ends them: taken away without waiting, so that no name or claim is held."""
    again: datetime | None = None
    """When to look again although nothing happened."""

    @property
    def empty(self) -> bool:
        return not (self.create or self.delete or self.release or self.track or self.force)


def pod_set(
    job: JobView, status: Status, pods: Sequence[PodView], *, now: datetime, ending: bool = False
) -> PodSet:
    """What to do, given the status that `status.advance` made of the same pods (and that was written).

    Args:
        ending: the coordinator says that the launchers are ending by themselves.
    """
    ended = [pod for pod in pods if pod.ended]
    lost = tuple(pod for pod in pods if pod.lost)
    if status.finished:
        released = tuple(pod for pod in (*ended, *lost) if pod.tracked)
        live = tuple(pod for pod in pods if pod.live)
        due = leftovers_due(status, ended, ending=ending)
        if live and due is not None and now < due:
            return PodSet(release=released, force=lost, again=due)
        return PodSet(release=released, force=lost, delete=live)
    released = tuple(pod for pod in (*ended, *lost) if pod.tracked and pod.incarnation < status.incarnation)
    if job.spec is None or job.spec.suspend or status.runtime is None:
        return PodSet(release=released, force=lost, delete=tuple(pod for pod in pods if pod.live))
    apart_until = status.apart_until(now)
    if apart_until is not None:
        going = tuple(pod for pod in pods if pod.live)
        return PodSet(release=released, force=lost, delete=going, again=apart_until)
    nodes = job.spec.nodes
    keep = members(pods, nodes)
    surplus = [pod for pod in pods if pod.live and keep.get(pod.index) is not pod]
    create, again = [], None
    for index in range(nodes):
        if index in keep:
            continue
        due = retry_due(index, ended)
        if due is None or due <= now:
            create.append(index)
        else:
            again = due if again is None else min(again, due)
    return PodSet(
        create=tuple(create),
        delete=(*surplus, *old_logs(pods)),
        release=released,
        force=lost,
        track=tuple(pod for pod in keep.values() if not pod.tracked),
        again=again,
    )


def members(pods: Iterable[PodView], nodes: int) -> dict[int, PodView]:
    """The live pod of each index; of two (an operator's mishap) the one with the higher incarnation."""
    found: dict[int, PodView] = {}
    for pod in pods:
        if pod.live and pod.index < nodes:
            other = found.get(pod.index)
            if other is None or other.incarnation < pod.incarnation:
                found[pod.index] = pod
    return found


def old_logs(pods: Iterable[PodView]) -> list[PodView]:
    """Failed pods whose index has failed again since: only the last is kept for its logs."""
    newest: dict[int, PodView] = {}
    old = []
    kept = [pod for pod in pods if pod.ended and not pod.deleting and not pod.tracked]
    for pod in sorted(kept, key=lambda pod: pod.incarnation):
        if pod.index in newest:
            old.append(newest[pod.index])
        newest[pod.index] = pod
    return old


def retry_due(index: int, ended: Iterable[PodView]) -> datetime | None:
    """When an index whose newest pod failed by itself, or was not taken by its node's kubelet, may have another."""
    mine = [
        pod for pod in ended
        if pod.index == index and not pod.deleting
        and (pod.disruption is None or (pod.end is not None and pod.end.exit_code is None))
    ]  # fmt: skip
    return max(pod.created for pod in mine) + RETRY if mine else None


def leftovers_due(status: Status, ended: Iterable[PodView], *, ending: bool) -> datetime | None:
    """When pods that outlive their job are deleted: at once, unless the launchers are ending by themselves."""
    if not ending and not any(pod.end and pod.end.report and not pod.deleting for pod in ended):
        return None
    end = moment_of(status.completion_time)
    return end + LINGER if end else None


def service(job: JobView, spec: Spec) -> Body:
    """The headless Service under which pods find each other, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(job.key.name),
            "namespace": job.key.namespace,
            "labels": labels(job.key.name),
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.key.name},
            "ports": [
                {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
                for name, port in ports(spec)
            ],
        },
    }


def ports(spec: Spec) -> tuple[tuple[str, int], ...]:
    return (("coordinator", spec.ports.coordinator), ("metrics", spec.ports.metrics))


def service_fits(view: ServiceView, spec: Spec) -> bool:
    """Whether a Service is what `service` asks for, as far as pods depend on it."""
    return (
        view.headless
        and view.not_ready_addresses
        and view.selector == ((LABEL_JOB, view.key.name),)
        and view.ports == tuple(sorted(ports(spec)))
    )


def secret(job: JobView, token: bytes) -> Body:
    """The Secret by which the ends of every connection know each other."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": secret_name(job.key.name),
            "namespace": job.key.namespace,
            "labels": labels(job.key.name),
            "ownerReferences": [owner(job)],
        },
        "data": {TOKEN_PATH.rsplit("/", 1)[1]: base64.b64encode(token).decode()},
    }
