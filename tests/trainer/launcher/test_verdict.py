"""How a command ended, from what is left of its ranks."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest

from ddpjob_api.page import Slot
from ddpjob_api.report import Cause
from ddpjob_trainer.files import Files, agent_file, command_error_file
from ddpjob_trainer.launcher.cause import Circumstances
from ddpjob_trainer.launcher.verdict import Rank, command_exit
from ddpjob_trainer.page import Page

TERMINATED = Circumstances(signals={signal.SIGTERM: math.inf})
"""After all that is written here."""
TERMINATED_BEFORE = Circumstances(signals={signal.SIGTERM: 0.0})


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Rank, ...]:
    files = [Files.of(tmp_path, 1, rank) for rank in (2, 3)]
    return tuple(
        Rank(rank=rank, files=file, page=Page(file.page, create=True))
        for rank, file in zip((2, 3), files, strict=True)
    )


def error(kind: str, *, peer_lost: bool = False) -> str:
    told = {"type": kind, "message": "words", "location": "t.py:3", "peerLost": peer_lost}
    return json.dumps({"message": {"message": f"{kind}: words"}, "ddpjob": told})


def verdict(
    tmp_path: Path, ranks: tuple[Rank, ...], returncode: int, circumstances: Circumstances
) -> tuple[int, int, Cause, str]:
    item = command_exit(ranks, returncode, run_dir=tmp_path, generation=1, circumstances=circumstances)
    return item.rank, item.returncode, item.cause, item.message


def left(tmp_path: Path, *ends: tuple[int, int], **errors: str) -> None:
    agent_file(tmp_path, 1).write_text(json.dumps([{"rank": rank, "exitCode": code} for rank, code in ends]))
    for name, text in errors.items():
        Files.of(tmp_path, 1, int(name.removeprefix("rank"))).error.write_text(text)


def test_a_killed_rank_is_named_by_the_agent(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path, (3, -9))
    assert verdict(tmp_path, ranks, 1, Circumstances()) == (3, -9, Cause.OWN, "died of SIGKILL")


def test_an_own_failure_stands_before_a_victims(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path, (2, 1), (3, 1), rank2=error("RuntimeError", peer_lost=True), rank3=error("ValueError"))
    assert verdict(tmp_path, ranks, 1, Circumstances()) == (3, 1, Cause.OWN, "ValueError: words")


def test_ranks_that_torchrun_ended_after_a_victim_are_not_to_blame(
    tmp_path: Path, ranks: tuple[Rank, ...]
) -> None:
    left(tmp_path, (3, 1), (2, -15), rank3=error("RuntimeError", peer_lost=True))
    item = verdict(tmp_path, ranks, 1, Circumstances())
    assert (item[0], item[2]) == (3, Cause.VICTIM)
    left(tmp_path, (2, -15), (3, 1), rank3=error("RuntimeError", peer_lost=True))
    assert verdict(tmp_path, ranks, 1, Circumstances())[:3] == (2, -15, Cause.OWN), "somebody else's SIGTERM"


def test_victims_alone_are_witnesses(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path, (2, 1), rank2=error("RuntimeError", peer_lost=True))
    assert verdict(tmp_path, ranks, 1, TERMINATED)[2] is Cause.VICTIM


def test_a_shells_rank_is_known_by_its_error(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    Files.of(tmp_path, 1, 3).error.write_text(error("ValueError"))
    assert verdict(tmp_path, ranks, 1, Circumstances())[:3] == (3, 1, Cause.OWN)


def test_the_launchers_own_failure_is_its_first_ranks(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path)
    text = json.dumps({"message": {"message": "DistNetworkError: cannot reach h0", "extraInfo": {}}})
    command_error_file(tmp_path, 1).write_text(text)
    assert verdict(tmp_path, ranks, 1, Circumstances())[2] is Cause.VICTIM


@pytest.mark.parametrize("returncode", [1, 143, -signal.SIGTERM])
def test_what_ends_when_told_to_is_killed(tmp_path: Path, ranks: tuple[Rank, ...], returncode: int) -> None:
    left(tmp_path)
    assert verdict(tmp_path, ranks, returncode, TERMINATED)[2] is Cause.KILLED


def test_a_failure_before_the_signal_stays_its_own(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path, (3, 1), rank3=error("ValueError"))
    assert verdict(tmp_path, ranks, 1, TERMINATED)[2] is Cause.OWN


def test_an_error_that_answers_the_signal_is_none_of_its_own(tmp_path: Path, ranks: tuple[Rank, ...]) -> None:
    left(tmp_path, (3, 1), rank3=error("ValueError"))
    assert verdict(tmp_path, ranks, 1, TERMINATED_BEFORE)[2] is Cause.KILLED
    Files.of(tmp_path, 1, 3).error.unlink()
    left(tmp_path)
    text = json.dumps({"message": {"message": "SignalException: Process 7 got signal: 15", "extraInfo": {}}})
    command_error_file(tmp_path, 1).write_text(text)
    assert verdict(tmp_path, ranks, 1, TERMINATED_BEFORE)[2] is Cause.KILLED


def test_ranks_that_stopped_on_request_end_with_zero_below_torchrun(
    tmp_path: Path, ranks: tuple[Rank, ...]
) -> None:
    asked = Circumstances(stop_asked=True)
    assert verdict(tmp_path, ranks, 0, asked)[1] == 0
    ranks[1].page[Slot.EXIT_CODE] = 85
    assert verdict(tmp_path, ranks, 0, asked)[1] == 85


@pytest.mark.parametrize("text", ["", "[", '[{"rank": 3}]', '{"rank": 3}', "[3]"])
def test_half_a_file_is_as_none(tmp_path: Path, ranks: tuple[Rank, ...], text: str) -> None:
    agent_file(tmp_path, 1).write_text(text)
    assert verdict(tmp_path, ranks, 7, Circumstances()) == (2, 7, Cause.OWN, "ended with exit code 7")
