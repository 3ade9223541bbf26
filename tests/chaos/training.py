"""One training that is broken: the job, what it wrote down, and what follows from it.

Why apart: whether a sample was repeated or lost is answered from what the ranks did (`program.py` writes it), never
from what the product says of itself.
"""

import copy
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import TimedOut
from tests.cluster.harness.waiting import eventually
from tests.cluster.jobs import Job, submit

from ddpjob_trainer.loop.order import permutation

PROGRAM = Path(__file__).with_name("program.py")
SAMPLES = 960
BATCH = 32
SEED = 0
EPOCHS = 40
STEPS = EPOCHS * SAMPLES // BATCH
SMALL = {"limits": {"cpu": "2", "memory": "2500Mi"}, "requests": {"cpu": "100m", "memory": "300Mi"}}
SLOW = 0.4
"""Seconds per step while a training waits to be broken."""

Life = tuple[int, int]
"""Term and generation, which sort by age."""


@dataclass(frozen=True)
class Rank:
    """What one rank did in one life."""

    resumed: int
    steps: tuple[dict[str, Any], ...]
    """With `at` (Unix time) and `samples`."""


@dataclass(frozen=True)
class Journal:
    """What all ranks wrote down."""

    folder: Path
    world: int

    def lives(self, since: Life = (-1, -1)) -> dict[Life, dict[int, Rank]]:
        """By life and rank, the oldest first; `since` leaves out older ones and itself."""
        found: dict[Life, dict[int, Rank]] = {}
        for path in sorted(self.folder.glob("*-r*")):
            term, generation, rank = path.name.split("-")
            life = int(term), int(generation)
            if life <= since:
                continue
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if lines:
                found.setdefault(life, {})[int(rank[1:])] = Rank(lines[0]["resumed"], tuple(lines[1:]))
        return found

    def newest(self) -> Life:
        """The life in which all ranks have made a step most recently."""
        return max(life for life, ranks in self.lives().items() if self.whole(ranks))

    def whole(self, ranks: dict[int, Rank]) -> bool:
        return len(ranks) == self.world and all(rank.steps for rank in ranks.values())

    def first_step(self, since: Life) -> float | None:
        """When, in a life after this one, the last rank had made its first step."""
        for ranks in self.lives(since).values():
            if self.whole(ranks):
                return max(rank.steps[0]["at"] for rank in ranks.values())
        return None

    def next_step(self, after: float) -> float | None:
        """When all ranks had made a step that ended after this time, in whichever life."""
        for life, ranks in self.lives().items():
            if self.whole(ranks):
                later = [next((s["at"] for s in r.steps if s["at"] > after), None) for r in ranks.values()]
                if all(later) and life >= self.newest():
                    return max(at for at in later if at)
        return None

    def used(self) -> list[int]:
        """The samples that are in the weights now, in order: each life takes back what it did not resume from."""
        steps: list[list[int]] = []
        for ranks in self.lives().values():
            if len(ranks) < self.world:
                continue
            resumed = ranks[0].resumed
            assert all(rank.resumed == resumed for rank in ranks.values()), (
                "ranks resumed from different steps"
            )
            assert resumed <= len(steps), f"resumed from step {resumed}, and only {len(steps)} had been made"
            del steps[resumed:]
            made = zip(*(ranks[index].steps for index in sorted(ranks)), strict=False)
            steps += [[sample for step in together for sample in step["samples"]] for together in made]
        return [sample for step in steps for sample in step]

    def repeated_and_lost(self) -> tuple[int, int]:
        """Samples in the weights that should not be there yet or again, and those that are missing."""
        used = self.used()
        wanted = expected(len(used))
        surplus, missing = Counter(used), Counter(wanted)
        surplus.subtract(missing)
        repeated = sum(count for count in surplus.values() if count > 0)
        lost = sum(-count for count in surplus.values() if count < 0)
        assert repeated or lost or used == wanted, "the right samples in another order"
        return repeated, lost


