"""From a kill to the next optimizer step on all ranks: a DDPJob, warm and cold, and torchrun in an Indexed Job.

    .venv/bin/python -m benchmarks.recovery [process] [pod] [--sides warm cold torchrun] [--rounds 3] [--kills 5]
                                            [--limit 180]

`process`: kill -9 of the worker of rank 1. `pod`: `kubectl delete pod` of the pod of rank 1. In each round every side
gets a fresh job of two pods with the same image, resources, volume and program (`recovery_program.py`, which keeps its
own checkpoint), and `--kills` faults one after the other, each some seconds after the ranks make steps again (for a
standby: after it is ready). The sides take turns, so that a busy machine slows all of them. Printed: each round, the
medians of the first and of the last fault, the ratios, and where our time goes.

There are two ways to do it without an operator, and they are sides of their own; `--sides` chooses:

- `torchrun` starts failed workers again itself (`--max-restarts 1000`), in containers that live on. It is at its best:
  c10d rendezvous, `--monitor-interval 0.1`, `--shutdown-timeout 2`, `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` (without it
  many restarts take minutes or fail: pytorch's agents reuse a store with old addresses).
- `job` is the plain Indexed Job: torchrun ends with its worker (`--max-restarts 0`, all else the same), and the kubelet
  starts the container again. It waits longer each time, 10 s, 20 s and so on up to minutes, so that a round takes many
  times as long; only who asks for it gets it.

Both are in an Indexed Job with `restartPolicy: OnFailure`, `backoffLimit: 1000` and the default pod replacement policy.
A pod that is deleted is replaced by its controller whichever of them it runs, so `torchrun` stands for both there (with
`job`, the container that lived on is started again, too). The controller waits longer for each pod that fails; a
recovery that takes longer than `--limit` seconds counts as that long, and is marked with ≥.
"""

import argparse
import copy
import json
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.first_step import indexed_job
from tests.chaos.faults import stands_by
from tests.cluster.harness.cluster import Cluster, session
from tests.cluster.harness.errors import TimedOut
from tests.cluster.harness.provider import choose
from tests.cluster.harness.waiting import eventually
from tests.cluster.installation import Installation
from tests.cluster.jobs import script_job

NODES = 2
PROGRAM = Path(__file__).with_name("recovery_program.py")
TORCHRUN = (
    "exec torchrun --nnodes {nodes} --nproc-per-node 1 --max-restarts {restarts} --monitor-interval 0.1 "
    "--shutdown-timeout 2 --rdzv-backend c10d --rdzv-id recovery --rdzv-endpoint {name}-0.{name}:29400 "
    "--rdzv-conf is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo 1 || echo 0) train.py"
)
SETTLE_SECONDS = 10.0
"""Steps made between two faults; a standby that is not ready by then gets what it needs."""
MARKS = ("begun", "imported", "group", "loaded", "step")
PARTS = ("detect", "teardown", "start", "import", "rendezvous", "load", "step")


@dataclass(frozen=True)
class Recovery:
    """One fault and what followed, in seconds."""

    total: float
    limited: bool = False
    parts: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'≥ ' if self.limited else ''}{self.total:.2f}"


@dataclass(frozen=True)
class Side:
    """One way to run the program on two pods."""

    name: str
    operated: bool
    """By our operator."""
    warm: bool = False
    restarts: int = 1000
    """That torchrun makes itself, where it is in charge."""

    def documents(self, name: str, image: str) -> list[dict[str, Any]]:
        volume = {"name": "journal", "persistentVolumeClaim": {"claimName": f"{name}-journal"}}
        mount = {"name": "journal", "mountPath": "/journal"}
        if self.operated:
            documents = script_job(
                name,
                PROGRAM.read_text(),
                recovery={"maxRestarts": 1000, "maxDisruptions": 1000, "warmStandby": self.warm},
                template={
                    "spec": {
                        "volumes": [volume],
                        "containers": [{"name": "trainer", "volumeMounts": [mount]}],
                    }
                },
            )
            documents[1]["spec"]["placement"] = "Require"
            return documents
        documents = indexed_job(name, image)
        documents[0]["data"]["train.py"] = PROGRAM.read_text()
        job = copy.deepcopy(documents[2])
        job["spec"]["backoffLimit"] = 1000
        pod = job["spec"]["template"]["spec"]
        pod["restartPolicy"] = "OnFailure"
        pod["volumes"].append(volume)
        container = pod["containers"][0]
        container["volumeMounts"].append(mount)
        container["command"] = ["sh", "-c", TORCHRUN.format(nodes=NODES, name=name, restarts=self.restarts)]
        container["env"] = [{"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"}]
        return [*documents[:2], job]

    def selector(self, name: str) -> str:
        return f"ddpjob.dev/name={name}" if self.operated else f"app={name}"


