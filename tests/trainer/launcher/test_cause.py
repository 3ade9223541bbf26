"""Own failure, victim, killed: one row for each way a worker can end."""

import json
import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_api.page import Slot, WorkerState
from ddpjob_api.report import Cause
from ddpjob_trainer.files import Files
from ddpjob_trainer.launcher import ending
from ddpjob_trainer.launcher.cause import (
    STACKS_SIGNAL,
    Circumstances,
    ErrorFile,
    cause_of,
    failed_first,
    is_failure,
    read_error,
    worker_exit,
)
from ddpjob_trainer.page import Page

NOTHING = Circumstances()
TERM = Circumstances(signals={signal.SIGTERM: 10.0})
TERM_KILL = Circumstances(signals={signal.SIGTERM: 10.0, signal.SIGKILL: 15.0})
STACKS = Circumstances(signals={int(STACKS_SIGNAL): 9.0})
STACKS_TERM = Circumstances(signals={int(STACKS_SIGNAL): 9.0, signal.SIGTERM: 10.0})
PEER = ErrorFile(type="DistBackendError", peer_lost=True)
OWN = ErrorFile(type="ValueError", message="no", at=9.5, last=True)
ANSWER = ErrorFile(type="SystemExit", message="1", at=10.0, last=True)
RECORDED = ErrorFile(type="ValueError", message="no", at=9.5)


@pytest.mark.parametrize(
    ("returncode", "error", "circumstances", "cause"),
    [
        (1, OWN, NOTHING, Cause.OWN),
        (7, None, NOTHING, Cause.OWN),
        (85, None, NOTHING, Cause.OWN),
        (-9, None, NOTHING, Cause.OWN),
        (-11, None, NOTHING, Cause.OWN),
        (1, PEER, NOTHING, Cause.VICTIM),
        (1, PEER, TERM, Cause.VICTIM),
        (-15, None, TERM, Cause.KILLED),
        (143, None, TERM, Cause.KILLED),
        (0, None, TERM, Cause.KILLED),
        (85, None, TERM, Cause.KILLED),
        (-9, None, TERM, Cause.OWN),  # a SIGKILL that we have not sent
        (-9, None, TERM_KILL, Cause.KILLED),
        (137, None, TERM_KILL, Cause.KILLED),
        # its failure was written before the signal, whatever it ends with then
        (1, OWN, TERM, Cause.OWN),
        (1, OWN, STACKS_TERM, Cause.OWN),
        (-15, OWN, TERM, Cause.OWN),
        (143, OWN, TERM, Cause.OWN),
        (-9, OWN, TERM_KILL, Cause.OWN),
        (0, OWN, TERM, Cause.OWN),
        (-int(STACKS_SIGNAL), OWN, STACKS, Cause.OWN),
        # what @record wrote may have been caught by the program, which went on
        (1, RECORDED, TERM, Cause.OWN),
        (-15, RECORDED, TERM, Cause.KILLED),
        (0, RECORDED, TERM, Cause.KILLED),
        # an answer to the signal
        (1, None, TERM, Cause.KILLED),
        (7, None, TERM_KILL, Cause.KILLED),
        (1, ANSWER, TERM, Cause.KILLED),
        (-2, ANSWER, TERM, Cause.KILLED),
        (-6, None, TERM, Cause.KILLED),
        (1, ANSWER, STACKS, Cause.OWN),  # stacks are no reason to end
        (137, None, TERM, Cause.OWN),
        (-int(STACKS_SIGNAL), None, STACKS, Cause.KILLED),
        (86, ErrorFile(type="Refused", refused=True), TERM, Cause.OWN),
        (86, None, NOTHING, Cause.OWN),
        (-6, None, NOTHING, Cause.OWN),
    ],
)
def test_a_cause_follows_from_code_error_and_what_was_sent(
    returncode: int, error: ErrorFile | None, circumstances: Circumstances, cause: Cause
) -> None:
    first = error is not None and failed_first(returncode, error, circumstances)
    assert cause_of(returncode, error, circumstances, first=first) is cause


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {
                "message": {"message": "ValueError: bad sample 17", "extraInfo": {}},
                "ddpjob": {
                    "type": "ValueError",
                    "message": "bad sample 17",
                    "location": "train.py:3",
                    "peerLost": False,
                    "refused": False,
                    "step": 5,
                },
            },
            ErrorFile(type="ValueError", message="bad sample 17", location="train.py:3", step=5),
        ),
        (
            {"message": {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": "…"}}},
            ErrorFile(type="KeyError", message="'x'"),
        ),
        (
            {"message": {"message": "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:1"}},
            ErrorFile(
                type="RuntimeError", message="[gloo] Connection closed by peer [10.0.0.1]:1", peer_lost=True
            ),
        ),
        (
            {"message": {"message": "RuntimeError: Gloo connectFullMesh failed with: connection refused"}},
            ErrorFile(
                type="RuntimeError",
                message="Gloo connectFullMesh failed with: connection refused",
                peer_lost=True,
            ),
        ),
        (
            {"message": {"message": "ConnectionRefusedError: [Errno 111] Connection refused"}},
            ErrorFile(type="ConnectionRefusedError", message="[Errno 111] Connection refused"),
        ),
        ({"message": "bare words"}, ErrorFile(message="bare words")),
        ({}, None),
        ([1], None),
    ],
)
def test_an_error_file_is_read_in_our_form_and_in_torchelastics(
    tmp_path: Path, document: object, expected: ErrorFile | None
) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(document))
    found = read_error(path)
    assert found is None or found.at is not None
    assert (found and replace(found, at=None, last=False)) == expected


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", None])
def test_a_broken_error_file_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "error.json"
    if content is not None:
        path.write_bytes(content)
    assert read_error(path) is None


