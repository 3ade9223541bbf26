"""An API server in memory, for what a real one does not give on demand: an error at the k-th request, a crash before
its answer, a watch that missed a deletion, a clock that jumps.

It keeps what the operator relies on: resourceVersions and conflicts, the status subresource apart from the rest,
generations, label and field selectors, finalizers and deletion timestamps, owner garbage collection, dry runs,
pages, and (over HTTP) list and watch. It validates nothing; tests/cluster/ does that on a real one.
"""

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ddpjob_operator.client import Answer
from ddpjob_operator.errors import Unavailable

Body = dict[str, Any]
PLURALS = {"ddpjobs": "DDPJob", "pods": "Pod", "services": "Service", "secrets": "Secret", "events": "Event",
           "nodes": "Node", "leases": "Lease",
           "persistentvolumeclaims": "PersistentVolumeClaim"}  # fmt: skip


class Crash(BaseException):
    """The operator died here."""


class FakeApi:
    """The transport of a `Client`, and the cluster behind it."""

    def __init__(self, now: datetime | None = None) -> None:
        self.now = now or datetime(2026, 1, 1, tzinfo=UTC)
        self.objects: dict[tuple[str, str, str], Body] = {}
        """By (plural, namespace, name)."""
        self.requests: list[tuple[str, str]] = []
        """(verb, path) of every request, in order."""
        self.before: Callable[[str, str], Answer | None] = lambda method, path: None
        """A fault: an answer in place of the real one, or an exception."""
        self.after: Callable[[str, str], None] = lambda method, path: None
        """A fault after the request took effect: the answer is lost."""
        self.changed: Callable[[str, Body], None] = lambda kind, body: None
        """Told of every change (ADDED, MODIFIED, DELETED): the watch."""
        self._version = itertools.count(1)
        self._uid = itertools.count(1)

    # the transport

    async def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Answer:
        self.requests.append((method, path))
        fault = self.before(method, path)
        if fault is not None:
            return fault
        answer = self.answer(method, path, query, body, content_type)
        self.after(method, path)
        return answer

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] != "GET"]

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Answer:
        namespace, plural, name, subresource = split(path)
        key = (plural, namespace, name)
        if method == "GET" and not name:
            return Answer(status=200, body=self.list(plural, namespace, query))
        if method == "POST":
            return self.create(plural, namespace, body, dry_run="dryRun" in query)
        found = self.objects.get(key)
        if found is None and content_type.startswith("application/apply"):
            return self.create(plural, namespace, body)
        if found is None:
            return failure(404, "NotFound", f'{plural} "{name}" not found')
        if method == "GET":
            return Answer(status=200, body=copy.deepcopy(found))
        if method == "DELETE":
            wanted = ((body or {}).get("preconditions") or {}).get("uid")
            if wanted not in (None, found["metadata"]["uid"]):
                return failure(409, "Conflict", "Precondition failed: UID")
            self.delete(plural, namespace, name, grace=(body or {}).get("gracePeriodSeconds"))
            return Answer(status=200, body={})
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return failure(409, "Conflict", "the object has been modified")
            self._store("MODIFIED", key, copy.deepcopy(body))
            return Answer(status=200, body=copy.deepcopy(body))
        return self.patch(key, found, subresource, body, content_type)

    # verbs

    def create(self, plural: str, namespace: str, body: Body, *, dry_run: bool = False) -> Answer:
        meta = body["metadata"]
        key = (plural, namespace, meta["name"])
        if key in self.objects:
            return failure(409, "AlreadyExists", f'{plural} "{meta["name"]}" already exists')
        if dry_run:
            return Answer(status=201, body=copy.deepcopy(body))
        made = copy.deepcopy(body)
        made.setdefault("kind", PLURALS[plural])
        made["metadata"] |= {
            "namespace": namespace,
            "uid": meta.get("uid") or f"uid-{next(self._uid)}",
            "creationTimestamp": stamp(self.now),
            "generation": 1,
        }
        self._store("ADDED", key, made)
        return Answer(status=201, body=copy.deepcopy(made))

    def list(self, plural: str, namespace: str, query: Mapping[str, str]) -> Body:
        found = [
            body
            for (kind, where, _), body in sorted(self.objects.items())
            if kind == plural and namespace in ("", where) and selected(body, query)
        ]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or len(found) or 1)
        meta = {"resourceVersion": str(self.version)}
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        return {"items": copy.deepcopy(found[start : start + limit]), "metadata": meta}

    def patch(
        self, key: tuple[str, str, str], found: Body, subresource: str, body: Any, content_type: str
    ) -> Answer:
        new = copy.deepcopy(found)
        if "json-patch" in content_type:
            for step in body:
                target, leaf = new, step["path"].strip("/").split("/")
                for part in leaf[:-1]:
                    target = target[part]
                target[leaf[-1]] = step["value"]
        else:
            lay(new, body)
        meta = new["metadata"]
        if (
            meta["resourceVersion"] != found["metadata"]["resourceVersion"]
            or meta["uid"] != found["metadata"]["uid"]
        ):
            return failure(409, "Conflict", "the object has been modified")
        if subresource == "status":
            new = {**found, "status": new.get("status", {}), "metadata": copy.deepcopy(found["metadata"])}
        elif "status" in found:
            new["status"] = found["status"]
        if new.get("spec") != found.get("spec"):
            new["metadata"]["generation"] += 1
        if new == found:
            return Answer(status=200, body=copy.deepcopy(found))
        self._store("MODIFIED", key, new)
        self._collect(key)
        return Answer(status=200, body=copy.deepcopy(new))

    def delete(self, plural: str, namespace: str, name: str, *, grace: int | None = None) -> None:
        """Delete as a user would; a pod on a node gets its grace period, a finalizer holds any object."""
        key = (plural, namespace, name)
        body = copy.deepcopy(self.objects[key])
        on_node = plural == "pods" and body["spec"].get("nodeName") and not ended(body)
        seconds = body["spec"].get("terminationGracePeriodSeconds", 30) if on_node else 0
        seconds = seconds if grace is None else grace
        if (
            "deletionTimestamp" not in body["metadata"]
            or seconds < body["metadata"]["deletionGracePeriodSeconds"]
        ):
            body["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=seconds))
            body["metadata"]["deletionGracePeriodSeconds"] = seconds
            self._store("MODIFIED", key, body)
        self._collect(key)

    # what the rest of a cluster does

    def change(self, plural: str, namespace: str, name: str, change: Callable[[Body], None]) -> None:
        """Somebody else changes an object."""
        key = (plural, namespace, name)
        body = copy.deepcopy(self.objects[key])
        spec = copy.deepcopy(body.get("spec"))
        change(body)
        if body.get("spec") != spec:
            body["metadata"]["generation"] += 1
        self._store("MODIFIED", key, body)
        self._collect(key)

    def pods(self, namespace: str = "ns") -> dict[str, Body]:
        return {
            name: body
            for (kind, where, name), body in self.objects.items()
            if (kind, where) == ("pods", namespace)
        }

    @property
    def version(self) -> int:
        return max((int(body["metadata"]["resourceVersion"]) for body in self.objects.values()), default=0)

    def _store(self, event: str, key: tuple[str, str, str], body: Body) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._version))
        self.objects[key] = body
        self.changed(event, copy.deepcopy(body))

    def _collect(self, key: tuple[str, str, str]) -> None:
        """Remove an object that may go, and delete what it owned."""
        body = self.objects.get(key)
        if body is None or "deletionTimestamp" not in body["metadata"] or body["metadata"].get("finalizers"):
            return
        if body["metadata"]["deletionGracePeriodSeconds"] > 0 and not ended(body):
            return
        del self.objects[key]
        body["metadata"]["resourceVersion"] = str(next(self._version))
        self.changed("DELETED", copy.deepcopy(body))
        for other, child in list(self.objects.items()):
            if any(
                owner["uid"] == body["metadata"]["uid"]
                for owner in child["metadata"].get("ownerReferences", [])
            ):
                self.delete(*other)


