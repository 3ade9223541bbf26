"""Free ports on loopback for one local run.

Why apart: a resource's ports are for pods, which have an address each; here all nodes share one, and two jobs may run
side by side.
"""

import random
import socket

from ddpjob_api.spec import Ports
from ddpjob_cli.errors import Unusable

HOST = "127.0.0.1"
WINDOW = 64
"""Ports from `rendezvous` on, as `spec.Ports` says."""
LOWEST, HIGHEST = 10240, 32000
"""Below the range that Linux takes the ports of outgoing connections from (32768 on)."""
TRIES = 200


def free_ports(nodes: int) -> tuple[Ports, ...]:
    """Ports per node: coordinator and rendezvous are the same in all, metrics differ.

    Raises:
        Unusable: no free range was found.
    """
    size = WINDOW + 1 + nodes
    for _ in range(TRIES):
        first = random.randrange(LOWEST, HIGHEST - size)
        if all(is_free(port) for port in range(first, first + size)):
            coordinator = first + WINDOW
            return tuple(
                Ports(metrics=coordinator + 1 + node, coordinator=coordinator, rendezvous=first)
                for node in range(nodes)
            )
    raise Unusable(
        f"no {size} free ports in a row between {LOWEST} and {HIGHEST} on {HOST}; end what uses them"
    )


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
