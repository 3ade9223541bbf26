"""Who holds which slot of this machine, and what the harness says where it cannot write or start something."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.cluster import plugin
from tests.cluster.harness import CannotRun, CommandFailed, Process, paths, process, progress
from tests.cluster.harness.shell import run
from tests.cluster.harness.slot import Owner, claim, read_owner, write_owner


def owner_of(
    clone: Path, *processes: Process, users: tuple[Process, ...] = (), detached: bool = True
) -> Owner:
    root = str(paths.cache() / "slots" / "0")
    return Owner(
        clone=str(clone), root=root, binaries="", detached=detached, users=users, processes=processes
    )


def test_a_slot_in_use_is_not_taken(elsewhere: Path) -> None:
    write_owner(0, owner_of(elsewhere, process.current("etcd")))
    assert claim("").number == 1


def test_a_slot_that_is_being_started_is_not_taken(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim("").number == 0
    monkeypatch.setattr(paths, "CLONE", elsewhere)
    assert claim("").number == 1


@pytest.mark.parametrize("case", ["its processes died", "its clone is gone", "its session was killed"])
def test_a_slot_that_nobody_needs_changes_hands_with_its_store_and_leftovers(
    elsewhere: Path, case: str
) -> None:
    alive = process.current("etcd")
    dead = Process(name="etcd", pid=alive.pid, start=alive.start - 1)
    former = {
        "its processes died": owner_of(elsewhere, dead),
        "its clone is gone": owner_of(elsewhere / "gone", alive),
        "its session was killed": owner_of(elsewhere, alive, users=(dead,), detached=False),
    }[case]
    write_owner(0, former)
    taken = claim("")
    assert (taken.number, str(taken.root)) == (0, former.root)
    now = read_owner(0)
    assert now is not None
    assert (now.clone, now.processes) == (str(paths.CLONE), former.processes), (
        "what to clean up is still on record"
    )


@pytest.mark.parametrize(
    ("user", "runtime", "place"),
    [
        (0, "/run/user/0", "/run/ddpjob"),
        (1000, "/run/user/1000", "/run/user/1000/ddpjob"),
        (1000, "", "/scratch/ddpjob-1000"),
    ],
)
def test_a_user_who_is_not_root_has_records_of_their_own(
    monkeypatch: pytest.MonkeyPatch, user: int, runtime: str, place: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr("tempfile.tempdir", "/scratch")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert paths.volatile() == Path(place)


def test_records_of_somebody_else_are_not_trusted(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.run_folder()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(CannotRun, match=rf"{paths.RUN} belongs to user {me}, and this is user {me + 1}"):
        claim("")


@pytest.mark.parametrize("use", [lambda: claim(""), lambda: read_owner(0), paths.cache])
def test_a_folder_that_cannot_be_made_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[], object]
) -> None:
    (elsewhere / "file").touch()  # stops root, too
    monkeypatch.setattr(paths, "RUN", elsewhere / "file" / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere / "file" / "cache"))
    with pytest.raises(CannotRun, match=rf"the harness needs .*{elsewhere}/file.*: .*Not a directory"):
        use()


def test_a_program_that_is_not_there_is_a_command_that_failed() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)absent-program get: .*cannot be started: .*No such file"):
        run("absent-program", "get", check=False)


def test_what_the_system_refuses_to_the_cluster_does_not_stop_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> NoReturn:
        raise PermissionError(13, "Permission denied", "/somewhere")

    monkeypatch.setattr(plugin, "choose", refused)
    monkeypatch.setattr(progress, "sink", progress.sink)
    config = SimpleNamespace(
        option=SimpleNamespace(collectonly=False),
        pluginmanager=SimpleNamespace(getplugin=lambda _: None),
        stash=pytest.Stash(),
    )
    session: Any = SimpleNamespace(items=[SimpleNamespace(fixturenames=["cluster"])], config=config)
    plugin.pytest_collection_finish(session)
    failure = config.stash[plugin.FAILED]
    assert "Permission denied: '/somewhere'" in str(failure)
    assert isinstance(failure.__cause__, PermissionError)