SIDES = {
    "warm": Side("DDPJob warm", operated=True, warm=True),
    "cold": Side("DDPJob cold", operated=True),
    "torchrun": Side("torchrun --max-restarts in an Indexed Job", operated=False),
    "job": Side("Indexed Job that restarts torchrun", operated=False, restarts=0),
}
USUAL = ("warm", "cold", "torchrun")


@dataclass
class Run:
    """One job of one side."""

    cluster: Cluster
    namespace: str
    side: Side
    name: str
    folder: Path

    def processes(self, after: float) -> dict[int, dict[str, float]]:
        """By rank, the marks of the newest process of each rank that began its work after this time.

        A process that waited before counts from when it was given its work.
        """
        found: dict[int, dict[str, float]] = {}
        for path in sorted(self.folder.glob("*-r*")):
            stamp, rank = path.name.split("-r")
            if int(stamp) / 1e9 < after:
                continue
            marks: dict[str, float] = {}
            for line in path.read_text().splitlines():
                word, _, at = line.partition(" ")
                marks.setdefault(word, float(at))
            found[int(rank)] = marks
        return found

    def stepping(self, after: float) -> dict[int, dict[str, float]] | None:
        """Those marks once all ranks have made a step."""
        found = self.processes(after)
        return found if len(found) == NODES and all("step" in m for m in found.values()) else None

    def pod(self) -> dict[str, Any]:
        """The pod of rank 1 that runs."""
        pods = self.cluster.get("pods", namespace=self.namespace, selector=self.side.selector(self.name))[
            "items"
        ]
        label = "ddpjob.dev/index" if self.side.operated else "batch.kubernetes.io/job-completion-index"
        return next(
            pod
            for pod in pods
            if pod["metadata"]["labels"][label] == "1"
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        )

    def standbys_wait(self) -> bool:
        """Whether every pod has a standby that is ready."""
        pods = self.cluster.get("pods", namespace=self.namespace, selector=self.side.selector(self.name))[
            "items"
        ]
        live = [p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{{}}:9464/proxy/metrics"
        texts = [self.cluster.kubectl("get", "--raw", path.format(pod), check=False) for pod in live]
        ready = r"^ddpjob_trainer_standby_ready\S* 1(\.0)?$"
        return len(live) == NODES and all(re.search(ready, text, re.MULTILINE) for text in texts)

    def fault(self, what: str, limit: float) -> Recovery:
        """One fault, and the time to the next step on all ranks."""
        if self.side.warm:
            eventually(self.standbys_wait, 120, "the standby of every rank is ready", every=1)
        name = self.pod()["metadata"]["name"]
        if what == "process":
            worker = [
                one
                for one in self.cluster.containers_of(name, namespace=self.namespace)
                if "train.py" in one.name
                and not any(word in one.name for word in ("torchrun", "launcher"))
                and not stands_by(self.cluster, one)
            ][-1]
            at = time.time()
            self.cluster.kill(worker)
        else:
            at = time.time()
            self.cluster.kubectl("delete", "pod", name, "-n", self.namespace, "--wait=false")
        try:
            found = eventually(lambda: self.stepping(at), limit, "all ranks make steps", every=0.02)
        except TimedOut:
            return Recovery(limit, limited=True)
        end = max(marks["step"] for marks in found.values())
        return Recovery(end - at, parts=self.parts(at, found))

    def parts(self, at: float, found: dict[int, dict[str, float]]) -> dict[str, float]:
        """Where the time went, by the last rank of each mark and the coordinator's log."""
        last = {mark: max(marks[mark] for marks in found.values()) for mark in MARKS}
        # A standby was begun and imported before the fault.
        began = max(at, last["begun"])
        times = [
            at,
            *self.told(at),
            began,
            max(began, last["imported"]),
            last["group"],
            last["loaded"],
            last["step"],
        ]
        names = PARTS if self.side.operated and len(times) == len(PARTS) + 1 else ("start", *PARTS[3:])
        return {
            name: max(0.0, end - start) for name, start, end in zip(names, times, times[1:], strict=False)
        }

    def told(self, at: float) -> list[float]:
        """When the coordinator saw the failure and when it began the next generation, by its log."""
        if not self.side.operated:
            return []
        pods = self.cluster.get("pods", namespace=self.namespace, selector=self.side.selector(self.name))[
            "items"
        ]
        leader = next(p for p in pods if p["metadata"]["labels"]["ddpjob.dev/index"] == "0")["metadata"][
            "name"
        ]
        text = self.cluster.kubectl(
            "logs", leader, "-c", "trainer", "-n", self.namespace, "--timestamps", "--tail=200", check=False
        )
        seen: list[float] = []
        for words in (r"generation \d+ is stopped|all ranks save|was told to go", r"generation \d+ starts"):
            for stamp in re.findall(rf"^(\S+) \[ddpjob\] .*(?:{words})", text, re.MULTILINE):
                when = datetime.fromisoformat(stamp).timestamp()
                if when >= at - 0.01:
                    seen.append(when)
                    break
        return seen if len(seen) == 2 else []


@contextmanager
def running(cluster: Cluster, namespace: str, side: Side, name: str) -> Iterator[Run]:
    """A job that makes steps; deleted at the end."""
    folder = cluster.static_volume(namespace, f"{name}-journal")
    documents = side.documents(name, cluster.images.trainer)
    run = Run(cluster, namespace, side, name, folder)
    start = time.time()
    cluster.apply(*documents, namespace=namespace)
    try:
        eventually(lambda: run.stepping(start), 240, f"{side.name} makes steps")
        yield run
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        cluster.kubectl("delete", "-n", namespace, "-f", "-", "--wait=true", input=json.dumps(listed))
        cluster.kubectl(
            "wait", "pods", "-n", namespace, "-l", side.selector(name), "--for=delete", check=False
        )


def measure(
    cluster: Cluster, namespace: str, side: Side, name: str, what: str, kills: int, limit: float
) -> list[Recovery]:
    """Faults one after the other in one job."""
    found: list[Recovery] = []
    with running(cluster, namespace, side, name) as run:
        for _ in range(kills):
            time.sleep(SETTLE_SECONDS)
            found.append(run.fault(what, limit))
            if found[-1].limited:
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", choices=["process", "pod"], default=["process", "pod"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=USUAL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--limit", type=float, default=180)
    options = parser.parse_args()
    sides = [side for key, side in SIDES.items() if key in options.sides]
    provider = choose()
    provider.up(detach=False, user=session())
    cluster = Cluster(provider)
    Installation(cluster).upgrade()
    for what in dict.fromkeys(options.what):
        with cluster.namespace("recovery") as namespace:
            compare(cluster, namespace, sides, what, options.rounds, options.kills, options.limit)


