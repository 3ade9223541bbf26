"""Pods whose node is lost: which are given up, which are waited for, and why.

A pod is given up when its node has been NotReady (or gone) for `recovery.nodeLostTimeoutSeconds` and its rank is not
seen alive: a kubelet may be dead while the training on its node goes on. What is given up is replaced under its next
name like any pod that ended; should it be alive all the same, the launchers' terms fence it off.

Why apart: it is a judgement over three sources (nodes, coordinator, clock) that must stay a table one can test.
Must not: talk, or count (`ledger.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ddpjob_api.conditions import Reason
from ddpjob_api.report import JobReport
from ddpjob_operator.model import stamp
from ddpjob_operator.nodes import Away, Nodes
from ddpjob_operator.observe import PodView
from ddpjob_operator.trouble import Trouble

AGAIN = timedelta(seconds=10)
"""A pod that is only kept because it is seen alive, or because of a storm, is looked at again as often."""


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The pods, those given up marked so (`PodView.lost`)."""

    pods: tuple[PodView, ...]
    trouble: Trouble | None = None
    """What is waited for."""
    due: datetime | None = None


def weigh(
    pods: Iterable[PodView],
    nodes: Nodes,
    *,
    timeout: timedelta,
    alive: Callable[[PodView], bool],
    now: datetime,
) -> Weighed:
    """Mark the pods that are given up."""
    found: list[PodView] = []
    words: list[str] = []
    reason = Reason.NODE_NOT_READY
    due: list[datetime] = []
    for pod in pods:
        away = None if pod.end is not None else nodes.away(pod.host_node)
        if away is None:
            found.append(pod)
            continue
        end = away.since + timeout
        if pod.deleting and pod.leave_by is not None:
            end = max(end, pod.leave_by)
        where = f"pod {pod.name}: node {away.name} {away.words} (since {stamp(away.since)})"
        kept = ""
        if now < end:
            kept = f"it is given up at {stamp(end)} unless its rank is seen alive"
        elif nodes.storm:
            kept, end, reason = nodes.storm, now + AGAIN, Reason.NODE_STORM
        elif not pod.deleting and alive(pod):
            kept, end = "its rank is alive, so it is kept", now + AGAIN
        if not kept:
            found.append(replace(pod, lost=f"node {away.name} {away.words}"))
            continue
        found.append(pod)
        due.append(end)
        if not pod.deleting:
            words.append(f"{where}; {kept}")
    more = f" (and {len(words) - 1} more pods)" if len(words) > 1 else ""
    return Weighed(
        pods=tuple(found),
        trouble=Trouble(reason=reason, message=words[0] + more) if words else None,
        due=min(due, default=None),
    )


def seen_alive(
    pod: PodView, coordinator: PodView | None, report: JobReport | None, coordinator_away: Away | None
) -> bool:
    """Whether a pod's rank is alive as far as the coordinator says.

    Args:
        report: what the coordinator said a moment ago; None where it does not answer.
    """
    if report is not None:
        whole = report.nodes_expected - report.nodes_joined <= len(report.missing_nodes)
        return pod.index == 0 or (pod.index not in report.missing_nodes and whole)
    if pod.index == 0 or coordinator is None or not coordinator.started:
        return False
    # It runs on a good node and we cannot reach it: nobody has said that this rank is lost.
    return coordinator_away is None


def tolerations(timeout: timedelta) -> list[dict[str, Any]]:
    """For pods of an operator that may not see nodes: Kubernetes itself deletes them after the time-out."""
    return [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": int(timeout.total_seconds()),
        }
        for taint in ("not-ready", "unreachable")
    ]
