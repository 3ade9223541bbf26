"""A job without processes: a coordinator core, launchers as the rules of `node.py` make them, and a network.

Messages keep their order on one connection and none between connections; launchers die, are cut off, replaced and
told to leave. Whoever starts workers checks that none of an older generation lives.
"""

from collections import deque
from dataclasses import dataclass, field

from ddpjob_api.messages import (
    PROTOCOL,
    Beat,
    Done,
    Failed,
    Finish,
    Hello,
    Hung,
    Leave,
    Message,
    Pause,
    Paused,
    Reject,
    Start,
    Stop,
    StopAt,
    Stopped,
    Welcome,
)
from ddpjob_api.report import Cause, Failure, Outcome, RankView, WorkerExit
from ddpjob_trainer.launcher.actions import Action, Admit, Close, Refuse, Send
from ddpjob_trainer.launcher.coordinator import Coordinator
from ddpjob_trainer.launcher.halt import failure_of
from ddpjob_trainer.launcher.job import Settings
from ddpjob_trainer.launcher.ledger import Ledger


def worker_exit(rank: int, cause: Cause = Cause.OWN, **more: object) -> WorkerExit:
    values: dict[str, object] = {"returncode": 1, "message": "ValueError: no", **more}
    return WorkerExit(rank=rank, cause=cause, **values)  # type: ignore[arg-type]


def coordinator(nodes: int = 2, *, incarnation: int = 0, newest: int = 0, **more: object) -> Coordinator:
    budget = {"max_restarts": 3, "max_disruptions": 100}
    for name in tuple(budget):
        if name in more:
            budget[name] = int(str(more.pop(name)))
    values: dict[str, object] = {
        "name": "test",
        "nodes": nodes,
        "processes_per_node": 1,
        "incarnation": incarnation,
        "grace_seconds": 10.0,
        "rendezvous_seconds": 60.0,
        "decides_rendezvous": False,
        "master_address": "h0",
        "port": lambda generation: 29500 + generation % 64,
        "wall": lambda: "2026-01-01T00:00:00Z",
        "unix": lambda: 0.0,
        **more,
    }
    settings = Settings(**values)  # type: ignore[arg-type]
    return Coordinator(settings=settings, ledger=Ledger(**budget), newest=newest)


def hello(node: int, incarnation: int = 0, **more: object) -> Hello:
    values: dict[str, object] = {"protocol": PROTOCOL, "nonce": "", "proof": "", **more}
    return Hello(node=node, incarnation=incarnation, **values)  # type: ignore[arg-type]


@dataclass
class Pod:
    """One launcher."""

    node: int
    incarnation: int
    link: int | None = None
    up: deque[Message] = field(default_factory=deque)
    down: deque[Message] = field(default_factory=deque)
    term: int = 0
    generation: int = 0
    running: int = 0
    boundary: int = 0
    stop_at: int | None = None
    failed: bool = False
    exit: WorkerExit = worker_exit(0)
    """How its worker failed."""
    done: bool = False
    leaving: bool = False
    restarts: int = 0
    disruptions: int = 0
    judged: int = 0
    last_failure: Failure | None = None
    ended: Outcome | None = None
    alive: bool = True

    def hello(self) -> Hello:
        return hello(
            self.node,
            self.incarnation,
            term=self.term,
            generation=self.generation,
            running=bool(self.running),
            restarts=self.restarts,
            disruptions=self.disruptions,
            last_failure=self.last_failure,
            done=self.done,
            leaving=self.leaving,
            judged=self.judged,
        )


