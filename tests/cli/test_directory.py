"""Whether a run goes on or starts anew, decided from what the last one left."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.jobs import TASK, document

from ddpjob_api import DDPJob, parse
from ddpjob_cli.errors import RefusedJob, Unusable
from ddpjob_cli.local import directory
from ddpjob_cli.local.directory import JobDirectory


def job(**spec: Any) -> DDPJob:
    return parse(document({"nodes": 2, "task": TASK, "checkpoint": {"everySteps": 5}, **spec}))


def write(checkpoint: Path) -> None:
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.pt").write_text("state")
    (checkpoint / "manifest.json").write_text('{"files": {"state.pt": {"size_bytes": 5, "sha256": ""}}}')


def save(folder: Path, *steps: int, nodes: tuple[int, ...] = (0, 1)) -> None:
    for node in nodes:
        for step in steps:
            write(folder / f"node-{node}" / "checkpoints" / f"step-{step:08d}")


def begin(folder: Path, which: DDPJob, *, fresh: bool = False, done: bool = False) -> str | None:
    with JobDirectory(folder, which) as home:
        sentence = home.begin(fresh=fresh).sentence
        home.started()
        if done:
            home.finished()
        return sentence


def test_the_first_run_has_nothing_to_say(tmp_path: Path) -> None:
    assert begin(tmp_path, job()) is None
    assert begin(tmp_path, job()) is None


def test_an_unfinished_run_goes_on_from_the_newest_step_that_any_node_has(tmp_path: Path) -> None:
    begin(tmp_path, job())
    save(tmp_path, 5, 10)
    save(tmp_path, 15, nodes=(1,))
    (tmp_path / "node-0" / "checkpoints" / "step-00000020.tmp-7").mkdir()
    (tmp_path / "node-0" / "checkpoints" / "step-00000020.damaged").mkdir()
    assert begin(tmp_path, job()) == "resuming from step 15; --fresh starts over"


@pytest.mark.parametrize("damage", ["truncated", "no manifest", "half a manifest", "another's manifest"])
def test_a_checkpoint_that_no_launcher_would_take_is_not_announced(tmp_path: Path, damage: str) -> None:
    begin(tmp_path, job())
    save(tmp_path, 5, 10)
    shutil.rmtree(tmp_path / "node-0" / "checkpoints")
    newest = tmp_path / "node-1" / "checkpoints" / "step-00000010"
    if damage == "truncated":
        (newest / "state.pt").write_text("st")
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text('{"files": ' if damage == "half a manifest" else "[]")
    assert begin(tmp_path, job()) == "resuming from step 5; --fresh starts over"
    shutil.rmtree(tmp_path / "node-1" / "checkpoints" / "step-00000005")
    said = begin(tmp_path, job())
    assert said == "no checkpoint of the earlier run is complete; the training begins anew"


@pytest.mark.parametrize(
    ("fresh", "done", "why"), [(True, False, "starting over"), (False, True, "the earlier run had finished")]
)
def test_what_starts_anew_keeps_the_old_checkpoints_aside(
    tmp_path: Path, fresh: bool, done: bool, why: str
) -> None:
    begin(tmp_path, job(), done=done)
    save(tmp_path, 5)
    said = begin(tmp_path, job(), fresh=fresh)
    assert said == f"{why}; its checkpoints are now in {tmp_path}/previous"
    assert (tmp_path / "previous" / "node-1" / "checkpoints" / "step-00000005").is_dir()
    assert begin(tmp_path, job()) is None


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"task": {**TASK, "seed": 1}}, "task.seed was not given and is 1"),
    ({"task": {**TASK, "params": {"lr": 1}}}, 'task.params was not given and is {"lr": 1}'),
    ({"nodes": 3}, "nodes was 2 and is 3"),
    ({"task": None, "script": {"args": ["x"]}}, 'script.args was not given and is ["x"]'),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=[sentence[:20] for _, sentence in CHANGES])
def test_another_job_does_not_go_on_from_these_checkpoints(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    begin(tmp_path, job())
    save(tmp_path, 5)
    with pytest.raises(RefusedJob) as caught:
        begin(tmp_path, job(**change))
    assert sentence in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert begin(tmp_path, job(**change), fresh=True) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"ddp": {"bucketCapMB": 2}},
        {"recovery": {"maxRestarts": 9}},
        {"checkpoint": {"everySteps": 9}},
        {"processesPerNode": 2},
        {"task": {**TASK, "epochs": 9}},
    ],
)
def test_what_does_not_touch_the_state_may_change(tmp_path: Path, change: dict[str, Any]) -> None:
    begin(tmp_path, job())
    save(tmp_path, 5)
    assert begin(tmp_path, job(**change)) == "resuming from step 5; --fresh starts over"


def test_nodes_with_one_shared_directory_may_change_in_number(tmp_path: Path) -> None:
    shared = {"persistentVolumeClaim": "claim"}
    begin(tmp_path, job(checkpoint=shared))
    write(tmp_path / "checkpoints" / "step-00000005")
    assert begin(tmp_path, job(checkpoint=shared, nodes=3)) == "resuming from step 5; --fresh starts over"


def test_a_script_is_told_where_its_own_state_is(tmp_path: Path) -> None:
    script = {"task": None, "script": {"args": ["x"]}}
    begin(tmp_path, job(**script))
    (tmp_path / "node-0" / "checkpoints").mkdir(parents=True)
    (tmp_path / "node-0" / "checkpoints" / "model.pt").touch()
    said = begin(tmp_path, job(**script))
    assert said is not None
    assert f"the program finds what it saved in {tmp_path}/node-0/checkpoints" in said


def test_each_run_outranks_the_ones_before(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with JobDirectory(tmp_path, job()) as home:
            numbers.append(home.started())
            home.new_token()
            assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
        assert not home.run.exists()
    assert numbers == [0, 1, 2]


@pytest.mark.parametrize(
    "state", ["", "{bad", "[]", '{"run": "x"}', '{"run": 1e400}', '{"run": -7}', '{"run": true}']
)
def test_a_damaged_note_is_no_note_and_the_term_beside_the_checkpoints_is_outranked(
    tmp_path: Path, state: str
) -> None:
    (tmp_path / "state.json").write_text(state)
    with JobDirectory(tmp_path, job()) as home:
        assert home.started() == 0
    (tmp_path / "state.json").write_text(state)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "term").write_text("6")
    with JobDirectory(tmp_path, job()) as home:
        assert home.started() + 1 > 6


def prepare(folder: Path) -> None:
    with JobDirectory(folder, job()) as home, home.in_words():
        home.begin(fresh=False)
        home.paths(0)
        home.started()
        home.new_token()


IN_THE_WAY = {
    "run": "run: File exists",
    "state.json": "state.json: Is a directory",
    "token": "token: Is a directory",
    "node-0/log": "node-0/log: Is a directory",
    "node-0 (a file)": "node-0: File exists",
    "full disk": "No space left on device",
}


@pytest.mark.parametrize(("what", "sentence"), IN_THE_WAY.items())
def test_what_is_in_the_way_is_named_and_nothing_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, sentence: str
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(directory, "SHARED_MEMORY", memory)
    place = tmp_path / "job"
    place.mkdir()
    if what == "full disk":
        monkeypatch.setattr(os, "ftruncate", lambda descriptor, size: None)  # a device has no size
        (place / "lock").symlink_to("/dev/full")
    elif what.endswith("(a file)"):
        (place / "node-0").touch()
    else:
        (place / what / "full").mkdir(parents=True)
    with pytest.raises(Unusable) as caught:
        prepare(place)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("or choose another place with --dir")
    assert not list(memory.iterdir())


def test_the_last_words_need_no_room_on_a_full_disk(tmp_path: Path) -> None:
    with JobDirectory(tmp_path, job()) as home:
        assert home.paths(0).termination.is_relative_to(home.run)


def test_what_a_killed_run_left_in_memory_is_removed_by_the_next(tmp_path: Path) -> None:
    killed = JobDirectory(tmp_path, job())
    killed.__enter__()
    left = killed.run
    os.close(killed.lock_descriptor)
    assert left.is_dir()
    with JobDirectory(tmp_path, job()) as home:
        assert home.run != left
        assert not left.exists()
