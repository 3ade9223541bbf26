"""What the text of an error says: whether a peer is to blame or the process itself, and the line that is kept of it.

Why apart: torch raises one type for both (`DistBackendError` for a lost peer and for two ranks on one GPU), so only the
words tell; the dying worker and its launcher must read them alike. Must not: import torch, or know of exceptions.
"""

import re

PEER_LOST_TYPES = frozenset({"DistNetworkError", "DistStoreError", "DistBackendError"})
"""Raised for a peer that is gone or late, unless the text says otherwise."""

PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket Timeout"
    r"|Timed out waiting \d+ms|wait timeout after|Application timeout caused pair closure|remote process exited"
    r"|failed to recv|sendBytes failed|recvValue failed|clients joined|ncclRemoteError|ncclSystemError"
    r"|connectFullMesh failed|Watchdog caught collective",
    re.IGNORECASE,
)
"""Texts of Gloo, NCCL and the TCP store for a peer that is gone or late (torch 2.13 to 2.15)."""

LATE = re.compile(r"tim(?:ed|e) ?out|clients joined|Watchdog caught collective", re.IGNORECASE)
"""A peer that is late, and may live."""

ITSELF = re.compile(
    r"ncclInvalidUsage|ncclInvalidArgument|ncclUnhandledCudaError|Duplicate GPU detected|Cuda failure|CUDA error:"
    r"|invalid device ordinal|no socket interface found|shared memory segment|No space left on device"
    r"|EADDRINUSE|address already in use|server socket has failed to (?:listen|bind)",
    re.IGNORECASE,
)
"""Texts of the same libraries for what no peer can do to a process: its device, its memory, its port, its arguments."""

CONNECTION = re.compile(
    r"Connection (?:closed|reset|refused|timed out|aborted)|Broken pipe|No route to host|remote peer"
    r"|remote process exited|ncclRemoteError|connect to \S+ failed|Watchdog caught collective"
    r"|tim(?:ed|e) ?out|clients joined",
    re.IGNORECASE,
)
"""Where these stand beside words of `ITSELF`, the peer was first: its end breaks what is shared with it."""

SOURCE = re.compile(r"\[/[^\]\s]+\.(?:cc|cpp|cu|h|hpp):\d+\] ?")
"""Where in torch's C++ an error was raised, as Gloo puts it before its message: it tells a user nothing."""

DETAIL = re.compile(r"^Last error:[ \t]*\n?[ \t]*(\S[^\n]*)", re.MULTILINE)
"""NCCL's own words, which torch puts below its line and the meaning of the code."""


def tells_of_itself(text: str) -> bool:
    """Whether the process that says this is the one to look at."""
    return ITSELF.search(text) is not None and CONNECTION.search(text) is None


def line_of(text: str) -> str:
    """The first line, and with it the detail that NCCL gives."""
    lines = SOURCE.sub("", text).strip().splitlines()
    first = lines[0] if lines else ""
    detail = DETAIL.search(text)
    if detail is None or detail[1].strip() in first:
        return first
    return f"{first}; Last error: {detail[1].strip()}"
