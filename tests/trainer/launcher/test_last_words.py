"""A lost peer or the process itself: errors of torch 2.15 and NCCL 2.28, word for word, and what is kept of each."""

import json
from pathlib import Path

import pytest

from ddpjob_api.page import Slot
from ddpjob_api.report import Cause
from ddpjob_trainer import error_file
from ddpjob_trainer.last_words import line_of
from ddpjob_trainer.launcher.cause import Circumstances, read_error, worker_exit
from ddpjob_trainer.page import Page

IN = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93"
VERSION = "NCCL version 2.28.9"


def nccl(short: str, meaning: str, detail: str) -> str:
    return f"{IN}, {short}, {VERSION}\n{meaning}\nLast error:\n{detail}"


USAGE = "invalid usage (run with NCCL_DEBUG=WARN for details)"
INVALID_USAGE = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
CUDA = "ncclUnhandledCudaError: Call to CUDA function failed."
SYSTEM = (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
)
REMOTE = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
INTERNAL = "ncclInternalError: Internal check failed."
DUPLICATE = nccl(
    USAGE, INVALID_USAGE, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 901000"
)
TAKEN = (
    "The server socket has failed to listen on any local network address. port: 44659, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
WATCHDOG = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE) ran for 10015 milliseconds before timing out."
)
ILLEGAL = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered"
)

CASES: list[tuple[str, str, str, Cause]] = [
    ("two ranks on one GPU", "DistBackendError", DUPLICATE, Cause.OWN),
    (
        "an argument",
        "DistBackendError",
        nccl("invalid argument", "ncclInvalidArgument: Invalid value for an argument.", "x"),
        Cause.OWN,
    ),
    (
        "no such device",
        "DistBackendError",
        nccl("unhandled cuda error", CUDA, "Cuda failure 101 'invalid device ordinal'"),
        Cause.OWN,
    ),
    (
        "a full device",
        "DistBackendError",
        nccl("unhandled cuda error", CUDA, "Cuda failure 2 'out of memory'"),
        Cause.OWN,
    ),
    (
        "a full /dev/shm",
        "DistBackendError",
        nccl(
            "unhandled system error",
            SYSTEM,
            "Error while creating shared memory segment /dev/shm/nccl-Xq2 (size 9637888), error: No space left on device (28)",
        ),
        Cause.OWN,
    ),
    ("the port of the store", "DistNetworkError", TAKEN, Cause.OWN),
    (
        "the same without libuv",
        "DistNetworkError",
        (
            "The server socket has failed to listen on any local network address. The server socket has failed to bind to "
            "[::]:44659 (errno: 98 - Address already in use)."
        ),
        Cause.OWN,
    ),
    (
        "a device that fails below the watchdog",
        "DistBackendError",
        ILLEGAL,
        Cause.OWN,
    ),
    (
        "NCCL's peer closed",
        "DistBackendError",
        nccl("remote process exited or there was a network error", REMOTE, "x"),
        Cause.VICTIM,
    ),
    (
        "NCCL's peer refuses",
        "DistBackendError",
        nccl(
            "unhandled system error",
            SYSTEM,
            "ncclOsSocketPollConnect to 10.0.0.2<45763> failed with error Connection refused",
        ),
        Cause.VICTIM,
    ),
    (
        "NCCL, not said why",
        "DistBackendError",
        nccl("unhandled system error", SYSTEM, ""),
        Cause.VICTIM,
    ),
    (
        "an internal error, as a closed socket gives it",
        "DistBackendError",
        nccl("internal error", INTERNAL, "Socket recv failed while polling for opId=0x55a51966cc80"),
        Cause.VICTIM,
    ),
    (
        "a shared thing that the peer's end broke",
        "DistBackendError",
        nccl("unhandled cuda error", CUDA, "socketProgress: Connection closed by remote peer n1<51159>"),
        Cause.VICTIM,
    ),
    ("NCCL is late", "DistBackendError", f"NCCL timeout in: {IN}", Cause.VICTIM),
    ("the watchdog", "DistBackendError", WATCHDOG, Cause.VICTIM),
    (
        "the store's peer is gone",
        "DistBackendError",
        (
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key "
            "'0', but store->get('0') got error: Connection reset by peer"
        ),
        Cause.VICTIM,
    ),
    ("a key", "DistStoreError", "wait timeout after 1000ms, keys: /x", Cause.VICTIM),
    (
        "not all joined",
        "DistStoreError",
        "Timed out after 2 seconds waiting for clients. 1/2 clients joined.",
        Cause.VICTIM,
    ),
    (
        "no store",
        "DistNetworkError",
        "The client socket has timed out after 1000ms while trying to connect to (127.0.0.1, 48229).",
        Cause.VICTIM,
    ),
    (
        "gloo",
        "RuntimeError",
        "[/w/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.7]:4711",
        Cause.VICTIM,
    ),
]


