"""What the tests of the state machine say to a coordinator, and what they read of its answers."""

from typing import TypeVar

from tests.trainer.launcher.world import coordinator, hello, worker_exit

from ddpjob_api.messages import Failed, Message, Start, Stopped
from ddpjob_trainer.launcher.actions import Action, Send
from ddpjob_trainer.launcher.coordinator import Coordinator

M = TypeVar("M", bound=Message)


def sent(actions: list[Action], kind: type[M]) -> dict[int, M]:
    """Messages of a kind by connection."""
    return {
        action.link: action.message
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, kind)
    }


def running(nodes: int = 2, **more: object) -> Coordinator:
    """A coordinator in generation 1, with node n on connection n + 1."""
    core = coordinator(nodes, **more)
    actions: list[Action] = []
    for node in range(nodes):
        actions = core.hello(0.0, node + 1, hello(node, pod=f"p{node}"))
    assert set(sent(actions, Start)) == set(range(1, nodes + 1))
    return core


def all_stopped(core: Coordinator, now: float = 1.0) -> list[Action]:
    actions: list[Action] = []
    for member in list(core.members):
        if member.link is not None and member.running:
            actions += core.received(now, member.link, Stopped(generation=member.running))
    return actions


def fail(core: Coordinator, node: int, now: float, **more: object) -> list[Action]:
    item = worker_exit(node, **more)  # type: ignore[arg-type]
    return core.received(now, node + 1, Failed(generation=core.generation, exits=(item,)))