class World:
    """All of it, with a clock."""

    def __init__(self, nodes: int = 3, **settings: object) -> None:
        self.nodes = nodes
        self.settings = settings
        self.now = 0.0
        self.links = 0
        self.core: Coordinator | None = coordinator(nodes, **settings)
        self.pods: list[Pod] = [Pod(node, 0) for node in range(nodes)]
        self.failed_generations: set[int] = set()
        self.disturbances = 0
        self.finals: list[Finish] = []
        self.polled = 0
        """Restarts as the operator knows them; new pods are told."""
        for pod in self.pods:
            self.connect(pod.node)

    # events

    def tick(self, seconds: float = 0.3) -> None:
        self.now += seconds
        if self.core is not None:
            self.act(self.core.tick(self.now))

    def newest(self, node: int) -> Pod:
        return max((pod for pod in self.pods if pod.node == node), key=lambda pod: pod.incarnation)

    def connect(self, node: int) -> None:
        """Every launcher of this index that has no connection makes one."""
        for pod in [pod for pod in self.pods if pod.node == node and pod.alive and pod.link is None]:
            if self.core is None:
                return
            self.links += 1
            pod.link = self.links
            pod.up.clear()
            pod.down.clear()
            self.act(self.core.hello(self.now, pod.link, pod.hello()))
            if pod.failed and pod.running:
                pod.up.append(Failed(generation=pod.running, exits=(pod.exit,)))

    def poll(self, _node: int) -> None:
        """The operator asks the coordinator."""
        if self.core is not None:
            self.polled = max(self.polled, self.core.report().restarts)

    def hang(self, node: int) -> None:
        """A launcher sees that a rank of its makes no steps."""
        pod = self.newest(node)
        if pod.running and not pod.failed:
            self.failed_generations.add(pod.running)
            view = RankView(rank=node, step=pod.boundary)
            pod.up.append(Hung(generation=pod.running, seconds=30.0, ranks=(view,)))

    def cut(self, node: int) -> None:
        pod = self.newest(node)
        self.disturbances += 1
        self.drop(pod)

    def alone(self, node: int) -> None:
        """A launcher without a coordinator for too long ends its workers, or goes."""
        pod = self.newest(node)
        if pod.link is None and pod.alive:
            pod.running = 0
            if pod.leaving:
                self.exit(pod, Outcome.STOPPED)

    def kill(self, node: int) -> None:
        self.disturbances += 1
        self.exit(self.newest(node), None)

    def replace(self, node: int) -> None:
        """The operator makes the next incarnation: the last one is gone, or connected and going."""
        pod = self.newest(node)
        if pod.alive and (node == 0 or not (pod.leaving and pod.link is not None)):
            return
        fresh = Pod(node, pod.incarnation + 1, restarts=self.polled)
        self.pods.append(fresh)
        if node == 0:
            self.core = coordinator(self.nodes, incarnation=fresh.incarnation, **self.settings)
            self.core.ledger.restarts = self.polled
        self.connect(node)

    def fail_over(self, node: int) -> None:
        """Killed, replaced, and everybody is connected again."""
        self.kill(node)
        self.replace(node)
        for each in range(self.nodes):
            self.connect(each)

    def exchange(self, node: int) -> None:
        """Everything on its way to and from this index arrives."""
        for _ in range(8):
            self.hear(node)
            self.say(node)

    def leave(self, node: int) -> None:
        pod = self.newest(node)
        if pod.alive and not pod.leaving:
            pod.leaving = True
            self.disturbances += 1
            if pod.link is None:
                pod.running = 0
                self.exit(pod, Outcome.STOPPED)
            else:
                pod.up.append(Leave(generation=pod.generation))

    def step(self, node: int) -> None:
        pod = self.newest(node)
        if pod.running and pod.stop_at is None:
            pod.boundary += 1

    def fail(self, node: int, cause: Cause = Cause.OWN) -> None:
        pod = self.newest(node)
        if not pod.running or pod.failed:
            return
        self.failed_generations.add(pod.running)
        pod.failed = True
        item = pod.exit = worker_exit(node, cause)
        if cause is Cause.OWN:
            pod.last_failure = failure_of(item, pod.hello(), generation=pod.running, at="")
        pod.up.append(Failed(generation=pod.running, exits=(item,)))

    def victim(self, node: int) -> None:
        self.fail(node, Cause.VICTIM)

    def succeed(self, node: int) -> None:
        pod = self.newest(node)
        if pod.running and not pod.failed:
            pod.done, pod.running = True, 0
            pod.up.append(Done(generation=pod.generation))

    def say(self, node: int) -> None:
        """One message arrives at the coordinator from each launcher of the index."""
        for pod in [pod for pod in self.pods if pod.node == node]:
            if pod.up and pod.link is not None and self.core is not None:
                self.act(self.core.received(self.now, pod.link, pod.up.popleft()))

    def hear(self, node: int) -> None:
        """One message arrives at each launcher of the index."""
        for pod in [pod for pod in self.pods if pod.node == node]:
            if pod.down and pod.link is not None:
                self.obey(pod, pod.down.popleft())

    # rules

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(link, message):
                    self.post(link, message)
                case Admit(link):
                    assert self.core is not None
                    self.post(link, Welcome(proof="", term=self.core.term))
                case Refuse(link, text, replaced):
                    self.post(link, Reject(message=text, replaced=replaced))
                case Close(link):
                    for pod in self.pods:
                        if pod.link == link:
                            self.drop(pod)
                case _:
                    pass

    def post(self, link: int, message: Message) -> None:
        for pod in self.pods:
            if pod.link == link:
                pod.down.append(message)

    def drop(self, pod: Pod) -> None:
        link, pod.link = pod.link, None
        pod.up.clear()
        pod.down.clear()
        if link is not None and self.core is not None:
            self.act(self.core.closed(self.now, link))

    def exit(self, pod: Pod, outcome: Outcome | None) -> None:
        if not pod.alive:
            return
        pod.alive, pod.running, pod.ended = False, 0, outcome
        if pod.node == 0 and not (self.core is not None and self.core.final is not None):
            self.core = None
            for other in self.pods:
                # What a process had sent still arrives when it has died.
                while other is not pod and other.link is not None and other.down:
                    self.obey(other, other.down.popleft())
                self.drop(other)
        else:
            self.drop(pod)

    def obey(self, pod: Pod, message: Message) -> None:
        if isinstance(message, Welcome | Start | Stop | Pause | StopAt | Finish):
            if message.term < pod.term:
                return
            pod.term = message.term
        match message:
            case Beat():
                if pod.last_failure is not None and pod.last_failure.generation <= message.judged:
                    pod.last_failure = None
                pod.judged = max(pod.judged, message.judged)
                pod.restarts = max(pod.restarts, message.restarts)
                pod.disruptions = max(pod.disruptions, message.disruptions)
            case Start():
                if message.generation <= pod.generation or pod.running:
                    return
                older = [other for other in self.pods if 0 < other.running < message.generation]
                assert not older, f"generation {message.generation} starts while {older} run"
                pod.generation = pod.running = message.generation
                pod.restarts, pod.disruptions = message.restarts, message.disruptions
                pod.boundary, pod.stop_at, pod.failed, pod.done = 0, None, False, False
                pod.last_failure = None
            case Stop():
                if message.generation == pod.running:
                    pod.running = 0
                if not (pod.done and pod.generation == message.generation):
                    pod.up.append(Stopped(generation=message.generation))
            case Pause():
                if message.generation == pod.running:
                    pod.up.append(Paused(generation=pod.running, boundary=pod.boundary))
            case StopAt():
                if message.generation == pod.running and not pod.failed:
                    pod.running = 0
                    pod.up.append(Stopped(generation=message.generation))
            case Finish():
                if self.core is not None and self.core.final is not None:
                    self.finals.append(message)
                self.exit(pod, message.outcome)
            case Reject():
                if message.replaced:
                    self.exit(pod, Outcome.STOPPED)
                else:
                    self.drop(pod)
            case _:
                pass

    def heal(self) -> None:
        """No more faults: everybody is there, everything arrives, workers succeed."""
        for _ in range(400):
            if self.core is not None and self.core.final is not None:
                return
            for node in range(self.nodes):
                self.alone(node)
                self.replace(node)
                self.connect(node)
                for _ in range(4):
                    self.say(node)
                    self.hear(node)
                self.succeed(node)
            self.tick(1.0)
