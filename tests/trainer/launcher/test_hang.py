"""Real launchers on loopback: a rank that makes no steps is found, looked at, named and started again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.launcher.local import LocalJob, eventually
from tests.trainer.launcher.test_scenarios import script

from ddpjob_api.codec import load
from ddpjob_api.conditions import Reason
from ddpjob_api.page import Phase, Slot, WorkerState
from ddpjob_api.postmortem import LOG_MARK
from ddpjob_api.report import Failure
from ddpjob_cli.cluster.hangs import parts_in
from ddpjob_cli.hangs import put_together
from ddpjob_cli.lines import OWN
from ddpjob_trainer.launcher.watchdog import Watchdog, waits
from ddpjob_trainer.page import Page

pytestmark = pytest.mark.timeout(120)
MakeJob = Callable[..., LocalJob]
STEPS = Slot.GENERATION_STEPS
RUN_SECONDS = 60
RECOVERY = {"gracePeriodSeconds": 10, "progressTimeoutSeconds": 4}

HANGS = [
    # fault, seconds until the collective's time-out, and until the watchdog's; what is said
    ("hang", 60, 4, "no step for", "in misbehave after step 2"),
    ("stop", 60, 4, "no step for", "its process is stopped (SIGSTOP)"),
    ("stop", 1, 30, "Timed out waiting", "its process is stopped"),
    pytest.param("hang", 1, 30, "Timed out waiting", "in misbehave after step 2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("fault", "together", "limit", "seen", "doing"), HANGS)
def test_the_rank_that_stands_still_is_named_and_all_start_again(
    job: MakeJob, tmp_path: Path, fault: str, together: int, limit: int, seen: str, doing: str
) -> None:
    faults = {"1": {"1": fault}, "2": {"0": "wait"}}
    program = script(20, faults=faults, state=str(tmp_path), together=together)
    recovery = {**RECOVERY, "progressTimeoutSeconds": limit}
    run = job(2, program, recovery=recovery, checkpoint={"everySteps": 1000})
    first, second = (run.launch(node, DDPJOB_POD_UID=f"uid-{node}") for node in (0, 1))
    first.wrote("[rank 0] generation 2")
    failure = run.report().last_failure
    (tmp_path / "go").touch()
    assert failure is not None
    assert (failure.reason, failure.exit_code, failure.rank) == (Reason.NO_PROGRESS, 87, 1)
    assert seen in failure.message
    assert doing in failure.message
    assert "rank 1 (pod test-1)" in first.output
    assert "program.py:" in str(failure.location)
    kept = tmp_path / "checkpoints" / "post-mortem" / "generation-1"
    assert {path.name for path in kept.iterdir()} >= {"rank-1.txt", "rank-1.json"}
    assert "in misbehave" in (kept / "rank-1.txt").read_text()
    assert json.loads((kept / "rank-1.json").read_text())["view"]["step"] == 2
    assert [first.code(), second.code()] == [0, 0]
    assert (first.message.restarts, first.message.disruptions) == (1, 0)
    verdict = load(Failure, json.loads((kept / "verdict.json").read_text()))
    assert verdict == failure
    lines = (first.output + second.output).splitlines()
    found = put_together(parts_in([line for line in lines if line.startswith(OWN + LOG_MARK)]))
    assert found is not None and found.verdict == verdict
    assert [(rank.view.rank, rank.node) for rank in found.ranks] == [(1, 1), (0, 0)]
    culprit, witness = (rank.stacks for rank in found.ranks)
    assert "in misbehave" in culprit
    assert "in meet" in witness if together > 1 else not witness, "one whose time was out has ended"
    assert found.ranks[0].view.stopped == (fault == "stop")
    spent = first.message.spent
    assert spent is not None and second.message.spent == spent
    assert spent.times.hang_seconds >= 0.9  # of the four before the verdict, or of the time-out
    assert 0 < spent.times.repeated_seconds < spent.times.useful_seconds
    assert spent.times.total < RUN_SECONDS


def test_a_rank_that_saves_alone_keeps_the_ranks_of_other_nodes_from_being_called_hung(
    job: MakeJob, tmp_path: Path
) -> None:
    program = script(6, faults={"1": {"0": "save alone"}}, state=str(tmp_path), together=60)
    first, second = job(2, program, recovery={**RECOVERY, "maxRestarts": 0}).launch_all()
    assert [first.code(), second.code()] == [0, 0], first.output


def test_a_hang_without_a_restart_left_ends_with_87(job: MakeJob, tmp_path: Path) -> None:
    program = script(20, faults={"1": {"0": "hang"}}, state=str(tmp_path), together=60)
    run = job(1, program, recovery={**RECOVERY, "maxRestarts": 0})
    (launcher,) = run.launch_all()
    assert launcher.code() == 87
    failure = launcher.message.failure
    assert failure is not None and failure.reason is Reason.NO_PROGRESS
    assert "misbehave after step 2" in launcher.message.message
    assert (run.folder / "run-n0-i0" / "post-mortem" / "generation-1" / "rank-0.txt").exists()


LIMIT = 10.0
LOOKS: list[tuple[str, list[tuple[float, dict[Slot, float]]], float | None]] = [
    # (seconds, what the page says then), …: for how long nothing was seen at the last look
    ("a step now and then", [(0, {}), (1, {STEPS: 1}), (9, {STEPS: 2}), (18, {})], None),
    ("no step any more", [(0, {}), (1, {STEPS: 1}), (11, {})], 10.0),
    ("the first step may take ten times as long", [(0, {}), (99, {})], None),
    ("and no longer", [(0, {}), (100, {})], 100.0),
    ("an evaluation too", [(0, {STEPS: 1}), (5, {Slot.PHASE: Phase.EVALUATION}), (104, {})], None),
    ("and no longer than that", [(0, {STEPS: 1}), (5, {Slot.PHASE: Phase.CHECKPOINT}), (105, {})], 100.0),
    (
        "after it the clock begins anew",
        [(0, {STEPS: 1}), (5, {Slot.PHASE: Phase.EVALUATION}), (90, {Slot.PHASE: 0}), (99, {})],
        None,
    ),
    (
        "held by us",
        [(0, {STEPS: 1}), (5, {Slot.PHASE: Phase.PAUSED}), (500, {}), (501, {Slot.PHASE: 0})],
        None,
    ),
    ("ending", [(0, {STEPS: 1}), (5, {Slot.STATE: WorkerState.EXITING}), (90, {})], None),
]


@pytest.mark.parametrize(("looks", "idle"), [case[1:] for case in LOOKS], ids=[case[0] for case in LOOKS])
def test_a_rank_is_overdue_by_its_steps_and_its_phase(
    tmp_path: Path, looks: list[tuple[float, dict[Slot, float]]], idle: float | None
) -> None:
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.TORCH_IMPORTED_AT] = 1
        watched, off = Watchdog(LIMIT), Watchdog(0.0)
        found: float | None = None
        for now, says in looks:
            for slot, value in says.items():
                page[slot] = value
            found = watched.overdue({0: page}, now)
            assert off.overdue({0: page}, now) is None
    assert found == idle


SAVES = {STEPS: 4, Slot.STEP: 4, Slot.PHASE: Phase.CHECKPOINT}
PEERS: list[tuple[str, dict[Slot, float], int | None, int, float | None]] = [
    # what the other rank's page says, what the coordinator does; steps of the rank that waits; when it is overdue
    ("it saves", SAVES, None, 4, 100.0),
    ("it evaluates", {**SAVES, Slot.PHASE: Phase.EVALUATION, Slot.PHASE_SINCE: 95}, None, 4, 100.0),
    ("it evaluated last", {**SAVES, Slot.PHASE: Phase.EVALUATION, Slot.PHASE_SINCE: -20}, None, 4, 10.0),
    ("it is not measured any more", {**SAVES, Slot.UNMEASURED: 1}, None, 4, 10.0),
    ("it saves on another node", {STEPS: 4, Slot.STEP: 4}, 4, 4, 100.0),
    ("nobody does", {STEPS: 4, Slot.STEP: 4}, None, 4, 10.0),
    ("who is behind does not wait for it", SAVES, None, 3, 10.0),
    ("nor on another node", {STEPS: 4, Slot.STEP: 4}, 4, 3, 10.0),
    ("its program has ended", {**SAVES, Slot.STATE: WorkerState.EXITING}, None, 4, 10.0),
]


@pytest.mark.parametrize(
    ("other", "elsewhere", "steps", "due"), [case[1:] for case in PEERS], ids=[case[0] for case in PEERS]
)
def test_who_waits_for_a_rank_that_saves_is_no_hang(
    tmp_path: Path, other: dict[Slot, float], elsewhere: int | None, steps: int, due: float
) -> None:
    with Page(tmp_path / "0", create=True) as saving, Page(tmp_path / "1", create=True) as waiting:
        for slot, value in other.items():
            saving[slot] = value
        waiting[STEPS] = waiting[Slot.STEP] = steps
        watched = Watchdog(LIMIT)
        pages = {0: saving, 1: waiting}
        assert watched.overdue(pages, 0.0, elsewhere) is None
        assert watched.overdue(pages, due - 1, elsewhere) is None
        assert watched.overdue(pages, due, elsewhere) == due


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [(Phase.BACKWARD, 7.0), (Phase.FORWARD, 7.0), (Phase.BETWEEN, 0.0), (Phase.CHECKPOINT, 0.0)],
)
def test_only_within_a_step_a_rank_waits_for_others(tmp_path: Path, phase: Phase, seconds: float) -> None:
    with Page(tmp_path / "page", create=True) as page:
        page[Slot.PHASE], page[Slot.PHASE_SINCE] = phase, 100.0
        assert waits([page], 107.0) == seconds
    assert waits([], 107.0) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_rank_that_ends_early_is_named_by_a_watch_of_its_own(job: MakeJob, tmp_path: Path) -> None:
    faults = {"1": {"1": "exit 0"}, "2": {"0": "wait"}}
    program = script(20, faults=faults, state=str(tmp_path), together=600)
    first, second = (run := job(2, program, recovery={"gracePeriodSeconds": 10})).launch_all()
    eventually(lambda: "[rank 0] generation 2" in first.output, "the next generation", 120)
    failure = run.report().last_failure
    (tmp_path / "go").touch()
    assert failure is not None and failure.rank == 1 and failure.reason is Reason.NO_PROGRESS
    assert "it had ended with exit code 0 after step 2, while rank 0 went on to step 3" in failure.message
    assert [first.code(), second.code()] == [0, 0]


def test_a_command_without_ranks_cannot_be_watched_and_says_so_once(job: MakeJob) -> None:
    run = job(1, {"command": ["sleep", "3"]}, recovery={**RECOVERY, "progressTimeoutSeconds": 1})
    (launcher,) = run.launch_all()
    assert launcher.code() == 0
    assert (
        launcher.output.count("progressTimeoutSeconds has no effect so far: the command has started no") == 1
    )


ELSEWHERE = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    again = [sys.executable, __file__, "x"]
    sys.exit(subprocess.run(again).returncode) if KIND == "child" else os.execv(sys.executable, again)
time.sleep(25)
"""


