"""What holds a job's pods up, in the cluster's own words, as a reason of PodsReady.

Why apart: each cause has its place in a Pod (or outside of it), and people alert on the reasons.
Must not: look anything up; what events say comes in as `hints`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ddpjob_api.conditions import WAITING, Condition, Reason
from ddpjob_operator.errors import ApiError, Forbidden, Invalid, Unavailable
from ddpjob_operator.observe import JobView, PodView, Waiting


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why pods are not there or not ready."""

    reason: Reason
    message: str


class Seen(Protocol):
    """The part of `observed.Observed` this needs."""

    @property
    def job(self) -> JobView: ...
    @property
    def refused(self) -> Trouble | None: ...
    @property
    def hints(self) -> Mapping[str, Waiting]: ...
    @property
    def nodes(self) -> Trouble | None: ...


URGENCY = (
    Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_ERROR, Reason.VOLUME_NOT_READY, Reason.UNSCHEDULABLE,
)  # fmt: skip
"""Which of several is shown: what will not go away by itself first."""
DENIED = "admission webhook"
"""The server's words for the no of a webhook."""
UNASKED = re.compile(r'failed calling webhook "[^"]*"')
"""Its words for one that does not answer; what follows has a port or an address."""


def trouble_of(seen: Seen, now_there: Mapping[int, PodView]) -> Trouble | None:
    """The first thing a person should look at, or None while pods are just starting."""
    if seen.refused is not None:
        return seen.refused
    found: list[tuple[Reason, PodView, Waiting]] = []
    for index in sorted(now_there):
        pod = now_there[index]
        waiting = pod.waiting if pod.waiting and pod.waiting.reason in WAITING else seen.hints.get(pod.uid)
        if waiting is not None and waiting.reason in WAITING and not pod.started:
            found.append((WAITING[waiting.reason], pod, waiting))
    if not found:
        return seen.nodes
    reason, pod, waiting = min(found, key=lambda entry: URGENCY.index(entry[0]))
    others = sum(entry[0] is reason for entry in found) - 1
    old = seen.job.status.condition(Condition.PODS_READY)
    if (
        old is not None
        and old.reason == reason
        and old.message.startswith(f"pod {pod.name}: ")
        and steady(reason)
    ):
        # The kubelet alternates between an error and its back-off; the words of the first stay.
        return Trouble(reason=reason, message=old.message)
    message = (
        f"pod {pod.name}: {waiting.reason}: {waiting.message}"
        if waiting.message
        else f"pod {pod.name}: {waiting.reason}"
    )
    return Trouble(reason=reason, message=message + (f" (and {others} more pods)" if others else ""))


def steady(reason: Reason) -> bool:
    """The scheduler's words change with the cluster and are worth following, the kubelet's repeat."""
    return reason is not Reason.UNSCHEDULABLE


def is_refusal(error: ApiError) -> bool:
    """Whether the server is there and does not take this object: its own no, or that of a webhook, or one it cannot ask."""
    if isinstance(error, Unavailable):
        return error.status >= 500 and (DENIED in error.message or UNASKED.search(error.message) is not None)
    return isinstance(error, (Forbidden, Invalid))


def refusal_of(error: ApiError) -> Trouble:
    """Why a pod was not made, for a refusal that may pass."""
    words = error.message
    if isinstance(error, Forbidden) and re.search(
        r"exceeded quota|must specify limits|maximum .* usage", words
    ):
        return Trouble(reason=Reason.QUOTA_EXCEEDED, message=words)
    return Trouble(reason=Reason.POD_REFUSED, message=words)


def repeated(before: Trouble | None, now: Trouble | None) -> Trouble | None:
    """The trouble of a new try; of a webhook that still does not answer the first words stay.

    They name a port or an address that is another one each time, and a status that changes is looked at again at once.
    """
    if before is None or now is None:
        return now
    was, is_now = (UNASKED.search(found.message) for found in (before, now))
    return before if was and is_now and was[0] == is_now[0] else now


def is_invalid(error: ApiError) -> bool:
    """Whether the pod itself is wrong, so that trying again cannot help (a webhook's mind may change)."""
    return isinstance(error, Invalid) and DENIED not in error.message
