"""The cluster's nodes as far as the loss of one matters: which are NotReady, since when, and whether that is a storm.

Why apart: nodes belong to no job, and what is concluded from them must be the same for all of them. Where the operator
may not see nodes (an installation for some namespaces) `watched` is False and nothing is concluded.
Must not: know of jobs, or act.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddpjob_operator.model import moment_of
from ddpjob_operator.observe import version_of

STORM_NODES = 3
STORM_PERCENT = 55
"""While at least so many nodes, and so large a part of them, are NotReady, the trouble is rather the network's or the
control plane's than theirs, and no pod is given up (kube-controller-manager stops evicting at the same part)."""
WORDS_MAX = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node."""

    name: str
    uid: str
    version: int
    ready: bool
    since: datetime | None
    """When `ready` became so."""
    words: str
    """Reason and message of the Ready condition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Away:
    """A node on which nothing can be relied on."""

    name: str
    since: datetime
    words: str
    """`is NotReady: NodeStatusUnknown: Kubelet stopped posting node status.`, or that it is gone."""


def node_of(body: Mapping[str, Any]) -> NodeView:
    meta = body.get("metadata") or {}
    conditions = (body.get("status") or {}).get("conditions") or []
    ready: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    words = ": ".join(str(ready[part]) for part in ("reason", "message") if ready.get(part))
    return NodeView(
        name=str(meta["name"]),
        uid=str(meta.get("uid") or ""),
        version=version_of(meta),
        ready=ready.get("status") == "True",
        since=moment_of(ready.get("lastTransitionTime")),
        words=words[:WORDS_MAX],
    )


class Nodes:
    """All nodes by name."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self.watched = False
        """Whether all nodes are known."""
        self._clock = clock
        self._known: dict[str, NodeView] = {}
        self._missed: dict[str, datetime] = {}
        """Nodes that pods name and that do not exist, since when we know."""

    def put(self, view: NodeView) -> bool:
        """Whether this changes what may be relied on."""
        known = self._known.get(view.name)
        if known is not None and known.uid == view.uid and view.version <= known.version:
            return False
        self._known[view.name] = view
        self._missed.pop(view.name, None)
        return known is None or known.ready != view.ready

    def drop(self, view: NodeView) -> bool:
        known = self._known.get(view.name)
        if known is None or known.uid != view.uid:
            return False
        del self._known[view.name]
        return True

    def settle(self, views: Iterable[NodeView], *, before: int) -> list[str]:
        """A full list: a node that it has not is gone, unless it is newer than the list.

        Args:
            before: the highest resourceVersion held when the list was asked for.

        Returns:
            The names of those whose state differs from what was known.
        """
        views = list(views)
        there = {view.name for view in views}
        gone = [name for name, view in self._known.items() if name not in there and view.version <= before]
        for name in gone:
            del self._known[name]
        self.watched = True
        return [*gone, *(view.name for view in views if self.put(view))]

    def newest(self) -> int:
        """The highest resourceVersion held."""
        return max((view.version for view in self._known.values()), default=0)

    def away(self, name: str | None) -> Away | None:
        """What is known against a node; None where it is Ready, or where that cannot be told."""
        if name is None or not self.watched:
            return None
        known = self._known.get(name)
        if known is None:
            since = self._missed.setdefault(name, self._clock())
            return Away(name=name, since=since, words="does not exist any more")
        if known.ready:
            return None
        since = known.since or self._missed.setdefault(name, self._clock())
        return Away(name=name, since=since, words=f"is NotReady: {known.words or 'no condition'}")

    @property
    def storm(self) -> str | None:
        """Why no pod is given up at present, where that is so."""
        total = len(self._known)
        away = sum(not view.ready for view in self._known.values())
        if away < STORM_NODES or away * 100 < total * STORM_PERCENT:
            return None
        return (
            f"{away} of {total} nodes are NotReady, which is rather the network's or the control plane's trouble "
            f"than theirs; pods on them are not given up while so many are"
        )
