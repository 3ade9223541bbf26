"""What lies in a node's checkpoint folder: what is whole, what is torn, and what cannot be judged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.steps import CONTENT, save

from ddpjob_trainer import checkpoints
from ddpjob_trainer.checkpoints import MANIFEST, OtherFormat, open_step, step_path
from ddpjob_trainer.launcher.peers.shelf import Shelf


def test_newer_steps_that_lost_a_part_are_set_aside_and_named(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        os.truncate(save(tmp_path, step) / "state.pt", len(CONTENT) if step == 2 else 5)
    shelf = Shelf(folder=tmp_path)
    assert shelf.steps() == (2,)
    (problem,) = shelf.torn(2)
    assert f"{step_path(tmp_path, 3)} is damaged (state.pt has 5 bytes instead of {len(CONTENT)})" in problem
    assert not step_path(tmp_path, 3).exists()
    assert step_path(tmp_path, 1).exists(), "the training goes on from a newer one: nobody asks for it"
    assert shelf.torn(2) == []


def cut_manifest(path: Path) -> None:
    os.truncate(path / MANIFEST, 20)


def lose_a_file(path: Path) -> None:
    (path / "state.pt").unlink()


def lose_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut_manifest, "Unterminated string"),
        (lose_a_file, "(state.pt is missing)"),
        (lose_manifest, "(manifest.json is missing)"),
    ],
)
def test_in_a_shared_folder_a_torn_step_stays_and_every_node_says_the_same(
    tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    path = save(tmp_path, 3)
    harm(path)
    nodes = [Shelf(folder=tmp_path, shared=True) for _ in range(2)]
    (first,), (second,) = [shelf.torn(2) for shelf in nodes]
    assert first == second
    assert words in first
    assert path.is_dir(), "it belongs to its one writer"
    save(tmp_path, 3)
    assert nodes[0].torn(2) == []
    harm(path)
    Shelf(folder=tmp_path).torn(2)
    assert not path.exists(), "a folder of its own is this node's"


def test_a_newer_step_that_cannot_be_judged_here_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(folder=tmp_path)
    other = save(tmp_path, 3) / MANIFEST
    other.write_text(other.read_text().replace('"format": 1', '"format": 2'))
    assert shelf.torn(2) == [], "another trainer can read it"
    path = save(tmp_path, 4)
    for error in (
        PermissionError(13, "Permission denied"),
        OSError(5, "I/O error"),
        OSError(116, "Stale file handle"),
    ):

        def refuse(_path: Path, error: OSError = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "read_manifest", refuse)
            assert shelf.torn(2) == []
    assert other.exists()
    assert open_step(tmp_path, 4)[0] == path


def test_a_step_of_another_version_is_told_of_refused_and_left_as_it_is(tmp_path: Path) -> None:
    shelf = Shelf(folder=tmp_path)
    other = save(tmp_path, 3) / MANIFEST
    other.write_text(other.read_text().replace('"format": 1', '"format": 2'))
    save(tmp_path, 2)
    assert shelf.steps() == (2, 3)
    with pytest.raises(OtherFormat, match=r"move step-00000003 away to go on without it"):
        shelf.verify(3)
    assert shelf.drop_above(2) == ((), [])
    assert shelf.put_away([3]) == ((), [])
    with pytest.raises(FileExistsError, match="is of another version of DDPJob and stays"):
        save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert '"format": 2' in other.read_text()


def test_torn_steps_are_told_also_where_one_of_them_cannot_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (3, 4):
        (save(tmp_path, step) / "state.pt").unlink()
    rename = Path.rename

    def stale(path: Path, target: Path) -> Path:
        if path == step_path(tmp_path, 4):
            raise OSError(116, "Stale file handle")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stale)
    first, second = Shelf(folder=tmp_path).torn(2)
    assert first.endswith("(state.pt is missing); it is now step-00000003.damaged and will not be used")
    assert second.endswith(
        "(state.pt is missing); it cannot be set aside (Stale file handle) and will not be used"
    )


def test_a_newer_step_of_which_something_cannot_be_deleted_is_named_by_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 3, 4):
        save(tmp_path, step)
    rmtree = shutil.rmtree

    def busy(path: Path, *, ignore_errors: bool = False) -> None:
        if path.name != "step-00000003.damaged":
            rmtree(path)
        elif not ignore_errors:
            raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    dropped, problems = Shelf(folder=tmp_path).drop_above(2)
    left = tmp_path / "step-00000003.damaged"
    assert dropped == (4,)
    assert problems == [
        f"checkpoint {left} cannot be deleted (Device or resource busy): it is not used, and takes room until you delete it"
    ]
    assert sorted(tmp_path.iterdir()) == [step_path(tmp_path, 2), left]


def test_where_a_step_is_says_one_look_at_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (3, 4):
        save(tmp_path, step)
    looked, read = list[Path](), checkpoints.read_manifest
    monkeypatch.setattr(checkpoints, "read_manifest", lambda path: looked.append(path) or read(path))
    assert Shelf(folder=tmp_path).holder(3) == tmp_path
    assert looked == [step_path(tmp_path, 3)]


@pytest.mark.parametrize("shared", [False, True])
def test_the_step_to_be_used_is_set_aside_where_it_cannot_be_read_but_not_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    path = save(tmp_path, 3)
    shelf = Shelf(folder=tmp_path, shared=shared)

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "compare", broken)
    if shared:
        with pytest.raises(OSError, match="Input/output error"):
            shelf.verify(3)
        assert path.is_dir(), "other nodes may well read it"
    else:
        assert shelf.verify(3) == [
            f"checkpoint {path} cannot be read (Input/output error); it is now step-00000003.damaged"
        ]
        assert not path.exists(), "so this node can take another's"


def test_a_step_that_its_writer_replaces_meanwhile_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, 3)

    def between(path: Path) -> None:
        path.rename(tmp_path / "old")
        try:
            (path / MANIFEST).read_bytes()
        finally:
            (tmp_path / "old").rename(path)

    monkeypatch.setattr(checkpoints, "read_manifest", between)
    assert Shelf(folder=tmp_path).torn(2) == []
    assert path.is_dir()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("harm", [None, cut_manifest, lose_a_file])
@pytest.mark.parametrize("moment", ["away", "replaced"])
def test_a_step_that_its_writer_replaces_after_its_manifest_was_read_is_not_torn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    harm: Callable[[Path], None] | None,
    shared: bool,
) -> None:
    path = save(tmp_path, 3)
    if harm is not None:
        harm(path)
    read, once = checkpoints.read_manifest, [True]

    def before(path: Path) -> checkpoints.Manifest:
        try:
            return read(path)
        finally:
            if once:
                once.clear()
                path.rename(tmp_path / "old")
                if moment == "replaced":
                    save(tmp_path, 3, b"shorter")

    monkeypatch.setattr(checkpoints, "read_manifest", before)
    assert Shelf(folder=tmp_path, shared=shared).torn(2) == []
    assert path.is_dir() is (moment == "replaced")


@pytest.mark.parametrize("shared", [False, True])
def test_copies_in_memory_are_steps_like_those_on_the_disk_and_looked_for_first(
    tmp_path: Path, shared: bool
) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    shelf = Shelf(folder=disk, memory=memory, shared=shared)
    assert shelf.steps() == ()
    for folder, step in ((disk, 4), (disk, 8), (memory, 8), (memory, 10), (memory, 12)):
        save(folder, step)
    assert shelf.steps() == (4, 8, 10, 12)
    assert shelf.named() == {4, 8, 10, 12}
    assert [shelf.holder(step) for step in (4, 8, 10)] == [disk, memory, memory]
    assert shelf.target() == (memory if shared else disk), "a shared folder belongs to its one writer"
    assert shelf.drop_above(10) == ((12,), [])
    assert shelf.steps() == (4, 8, 10)


def test_a_damaged_copy_in_memory_gives_way_to_the_checkpoint(tmp_path: Path) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    save(disk, 8)
    state = save(memory, 8) / "state.pt"
    state.write_bytes(b"?" + CONTENT[1:])
    shelf = Shelf(folder=disk, memory=memory)
    (problem,) = shelf.verify(8)
    assert f"{step_path(memory, 8)} is damaged" in problem
    assert shelf.holder(8) == disk
