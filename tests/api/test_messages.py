"""The wire: what is sent is what is read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_api import Invalid
from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Beat, Failed, Finish, Message, Start, decode, encode, prove, status_key
from ddpjob_api.names import host_name, is_reserved_env, pod_name
from ddpjob_api.report import Cause, Failure, Outcome, WorkerExit

MESSAGES: list[Message] = [
    Start(term=1, generation=2, master_address="h", master_port=29500, restarts=1, disruptions=0, resume_step=40),
    Beat(generation=3, steps=(1, 2)),
    Failed(generation=1, exits=(WorkerExit(rank=1, returncode=-9, cause=Cause.OWN, message='quote " and \n line'),)),
    Finish(term=1, outcome=Outcome.FAILED, exit_code=88, restarts=3, disruptions=0, failure=Failure(reason=Reason.KILLED)),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_is_one_line_and_travels_unchanged(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"op":"Exec"}',
        b'{"op":"Beat","steps":["x"]}',
        b'{"op":"Beat","code":"x"}',
        b"\xff",
        b"[" * 20_000,
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(Invalid):
        decode(line)


@given(st.binary(max_size=200))
def test_no_bytes_make_decode_fail_otherwise(line: bytes) -> None:
    try:
        decode(line)
    except Invalid:
        pass


def test_a_proof_is_bound_to_role_nonces_and_token() -> None:
    proofs = {
        prove(b"token", "launcher", "a", "b"),
        prove(b"token", "coordinator", "a", "b"),
        prove(b"token", "launcher", "b", "a"),
        prove(b"other", "launcher", "a", "b"),
        status_key(b"token"),
    }
    assert len(proofs) == 5


def test_names_of_pods() -> None:
    assert (pod_name("digits", 1, 0), pod_name("digits", 1, 3)) == ("digits-1", "digits-1-r3")
    assert host_name("digits", 1) == "digits-1"


def test_reserved_names() -> None:
    assert all(is_reserved_env(name) for name in ("RANK", "PET_NNODES", "DDPJOB_ANYTHING"))
    assert not any(is_reserved_env(name) for name in ("PATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "RANKS"))