def expected(count: int) -> list[int]:
    """The first samples of an undisturbed training."""
    epochs = range(-(-count // SAMPLES))
    return [sample for epoch in epochs for sample in permutation(SAMPLES, SEED, epoch).tolist()][:count]


@dataclass
class Training:
    """A job that runs `program.py`, with checkpoints on a claim that can be filled."""

    job: Job
    journal: Journal
    checkpoints: Path
    struck: float = 0.0
    """When the newest fault began."""

    def strike(self) -> None:
        """A fault begins now; what was needed to find its victim is done."""
        self.struck = time.time()

    @property
    def cluster(self) -> Cluster:
        return self.job.cluster

    @property
    def namespace(self) -> str:
        return self.job.namespace

    def pace(self, seconds: float) -> None:
        (self.journal.folder / "pace").write_text(str(seconds))

    def fault(self, rank: int, what: str) -> None:
        """Have a rank do something to itself at its next step."""
        beside = self.journal.folder / f"beside-{rank}"
        beside.write_text(what)
        self.strike()
        beside.rename(self.journal.folder / f"fault-{rank}")

    def until_stepping(self, timeout: float = 120) -> Life:
        """Wait until all ranks make steps in the newest life; that life."""
        started = time.time()
        self.wait(lambda: self.journal.next_step(started), "all ranks make steps", timeout)
        return self.journal.newest()

    def until_first_step(self, since: Life, timeout: float = 120) -> float:
        """Wait for the first step of all ranks in a later life; when that was."""
        return float(
            self.wait(lambda: self.journal.first_step(since), f"a step of all ranks after {since}", timeout)
        )

    def until_next_step(self, after: float, timeout: float = 60) -> float:
        """Wait until all ranks have made a step after this time, in the same life or another."""
        return float(self.wait(lambda: self.journal.next_step(after), "a step of all ranks", timeout))

    def seconds_without_a_step(self) -> float:
        """Since the newest step of any rank."""
        newest = self.journal.lives()[self.journal.newest()]
        return time.time() - max(rank.steps[-1]["at"] for rank in newest.values())

    def until_saved(self, after: float, timeout: float = 30) -> Path:
        """Wait for a checkpoint that is newer than this time."""
        return Path(
            self.wait(
                lambda: next((p for p in self.saved()[:1] if p.stat().st_mtime > after), None),
                "a checkpoint is written",
                timeout,
            )
        )

    def saved(self) -> list[Path]:
        """The complete checkpoints, the newest first."""
        found = self.checkpoints.glob("*/step-*")
        return sorted((p for p in found if p.name[5:].isdigit()), reverse=True)

    def finish(self, timeout: float = 180) -> dict[str, Any]:
        """Let it run to its end as fast as it can; its status."""
        self.pace(0)
        return dict(self.job.until_true("Complete", timeout)["status"])

    def wait(self, predicate: Any, what: str, timeout: float) -> Any:
        try:
            return eventually(predicate, timeout, what, every=0.05)
        except TimedOut as error:
            raise TimedOut(f"{error}\n{self.job.describe()}") from None

    def status(self) -> dict[str, Any]:
        return dict(self.job.get().get("status", {}))

    def rank_pod(self, rank: int) -> dict[str, Any]:
        return self.job.live()[rank]


def start(
    cluster: Cluster,
    namespace: str,
    name: str,
    *,
    nodes: int = 2,
    pace: float = SLOW,
    init: dict[str, Any] | None = None,
    **spec: Any,
) -> Training:
    """Begin a training with one rank per pod; `init`: a container that runs before the launcher."""
    journal = cluster.static_volume(namespace, f"{name}-journal")
    checkpoints = cluster.static_volume(namespace, f"{name}-checkpoints", limit_mb=32)
    (journal / "pace").write_text(str(pace))
    volume = {"name": "journal", "persistentVolumeClaim": {"claimName": f"{name}-journal"}}
    container = {"name": "trainer", "volumeMounts": [{"name": "journal", "mountPath": "/journal"}]}
    document = {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {
            "nodes": nodes,
            "task": {"entrypoint": "program:task", "epochs": EPOCHS, "globalBatchSize": BATCH, "seed": SEED},
            "workspace": {"configMap": f"{name}-code"},
            "ddp": {"timeoutSeconds": 60},
            "checkpoint": {"persistentVolumeClaim": f"{name}-checkpoints", "everySteps": 4},
            "recovery": {"maxRestarts": 1000, "maxDisruptions": 1000, "gracePeriodSeconds": 10},
            # Two threads per rank spin for each other where the machine is busy.
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "resourcesPerNode": copy.deepcopy(SMALL),
            "template": {
                "spec": {
                    "volumes": [volume],
                    "containers": [container],
                    "initContainers": [init] if init else [],
                }
            },
            **spec,
        },
    }
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-code"},
        "data": {"program.py": PROGRAM.read_text()},
    }
    world = nodes * int(spec.get("processesPerNode", 1))
    return Training(submit(cluster, namespace, code, document), Journal(journal, world), checkpoints)


def undisturbed(cluster: Cluster, namespace: str, *, world: int = 2) -> str:
    """The hash of the final weights of the same training that nobody broke, on as many ranks."""
    training = start(cluster, namespace, "calm", pace=0, nodes=1, processesPerNode=world)
    try:
        result = training.job.until_true("Complete", 240)["status"]["result"]
        assert training.journal.repeated_and_lost() == (0, 0)
        return str(result["parameterHash"])
    finally:
        training.job.delete()
