"""Rows that need a training of their own: other shapes, other settings, or an end."""

from collections.abc import Callable

import pytest
from tests.chaos.faults import Faults, now
from tests.chaos.table import Incident, Table
from tests.chaos.training import BATCH, STEPS, Training, undisturbed
from tests.cluster.harness.waiting import eventually
from tests.cluster.installation import Installation
from tests.cluster.jobs import condition

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_drained_node_loses_its_pod_and_the_other_stays(
    begin: Callable[..., Training], faults: Faults, table: Table
) -> None:
    with table.row("node of pod 1 drained") as row:
        training = begin("drained")
        incident = Incident.before(training, row)
        leaving = training.rank_pod(1)["spec"]["nodeName"]
        incident.begins()
        uncordon = faults.drain(training, leaving)
        incident.recovered(disruptions=1)
        incident.kept(0)
        assert training.rank_pod(1)["spec"]["nodeName"] != leaving
        uncordon()


def test_pod_0_and_another_lost_at_once_are_one_disruption_and_the_weights_are_the_same(
    installation: Installation, namespace: str, begin: Callable[..., Training], faults: Faults, table: Table
) -> None:
    with table.row("four pods, 0 and 2: SIGKILL at once") as row:
        training = begin("four", nodes=4)
        incident = Incident.before(training, row)
        incident.begins()
        faults.kill_containers(training, 0, 2)
        incident.recovered(disruptions=1)
        incident.kept(1, 3)
        result = training.finish(300)["result"]
        assert result["parameterHash"] == undisturbed(installation.cluster, namespace, world=4)


def test_of_two_live_launchers_of_pod_0_the_older_one_writes_nothing(
    begin: Callable[..., Training], faults: Faults, table: Table
) -> None:
    with table.row("pod 0 cut off and replaced while it lives, then joined again") as row:
        training = begin("twice")
        incident = Incident.before(training, row)
        node = training.rank_pod(0)["spec"]["nodeName"]
        join = faults.part(training)
        faults.cordon(node)
        start_kubelet = faults.end_kubelet(node)
        incident.begins()
        faults.delete(training, 0, force=True)  # its node cannot end it any more
        incident.recovered(disruptions=1)
        incident.kept(1)
        joined = now()
        join()
        term = training.journal.newest()[0]
        training.until_saved(joined)
        training.until_saved(now())
        old = {life: ranks for life, ranks in training.journal.lives().items() if life[0] < term}
        assert all(step["at"] < joined for ranks in old.values() for r in ranks.values() for step in r.steps)
        assert training.journal.newest()[0] == term
        assert training.journal.repeated_and_lost() == (0, 0)
        start_kubelet()


def test_without_a_claim_the_survivor_gives_its_copy_to_the_replacement(
    begin: Callable[..., Training], faults: Faults, table: Table, calm: str
) -> None:
    with table.row("no claim: pod 1 deleted, then pod 0") as row:
        training = begin("unclaimed", checkpoint={"everySteps": 4})
        for index in (1, 0):
            incident = Incident.before(training, row)
            eventually(
                lambda: training.status().get("progress", {}).get("checkpointStep", 0) > 0,
                60,
                "a checkpoint is complete on both nodes",
            )
            incident.begins()
            faults.delete(training, index)
            incident.recovered(disruptions=1)
            incident.kept(1 - index)
            resumed = {r.resumed for r in training.journal.lives()[training.journal.newest()].values()}
            assert min(resumed) > 0, "it started anew"
        result = training.finish()["result"]
        assert result["parameterHash"] == calm