def test_a_process_that_had_finished_is_believed_whatever_killed_it_then(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.STATE], page[Slot.EXIT_CODE] = WorkerState.FINISHED, 0
        item = worker_exit(rank=0, returncode=-signal.SIGABRT, page=page, error=None, circumstances=NOTHING)
    assert item.returncode == 0
    assert not is_failure(item, stop_asked=False)


@pytest.mark.parametrize(
    ("returncode", "circumstances"), [(-15, TERM), (-9, TERM_KILL), (0, TERM), (143, TERM)]
)
def test_a_failure_that_was_written_keeps_the_exit_code_it_would_have_had(
    tmp_path: Path, returncode: int, circumstances: Circumstances
) -> None:
    error = replace(OWN, location="t.py:1", step=4, exit_code=3)
    with Page(tmp_path / "page", create=True) as page:
        item = worker_exit(rank=1, returncode=returncode, page=page, error=error, circumstances=circumstances)
    assert (item.returncode, item.cause, item.message) == (3, Cause.OWN, "ValueError: no")
    assert (item.error_type, item.location, item.step) == ("ValueError", "t.py:1", 4)


def test_a_victims_words_keep_it_too(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        error = replace(PEER, at=9.0, last=True)
        item = worker_exit(rank=1, returncode=-15, page=page, error=error, circumstances=TERM)
    assert (item.returncode, item.cause) == (1, Cause.VICTIM)


def test_a_stop_step_that_was_obeyed_before_the_signal_is_still_an_answer(tmp_path: Path) -> None:
    circumstances = replace(TERM, stop_asked=True)
    error = ErrorFile(type="SystemExit", message="85", at=9.0, last=True, exit_code=85)
    with Page(tmp_path / "page", create=True) as page:
        item = worker_exit(rank=1, returncode=-15, page=page, error=error, circumstances=circumstances)
    assert not is_failure(item, stop_asked=True)


def test_without_a_file_the_page_says_when_it_had_failed(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.STATE], page[Slot.EXIT_CODE], page[Slot.ERROR_AT] = WorkerState.EXITING, 120, 9.0
        before = worker_exit(rank=0, returncode=-15, page=page, error=None, circumstances=TERM)
        page[Slot.ERROR_AT] = 11.0
        after = worker_exit(rank=0, returncode=-15, page=page, error=None, circumstances=TERM)
    assert (before.returncode, before.cause, before.message) == (120, Cause.OWN, "ended with exit code 120")
    assert after.cause is Cause.KILLED


def test_an_error_after_which_the_program_trained_on_is_no_cause(tmp_path: Path) -> None:
    """It called `sys.excepthook` for an error that it handled; a drain hours later finds the file."""
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.LAST_STEP_AT] = 9.8
        told = worker_exit(rank=1, returncode=143, page=page, error=OWN, circumstances=TERM)
        crashed = worker_exit(rank=1, returncode=1, page=page, error=OWN, circumstances=Circumstances())
    assert (told.cause, told.error_type) == (Cause.KILLED, None)
    assert (crashed.cause, crashed.error_type) == (Cause.OWN, None), "of this end it says nothing"