@pytest.mark.parametrize("kind", ["child", pytest.param("exec", marks=pytest.mark.slow)])
def test_a_script_that_trains_in_another_process_is_not_hung_and_is_told(
    job: MakeJob, tmp_path: Path, kind: str
) -> None:
    """Its limit is 1 s, and ten times as long before the first step."""
    (tmp_path / "train.py").write_text(ELSEWHERE.replace("KIND", repr(kind)))
    program = {"script": {"args": [str(tmp_path / "train.py")]}, "ddp": {"bucketCapMB": 1}}
    run = job(1, program, recovery={**RECOVERY, "progressTimeoutSeconds": 1, "maxRestarts": 0})
    (launcher,) = run.launch_all()
    assert launcher.code() == 0, launcher.output
    said = (
        "spec.ddp and recovery.progressTimeoutSeconds have no effect so far: no process of the script itself"
    )
    assert launcher.output.count(said) == 1


@pytest.mark.parametrize("slot", [Slot.TORCH_IMPORT_AT, Slot.TORCH_IMPORTED_AT])
def test_a_rank_is_watched_before_it_imports_torch_where_another_has_or_began_to(
    tmp_path: Path, slot: Slot
) -> None:
    """All may hang in that import, of a file system that does not answer."""
    with Page(tmp_path / "0", create=True) as first, Page(tmp_path / "1", create=True) as second:
        pages, watched = {0: first, 1: second}, Watchdog(LIMIT)
        assert [watched.overdue(pages, now) for now in (0.0, 500.0)] == [None, None]
        first[slot] = 1
        assert [watched.overdue(pages, now) for now in (500.0, 599.0, 600.0)] == [None, None, 100.0]


