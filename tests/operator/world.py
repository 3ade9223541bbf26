"""A small world for the operator: the fake API server, a kubelet's hand, a clock, and operators that may die.

Reconciles run one after the other until nothing is left to do, so that a test is deterministic; time passes only when
the test says so.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.operator.fake_api import Body, Crash, FakeApi, last_words, stamp, terminated

from ddpjob_api.report import JobReport
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import Client
from ddpjob_operator.model import Status
from ddpjob_operator.nodes import Nodes, node_of
from ddpjob_operator.observe import JobView, Key, PodView, job_of, pod_of, service_of
from ddpjob_operator.poller import Poller, Said
from ddpjob_operator.reconcile import Reconciler
from ddpjob_operator.resync import resync
from ddpjob_operator.tally import Tally
from ddpjob_operator.tokens import Tokens

IMAGE = "registry/trainer:1"
OPERATOR_IMAGE = "registry/operator:1"
KEY = Key("ns", "train")


class DeafPoller(Poller):
    """Reports come from the test; a request to stop is noted."""

    asked: int = 0

    async def stop(self, job: Any, coordinator: PodView) -> bool:
        self.asked += 1
        return True

    async def _fetch(self, job: Any, coordinator: PodView) -> None:
        """It does not answer."""


class Operator:
    """One operator process, without kopf and without its own clock."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.client = Client(api, manager="ddpjob-operator")
        self.cache = Cache()
        self.nodes = Nodes(clock=lambda: api.now)
        self.tokens = Tokens(self.client)
        self.todo: dict[Key, None] = {}
        self.timers: dict[Key, float] = {}
        self.poller = DeafPoller(
            self.cache, self.tokens, tell=self.add, poll=timedelta(seconds=5), progress=timedelta(seconds=15),
            clock=lambda: api.now,
        )  # fmt: skip
        self.reconciler = Reconciler(
            self.client,
            self.cache,
            self.nodes,
            self.tokens,
            self.poller,
            image=IMAGE,
            operator_image=OPERATOR_IMAGE,
            clock=lambda: api.now,
        )

    def add(self, key: Key) -> None:
        self.todo[key] = None

    async def start(self) -> None:
        await resync(self.client, self.cache, self.nodes, ())
        for key in self.cache.keys():  # noqa: SIM118
            self.add(key)

    def told(self, event: str, body: Body) -> None:
        """What `handlers.py` does with a watch event."""
        kind = body.get("kind")
        if kind == "Node":
            node = node_of(body)
            changed = self.nodes.drop(node) if event == "DELETED" else self.nodes.put(node)
            for key in self.cache.on_node(node.name) if changed else ():
                self.add(key)
            return
        view: Any = None
        put: Callable[[Any], bool] = lambda _: False  # noqa: E731
        if kind == "DDPJob":
            view, put = job_of(body), self.cache.put_job
        elif kind == "Pod":
            view, put = pod_of(body), self.cache.put_pod
        elif kind == "Service":
            view, put = service_of(body), self.cache.put_service
        if view is None:
            return
        if event == "DELETED":
            self.cache.drop(view)
            if kind == "DDPJob":
                self.reconciler.forget(view.uid)
        elif not put(view):
            return
        self.add(view.key)

    async def work(self, most: int = 200) -> None:
        """Reconcile until nothing is left to do."""
        for _ in range(most):
            if not self.todo:
                return
            key = next(iter(self.todo))
            del self.todo[key]
            try:
                again = await self.reconciler(key)
            except Crash:
                raise
            except Exception as error:
                self.errors.append(error)
                again = 1.0
            if again == 0:
                self.add(key)
            elif again is not None:
                self.timers[key] = min(again, self.timers.get(key, again))
        raise AssertionError(f"the operator does not come to rest; last requests: {self.api.requests[-8:]}")

    errors: list[Exception]


