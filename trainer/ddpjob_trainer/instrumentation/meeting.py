"""Waiting for rank 0's store by ourselves, because torch sleeps too long when it comes too early.

A TCPStore client that finds nobody listening sleeps 0.25 to 1 s before it tries again (measured on torch 2.15: 0.5 s
for a store that came 0.02 s later), in every generation in which rank 0 is not the first.

Why apart: it needs no torch. Must not: keep a connection, fail, or wait for longer than it may gain something.
"""

import socket
import time
from collections.abc import Callable, Mapping

LONGEST_SECONDS = 30.0
"""From then on torch waits, in its own steps and with its own words."""
FIRST_SECONDS = 0.01
LAST_SECONDS = 0.25
FRACTION = 8
"""Each pause is this part of the wait so far, so that many ranks do not flood the one that they wait for."""


def wait(
    environment: Mapping[str, str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return when the store of MASTER_ADDR and MASTER_PORT listens; False where that was not seen."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if environment.get("RANK", "0") == "0" or not host or not port.isdecimal():
        return False
    began = clock()
    while True:
        waited = clock() - began
        try:
            socket.create_connection((host, int(port)), timeout=LONGEST_SECONDS).close()
            return True
        except ConnectionError:
            pass  # nobody listens yet
        except OSError:
            return False  # a name that is not known, a network without a way: torch has the words for it
        if waited >= LONGEST_SECONDS:
            return False
        sleep(min(max(waited / FRACTION, FIRST_SECONDS), LAST_SECONDS))
