"""What a launcher remembers of a run: bounded, kept over its own death, and readable from a line of its log."""

from pathlib import Path

import pytest

from ddpjob_api.conditions import Reason
from ddpjob_api.history import MAX_ROWS, History, RankSums, Row, pack, thinned, unpack
from ddpjob_api.packing import MAX_WORD_BYTES
from ddpjob_api.report import Failure
from ddpjob_trainer.launcher.recorder import Recorder

FAILURE = Failure(reason=Reason.PROGRAM_FAILED, rank=1, message="ValueError: secret", location="train.py:3")


def row(at: float, *, ranks: int = 1, steps: int | None = None) -> Row:
    count = int(at) if steps is None else steps
    sums = tuple(
        RankSums(rank=r, steps=count, samples=8 * count, seconds=at, phases=(at / 3,) * 7)
        for r in range(ranks)
    )
    return Row(at=1e9 + at, step=count, loss=1 / (1 + at), ranks=sums)


def recorder(
    file: Path | None, *, job: str = "one", ranks: int = 1, said: list[str] | None = None
) -> Recorder:
    return Recorder(file, job=job, node=0, ranks=ranks, say=(said if said is not None else []).append)


@pytest.mark.parametrize("ranks", [1, 64])
def test_a_week_is_no_longer_than_an_hour(tmp_path: Path, ranks: int) -> None:
    one = recorder(tmp_path / "history", ranks=ranks)
    at, rows = 0.0, 0
    while at < 7 * 86_400:
        if one.due(1e9 + at):
            one.add(row(at, ranks=ranks))
            rows += 1
        at += 1.0 if at < 100 else 60.0
    found = one.all().rows
    assert (found[0].at, len(found) <= MAX_ROWS) == (1e9, True)
    assert found[-1].at > 1e9 + 7 * 86_400 - 20_000
    assert len(found) >= 30
    assert (tmp_path / "history").stat().st_size < 3_000_000
    assert [r.at for r in found] == sorted({r.at for r in found})


def test_a_new_launcher_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    file = tmp_path / "history"
    first = recorder(file)
    first.add(row(1.0, steps=10))
    first.learn([FAILURE])
    with file.open("a") as stream:
        stream.write('{"row":{"at":')  # it died while writing
    second = recorder(file)
    second.learn([FAILURE])
    second.add(row(5.0, steps=3))
    found = second.all()
    assert [r.ranks[0].steps for r in found.rows] == [10, 13]
    assert found.incidents == (FAILURE,)
    assert recorder(file).all() == found


def test_another_jobs_file_is_not_taken_over(tmp_path: Path) -> None:
    recorder(tmp_path / "history").add(row(1.0))
    assert recorder(tmp_path / "history", job="two").all().rows == ()


def test_what_is_served_to_everybody_has_no_words_of_the_program() -> None:
    one = recorder(None)
    one.add(row(1.0))
    one.learn([FAILURE])
    assert b"ProgramFailed" in one.public()
    assert b"secret" not in one.public() and b"train.py" not in one.public()


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "nowhere").write_text("no folder")
    one = recorder(tmp_path / "nowhere" / "history", said=said)
    one.add(row(1.0))
    one.add(row(2.0))
    assert len(said) == 1 and "training goes on" in said[0]
    assert len(one.all().rows) == 2


def test_a_folder_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "checkpoints" / "one" / "history"
    recorder(file, said=said).add(row(1.0))
    assert file.exists() and not said


@pytest.mark.parametrize("ranks", [1, 8, 256])
def test_a_line_of_the_log_carries_the_history(ranks: int) -> None:
    rows = tuple(row(1.7 * n + n * n % 7, ranks=ranks) for n in range(64 if ranks > 100 else MAX_ROWS))
    word = pack(History(job="one", node=0, rows=rows, incidents=(FAILURE,)))
    assert len(word) <= MAX_WORD_BYTES
    found = unpack(word)
    assert found is not None
    assert (found.rows[0], found.rows[-1], found.incidents) == (rows[0], rows[-1], (FAILURE,))


@pytest.mark.parametrize("word", ["", "no base64!", "aGVsbG8="])
def test_what_is_no_history_is_none(word: str) -> None:
    assert unpack(word) is None


def test_thinning_keeps_both_ends() -> None:
    rows = [row(float(n)) for n in range(6)]
    assert [r.step for r in thinned(rows)] == [0, 2, 4, 5]
    assert thinned([]) == []
