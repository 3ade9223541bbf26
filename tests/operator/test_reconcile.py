"""What the operator makes of a cluster, story by story, on the fake API server."""

import base64
import json

from tests.operator.world import IMAGE, OPERATOR_IMAGE, World, started

from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Progress, RunState


async def test_a_job_becomes_a_service_a_secret_and_its_pods() -> None:
    world = await World().start()
    await world.apply()
    assert world.live() == {0: "train-0", 1: "train-1"}
    service = world.api.objects["services", "ns", "train"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    secret = world.api.objects["secrets", "ns", "train-token"]
    assert len(base64.b64decode(secret["data"]["token"])) == 64
    for child in (service, secret, world.pod("train-0")):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            world.job["metadata"]["uid"],
            True,
            True,
        )
    assert "finalizers" not in world.job["metadata"]
    assert world.condition("Admitted") == ("True", "Accepted")
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    assert world.status["state"] == "Starting"


async def test_a_whole_life_costs_few_requests_and_rest_costs_none() -> None:
    world = await World().start()
    await world.apply(nodes=8)
    await world.run()
    before = len(world.api.requests)
    assert len(world.api.writes) <= 8 + 10, world.api.writes
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert [w for w in world.api.writes if w in world.api.requests[before:]] == []
    await world.done()
    assert world.condition("Complete") == ("True", "AllRanksSucceeded")
    settled = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert len(world.api.writes) == settled


async def test_what_is_deleted_by_hand_is_back_within_seconds_and_told() -> None:
    world = await started()
    token = world.api.objects["secrets", "ns", "train-token"]["data"]
    await world.delete("services", "train")
    assert ("services", "ns", "train") in world.api.objects
    await world.delete("secrets", "train-token")
    await world.passes(15)
    assert world.api.objects["secrets", "ns", "train-token"]["data"] == token
    for child in ("Service train", "Secret train-token"):
        assert f"ChildRestored: {child} was deleted and is made again" in world.events()


async def test_a_suspended_job_at_rest_is_left_alone() -> None:
    world = await started()
    await world.patch(suspend=True)
    for name in list(world.api.pods()):
        await world.stopped(name)
    before = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert len(world.api.writes) == before


async def test_suspend_saves_and_resume_takes_the_next_names_and_a_new_runtime() -> None:
    world = await started()
    await world.patch(suspend=True)
    assert world.operator.poller.asked == 1
    assert world.live() == {}
    assert (world.condition("Suspended"), world.status["state"]) == (("False", "Suspended"), "Suspending")
    for name in list(world.api.pods()):
        await world.stopped(name)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.status["nodes"]["desired"] == 0
    assert "runtime" not in world.status
    assert (world.status["disruptions"], world.status["restarts"]) == (0, 0)
    world.operator.reconciler._image = "registry/trainer:2"
    await world.patch(suspend=False)
    assert world.live() == {0: "train-0-r1", 1: "train-1-r1"}
    assert world.condition("Suspended") == ("False", "Resumed")
    assert world.status["runtime"]["image"] == "registry/trainer:2"


async def test_a_running_job_keeps_its_image_when_the_operators_default_changes() -> None:
    world = await started()
    world.operator.reconciler._image = "registry/trainer:2"
    await world.delete("pods", "train-1")
    assert world.pod("train-1-r1")["spec"]["containers"][0]["image"] == IMAGE


async def test_versions_do_not_mix_in_a_job_with_an_image_of_its_own() -> None:
    world = await started(image="theirs:1")
    assert world.status["runtime"]["trainerFrom"] == OPERATOR_IMAGE
    world.operator.reconciler._operator_image = "registry/operator:2"
    await world.delete("pods", "train-1")
    assert world.pod("train-1-r1")["spec"]["initContainers"][0]["image"] == OPERATOR_IMAGE


async def test_our_own_image_needs_nothing_put_beside_it() -> None:
    world = await started(image=IMAGE)
    assert "trainerFrom" not in world.status["runtime"]
    assert "initContainers" not in world.pod("train-0")["spec"]


async def test_a_job_applied_again_under_the_same_name_waits_for_the_old_pods() -> None:
    world = await started()
    old = world.job["metadata"]["uid"]
    world.operators.clear()
    world.api.delete("ddpjobs", "ns", "train")
    await world.start()
    await world.apply()
    await world.passes(5)
    for name, body in list(world.api.pods().items()):
        if body["metadata"]["ownerReferences"][0]["uid"] == old:
            await world.stopped(name)
    for _ in range(3):
        await world.passes(5)
    assert sorted(world.live()) == [0, 1]
    assert {b["metadata"]["ownerReferences"][0]["uid"] for b in world.api.pods().values()} == {
        world.job["metadata"]["uid"]
    }
    assert world.status["disruptions"] == 0
    assert world.condition("Admitted") == ("True", "Accepted")


async def test_progress_is_written_seldom_and_counters_at_once() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING, progress=Progress(step=1, total_steps=100, loss=1.0))
    written = world.status["progress"]["step"]
    before = len(world.api.writes)
    for step in range(2, 12):
        efficiency = Efficiency(exposed_communication_percent=step)
        now = Progress(step=step, total_steps=100, loss=0.5)
        await world.say(state=RunState.RUNNING, progress=now, efficiency=efficiency)
        await world.passes(1)
    assert len(world.api.writes) == before
    await world.passes(10)
    assert len(world.api.writes) == before + 1
    assert world.status["progress"]["step"] == 11 > written
    assert world.status["efficiency"] == {"exposedCommunicationPercent": 11}
    await world.say(
        state=RunState.RUNNING, generation=2, restarts=1, progress=Progress(step=12, total_steps=100)
    )
    assert (world.status["restarts"], world.status["generation"], world.status["progress"]["step"]) == (
        1,
        2,
        12,
    )


async def test_a_pod_that_lost_the_tracking_finalizer_gets_it_back() -> None:
    world = await started()
    world.api.change("pods", "ns", "train-0", lambda body: body["metadata"].pop("finalizers"))
    await world.settle()
    assert world.tracked() == ["train-0", "train-1"]


async def test_a_deletion_that_no_watch_reported_is_found_by_the_resync() -> None:
    world = await started()
    world.api.change("pods", "ns", "train-1", lambda body: body["metadata"].pop("finalizers"))
    del world.api.objects["pods", "ns", "train-1"]
    await world.resync()
    assert sorted(world.live()) == [0, 1]


async def test_what_the_launcher_is_told() -> None:
    world = await World().start()
    await world.apply(
        env=[{"name": "A", "value": "$(B)"}], template={"metadata": {"labels": {"team": "vision"}}}
    )
    body = world.pod("train-1")
    env = {
        v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"]
        for v in body["spec"]["containers"][0]["env"]
    }
    assert env["DDPJOB_COORDINATOR"] == "train-0.train.ns.svc:29400"
    assert env["DDPJOB_ADVERTISE_HOST"] == "status.podIP"
    assert (env["DDPJOB_NODE_INDEX"], env["DDPJOB_INCARNATION"], env["A"]) == ("1", "0", "$(B)")
    assert json.loads(env["DDPJOB_SPEC"]) == {"nodes": 2, "script": {"args": ["train.py"]}}
    assert body["metadata"]["labels"]["team"] == "vision"
    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("train-1", "train")