@pytest.mark.parametrize(
    ("kind", "text", "cause"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_words_tell_a_victim_from_a_culprit(kind: str, text: str, cause: Cause, tmp_path: Path) -> None:
    """As the worker judges it, and where only torchelastic's `@record` wrote it."""
    error = type(kind, (RuntimeError,), {})(text)
    error_file.write(tmp_path / "ours", error, None)
    recorded = {"message": {"message": f"{kind}: {text}", "extraInfo": {}}}
    (tmp_path / "records").write_text(json.dumps(recorded))
    for name in ("ours", "records"):
        with Page(tmp_path / "page", create=True) as page:
            page[Slot.STEP] = 3
            item = worker_exit(
                rank=0,
                returncode=1,
                page=page,
                error=read_error(tmp_path / name),
                circumstances=Circumstances(),
            )
        assert item.cause is cause, name


def test_what_nccl_says_below_its_first_line_is_kept() -> None:
    assert line_of(DUPLICATE) == (
        f"{IN}, {USAGE}, {VERSION}; Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 901000"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "one"),
        ("", ""),
        ("one\nLast error:\n", "one"),
        ("one\nLast error:\n\nException raised from f at x.cpp:1", "one"),
        ("one\nLast error: Unknown NCCL Error\n", "one; Last error: Unknown NCCL Error"),
        ("[/w/gloo/pair.cc:561] Connection closed by peer", "Connection closed by peer"),
        ("my own\ntable of\nLast error: 3", "my own; Last error: 3"),
    ],
)
def test_the_line_that_is_kept(text: str, line: str) -> None:
    assert line_of(text) == line


def test_an_abort_by_nccls_thread_is_judged_by_its_words_too(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of 'c10::DistBackendError'"
    for text, cause, last in (
        (ILLEGAL, Cause.OWN, "an illegal memory access was encountered"),
        (DUPLICATE, Cause.OWN, "both on CUDA device 901000"),
        (WATCHDOG, Cause.VICTIM, "before timing out."),
        (nccl("network error", REMOTE, "closed"), Cause.VICTIM, "; Last error: closed"),
    ):
        stderr = (thrown, *f"  what():  {text}".splitlines())
        with Page(tmp_path / "page", create=True) as page:
            item = worker_exit(
                rank=0, returncode=-6, page=page, error=None, circumstances=Circumstances(stderr=stderr)
            )
        assert item.cause is cause
        assert item.message.startswith("c10::DistBackendError: ") or cause is Cause.VICTIM
        assert item.message.endswith(last)


def test_the_groups_failure_is_raised_and_not_taken_for_one_of_the_instrumentation() -> None:
    def failed(kind: str, text: str) -> bool:
        return error_file.group_failed(type(kind, (RuntimeError,), {})(text))

    assert failed("DistBackendError", DUPLICATE)
    assert failed("RuntimeError", "[gloo] Connection closed by peer [10.0.0.7]:4711")
    assert not failed("DistStoreError", "wait timeout after 1000ms, keys: /x"), "it may be late only for ours"
    assert not failed("RuntimeError", "CUDA error: invalid device ordinal")