def test_a_program_that_ended_with_zero_has_no_error(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        for error in (replace(PEER, at=9.0), replace(RECORDED, refused=True)):
            item = worker_exit(rank=0, returncode=0, page=page, error=error, circumstances=TERM)
            assert (item.cause, item.error_type) == (Cause.KILLED, None)


def test_the_time_of_a_file_is_what_the_worker_wrote_or_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "m", "ddpjob": {"at": 4.5, "exitCode": 3}}))
    ours = read_error(path)
    assert ours is not None and (ours.at, ours.exit_code, ours.last) == (4.5, 3, True)
    path.write_text(json.dumps({"message": "KeyError: 'x'"}))
    recorded = read_error(path)
    assert recorded is not None and recorded.at is not None and not recorded.last
    assert math.isclose(recorded.at, time.monotonic(), abs_tol=5)


def test_words_and_step_come_from_the_program_and_its_page(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.STEP] = 40
        error = ErrorFile(type="ValueError", message="line one\nline two", location="t.py:1")
        item = worker_exit(rank=3, returncode=1, page=page, error=error, circumstances=NOTHING)
        gloo = "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:1"
        error = ErrorFile(type="RuntimeError", message=gloo)
        victim = worker_exit(rank=3, returncode=1, page=page, error=error, circumstances=NOTHING)
        killed = worker_exit(
            rank=3, returncode=-9, page=page, error=None, circumstances=Circumstances(oom=True)
        )
        limited = worker_exit(
            rank=3,
            returncode=-9,
            page=page,
            error=None,
            circumstances=Circumstances(oom=True, memory_limit=2500 << 20),
        )
    assert (item.message, item.location, item.step) == ("ValueError: line one", "t.py:1", 40)
    assert victim.message == "RuntimeError: Connection closed by peer [10.0.0.1]:1"
    assert (killed.oom_killed, killed.message) == (True, "ran out of memory and was killed")
    assert limited.message == "ran out of memory (limit 2500Mi) and was killed"


def test_a_worker_that_the_kernel_killed_for_memory_is_told_with_the_limit_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "lowest_limit", lambda: 2500 << 20)
    config: Any = SimpleNamespace(spec=SimpleNamespace(command=None))
    counter: Any = SimpleNamespace(killed=lambda within: True)
    with Page(tmp_path / "page", create=True) as page:
        worker: Any = SimpleNamespace(
            rank=3,
            signals={},
            page=page,
            files=Files.of(tmp_path, 1, 3),
            pumps=(None, SimpleNamespace(tail=[])),
        )
        item = ending.end_of(worker, -9, config=config, generation=1, stop_asked=False, oom=counter)
    assert (item.oom_killed, item.message) == (True, "ran out of memory (limit 2500Mi) and was killed")


ABORTS: list[tuple[str, tuple[str, ...], Cause, str]] = [
    (
        "a C++ exception",
        (
            "step 4",
            "terminate called after throwing an instance of 'std::runtime_error'",
            "  what():  no such kernel",
        ),
        Cause.OWN,
        "std::runtime_error: no such kernel",
    ),
    ("std::terminate", ("terminate called without an active exception",), Cause.OWN, "std::terminate"),
    ("the allocator", ("free(): invalid pointer",), Cause.OWN, "free(): invalid pointer"),
    ("an assertion", ("a.cpp:3: f: Assertion `x' failed.",), Cause.OWN, "a.cpp:3: f: Assertion `x' failed."),
    (
        "NCCL's watchdog",
        (
            "[E] ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            "[E] To avoid data inconsistency, we are taking the entire process down.",
        ),
        Cause.VICTIM,
        "[E] ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
    ),
    (
        "NCCL's watchdog, thrown",
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        ),
        Cause.VICTIM,
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
    ),
    ("no word at all", ("step 4",), Cause.OWN, "died of SIGABRT"),
]


@pytest.mark.parametrize(
    ("stderr", "cause", "message"), [case[1:] for case in ABORTS], ids=[case[0] for case in ABORTS]
)
def test_an_abort_is_explained_by_what_was_written_before_it(
    tmp_path: Path, stderr: tuple[str, ...], cause: Cause, message: str
) -> None:
    circumstances = Circumstances(stderr=stderr, place="t.py:3")
    with Page(tmp_path / "page", create=True) as page:
        item = worker_exit(rank=0, returncode=-6, page=page, error=None, circumstances=circumstances)
    assert (item.cause, item.message, item.late) == (cause, message, cause is Cause.VICTIM)
    assert item.location == "t.py:3"


def test_85_is_an_answer_only_to_a_stop_step(tmp_path: Path) -> None:
    with Page(tmp_path / "page", create=True) as page:
        item = worker_exit(rank=0, returncode=85, page=page, error=None, circumstances=NOTHING)
    assert is_failure(item, stop_asked=False)
    assert not is_failure(item, stop_asked=True)
