"""What must be true under failure, row by row; most of them happen to one training, whose end must be undisturbed.

A row waits until the training makes steps, does one thing, and asserts what follows: what happens, what it is counted
as, what the user sees. Its line in the table says how long it took until all ranks made a step again.
"""

import signal
from collections.abc import Iterator

import pytest
from tests.chaos.faults import LAUNCHER, WORKER, Faults, now
from tests.chaos.table import Incident, Table
from tests.chaos.training import BATCH, SLOW, SMALL, STEPS, Training, start
from tests.cluster.harness.errors import TimedOut
from tests.cluster.harness.waiting import eventually
from tests.cluster.installation import Installation
from tests.cluster.jobs import condition, is_true

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]
slow = pytest.mark.slow
"""Not in `make test`, where a few rows must do."""


class Supply:
    """The training that is broken; another one where a row has left it beyond repair."""

    def __init__(self, installation: Installation, namespace: str) -> None:
        self.installation, self.namespace = installation, namespace
        self.made = 0
        self.current: Training | None = None

    def training(self) -> Training:
        if self.current is not None:
            try:
                self.current.until_stepping(60)
                return self.current
            except TimedOut:
                self.current.job.delete()
        self.made += 1
        self.current = start(self.installation.cluster, self.namespace, f"broken{self.made}")
        return self.current


@pytest.fixture(scope="module")
def supply(installation: Installation, namespace: str) -> Iterator[Supply]:
    one = Supply(installation, namespace)
    yield one
    if one.current is not None:
        one.current.job.delete()


@pytest.fixture
def training(supply: Supply) -> Training:
    return supply.training()


# ---- a worker ends


PROGRAM_FAILURES = [
    pytest.param("raise", 1, None, "ValueError: bad sample 17", id="exception"),
    pytest.param("exit", 3, None, "SystemExit: 3", id="exit-3", marks=slow),
    pytest.param("segv", 139, "SIGSEGV", "died of SIGSEGV", id="segv", marks=slow),
    pytest.param("abort", 134, "SIGABRT", "std::terminate", id="abort-in-c++", marks=slow),
]


@pytest.mark.parametrize(("what", "code", "name", "words"), PROGRAM_FAILURES)
def test_a_failure_of_the_program_is_a_restart_in_place_and_names_its_rank(
    training: Training, table: Table, what: str, code: int, name: str | None, words: str
) -> None:
    with table.row(f"rank 1: {words}") as row:
        incident = Incident.before(training, row)
        pod = training.rank_pod(1)
        incident.begins()
        training.fault(1, what)
        status = incident.recovered(restarts=1)
        incident.kept(0, 1)
        failure = status["lastFailure"]
        assert (failure["rank"], failure["exitCode"], failure.get("signal")) == (1, code, name)
        assert failure["message"] == words
        assert failure["pod"] == pod["metadata"]["name"]
        assert failure["hostNode"] == pod["spec"]["nodeName"]
        assert "also" not in failure, "another rank is blamed"
        if what == "raise":
            assert failure["location"].startswith("program.py:") or "/program.py:" in failure["location"]


@slow
def test_a_killed_worker_is_a_restart_in_place(training: Training, faults: Faults, table: Table) -> None:
    with table.row("worker of rank 1: SIGKILL") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.kill_worker(training, 1)
        failure = incident.recovered(restarts=1)["lastFailure"]
        incident.kept(0, 1)
        assert (failure["rank"], failure["signal"], failure["exitCode"]) == (1, "SIGKILL", 137)


@slow
def test_a_program_that_uses_up_its_memory_is_said_to(training: Training, table: Table) -> None:
    with table.row("rank 1: out of memory") as row:
        incident = Incident.before(training, row)
        incident.begins()
        training.fault(1, "memory")
        failure = incident.recovered(restarts=1)["lastFailure"]
        assert failure["reason"] == "OOMKilled"
        assert failure["node"] == 1
        # The worker alone was killed (the launcher's words), or its whole container (the operator's).
        assert f"ran out of memory (limit {SMALL['limits']['memory']}) and was killed" in failure["message"]


# ---- a pod goes