def split(path: str) -> tuple[str, str, str, str]:
    """(namespace, plural, name, subresource) of a URL path."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = (*parts, "", "")[:3]
    return namespace, plural, name, subresource


def selected(body: Body, query: Mapping[str, str]) -> bool:
    labels = body["metadata"].get("labels", {})
    wanted = query.get("labelSelector", "")
    if wanted and wanted not in labels:
        return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        here: Any = body
        for part in path.split("."):
            here = (here or {}).get(part)
        if here != value:
            return False
    return True


def lay(target: Body, patch: Mapping[str, Any]) -> None:
    """A merge or strategic merge patch, as far as the operator uses one."""
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.split("/")[1]
            target[field] = [item for item in target.get(field, []) if item not in value]
        elif name == "finalizers":
            target[name] = [
                *target.get(name, []),
                *(item for item in value if item not in target.get(name, [])),
            ]
        elif isinstance(value, Mapping):
            lay(target.setdefault(name, {}), value)
        else:
            target[name] = copy.deepcopy(value)


def ended(body: Body) -> bool:
    return body.get("status", {}).get("phase") in ("Succeeded", "Failed")


def failure(status: int, reason: str, message: str, retry_after: float | None = None) -> Answer:
    return Answer(
        status=status, body={"kind": "Status", "reason": reason, "message": message}, retry_after=retry_after
    )


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def terminated(code: int, *, message: str = "", reason: str = "") -> Body:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
        }
    }


def last_words(outcome: str, code: int, node: int, **more: Any) -> str:
    """A launcher's termination message."""
    words = {"protocol": 1, "outcome": outcome, "exit_code": code, "node": node, "term": 1, "generation": 1,
             "restarts": 0, "disruptions": 0, **more}  # fmt: skip
    words["exitCode"] = words.pop("exit_code")
    return json.dumps(words)


async def no_answer(method: str, path: str, query: Mapping[str, str], body: Any, content_type: str) -> Answer:
    """The transport of a `Client` that reaches nobody."""
    raise Unavailable(status=503, reason="NoConnection", message="no route")