class World:
    """The cluster and its operators (one, unless a test starts another)."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.created: list[str] = []
        """Names of all pods ever made."""
        self.crashes = 0
        self.newest: Body = {}
        """The status as it was last, also of a job that is deleted."""
        self.tallies: list[Tally] = []
        """What all operators have counted, in order."""
        self.operators: list[Operator] = []
        for index in range(8):
            self.api.create("nodes", "", node_body(f"node-{index}", self.api.now, ready=True))
        self.api.changed = self._changed

    def _changed(self, event: str, body: Body) -> None:
        if body.get("kind") == "DDPJob":
            self.newest = body.get("status", {})
        if event == "ADDED" and body.get("kind") == "Pod":
            self.created.append(body["metadata"]["name"])
        for operator in self.operators:
            operator.told(event, body)

    @property
    def operator(self) -> Operator:
        return self.operators[0]

    async def start(self, operators: int = 1) -> "World":
        for _ in range(operators):
            operator = Operator(self.api)
            operator.errors = []
            operator.reconciler.counted = self.tallies.append
            self.operators.append(operator)
            await operator.start()
        return self

    async def settle(self) -> None:
        """All operators at rest. One that crashes is replaced by a new one that knows nothing."""
        for _ in range(100):
            busy = [operator for operator in self.operators if operator.todo]
            if not busy:
                return
            for operator in busy:
                try:
                    await operator.work()
                except Crash:
                    self.crashes += 1
                    self.operators.remove(operator)
                    await self.start()
        raise AssertionError("the operators do not come to rest")

    async def passes(self, seconds: float) -> None:
        """Time passes; timers that are due fire."""
        self.api.now += timedelta(seconds=seconds)
        for operator in self.operators:
            for key, due in list(operator.timers.items()):
                if due <= seconds:
                    del operator.timers[key]
                    operator.add(key)
                else:
                    operator.timers[key] = due - seconds
        await self.settle()

    async def resync(self) -> None:
        for operator in self.operators:
            await operator.start()
        await self.settle()

    # what users do

    async def apply(self, name: str = "train", **spec: Any) -> None:
        spec = {"nodes": 2, "script": {"args": ["train.py"]}, **spec}
        body = {
            "apiVersion": "ddpjob.dev/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": spec,
        }
        self.api.create("ddpjobs", "ns", body)
        await self.settle()

    async def patch(self, name: str = "train", **spec: Any) -> None:
        self.api.change("ddpjobs", "ns", name, lambda body: body["spec"].update(spec))
        await self.settle()

    async def delete(self, plural: str = "ddpjobs", name: str = "train", grace: int | None = None) -> None:
        self.api.delete(plural, "ns", name, grace=grace)
        await self.settle()

    # what kubelets do

    async def run(self, *, ready: bool = True) -> None:
        """All pending pods run, and (with `ready`) their ranks join."""
        for name, body in list(self.api.pods().items()):
            if body.get("status", {}).get("phase", "Pending") == "Pending":
                self.api.change("pods", "ns", name, lambda body: running(body, ready=ready))
        await self.settle()

    async def place(self, name: str, **container: Any) -> None:
        """A pod gets its node; its trainer container is in that state (`running={}`, `waiting={…}`)."""
        self.api.change("pods", "ns", name, lambda body: on_node(body, self.api.now, **container))
        await self.settle()

    async def end(self, name: str, state: Body, *, pod: Body | None = None) -> None:
        """The trainer container of a pod ends."""

        def change(body: Body) -> None:
            done = state["terminated"]["exitCode"] == 0
            body["status"] = {
                **body.get("status", {}),
                "phase": "Succeeded" if done else "Failed",
                "conditions": [],
                "containerStatuses": [{"name": "trainer", "state": state}],
                **(pod or {}),
            }
            if "deletionTimestamp" in body["metadata"]:
                body["metadata"]["deletionGracePeriodSeconds"] = 0

        self.api.change("pods", "ns", name, change)
        await self.settle()

    async def stopped(self, name: str) -> None:
        """A pod that was asked to go has saved and ended."""
        await self.end(
            name,
            terminated(
                85,
                message=last_words(
                    "Stopped", 85, int(self.pod(name)["metadata"]["labels"]["ddpjob.dev/index"])
                ),
            ),
        )

    async def done(self, **more: Any) -> None:
        """Every live pod ends as launchers do when all ranks of the job have ended with 0."""
        for name in self.live().values():
            index = int(self.pod(name)["metadata"]["labels"]["ddpjob.dev/index"])
            await self.end(name, terminated(0, message=last_words("Done", 0, index, **more)))

    async def say(self, **report: Any) -> None:
        """The coordinator of the live pod of index 0 reports."""
        fields = {
            "protocol": 1,
            "name": "train",
            "term": 1,
            "generation": 1,
            "nodes_joined": 2,
            "nodes_expected": 2,
        }
        said = JobReport(**{**fields, **report})
        for operator in self.operators:
            job = operator.cache.entry(KEY).job
            assert job is not None
            uid = self.pod(self.live()[0])["metadata"]["uid"]
            operator.poller._said[job.uid] = Said(
                pod_uid=uid, report=said, at=self.api.now, pause=operator.poller._settled
            )
            operator.add(KEY)
        await self.settle()

    async def ask(self) -> None:
        """The coordinator of the live pod of index 0 is asked, and does not answer."""
        for operator in self.operators:
            job = operator.cache.entry(KEY).job
            assert job is not None
            for pod in operator.cache.entry(KEY).pods.values():
                if pod.name == self.live()[0]:
                    await operator.poller._ask(job, pod)
        await self.settle()

    # what happens to nodes

    async def node(self, name: str, *, ready: bool = True) -> None:
        """A node becomes Ready or NotReady."""
        body = node_body(name, self.api.now, ready=ready)
        self.api.change("nodes", "", name, lambda found: found.update(status=body["status"]))
        await self.settle()

    # what one sees

    @property
    def job(self) -> Body:
        return self.api.objects["ddpjobs", "ns", "train"]

    @property
    def status(self) -> Body:
        status: Body = self.job.get("status", {})
        return status

    def condition(self, kind: str) -> tuple[str, str] | None:
        """(status, reason) of a condition."""
        found = next((c for c in self.status.get("conditions", []) if c["type"] == kind), None)
        return (found["status"], found["reason"]) if found else None

    def message(self, kind: str) -> str:
        return next(c["message"] for c in self.status["conditions"] if c["type"] == kind)

    def pod(self, name: str) -> Body:
        return self.api.objects["pods", "ns", name]

    def live(self) -> dict[int, str]:
        """Names of pods that run or will, by index; two for one index are an error."""
        found: dict[int, str] = {}
        for name, body in self.api.pods().items():
            phase = body.get("status", {}).get("phase", "Pending")
            if phase in ("Pending", "Running") and "deletionTimestamp" not in body["metadata"]:
                index = int(body["metadata"]["labels"]["ddpjob.dev/index"])
                assert index not in found, f"two live pods for index {index}: {found[index]}, {name}"
                found[index] = name
        return dict(sorted(found.items()))

    def tracked(self) -> list[str]:
        return [name for name, body in self.api.pods().items() if body["metadata"].get("finalizers")]

    def events(self) -> list[str]:
        return [
            f"{body['reason']}: {body['message']}"
            for (plural, _, _), body in self.api.objects.items()
            if plural == "events"
        ]


async def started(**spec: Any) -> World:
    """A job whose ranks all train."""
    world = await World().start()
    await world.apply(**spec)
    await world.run()
    return world


def viewed(status: Status | None = None, **spec: Any) -> JobView:
    """A job as the cache has it, without a world around it."""
    body = {
        "metadata": {"name": "train", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                     "resourceVersion": "7", "generation": 2},
        "spec": {"nodes": 2, "script": {"args": ["train.py"]}, **spec},
    }  # fmt: skip
    return replace(job_of(body), status=status or Status())


def node_body(name: str, at: datetime, *, ready: bool) -> Body:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "reason": "KubeletReady" if ready else "NodeStatusUnknown",
        "message": "kubelet is posting ready status" if ready else "Kubelet stopped posting node status.",
        "lastTransitionTime": stamp(at),
    }
    return {"kind": "Node", "metadata": {"name": name}, "status": {"conditions": [condition]}}


def on_node(body: Body, at: datetime, **container: Any) -> None:
    """Scheduled; the trainer container is in that state."""
    body["spec"]["nodeName"] = f"node-{body['metadata']['labels']['ddpjob.dev/index']}"
    moment = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    body["status"] = {
        "phase": "Running" if "running" in container else "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}],
        "containerStatuses": [{"name": "trainer", "state": container}],
    }


def running(body: Body, *, ready: bool) -> None:
    """A first pod runs on the node of its index, a replacement on one of the others."""
    labels = body["metadata"]["labels"]
    first = labels["ddpjob.dev/incarnation"] == "0"
    body["spec"]["nodeName"] = f"node-{int(labels['ddpjob.dev/index']) + (0 if first else 4)}"
    body["status"] = {
        "phase": "Running",
        "podIP": "127.0.0.9",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
    }


def world() -> World:
    return World()


def in_loop(story: Callable[[], Any]) -> Any:
    """Run an asynchronous story outside of pytest-asyncio (for parametrised loops)."""
    return asyncio.run(story())
