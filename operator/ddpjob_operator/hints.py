"""What the cluster's events say about a pod that has been creating its container for long: a volume, mostly.

Why apart: the pod itself gives no reason then, and events are asked for one pod at a time and seldom.
Must not: list events of pods that are well.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ddpjob_operator.client import EVENTS, Client
from ddpjob_operator.observe import PodView, Waiting

HINT_AFTER = timedelta(seconds=10)
"""A pod that has been creating its container for so long is looked up in the events, and again as often."""


@dataclass
class Hints:
    """Of one job; losing them costs a few requests."""

    found: dict[str, Waiting] = field(default_factory=dict)
    """By pod uid."""
    looked: dict[str, datetime] = field(default_factory=dict)

    async def look(self, client: Client, there: dict[int, PodView], now: datetime) -> None:
        """What events say about the first pod that has been creating its container for long (a volume, mostly)."""
        creating = {pod.uid: pod for pod in there.values() if is_creating(pod)}
        self.found = {uid: hint for uid, hint in self.found.items() if uid in creating}
        self.looked = {uid: at for uid, at in self.looked.items() if uid in creating}
        pod = next(iter(creating.values()), None)
        if pod is None or now < self.due(pod):
            return
        self.looked[pod.uid] = now
        fields = f"involvedObject.uid={pod.uid},type=Warning"
        said = [
            event for event in await client.list(EVENTS, pod.key.namespace, fields=fields)
            if str(event.get("reason", "")).startswith("Failed")
        ]  # fmt: skip
        if said:
            last = max(said, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
            self.found[pod.uid] = Waiting(reason=str(last["reason"]), message=str(last.get("message") or ""))

    def due(self, pod: PodView) -> datetime:
        """When a pod that creates its container is looked up."""
        return self.looked.get(pod.uid, pod.created) + HINT_AFTER


def is_creating(pod: PodView) -> bool:
    """On a node, its container neither running nor waiting for a reason of its own."""
    quiet = pod.waiting is None or pod.waiting.reason == "ContainerCreating"
    return pod.live and pod.host_node is not None and pod.phase == "Pending" and not pod.started and quiet