SLEEPS = """
import os, signal, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def load():
    here = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], step)
    if here == ("0", "1", 3):
        if "again" in os.environ["DDPJOB_TEST"]:
            raise ValueError("torchrun starts its ranks again")
        time.sleep(600)
    if here == ("1", "0", 2):
        os.kill(os.getpid(), signal.SIGSTOP)


for step in range(6):
    load()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_a_rank_below_torchrun_that_stands_still_is_named(job: MakeJob, tmp_path: Path) -> None:
    """With torch, as a command that starts its ranks itself."""
    (tmp_path / "train.py").write_text(SLEEPS)
    recovery = {"gracePeriodSeconds": 5, "progressTimeoutSeconds": 5, "maxRestarts": 0}
    program = {"command": ["torchrun", str(tmp_path / "train.py")]}
    run = job(1, program, recovery=recovery, processesPerNode=2)
    launcher = run.launch(0, DDPJOB_TEST="once")
    assert launcher.code() == 87, launcher.output
    failure = launcher.message.failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.step) == (Reason.NO_PROGRESS, 1, 3), launcher.output
    assert "train.py:15 in load after step 3" in failure.message
    assert verdicts(run.folder) == [failure]
    stacks = [path.read_text() for path in run.folder.glob("run-*/post-mortem/generation-1/rank-*.txt")]
    assert len(stacks) == 2 and all("Current thread" in text for text in stacks)
    assert "no effect" not in launcher.output


@pytest.mark.slow
def test_a_rank_that_torchrun_has_started_again_is_watched_anew(job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPS)
    recovery = {"gracePeriodSeconds": 5, "progressTimeoutSeconds": 5, "maxRestarts": 0}
    program = {"command": ["torchrun", "--standalone", "--max_restarts", "1", str(tmp_path / "train.py")]}
    run = job(1, program, recovery=recovery, processesPerNode=2)
    launcher = run.launch(0, DDPJOB_TEST="again")
    assert launcher.code() == 87, launcher.output
    assert "ValueError: torchrun starts its ranks again" in launcher.output
    (failure,) = verdicts(run.folder)
    assert (failure.reason, failure.rank, failure.step) == (Reason.NO_PROGRESS, 0, 2), launcher.output
    assert "its process is stopped (SIGSTOP)" in failure.message
    assert "in load" in next(run.folder.glob("run-*/post-mortem/generation-1/rank-0.txt")).read_text()


@pytest.mark.slow
def test_a_time_out_below_torchrun_names_the_rank_that_was_waited_for(job: MakeJob, tmp_path: Path) -> None:
    """And not the one that gave up, nor the one that torchrun then ended: it is that rank, and left no stacks."""
    (tmp_path / "train.py").write_text(SLEEPS)
    program = {"command": ["torchrun", str(tmp_path / "train.py")], "ddp": {"timeoutSeconds": 10}}
    run = job(1, program, recovery={"gracePeriodSeconds": 5, "maxRestarts": 0}, processesPerNode=2)
    launcher = run.launch(0, DDPJOB_TEST="once")
    assert launcher.code() == 87, launcher.output
    failure = launcher.message.failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.step) == (Reason.NO_PROGRESS, 1, 3), launcher.output
    assert "rank 0 waited for it until the time-out" in failure.message


SKIPS = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def settle():
    dist.barrier()  # the other rank goes on to the next gradients


for step in range(6):
    here = (os.environ["DDPJOB_GENERATION"], os.environ["RANK"], step) == ("1", "1", 3)
    if here and BEFORE:
        settle()
    loss = model(torch.ones(2, 4)).sum()
    if here:
        settle()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize("before", [True, False], ids=["before the forward pass", "before the backward pass"])
def test_a_rank_in_a_collective_that_the_other_skips_is_named(
    job: MakeJob, tmp_path: Path, before: bool
) -> None:
    """With torch: both are in a collective, and only one of them in that of this step."""
    (tmp_path / "train.py").write_text(SKIPS.replace("BEFORE", str(before)))
    recovery = {"gracePeriodSeconds": 5, "progressTimeoutSeconds": 15, "warmStandby": False, "maxRestarts": 0}
    run = job(2, {"script": {"args": [str(tmp_path / "train.py")]}}, recovery=recovery)
    first, second = run.launch_all()
    eventually(lambda: second.process.poll() is not None, "the end", 300)
    assert second.code() == 87, first.output
    (failure,) = verdicts(run.folder)
    assert (failure.reason, failure.rank, failure.step) == (Reason.NO_PROGRESS, 1, 3)
    assert "train.py:11 in settle" in failure.message
    stacks = [path.read_text() for path in run.folder.glob("run-*/post-mortem/generation-1/rank-*.txt")]
    assert len(stacks) == 2 and all("Current thread" in text for text in stacks)


def verdicts(folder: Path) -> list[Failure]:
    return [
        load(Failure, json.loads(path.read_text())) for path in folder.glob("**/post-mortem/*/verdict.json")
    ]
