"""What can be done to a training from outside of it. Everything that outlasts a test is undone at its end.

Why apart: a test says what happens; how a cable is pulled here is nobody's business there.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.training import Training
from tests.cluster.harness import Process
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import eventually
from tests.cluster.installation import NAMESPACE, Installation

LAUNCHER = "ddpjob_trainer.launcher"
WORKER = "ddpjob_trainer.bootstrap"
OPERATOR = "ddpjob_operator"


@dataclass
class Faults:
    """The tools of one test."""

    installation: Installation
    undo: ExitStack = field(default_factory=ExitStack)

    @property
    def cluster(self) -> Cluster:
        return self.installation.cluster

    # ---- processes

    def process(self, training: Training, index: int, word: str) -> Process:
        """The oldest process of the pod with that index whose command line has the word."""
        pod = training.job.live()[index]["metadata"]["name"]
        return eventually(
            lambda: next(
                (
                    p
                    for p in self._processes(training, pod)
                    if word in p.name and not stands_by(self.cluster, p)
                ),
                None,
            ),
            20,
            f"a process {word} in pod {pod}",
        )

    def kill_worker(self, training: Training, index: int, number: int = signal.SIGKILL) -> None:
        self._kill(training, [self.process(training, index, WORKER)], number)

    def kill_launcher(self, training: Training, index: int) -> None:
        self._kill(training, [self.process(training, index, LAUNCHER)])

    def kill_containers(self, training: Training, *indexes: int) -> None:
        """All processes of these pods at once, as an OOM kill of a whole container does."""
        live = training.job.live()
        pods = [live[index]["metadata"]["name"] for index in indexes]
        victims = [one for pod in pods for one in self._processes(training, pod)]
        # At once: a launcher that lives a moment longer than its worker, or its peer, would report the one's death first.
        self._kill(training, victims, signal.SIGSTOP)
        self._kill(training, victims)

    def freeze(self, one: Process) -> Callable[[], None]:
        """SIGSTOP; the function returned, or the end of the test, lets it go on."""
        self.cluster.kill(one, signal.SIGSTOP)
        return self._later(lambda: self.cluster.kill(one, signal.SIGCONT))

    def kill_operator(self) -> None:
        """kill -9 of the running operator; its Deployment starts another."""
        for pod in self.cluster.get("pods", namespace=NAMESPACE)["items"]:
            for one in self.cluster.containers_of(pod["metadata"]["name"], namespace=NAMESPACE):
                if OPERATOR in one.name:
                    self.cluster.kill(one)

    def stop_operator(self) -> Callable[[], None]:
        """No operator until the function returned is called."""
        self.installation.scale(0)
        return self._later(lambda: self.installation.scale(1))

    def second_operator(self) -> Callable[[], None]:
        """Two replicas of the operator; the function returned leaves one."""
        later = self._later(lambda: self.installation.scale(1))
        self.installation.scale(2)
        return later

    # ---- objects

    def delete(self, training: Training, *indexes: int, force: bool = False) -> None:
        """`kubectl delete pod`; forced, the object goes at once, whatever lives on the node."""
        names = [training.job.live()[index]["metadata"]["name"] for index in indexes]
        how = ["--grace-period=0", "--force"] if force else []
        training.strike()
        self.cluster.kubectl("delete", "pod", *names, "-n", training.namespace, "--wait=false", *how)

    def evict(self, training: Training, index: int) -> None:
        """What a drain and the descheduler call."""
        pod = training.job.live()[index]["metadata"]["name"]
        training.strike()
        self.cluster.kubectl(
            "create",
            "--raw",
            f"/api/v1/namespaces/{training.namespace}/pods/{pod}/eviction",
            "-f",
            "-",
            input=f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}"}}}}',
        )

    def delete_object(self, training: Training, kind: str, name: str) -> None:
        self.cluster.kubectl("delete", kind, name, "-n", training.namespace, "--wait=false")

    def cordon(self, node: str) -> Callable[[], None]:
        """Nothing new is scheduled onto the node; the function returned undoes it."""
        later = self._later(lambda: self.cluster.kubectl("uncordon", node))
        self.cluster.kubectl("cordon", node)
        return later

    def drain(self, training: Training, node: str) -> Callable[[], None]:
        """`kubectl drain` of the training's pods; the function returned uncordons."""
        later = self._later(lambda: self.cluster.kubectl("uncordon", node))
        training.strike()
        flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s"]
        self.cluster.kubectl("drain", node, f"--pod-selector=ddpjob.dev/name={training.job.name}", *flags)
        return later

    # ---- the machine around it

    def part(self, training: Training) -> Callable[[], None]:
        """Pods 0 and 1 reach each other no more, and are not told; the function returned joins them.

        As a partition between their nodes, wherever they run.
        """
        live = training.job.live()
        one, other = (live[index]["status"]["podIP"] for index in (0, 1))
        later = self._later(lambda: self.cluster.join(one, other))
        self.cluster.part(one, other)
        return later

    def operator_node(self) -> str:
        """Where the operator runs."""
        return eventually(
            lambda: next(
                (
                    str(pod["spec"]["nodeName"])
                    for pod in self.cluster.get("pods", namespace=NAMESPACE)["items"]
                    if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
                ),
                "",
            ),
            60,
            "the operator runs",
        )

    def cut_node(self, node: str) -> Callable[[], None]:
        """Nobody reaches the node; the function returned plugs it in again."""
        later = self._later(lambda: self.cluster.heal(node))
        self.cluster.cut(node)
        return later

    def end_kubelet(self, node: str) -> Callable[[], None]:
        """The node's kubelet is gone; the function returned starts it."""
        later = self._later(lambda: self.cluster.restart_kubelet(node))
        self.cluster.end_kubelet(node)
        return later

    @contextmanager
    def api_server_down(self) -> Iterator[None]:
        with self.cluster.api_server_down():
            yield

    def fill_disk(self, training: Training) -> Callable[[], None]:
        """Nothing more fits on the checkpoints' volume; the function returned makes room."""
        filler = training.checkpoints / "filler"
        later = self._later(lambda: filler.unlink(missing_ok=True))
        self.fill_again(training)
        return later

    def fill_again(self, training: Training) -> None:
        """Take what became free on the full volume: old checkpoints go after a save that still found its place."""
        with (training.checkpoints / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 512):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def damage_newest(self, training: Training) -> Path:
        """Cut the largest file of the newest checkpoint in two; its folder."""
        newest = training.until_saved(0.0)
        largest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
        return newest

    # ---- inside

    def _kill(self, training: Training, victims: list[Process], number: int = signal.SIGKILL) -> None:
        training.strike()
        for one in victims:
            self.cluster.kill(one, number)

    def _processes(self, training: Training, pod: str) -> list[Process]:
        return self.cluster.containers_of(pod, namespace=training.namespace)

    def _later(self, action: Callable[[], Any]) -> Callable[[], None]:
        """Do it when told, or at the end of the test; once."""
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                action()

        self.undo.callback(once)
        return once


def stands_by(cluster: Cluster, one: Process) -> bool:
    """Whether it is no rank yet: a standby asks to be the first that the kernel kills for memory."""
    return cluster.proc(one, "oom_score_adj").strip() in {"1000", ""}


def now() -> float:
    """The clock that the ranks write down, too."""
    return time.time()