@slow
def test_a_deleted_pod_is_replaced_while_the_other_stays(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("pod 1 deleted") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.delete(training, 1)
        incident.recovered(disruptions=1)
        incident.kept(0)


@slow
def test_an_evicted_pod_is_replaced_while_the_other_stays(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("pod 1 evicted") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.evict(training, 1)
        incident.recovered(disruptions=1)
        incident.kept(0)


@slow
@pytest.mark.parametrize("index", [1, 0])
def test_a_killed_launcher_is_a_lost_pod(
    training: Training, faults: Faults, table: Table, index: int
) -> None:
    with table.row(f"launcher of pod {index}: SIGKILL") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.kill_launcher(training, index)
        incident.recovered(disruptions=1)
        incident.kept(1 - index)


@slow
def test_a_deleted_coordinator_is_replaced_while_the_other_stays(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("pod 0 deleted") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.delete(training, 0)
        incident.recovered(disruptions=1)
        incident.kept(1)


def test_all_pods_lost_at_once_is_one_disruption(training: Training, faults: Faults, table: Table) -> None:
    with table.row("all containers: SIGKILL") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.kill_containers(training, 0, 1)
        incident.recovered(disruptions=1)


@slow
def test_all_pods_deleted_at_once_is_one_disruption(training: Training, faults: Faults, table: Table) -> None:
    with table.row("all pods deleted") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.delete(training, 0, 1)
        incident.recovered(disruptions=1)


# ---- the network


def test_parted_pods_go_on_when_they_are_joined(training: Training, faults: Faults, table: Table) -> None:
    with table.row("pods parted until the loss is seen") as row:
        incident = Incident.before(training, row)
        join = faults.part(training)
        missing = training.job.until(
            lambda job: (
                "the launchers of 1 have not joined" in condition(job, "RendezvousReady").get("message", "")
            ),
            "the missing rank is named",
            60,
        )
        assert missing["status"]["state"] == "Restarting"
        join()
        incident.begins()
        incident.recovered(disruptions=1)
        incident.kept(0, 1)


@slow
@pytest.mark.parametrize(("index", "seconds"), [(1, 60), (0, 120)])
def test_a_launcher_that_stands_still_is_a_lost_one_until_it_moves_again(
    training: Training, faults: Faults, table: Table, index: int, seconds: float
) -> None:
    """That of pod 0 is the coordinator: the status knows once the operator no longer waits for its answer."""
    with table.row(f"launcher of pod {index}: SIGSTOP for some seconds") as row:
        incident = Incident.before(training, row)
        one = faults.process(training, index, LAUNCHER)
        go_on = faults.freeze(one)
        training.job.until(lambda job: not is_true("Running")(job), "it does not run", seconds)
        incident.begins()
        go_on()
        incident.recovered(disruptions=1)
        incident.kept(0, 1)


@slow
def test_a_worker_that_stands_still_for_a_moment_is_no_incident(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("worker of rank 1: SIGSTOP, SIGCONT") as row:
        incident = Incident.before(training, row)
        go_on = faults.freeze(faults.process(training, 1, WORKER))
        eventually(lambda: training.seconds_without_a_step() > 2, 60, "no step is made")
        incident.begins()
        go_on()
        incident.undisturbed()


# ---- the cluster around it


@slow
def test_a_killed_operator_is_not_noticed(training: Training, faults: Faults, table: Table) -> None:
    with table.row("operator: SIGKILL") as row:
        incident = Incident.before(training, row)
        incident.begins()
        faults.kill_operator()
        incident.undisturbed()
        incident.kept(0, 1)


@slow
def test_without_an_operator_the_ranks_restart_and_it_catches_up(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("operator down, then a worker killed") as row:
        incident = Incident.before(training, row)
        back = faults.stop_operator()
        incident.begins()
        faults.kill_worker(training, 1)
        first = training.until_first_step(incident.life)
        back()
        incident.settled(first, restarts=1)
        incident.kept(0, 1)


@slow
def test_the_training_goes_on_without_an_api_server(training: Training, faults: Faults, table: Table) -> None:
    with table.row("API server down, and a worker killed") as row:
        incident = Incident.before(training, row)
        worker = faults.process(training, 1, WORKER)
        with faults.api_server_down():
            incident.begins()
            faults.cluster.kill(worker)
            first = training.until_first_step(incident.life)
        incident.settled(first, restarts=1)
        incident.kept(0, 1)


@slow
@pytest.mark.parametrize(("kind", "suffix"), [("service", ""), ("secret", "-token")])
def test_what_is_deleted_by_hand_is_back_and_nobody_noticed(
    training: Training, faults: Faults, table: Table, kind: str, suffix: str
) -> None:
    with table.row(f"{kind} deleted by hand") as row:
        incident = Incident.before(training, row)
        name = f"{training.job.name}{suffix}"
        uid = training.cluster.get(kind, name, namespace=training.namespace)["metadata"]["uid"]
        incident.begins()
        faults.delete_object(training, kind, name)
        training.cluster.wait_until(
            kind,
            name,
            lambda seen: seen["metadata"]["uid"] != uid,
            namespace=training.namespace,
            timeout=15,
            describe=f"{kind} {name} is back",
        )
        incident.undisturbed()
        # Replacements must come to terms with those that know the old one.
        again = Incident.before(training, row)
        again.begins()
        faults.delete(training, 1)
        again.recovered(disruptions=1)


@slow
def test_pods_outlive_their_kubelet(training: Training, faults: Faults, table: Table) -> None:
    with table.row("kubelet of pod 1's node ended, and a worker killed") as row:
        incident = Incident.before(training, row)
        start_again = faults.end_kubelet(training.rank_pod(1)["spec"]["nodeName"])
        incident.begins()
        faults.kill_worker(training, 1)
        first = training.until_first_step(incident.life)
        incident.settled(first, restarts=1)
        start_again()
        incident.kept(0, 1)


# ---- checkpoints


def test_a_full_disk_costs_checkpoints_and_not_the_training(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("checkpoint disk full") as row:
        incident = Incident.before(training, row)
        incident.begins()
        make_room = faults.fill_disk(training)

        def rank_0_says_so() -> bool:
            faults.fill_again(training)
            return "could not be written" in training.job.logs(training.rank_pod(0)["metadata"]["name"])

        eventually(
            rank_0_says_so,
            30,
            "rank 0 says that a checkpoint could not be written",
        )
        training.job.until(
            lambda job: condition(job, "Running").get("reason") == "CheckpointFailed",
            "the condition Running says that checkpoints fail",
        )
        incident.undisturbed()
        make_room()
        training.until_saved(now())


@slow
def test_a_worker_killed_while_the_disk_is_full_goes_on_from_the_last_whole_checkpoint(
    training: Training, faults: Faults, table: Table
) -> None:
    with table.row("checkpoint disk full, and a worker killed") as row:
        incident = Incident.before(training, row)
        make_room = faults.fill_disk(training)
        incident.begins()
        faults.kill_worker(training, 0)
        incident.recovered(restarts=1)
        make_room()


def test_a_damaged_checkpoint_is_passed_over(training: Training, faults: Faults, table: Table) -> None:
    with table.row("newest checkpoint cut in half, and a worker killed") as row:
        incident = Incident.before(training, row)
        training.pace(2.0)
        training.until_saved(now())  # the next one is some slow steps away, so none comes in between
        newest = faults.damage_newest(training)
        incident.begins()
        faults.kill_worker(training, 1, signal.SIGKILL)
        incident.recovered(restarts=1)
        training.job.until(
            lambda job: (
                condition(job, "Running").get("reason") == "CheckpointDamaged"
                and newest.name in condition(job, "Running")["message"]
            ),
            "the condition Running says which checkpoint was passed over",
            60,
        )
        training.pace(SLOW)
        resumed = next(iter(training.journal.lives(incident.life).values()))[0].resumed
        assert resumed < int(newest.name[5:])


# ---- the end


def test_the_final_weights_are_those_of_an_undisturbed_training(
    training: Training, table: Table, calm: str
) -> None:
    with table.row("all of it in one training: the final weights") as row:
        result = training.finish()["result"]
        row.repeated, row.lost = training.journal.repeated_and_lost()
        row.counted = result["parameterHash"]
        assert result["parameterHash"] == calm
        assert (row.repeated, row.lost) == (0, 0)
        assert len(training.journal.used()) == STEPS * BATCH
