"""Checkpoints cross from one launcher's folder to another's: whole, checked, or not at all."""

import contextlib
import hashlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.steps import CONTENT, save

from ddpjob_trainer.checkpoints import MANIFEST, complete_steps, open_step
from ddpjob_trainer.fence import Fence, Fenced
from ddpjob_trainer.launcher.peers import giver as giving
from ddpjob_trainer.launcher.peers import items, taker
from ddpjob_trainer.launcher.peers.channel import Broken, Channel
from ddpjob_trainer.launcher.peers.giver import Giver
from ddpjob_trainer.launcher.peers.items import OWN, NotHere, computed, open_file
from ddpjob_trainer.launcher.peers.shelf import Cancelled, Shelf
from ddpjob_trainer.launcher.peers.taker import Address, NoRoom, Source, Watch, entries, take_step

TOKEN = b"the token of this job"


@pytest.fixture
def givers() -> Iterator[Callable[..., Address]]:
    """Starts givers; the address of each."""
    started: list[Giver] = []

    def give(folder: Path, node: int = 0, **shelf: bool) -> Address:
        giver = Giver(Shelf(folder=folder, **shelf), TOKEN)  # type: ignore[arg-type]
        giver.start("127.0.0.1")
        started.append(giver)
        return Address(node=node, host="127.0.0.1", port=giver.port)

    yield give
    for giver in started:
        giver.close()


def take(
    target: Path,
    *sources: Address,
    step: int = 40,
    token: bytes = TOKEN,
    fence: Fence | None = None,
    watch: Watch | None = None,
) -> dict[int, str]:
    target.mkdir(exist_ok=True)
    return take_step(
        f"step-{step:08d}", target, sources, token=token, fence=fence or Fence(), watch=watch or Watch()
    )


def test_a_step_arrives_whole_with_its_hashes_checked(tmp_path: Path, givers: Callable[..., Address]) -> None:
    there = save(tmp_path / "a", 40)
    watch = Watch()
    assert take(tmp_path / "b", givers(tmp_path / "a"), watch=watch) == {}
    path, manifest = open_step(tmp_path / "b", 40)
    assert (path / "state.pt").read_bytes() == CONTENT
    assert manifest.position.step == 40
    assert (there / MANIFEST).read_bytes() == (path / MANIFEST).read_bytes()
    assert watch.done_bytes == watch.total_bytes == watch.fetched_bytes > len(CONTENT)
    assert sorted(entry.name for entry in (tmp_path / "b").iterdir()) == [path.name]


def test_a_copy_in_memory_is_given_too(tmp_path: Path) -> None:
    save(tmp_path / "memory", 43)
    giver = Giver(Shelf(folder=tmp_path / "disk", memory=tmp_path / "memory"), TOKEN)
    giver.start("127.0.0.1")
    try:
        assert take(tmp_path / "b", Address(node=0, host="127.0.0.1", port=giver.port), step=43) == {}
    finally:
        giver.close()
    assert (open_step(tmp_path / "b", 43)[0] / "state.pt").read_bytes() == CONTENT


def flip(path: Path) -> None:
    (path / "state.pt").write_bytes(b"x" + CONTENT[1:])


def shorten(path: Path) -> None:
    (path / "state.pt").write_bytes(CONTENT[:-1])


def remove(path: Path) -> None:
    (path / "state.pt").unlink()


def link_out(path: Path) -> None:
    (path / "state.pt").unlink()
    (path / "state.pt").symlink_to("/etc/passwd")


def rewrite(path: Path) -> None:
    (path / MANIFEST).write_text("{}")


@pytest.mark.parametrize("damage", [flip, shorten, remove, link_out, rewrite])
def test_a_damaged_source_is_passed_over_for_the_next(
    tmp_path: Path, givers: Callable[..., Address], damage: Callable[[Path], None]
) -> None:
    damage(save(tmp_path / "a", 40))
    save(tmp_path / "b", 40)
    failed = take(tmp_path / "c", givers(tmp_path / "a", 1), givers(tmp_path / "b", 2))
    assert list(failed) == [1]
    assert (open_step(tmp_path / "c", 40)[0] / "state.pt").read_bytes() == CONTENT
    assert set(take(tmp_path / "d", givers(tmp_path / "a", 1))) == {1}
    assert complete_steps(tmp_path / "d") == ()


def test_what_an_earlier_try_left_is_gone_on_from_and_rubbish_is_not(
    tmp_path: Path, givers: Callable[..., Address]
) -> None:
    save(tmp_path / "a", 40)
    source = givers(tmp_path / "a")
    beside = tmp_path / "b" / "step-00000040.tmp-peer"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(CONTENT[: 2 << 20])
    (beside / "other").write_bytes(b"of another time")
    watch = Watch()
    assert take(tmp_path / "b", source, watch=watch) == {}
    assert watch.fetched_bytes < 2 << 20
    assert sorted(path.name for path in open_step(tmp_path / "b", 40)[0].iterdir()) == [MANIFEST, "state.pt"]
    beside = tmp_path / "c" / "step-00000040.tmp-peer"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(b"?" * (2 << 20))
    assert take(tmp_path / "c", source) == {}
    assert (open_step(tmp_path / "c", 40)[0] / "state.pt").read_bytes() == CONTENT


