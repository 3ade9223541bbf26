"""What the watches have told us, as typed views by job.

Why apart: reconciles read from here and ask the API server nothing. Three things write: watch events, our own writes
(so that a reconcile never works on what it has just replaced), and the resync, which alone finds what was deleted
while a watch was broken. Older news never replaces newer. Must not: decide or talk.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddpjob_operator.observe import JobView, Key, PodView, ServiceView


@dataclass
class Entry:
    """What is known under a job's name. Pods may be of an earlier job of that name."""

    job: JobView | None = None
    service: ServiceView | None = None
    pods: dict[str, PodView] = field(default_factory=dict)
    """By uid."""

    @property
    def empty(self) -> bool:
        return self.job is None and self.service is None and not self.pods


class Cache:
    """Entries by key."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._gone: dict[str, None] = {}
        """uids of deleted objects, the newest few thousand: a late event must not bring one back."""

    def entry(self, key: Key) -> Entry:
        """What is known; an empty entry where nothing is."""
        return self._entries.get(key) or Entry()

    def keys(self) -> list[Key]:
        return list(self._entries)

    def jobs(self) -> Iterable[JobView]:
        return [entry.job for entry in self._entries.values() if entry.job is not None]

    def on_node(self, name: str) -> list[Key]:
        """The jobs with pods on a node."""
        return [
            key
            for key, entry in self._entries.items()
            if any(pod.host_node == name for pod in entry.pods.values())
        ]

    def put_job(self, view: JobView) -> bool:
        """False where this is no news."""
        entry = self._entries.setdefault(view.key, Entry())
        if self._stale(view, entry.job) and entry.job is not None and entry.job.uid == view.uid:
            return False
        if view.uid in self._gone:
            self._tidy(view.key)
            return False
        entry.job = view
        return True

    def put_pod(self, view: PodView) -> bool:
        entry = self._entries.setdefault(view.key, Entry())
        if self._stale(view, entry.pods.get(view.uid)) or view.uid in self._gone:
            self._tidy(view.key)
            return False
        entry.pods[view.uid] = view
        return True

    def put_service(self, view: ServiceView) -> bool:
        entry = self._entries.setdefault(view.key, Entry())
        same = entry.service if entry.service and entry.service.uid == view.uid else None
        if self._stale(view, same) or view.uid in self._gone:
            self._tidy(view.key)
            return False
        entry.service = view
        return True

    def drop(self, view: JobView | PodView | ServiceView) -> None:
        """The object is deleted."""
        self._gone[view.uid] = None
        while len(self._gone) > 4096:
            del self._gone[next(iter(self._gone))]
        entry = self._entries.get(view.key)
        if entry is None:
            return
        if entry.job is not None and entry.job.uid == view.uid:
            entry.job = None
        if entry.service is not None and entry.service.uid == view.uid:
            entry.service = None
        entry.pods.pop(view.uid, None)
        self._tidy(view.key)

    def settle(self, views: Iterable[JobView | PodView | ServiceView], *, before: int) -> list[Key]:
        """A full list of everything: what we hold and it has not is a ghost, unless it is newer than the list.

        Args:
            before: the highest resourceVersion we held when the list was asked for.

        Returns:
            The keys of the ghosts.
        """
        there = {view.uid for view in views}
        ghosts = [
            view
            for entry in self._entries.values()
            for view in (entry.job, entry.service, *entry.pods.values())
            if view is not None and view.uid not in there and view.version <= before
        ]
        for view in ghosts:
            self.drop(view)
        return [view.key for view in ghosts]

    def newest(self) -> int:
        """The highest resourceVersion held."""
        return max(
            (
                view.version
                for entry in self._entries.values()
                for view in (entry.job, entry.service, *entry.pods.values())
                if view is not None
            ),
            default=0,
        )

    @staticmethod
    def _stale(view: JobView | PodView | ServiceView, known: JobView | PodView | ServiceView | None) -> bool:
        return known is not None and view.version <= known.version

    def _tidy(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.empty:
            del self._entries[key]
