"""A rank goes on in its standby after a failure, and nothing but time tells; without a usable one it starts anew."""

import json
import os
import signal
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.trainer.launcher.conftest import PROGRAM
from tests.trainer.launcher.local import LocalJob, Running, eventually
from tests.trainer.launcher.test_scenarios import gone

from ddpjob_api.names import GENERATION_ENV
from ddpjob_api.page import Slot
from ddpjob_trainer.page import Page

pytestmark = pytest.mark.timeout(300)
MakeJob = Callable[..., LocalJob]
STATE = Path(__file__).with_name("state.py")


def metric(job: LocalJob, name: str, node: int = 0) -> dict[str, float]:
    """A metric's values by rank."""
    try:
        text = job.http("/metrics", node=node)[1].decode()
    except urllib.error.URLError:  # not up yet
        return {}
    return {
        sample.labels["rank"]: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == f"ddpjob_trainer_{name}"
        for sample in family.samples
    }


def ready(job: LocalJob, *ranks: int) -> None:
    """Wait until the standbys of these ranks (one per node) wait."""
    for node, rank in enumerate(ranks):
        eventually(
            lambda node=node, rank=rank: metric(job, "standby_ready", node).get(str(rank)) == 1,
            f"the standby of rank {rank} to be ready",
            seconds=150,
        )


def worker_pid(job: LocalJob, node: int, rank: int, generation: int = 1) -> int:
    with Page(job.folder / f"run-n{node}-i0" / f"page-g{generation}-r{rank}") as page:
        return int(page[Slot.PID])


def standby_pids(launcher: Running) -> list[int]:
    """Children of a launcher that have not begun a generation."""
    children = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text()
    return [
        pid for pid in map(int, children.split()) if b"DDPJOB_STANDBY=" in Path(f"/proc/{pid}/environ").read_bytes()
    ]  # fmt: skip


def stepping(steps: int = 100000, **plan: Any) -> dict[str, Any]:
    return {"script": {"args": [str(PROGRAM), json.dumps({"steps": steps, **plan})]}}


def states(launcher: Running, times: int) -> list[Any]:
    launcher.wrote("STATE ", times)
    eventually(lambda: launcher.output.rpartition("STATE ")[2].count("\n"), "the whole line")
    return [
        json.loads(line.partition("STATE ")[2]) for line in launcher.output.splitlines() if "STATE " in line
    ]


def test_every_rank_goes_on_in_its_standby_and_the_job_ends_as_usual(job: MakeJob, tmp_path: Path) -> None:
    run = job(2, stepping(until=str(tmp_path / "end")))
    launchers = run.launch_all()
    ready(run, 0, 1)
    waiting = [standby_pids(launcher)[0] for launcher in launchers]
    os.kill(worker_pid(run, 1, 1), signal.SIGKILL)
    for rank, launcher in enumerate(launchers):
        launcher.wrote(f"[rank {rank}] generation 2 from step 0")
        assert metric(run, "warm_starts", rank) == {str(rank): 1}
        assert worker_pid(run, rank, rank, generation=2) == waiting[rank]
    (tmp_path / "end").touch()
    assert [launcher.code() for launcher in launchers] == [0, 0]
    assert launchers[0].message.restarts == 1
    assert all(gone(pid) for pid in waiting)


@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_cannot_tell_its_standby_from_a_fresh_process(
    torch: bool, job: MakeJob, tmp_path: Path
) -> None:
    plan = {
        "imports": ["yaml", "torch", "torch._dynamo"] if torch else ["yaml", "multiprocessing"],
        "torch": torch,
        "until": str(tmp_path / "end"),
    }
    run = job(1, {"script": {"args": [str(STATE), json.dumps(plan), "--epochs", "3"]}})
    (launcher,) = run.launch_all()
    ready(run, 0)
    os.kill(worker_pid(run, 0, 0), signal.SIGKILL)
    cold, warm = states(launcher, 2)
    assert metric(run, "warm_starts") == {"0": 1}
    for each in (cold, warm):
        each["varying"] = {name: each["start"]["environ"].pop(name, None) for name in GENERATION_ENV}
        del each["start"]["environ"]["DDPJOB_WORKER_PID"]
    assert warm["start"] == cold["start"]
    assert warm["imported"] == cold["imported"]
    assert warm["varying"]["MASTER_PORT"] != cold["varying"]["MASTER_PORT"]
    assert warm["varying"]["DDPJOB_GENERATION"] == "2"
    Path(plan["until"]).touch()
    assert launcher.code() == 0


@pytest.mark.parametrize("how", ["dead", "unfit"])
def test_a_standby_that_does_not_take_over_costs_a_fresh_start_and_nothing_else(
    how: str, job: MakeJob, tmp_path: Path
) -> None:
    """Dead before its order, or by it: packages were installed since it began."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "installed.py").write_text("")
    plan = {"imports": ["installed"], "until": str(tmp_path / "end")}
    run = job(1, {"script": {"args": [str(STATE), json.dumps(plan)]}})
    launcher = run.launch(0, PYTHONPATH=str(packages))
    ready(run, 0)
    (waiting,) = standby_pids(launcher)
    assert Path(f"/proc/{waiting}/oom_score_adj").read_text().strip() == "1000"
    if how == "dead":
        os.kill(waiting, signal.SIGKILL)
    else:
        (packages / "another.py").write_text("")
    os.kill(worker_pid(run, 0, 0), signal.SIGKILL)
    states(launcher, 2)
    assert metric(run, "warm_starts") == {"0": 0}
    assert gone(waiting)
    if how == "unfit":
        assert "rank 0: its standby did not take over (packages were installed" in launcher.output
    Path(plan["until"]).touch()
    assert launcher.code() == 0
    assert launcher.message.restarts == 1


@pytest.mark.parametrize("when", ["just started", "importing"])
def test_a_standby_does_not_outlive_a_launcher_that_is_killed(
    when: str, job: MakeJob, tmp_path: Path
) -> None:
    """Nor one that is stopped, as its launcher stops one that has had enough of a core."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    begun = tmp_path / "begun"
    (packages / "slow.py").write_text(
        "import os, time\n"
        "if 'DDPJOB_PAGE' not in os.environ:\n"
        f"    open({str(begun)!r}, 'w').close()\n"
        "    while True: pass\n"
    )
    plan = json.dumps({"imports": ["slow"], "until": str(tmp_path / "end")})
    run = job(1, {"script": {"args": [str(STATE), plan]}})
    launcher = run.launch(0, PYTHONPATH=str(packages))
    (waiting,) = eventually(lambda: standby_pids(launcher), "a standby")
    if when == "importing":
        eventually(begun.exists, "its import")
        # The launcher first, which would let it go on.
        for pid in (launcher.process.pid, waiting):
            os.kill(pid, signal.SIGSTOP)
            eventually(lambda pid=pid: process_state(pid) == "T", f"{pid} to be stopped")
    launcher.kill()
    eventually(lambda: gone(waiting), "its end")


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
