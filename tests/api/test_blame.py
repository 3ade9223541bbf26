"""A failure in one sentence: what each of its fields adds, and what stays when there is too much of it."""

from dataclasses import replace

import pytest

from ddpjob_api.blame import MAX_LENGTH, blame, what
from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure

RAISED = Failure(
    reason=Reason.PROGRAM_FAILED,
    rank=1,
    node=1,
    pod="digits-1",
    pod_uid="u1",
    host_node="worker-a",
    exit_code=1,
    message="ValueError: bad sample 17",
    location="train.py:20",
    step=16,
    generation=2,
    at="2026-01-01T00:00:00Z",
)
KILLED = replace(
    RAISED, reason=Reason.KILLED, exit_code=137, signal="SIGKILL", message="died of SIGKILL", location=None
)
LOST = Failure(
    reason=Reason.POD_LOST, node=1, pod="digits-1", message="the launcher of node 1 on worker-a is gone"
)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            RAISED,
            "rank 1 (pod digits-1 on node worker-a): ValueError: bad sample 17 (train.py:20), exit code 1 at step 16",
        ),
        (KILLED, "rank 1 (pod digits-1 on node worker-a): died of SIGKILL at step 16"),
        (replace(KILLED, message=""), "rank 1 (pod digits-1 on node worker-a): died of SIGKILL at step 16"),
        (
            replace(KILLED, message="terminate called without an active exception"),
            "rank 1 (pod digits-1 on node worker-a): terminate called without an active exception, died of SIGKILL at step 16",
        ),
        (
            replace(RAISED, message="ended with exit code 7", exit_code=7, location=None, step=0, host_node=None),
            "rank 1 (pod digits-1): ended with exit code 7",
        ),
        (
            replace(RAISED, message="ended with exit code 17", exit_code=1, location=None, pod=None, host_node=None),
            "rank 1 (node 1): ended with exit code 17, exit code 1 at step 16",
        ),
        (
            replace(RAISED, reason=Reason.REPEATED_FAILURE, message="E: bad (3 times in a row at step 16)", also=(0,)),
            "rank 1 (pod digits-1 on node worker-a): E: bad (3 times in a row at step 16) (train.py:20), exit code 1 (also rank 0)",
        ),
        (
            replace(RAISED, reason=Reason.NO_PROGRESS, exit_code=87, message="no step for 60 s: …", also=(2, 3)),
            "rank 1 (pod digits-1 on node worker-a): no step for 60 s: … (train.py:20) at step 16 (also ranks 2, 3)",
        ),
        (LOST, "pod digits-1: the launcher of node 1 on worker-a is gone"),
        (replace(LOST, message="pod digits-1 on node worker-a was deleted", host_node="worker-a"),
         "pod digits-1 on node worker-a was deleted"),
        (replace(LOST, pod=None), "the launcher of node 1 on worker-a is gone"),
        (Failure(reason=Reason.RENDEZVOUS_TIMEOUT), "RendezvousTimeout"),
    ],
)  # fmt: skip
def test_a_sentence_says_what_is_known_once(failure: Failure, sentence: str) -> None:
    assert blame(failure) == sentence


@pytest.mark.parametrize("also", [(), tuple(range(1000, 1016))])
@pytest.mark.parametrize("length", [700, 1024])
def test_of_what_is_too_long_the_words_are_cut_and_not_the_culprit_place_and_step(
    length: int, also: tuple[int, ...]
) -> None:
    """Also where the words named the place themselves, and what was cut did so."""
    words = f"ValueError: {'x' * (length - 31)} in train.py:20"
    long = replace(RAISED, message=words, host_node="h" * 200, also=also)
    sentence = blame(long)
    assert len(sentence) <= MAX_LENGTH
    assert sentence.startswith(f"rank 1 (pod digits-1 on node {'h' * 200}): ValueError: xxx")
    assert "(train.py:20), exit code 1 at step 16" in sentence or length == 700
    assert "train.py:20" in sentence
    assert "at step 16" in sentence
    assert all(f"{rank}" in sentence for rank in also)
    assert what(long).startswith(words), "a terminal has room"


def test_no_sentence_is_longer_than_there_is_room() -> None:
    most = replace(RAISED, message="m" * 1024, pod="p" * 253, host_node="h" * 253, location="l" * 512)
    assert len(blame(most)) == MAX_LENGTH
