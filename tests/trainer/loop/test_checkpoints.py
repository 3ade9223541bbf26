"""A checkpoint is there whole or not at all."""

import errno
import json
import os

import pytest
from tests.trainer.steps import position

from ddpjob_trainer import checkpoints
from ddpjob_trainer.checkpoint_writing import prune, remove_leftovers, write_step
from ddpjob_trainer.checkpoints import MANIFEST, OtherFormat, complete_steps, open_step, step_path
from ddpjob_trainer.errors import CheckpointDamaged
from ddpjob_trainer.fence import Fence, Fenced, read_term

CONTENT = b"weights" * 1000


def write(directory, step, content=CONTENT, **options):
    return write_step(
        directory, position(step), {"state.pt": lambda stream: stream.write(content)}, **options
    )


def test_what_was_written_is_found_and_opened(tmp_path):
    for step in (5, 10, 200_000_000):
        write(tmp_path, step, entrypoint="tasks:make")
    assert complete_steps(tmp_path) == (5, 10, 200_000_000)
    path, manifest = open_step(tmp_path, 10)
    assert (path / "state.pt").read_bytes() == CONTENT
    assert manifest.position == position(10)
    assert (manifest.size_bytes, manifest.entrypoint) == (len(CONTENT), "tasks:make")


def test_no_directory_has_no_checkpoints(tmp_path):
    assert complete_steps(tmp_path / "nowhere") == ()


def shorten(path):
    (path / "state.pt").write_bytes(CONTENT[:-1])


def flip(path):
    (path / "state.pt").write_bytes(b"W" + CONTENT[1:])


def remove_state(path):
    (path / "state.pt").unlink()


def remove_manifest(path):
    (path / MANIFEST).unlink()


def half_manifest(path):
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:50])


def other_format(path):
    (path / MANIFEST).write_text('{"format": 99}')


def wrong_position(path):
    document = json.loads((path / MANIFEST).read_text())
    del document["position"]["seed"]
    (path / MANIFEST).write_text(json.dumps(document))


def foreign_name(path):
    document = json.loads((path / MANIFEST).read_text())
    document["files"]["../../secret"] = document["files"]["state.pt"]
    (path / MANIFEST).write_text(json.dumps(document))


@pytest.mark.parametrize(
    "damage",
    [shorten, remove_state, remove_manifest, half_manifest, other_format, wrong_position, foreign_name],
)
def test_what_is_not_whole_does_not_count(tmp_path, damage):
    write(tmp_path, 5)
    write(tmp_path, 10)
    damage(step_path(tmp_path, 10))
    assert complete_steps(tmp_path) == (5,)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shorten, "state.pt has 6999 bytes instead of 7000"),
        (flip, "state.pt does not have the SHA-256 it was written with"),
        (remove_state, "No such file"),
        (half_manifest, "Unterminated string"),
    ],
)
def test_damage_is_named_and_the_checkpoint_is_set_aside(tmp_path, damage, words):
    write(tmp_path, 5)
    write(tmp_path, 10)
    damage(step_path(tmp_path, 10))
    for _ in range(2):  # every rank meets it
        with pytest.raises(CheckpointDamaged, match="step-00000010 is damaged") as raised:
            open_step(tmp_path, 10)
        if words is not None:
            assert words in str(raised.value)
        words = None
    assert complete_steps(tmp_path) == (5,)
    assert (tmp_path / "step-00000010.damaged").is_dir()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_stays_and_the_error_names_it(tmp_path, monkeypatch, number):
    write(tmp_path, 10)

    def broken(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.hashlib, "sha256", broken)
        with pytest.raises(OSError, match=f"{os.strerror(number)}: .*step-00000010"):
            open_step(tmp_path, 10)
    assert open_step(tmp_path, 10)[0] == step_path(tmp_path, 10)


def test_a_checkpoint_of_another_format_stays(tmp_path):
    write(tmp_path, 10)
    other_format(step_path(tmp_path, 10))
    with pytest.raises(OtherFormat, match="not a manifest of format 1"):
        open_step(tmp_path, 10)
    assert step_path(tmp_path, 10).is_dir()


def test_a_step_is_written_again_over_its_older_self(tmp_path):
    write(tmp_path, 5, b"of a history that was given up")
    write(tmp_path, 5)
    assert (open_step(tmp_path, 5)[0] / "state.pt").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["step-00000005"]


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    def full(stream):
        stream.write(CONTENT)
        raise OSError(28, "No space left on device")

    write(tmp_path, 5)
    with pytest.raises(OSError, match="No space left"):
        write_step(tmp_path, position(10), {"state.pt": full})
    assert os.listdir(tmp_path) == ["step-00000005"]


def test_a_writer_of_an_older_term_publishes_nothing(tmp_path):
    term_file = tmp_path / "term"
    term_file.write_text("3")
    directory = tmp_path / "checkpoints"
    write(directory, 5, fence=Fence(term=3, files=(term_file,)))
    with pytest.raises(Fenced, match="term 3 has taken over from term 2"):
        write(directory, 10, fence=Fence(term=2, files=(term_file,)))
    assert os.listdir(directory) == ["step-00000005"]


def test_a_shared_directory_remembers_the_highest_term(tmp_path):
    def fence(term):
        return Fence(term=term, files=(tmp_path / "term",), raised=tmp_path / "term")

    write(tmp_path, 5, fence=fence(1))
    write(tmp_path, 10, fence=fence(2))
    assert read_term(tmp_path / "term") == 2
    with pytest.raises(Fenced):
        write(tmp_path, 15, fence=fence(1))
    assert complete_steps(tmp_path) == (5, 10)


def test_only_the_newest_are_kept_and_another_history_is_left_alone(tmp_path):
    for step in (1, 2, 3, 4, 9):
        write(tmp_path, step)
    assert prune(tmp_path, newest=4, keep=2) == (1, 2)
    assert complete_steps(tmp_path) == (3, 4, 9)


def test_what_dead_writers_left_is_removed(tmp_path):
    write(tmp_path, 5)
    (tmp_path / "step-00000010.tmp-4711").mkdir()
    (tmp_path / "step-00000010.tmp-4711" / "state.pt").write_bytes(b"half")
    (tmp_path / "term.tmp-4711").write_text("1")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["step-00000005"]
