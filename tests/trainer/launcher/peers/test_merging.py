"""Folders of a script: as if they were one, and found again by a node that lost its own."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trainer.test_script_checkpoints import trainer

from ddpjob_trainer.launcher.peers import taker
from ddpjob_trainer.launcher.peers.giver import Giver
from ddpjob_trainer.launcher.peers.items import KEPT_FOLDER, OWN, NotHere
from ddpjob_trainer.launcher.peers.merging import keep, merge
from ddpjob_trainer.launcher.peers.shelf import Shelf
from ddpjob_trainer.launcher.peers.taker import Address, NoRoom, Source, Watch
from ddpjob_trainer.launcher.peers.trees import Item, Stamp, Tree, lacking, read_document

TOKEN = b"the token of this job"


def put(folder: Path, files: dict[str, str], at: int) -> None:
    """Files with this content, changed at a second."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at, at))


def found(folder: Path) -> dict[str, str]:
    """What a script sees."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and KEPT_FOLDER not in path.parts
    }


def shelf(folder: Path) -> Shelf:
    return Shelf(folder=folder, by_step=False)


@pytest.fixture
def address() -> Iterator[Callable[[Path, int], Address]]:
    started = []

    def give(folder: Path, node: int) -> Address:
        giver = Giver(shelf(folder), TOKEN)
        giver.start("127.0.0.1")
        started.append(giver)
        return Address(node=node, host="127.0.0.1", port=giver.port)

    yield give
    for giver in started:
        giver.close()


def test_every_node_has_the_newest_of_every_file_and_nothing_is_lost(
    tmp_path: Path, address: Callable[[Path, int], Address]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    put(a, {"checkpoint-10/model.bin": "m10", "checkpoint-10/rng_0": "r0", "last.ckpt": "old"}, 100)
    put(a, {"step_10/__0_0.distcp": "s0", "step_10/.metadata": "shards"}, 100)
    put(b, {"checkpoint-10/rng_1": "r1", "last.ckpt": "new", "term": "3"}, 200)
    (b / "checkpoint-10" / "link").symlink_to("/etc/passwd")
    (b / ".hidden").write_text("mine")
    sources = [address(a, 0), address(b, 1)]
    assert Tree.of(shelf(a)).digest != Tree.of(shelf(b)).digest
    assert merge(shelf(a), 0, sources[1:], token=TOKEN, watch=Watch()) == {}
    assert merge(shelf(b), 1, sources[:1], token=TOKEN, watch=Watch()) == {}
    expected = {
        "checkpoint-10/model.bin": "m10",
        "checkpoint-10/rng_0": "r0",
        "checkpoint-10/rng_1": "r1",
        "last.ckpt": "new",
        "step_10/.metadata": "shards",
        "step_10/__0_0.distcp": "s0",
    }
    assert found(a) == expected
    assert (b / "checkpoint-10" / "link").is_symlink()
    assert (b / ".hidden").read_text() == "mine"
    assert Tree.of(shelf(a)).digest == Tree.of(shelf(b)).digest != ""


def test_a_neighbour_keeps_what_is_new_and_follows_what_is_deleted(
    tmp_path: Path, address: Callable[[Path, int], Address]
) -> None:
    writer, neighbour = tmp_path / "writer", tmp_path / "neighbour"
    put(writer, {"checkpoint-10/model.bin": "m10", "log.txt": "1"}, 100)
    neighbour.mkdir()
    at = address(writer, 0)

    def one_pass() -> int:
        watch = Watch()
        source = Source(at, TOKEN, watch)
        items = read_document(source.items())
        keep(shelf(neighbour), 0, source, items, names={item.name for item in items})
        source.close()
        return watch.fetched_bytes

    assert one_pass() == 4
    assert one_pass() == 0
    assert found(neighbour) == {}
    assert Tree.of(shelf(neighbour)).digest == Tree.of(shelf(writer)).digest
    put(writer, {"checkpoint-20/model.bin": "m20"}, 200)
    (writer / "checkpoint-10" / "model.bin").unlink()
    (writer / "checkpoint-10").rmdir()
    assert one_pass() == 3
    kept = neighbour / KEPT_FOLDER / "for-0"
    assert {path.name for path in kept.iterdir()} == {"checkpoint-20", "log.txt"}

    # The writer is lost: its successor has nothing, and gets all of it; so does the neighbour's own folder.
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert merge(shelf(fresh), 0, [address(neighbour, 1)], token=TOKEN, watch=Watch()) == {}
    assert merge(shelf(neighbour), 1, [], token=TOKEN, watch=Watch()) == {}
    assert found(fresh) == found(neighbour) == {"checkpoint-20/model.bin": "m20", "log.txt": "1"}
    assert one_pass() == 0, "what lies here anyway is not kept twice"


def restart(nodes: dict[int, tuple[Path, Address]]) -> dict[int, Watch]:
    """Every node has what it lacks, before a generation."""
    watches = {node: Watch() for node in nodes}
    for node, (folder, _) in nodes.items():
        others = [at for other, (_, at) in nodes.items() if other != node]
        assert merge(shelf(folder), node, others, token=TOKEN, watch=watches[node]) == {}
    return watches


@pytest.fixture
def two(
    tmp_path: Path, address: Callable[[Path, int], Address]
) -> tuple[Path, Path, dict[int, tuple[Path, Address]]]:
    """The folders of two nodes, and what `restart` needs of them."""
    writer, other = tmp_path / "writer", tmp_path / "other"
    writer.mkdir()
    other.mkdir()
    return writer, other, {0: (writer, address(writer, 0)), 1: (other, address(other, 1))}


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.rglob("checkpoint-*"))


@pytest.mark.parametrize("output", ["", "out"])
def test_what_a_framework_has_deleted_does_not_come_back(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]], output: str
) -> None:
    writer, other, nodes = two
    for step in (100, 200, 300):
        trainer(writer / output, step)
        for old in set(steps(writer)) - {step}:
            shutil.rmtree(writer / output / f"checkpoint-{old}")
        watches = restart(nodes)
        assert steps(writer) == [step]
        assert watches[0].fetched_bytes == 0
        assert step in steps(other)
    again = restart(nodes)
    assert steps(writer) == [300], "nor when nothing was saved since"
    assert again[0].total_bytes == again[0].done_bytes == 0


def test_an_older_checkpoint_is_taken_where_it_may_be_needed(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]],
) -> None:
    writer, other, nodes = two
    trainer(other, 100)
    (trainer(writer, 200) / "trainer_state.json").unlink()
    restart(nodes)
    assert steps(writer) == [100, 200], "the newer one is half"
    trainer(writer, 300)
    torn = trainer(other, 300, at=301) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    os.utime(torn, (302, 302))
    shutil.rmtree(writer / "checkpoint-100")
    restart(nodes)
    assert steps(writer) == [100, 200, 300], "the newer one was whole before it was one with the other node's"
    shutil.rmtree(writer)
    restart(nodes)
    assert steps(writer) == [100, 200, 300], "a new node has nothing of its own"
    trainer(writer, 50, at=400)
    restart(nodes)
    assert steps(other) == [50, 100, 200, 300], "the numbers began anew"


def test_the_newest_checkpoint_comes_first_and_older_ones_only_where_there_is_room(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other, nodes = two
    for step in (100, 200):
        trainer(writer, step)
    size = sum(path.stat().st_size for path in writer.rglob("*") if path.is_file()) // 2
    monkeypatch.setattr(taker, "free_bytes", lambda folder: size if not steps(other) else 0)
    watches = restart(nodes)
    assert steps(other) == [200]
    assert len(watches[1].left_out) == 1
    assert watches[1].left_out[0].startswith("checkpoint-100 is not taken, a newer one is here: no room for")
    trainer(writer, 300)
    with pytest.raises(NoRoom):
        restart(nodes)


def test_what_is_on_this_disk_already_needs_no_room(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other, nodes = two
    monkeypatch.setattr(taker, "free_bytes", lambda folder: 0)
    trainer(other / KEPT_FOLDER / "for-0", 100)
    assert merge(shelf(other), 1, [], token=TOKEN, watch=Watch()) == {}
    assert steps(other) == [100, 100], "kept and its own"
    (writer / "last.pt").write_text("whole")
    (other / "last.pt.tmp-peer").write_text("whole")
    assert merge(shelf(other), 1, [nodes[0][1]], token=TOKEN, watch=(watch := Watch())) == {}
    assert (other / "last.pt").read_text() == "whole"
    assert watch.fetched_bytes == 0


def test_what_an_earlier_try_left_of_another_checkpoint_does_not_come_into_place(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]],
) -> None:
    writer, other, nodes = two
    trainer(writer / "out", 200)
    trainer(other / "out.tmp-peer", 100)
    restart(nodes)
    assert steps(other) == [200]


def test_a_neighbour_follows_what_is_deleted_inside_an_item(
    two: tuple[Path, Path, dict[int, tuple[Path, Address]]],
) -> None:
    writer, other, nodes = two
    for step in (100, 200):
        trainer(writer / "out", step)
        for old in set(steps(writer)) - {step}:
            shutil.rmtree(writer / "out" / f"checkpoint-{old}")
        with contextlib.closing(Source(nodes[0][1], TOKEN, Watch())) as source:
            keep(shelf(other), 0, source, read_document(source.items()), names={"out"})
    assert steps(other / KEPT_FOLDER) == [200]


def test_a_source_that_is_gone_is_named(tmp_path: Path, address: Callable[[Path, int], Address]) -> None:
    put(tmp_path / "a", {"x": "1"}, 100)
    gone = Address(node=5, host="127.0.0.1", port=1)
    failed = merge(shelf(tmp_path / "b"), 1, [address(tmp_path / "a", 0), gone], token=TOKEN, watch=Watch())
    assert set(failed) == {5}


def item(name: str, place: str = OWN, **files: int) -> Item:
    return Item(place=place, name=name, files={inside: Stamp(at, 1) for inside, at in files.items()})


@pytest.mark.parametrize(
    ("own", "others", "wanted"),
    [
        ([], {}, {}),
        ([item("c", x=5)], {1: [item("c", x=5)]}, {}),
        ([], {1: [item("c", x=5)]}, {"c": {"x": (1, OWN)}}),
        ([item("c", x=9)], {1: [item("c", x=5)]}, {}),
        ([item("c", x=5)], {1: [item("c", x=9)], 2: [item("c", x=7)]}, {"c": {"x": (1, OWN)}}),
        ([item("c", x=5)], {1: [item("c", y=5)]}, {"c": {"y": (1, OWN)}}),
        ([], {1: [item("c", "for-0", x=5)]}, {"c": {"x": (1, "for-0")}}),
        ([item("c", **{"": 5})], {1: [item("c", x=7, y=3)]}, {"c": {"x": (1, OWN), "y": (1, OWN)}}),
        ([item("c", x=7, y=3)], {1: [item("c", **{"": 5})]}, {}),
    ],
)
def test_what_a_node_lacks(
    own: list[Item], others: dict[int, list[Item]], wanted: dict[str, dict[str, tuple[int, str]]]
) -> None:
    answer = lacking({each.name: each for each in own}, others)
    assert {each.name: dict(each.files) for each in answer} == wanted


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        [3],
        [{}],
        [{"place": OWN, "name": "../x", "files": {}}],
        [{"place": OWN, "name": "x", "files": {"a": 3}}],
        [{"place": OWN, "name": 3, "files": {}}],
    ],
)
def test_a_list_of_a_bad_neighbour_is_not_followed(document: object) -> None:
    with pytest.raises(NotHere):
        read_document(document)