def test_a_gang_that_never_meets_gives_its_nodes_back_and_says_who_was_missing(
    installation: Installation, begin: Callable[..., Training], table: Table
) -> None:
    with table.row("the launcher of pod 1 never starts") as row:
        never = {
            "name": "never",
            "image": installation.cluster.images.trainer,
            "command": ["sh", "-c", "case $(hostname) in *-1) exec sleep 3600;; esac"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        training = begin(
            "parted-gang",
            recovery={"rendezvousTimeoutSeconds": 15, "gracePeriodSeconds": 5},
            init=never,
        )
        waits = training.job.until(
            lambda job: condition(job, "PodsReady").get("reason") == "RendezvousTimeout",
            "its pods are given back",
            120,
        )
        assert "1 of 3 attempts" in condition(waits, "PodsReady")["message"]
        eventually(lambda: not training.job.live(), 60, "no pod holds a node between two attempts")
        failed = condition(training.job.until_true("Failed", 400), "Failed")
        row.counted = "nothing"
        assert failed["reason"] == "RendezvousTimeout"
        assert "in 3 attempts" in failed["message"]
        status = training.status()
        assert status.get("restarts", 0) == status.get("disruptions", 0) == 0


def test_two_operators_at_once_count_once_and_make_one_replacement(
    begin: Callable[..., Training], faults: Faults, table: Table
) -> None:
    with table.row("two operators, pod 1 deleted") as row:
        training = begin("operators")
        incident = Incident.before(training, row)
        faults.second_operator()
        incident.begins()
        faults.delete(training, 1)
        incident.recovered(disruptions=1)
        incident.kept(0)
        assert len(training.job.live()) == 2


def test_pods_that_finish_and_are_removed_without_an_operator_are_a_complete_job(
    namespace: str, begin: Callable[..., Training], faults: Faults, table: Table, calm: str
) -> None:
    with table.row("operator down, pods finished and removed") as row:
        training = begin("alone")
        training.until_stepping()
        back = faults.stop_operator()
        training.pace(0)
        eventually(
            lambda: {pod["status"]["phase"] for pod in training.job.pods()} == {"Succeeded"},
            240,
            "both pods succeeded",
        )
        for pod in training.job.pods():
            name = pod["metadata"]["name"]
            training.cluster.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        back()
        status = training.job.until_true("Complete")["status"]
        row.repeated, row.lost = training.journal.repeated_and_lost()
        row.counted = "nothing"
        assert status["result"]["parameterHash"] == calm
        assert len(training.journal.used()) == STEPS * BATCH
        assert training.job.live() == {}


def test_pods_that_cannot_be_scheduled_wait_and_say_why(begin: Callable[..., Training], table: Table) -> None:
    with table.row("four pods that must not share two nodes") as row:
        training = begin("crowded", nodes=4, placement="Require")
        found = training.job.until(
            lambda job: condition(job, "PodsReady").get("reason") == "Unschedulable", "it says why", 60
        )
        assert "didn't match pod anti-affinity rules" in condition(found, "PodsReady")["message"]
        row.counted = "nothing"
        assert found["status"].get("restarts", 0) == found["status"].get("disruptions", 0) == 0


@pytest.mark.parametrize("with_operator", [False, True], ids=["alone", "with-the-operator"])
def test_a_lost_node_is_replaced_elsewhere_and_named(
    begin: Callable[..., Training], faults: Faults, table: Table, with_operator: bool
) -> None:
    with table.row(f"cable of a node pulled{', the operator on it' if with_operator else ''}") as row:
        training = begin(
            f"node-lost-{int(with_operator)}",
            recovery={"nodeLostTimeoutSeconds": 10, "maxDisruptions": 1000, "gracePeriodSeconds": 10},
        )
        incident = Incident.before(training, row)
        home = faults.operator_node()
        rank, node = next(
            (rank, pod["spec"]["nodeName"])
            for rank, pod in training.job.live().items()
            if (pod["spec"]["nodeName"] == home) is with_operator
        )
        training.strike()
        plug_in = faults.cut_node(node)
        status = incident.recovered(disruptions=1, timeout=240)
        incident.kept(1 - rank)
        assert training.rank_pod(rank)["spec"]["nodeName"] != node
        assert status["lastFailure"]["hostNode"] == node
        assert node in status["lastFailure"]["message"]
        plug_in()
        training.until_stepping()