def compare(
    cluster: Cluster,
    namespace: str,
    sides: Sequence[Side],
    what: str,
    rounds: int,
    kills: int,
    limit: float,
) -> None:
    """All rounds of one kind of fault, and what follows from them."""
    fault = "kill -9 of a worker" if what == "process" else "deletion of a pod"
    results: dict[str, list[list[Recovery]]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for place, side in enumerate(sides):
            made = measure(cluster, namespace, side, f"{what}-{number}-{place}", what, kills, limit)
            results[side.name].append(made)
            print(f"{fault}, round {number + 1}, {side.name}: {', '.join(map(str, made))} s", flush=True)
    others = [side for side in sides if not side.operated]
    for label, place in (("first", 0), (f"number {kills}", kills - 1)):
        for side in sides:
            one = median(results[side.name], place)
            ratios = [f"{ratio(one, median(results[other.name], place))} × {other.name}" for other in others]
            print(f"{fault}, {label}: {', '.join([f'{side.name} {one} s', *ratios])}")
    for side in sides:
        made = [recovery for run in results[side.name] for recovery in run if recovery.parts]
        names = [name for name in PARTS if any(name in recovery.parts for recovery in made)]
        split = ", ".join(
            f"{name} {statistics.median([r.parts[name] for r in made if name in r.parts]):.2f}"
            for name in names
        )
        print(f"{fault}, {side.name}, where the time goes (median of {len(made)}): {split}")


def median(runs: list[list[Recovery]], place: int) -> Recovery:
    """Over the rounds; one that was given up before has its limit, and then the median is at least this long."""
    found = [run[min(place, len(run) - 1)] for run in runs]
    return Recovery(statistics.median([one.total for one in found]), any(one.limited for one in found))


def ratio(one: Recovery, base: Recovery) -> str:
    """`one` in units of `base`, and ≥ or ≤ where one of them is only known to be longer; ? where both are."""
    mark = {(True, True): "? ", (True, False): "≥ ", (False, True): "≤ "}.get((one.limited, base.limited), "")
    return f"{mark}{one.total / base.total:.2f}"


if __name__ == "__main__":
    main()