def test_a_source_that_dies_in_the_middle_is_gone_on_from_at_the_next(
    tmp_path: Path, givers: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a", 40)
    real = givers(tmp_path / "a", 2)
    dying = relay(real.port, limit=2 << 20)
    watch = Watch()
    failed = take(tmp_path / "b", Address(node=1, host="127.0.0.1", port=dying), real, watch=watch)
    assert list(failed) == [1]
    assert watch.fetched_bytes < len(CONTENT) + (1 << 20), "what had come was asked for again"
    assert (open_step(tmp_path / "b", 40)[0] / "state.pt").read_bytes() == CONTENT


@dataclass(kw_only=True)
class Seen(Watch):
    """Remembers how far it was told to be."""

    told: list[int] = field(default_factory=list)

    def count(self, count: int) -> None:
        super().count(count)
        self.told.append(self.done_bytes)


def test_a_giver_whose_hash_takes_longer_than_a_taker_waits_is_waited_for(
    tmp_path: Path, givers: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        """A hash of which each byte takes a while."""

        def __init__(self) -> None:
            self._hash = hashlib.sha256()
            self.hexdigest = self._hash.hexdigest

        def update(self, data: bytes) -> None:
            time.sleep(0.2)  # what is waited for here is the taker's time-out, which is the kernel's
            self._hash.update(data)

    monkeypatch.setattr(items, "hashlib", SimpleNamespace(sha256=Slow))
    monkeypatch.setattr(items, "READ_BYTES", 1)
    monkeypatch.setattr(giving, "BUSY_SECONDS", 0.0, raising=False)
    monkeypatch.setattr(taker, "SILENT_SECONDS", 1.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "optimizer.pt").write_bytes(b"12345678")
    watch = Seen()
    with contextlib.closing(Source(givers(tmp_path / "a", by_step=False), TOKEN, watch)) as source:
        entry = source.entry(OWN, "optimizer.pt", "")
        assert watch.told == [1, 2, 3, 4, 5, 6, 7, 8], "a node that gets no further is taken for lost"
        source.fetch(OWN, "optimizer.pt", "", entry, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"12345678"
    assert watch.done_bytes == watch.fetched_bytes == 8, "what was read there is not counted twice"


def test_a_taker_that_reads_what_it_has_for_longer_than_a_giver_waits_gets_the_rest(
    tmp_path: Path, givers: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hasty(Watch):
        """What is read here takes until the giver has hung up."""

        def count(self, count: int) -> None:
            super().count(count)
            if not self.fetched_bytes:
                assert self._connection is not None
                assert select.select([self._connection], [], [], 10.0)[0], "the giver waits for ever"

    monkeypatch.setattr(giving, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(taker, "CALL_AGAIN_SECONDS", 0.1, raising=False)
    save(tmp_path / "a", 40)
    beside = tmp_path / "b" / "step-00000040.tmp-peer"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(CONTENT[: 1 << 20])
    watch = Hasty()
    assert take(tmp_path / "b", givers(tmp_path / "a"), watch=watch) == {}
    assert (open_step(tmp_path / "b", 40)[0] / "state.pt").read_bytes() == CONTENT
    assert watch.fetched_bytes < len(CONTENT), "what it had is not asked for again"


def relay(port: int, limit: int) -> int:
    """A port that passes one connection on, dies after `limit` bytes, and is not there any more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, left: int) -> None:
        while left > 0 and (data := source.recv(min(65536, left))):
            sink.sendall(data)
            left -= len(data)
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def run() -> None:
        near, _ = listener.accept()
        listener.close()
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            up = threading.Thread(target=pump, args=(near, far, 1 << 40))
            up.start()
            pump(far, near, limit)
            up.join()

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


def test_who_does_not_know_the_token_gets_nothing_and_gives_nothing(
    tmp_path: Path, givers: Callable[..., Address]
) -> None:
    save(tmp_path / "a", 40)
    failed = take(tmp_path / "b", givers(tmp_path / "a", 7), token=b"another job's")
    assert set(failed) == {7}
    assert not list((tmp_path / "b").iterdir())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(
            target=lambda: Channel(theirs, b"guessed", giver=True, seconds=5).send({"files": {}})
        )
        thread.start()
        channel = Channel(ours, TOKEN, giver=False, seconds=5)
        with pytest.raises(Broken, match="token"):
            channel.receive()
        thread.join()


def test_a_writer_of_an_older_term_publishes_nothing(tmp_path: Path, givers: Callable[..., Address]) -> None:
    save(tmp_path / "a", 40)
    (tmp_path / "term").write_text("3")
    with pytest.raises(Fenced):
        take(tmp_path / "b", givers(tmp_path / "a"), fence=Fence(term=2, files=(tmp_path / "term",)))
    assert complete_steps(tmp_path / "b") == ()


def test_a_fetch_that_is_not_wanted_any_more_ends_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watch = Watch()
        threading.Timer(0.2, watch.cancel).start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            take(tmp_path / "b", Address(node=1, host="127.0.0.1", port=silent.getsockname()[1]), watch=watch)
        assert time.monotonic() - began < taker.SILENT_SECONDS / 2


def test_no_room_is_said_before_anything_is_fetched(
    tmp_path: Path, givers: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a", 40)
    monkeypatch.setattr(taker, "free_bytes", lambda folder: 1 << 20)
    watch = Watch()
    with pytest.raises(
        NoRoom, match=r"no room for step-00000040 .*: 3.0 MiB are missing and 1.0 MiB are free"
    ):
        take(tmp_path / "b", givers(tmp_path / "a"), watch=watch)
    assert watch.fetched_bytes == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_that_is_full_is_a_sentence(
    tmp_path: Path, givers: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a", 40)
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=False).returncode:
        pytest.skip("mount is not allowed here")
    try:
        with pytest.raises(NoRoom, match="no room"):
            take(small, givers(tmp_path / "a"))
        monkeypatch.setattr(taker, "free_bytes", lambda folder: 1 << 40)
        with pytest.raises(NoRoom, match="No space left"):
            take(small, givers(tmp_path / "a"))
        assert complete_steps(small) == ()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("place", "name", "inside"),
    [
        (OWN, "..", "passwd"),
        (OWN, "/etc", "passwd"),
        (OWN, "step-00000040/..", "step-00000040"),
        (OWN, "step-00000040", "../secret"),
        (OWN, "step-00000040", "/etc/passwd"),
        (OWN, "step-00000040", "sub/../../secret"),
        (OWN, "step-00000040", "a\0b"),
        (OWN, "step-00000040", "out/secret"),
        (OWN, "step-00000040", "fifo"),
        (OWN, ".hidden", "x"),
        ("for-../../x", "step-00000040", "x"),
        ("for-1", "..", "x"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, place: str, name: str, inside: str) -> None:
    item = save(tmp_path / "a", 40)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a" / "secret").write_text("secret")
    (item / "out").symlink_to(tmp_path)
    os.mkfifo(item / "fifo")
    with pytest.raises(NotHere):
        open_file(Shelf(folder=tmp_path / "a"), place, name, inside)


FINE = {"size": 1, "sha256": "00", "mtime_ns": 1}


@pytest.mark.parametrize(
    "files",
    [
        None,
        {},
        [],
        {"../x": FINE},
        {"/x": FINE},
        {"a/../../x": FINE},
        {"a//b": FINE},
        {"x": FINE | {"size": -1}},
        {"x": FINE | {"size": "many"}},
        {"x": {"size": 1}},
        {"x": 3},
        {f"x{number}": FINE for number in range(20_001)},
        {"x" * 300: FINE},
    ],
    ids=lambda files: str(files)[:24],
)
def test_a_manifest_of_a_bad_neighbour_is_not_followed(files: object) -> None:
    with pytest.raises(NotHere):
        entries({"files": files})


def test_a_giver_answers_what_it_does_not_have_in_words_and_goes_on(
    tmp_path: Path, givers: Callable[..., Address]
) -> None:
    save(tmp_path / "a", 40)
    source = Source(givers(tmp_path / "a"), TOKEN, Watch())
    for op, words in (
        ("nonsense", {}),
        ("manifest", {"place": OWN, "name": "step-00000041"}),
        ("file", {"place": OWN, "name": "step-00000040", "inside": "state.pt", "offset": 1 << 60}),
        ("file", {"place": OWN, "name": "step-00000040", "inside": "state.pt", "offset": "x"}),
        ("entry", {"place": OWN, "name": "step-00000040", "inside": "nothing"}),
    ):
        with pytest.raises(NotHere):
            source.ask(op, **words)
    assert set(source.manifest("step-00000040")) == {"state.pt", MANIFEST}
    source.close()


def test_many_take_at_once_and_all_get_it(tmp_path: Path, givers: Callable[..., Address]) -> None:
    save(tmp_path / "a", 40)
    address = givers(tmp_path / "a")
    answers: list[dict[int, str]] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(take(tmp_path / f"t{n}", address)))  # type: ignore[misc]
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{}] * 24


def test_a_scripts_folder_has_a_manifest_of_plain_files(tmp_path: Path) -> None:
    item = tmp_path / "checkpoint-5"
    (item / "sub").mkdir(parents=True)
    (item / "sub" / "x.bin").write_bytes(b"abc")
    (item / "y.tmp-3").write_bytes(b"half")
    (item / "link").symlink_to("/etc/passwd")
    assert {inside: entry.sha256 for inside, entry in computed(item).items()} == {
        "sub/x.bin": hashlib.sha256(b"abc").hexdigest()
    }
