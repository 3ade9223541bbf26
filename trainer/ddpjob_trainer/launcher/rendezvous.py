"""The port on which the ranks of one generation meet.

Why apart: it must be fresh (a store that is met twice hands out dead addresses) and free on the machine of rank 0.
Must not: keep it bound; the store of rank 0 needs it.
"""

import socket

WINDOW = 64


def free_port(host: str | None, base: int, generation: int) -> int | None:
    """The first free port of the window for this generation; None where all are taken."""
    for offset in range(WINDOW):
        port = base + (generation + offset) % WINDOW
        if is_free(host, port):
            return port
    return None


def is_free(host: str | None, port: int) -> bool:
    family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host or "", port))
        except OSError:
            return False
    return True
