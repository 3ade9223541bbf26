"""What stands before a job's first pod, and what waits for the cluster."""

import itertools
from typing import Any

import pytest
from tests.operator.fake_api import failure
from tests.operator.world import World, started

from ddpjob_operator.client import Answer


@pytest.mark.parametrize(
    ("plural", "name", "kind"), [("services", "train", "Service"), ("secrets", "train-token", "Secret")]
)
async def test_an_object_of_a_childs_name_that_is_not_ours_is_left_alone(
    plural: str, name: str, kind: str
) -> None:
    world = await World().start()
    foreign = {"metadata": {"name": name, "namespace": "ns", "labels": {"owner": "somebody"}}, "spec": {}}
    world.api.create(plural, "ns", foreign)
    before = dict(world.api.objects[plural, "ns", name])
    await world.apply()
    assert world.condition("Admitted") == ("False", "NameConflict")
    assert kind in world.message("Admitted")
    assert world.api.pods() == {}
    assert world.api.objects[plural, "ns", name] == before
    await world.delete(plural, name)
    await world.passes(10)
    assert sorted(world.live()) == [0, 1]


async def test_a_foreign_pod_of_a_pods_name_is_a_conflict() -> None:
    world = await World().start()
    world.api.create(
        "pods", "ns", {"kind": "Pod", "metadata": {"name": "train-1", "namespace": "ns"}, "spec": {}}
    )
    await world.apply()
    await world.passes(6)
    assert world.condition("Admitted") == ("False", "NameConflict")
    assert "train-1" in world.message("Admitted")


async def test_a_deleted_service_and_a_deleted_secret_come_back() -> None:
    world = await started()
    token = world.api.objects["secrets", "ns", "train-token"]["data"]
    await world.delete("services", "train")
    assert ("services", "ns", "train") in world.api.objects
    await world.delete("secrets", "train-token")
    await world.delete("pods", "train-1")
    assert world.api.objects["secrets", "ns", "train-token"]["data"] == token


async def test_the_api_servers_opinion_of_the_pod_is_the_jobs_invalid_spec() -> None:
    world = await World().start()
    words = 'Pod "train-0" is invalid: spec.dnsPolicy: Unsupported value: "Sometimes"'
    world.api.before = lambda method, path: (
        failure(422, "Invalid", words) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.apply(template={"spec": {"dnsPolicy": "Sometimes"}})
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert words in world.message("Failed")
    assert world.condition("Admitted") == ("False", "InvalidSpec")
    assert world.api.pods() == {}


async def test_quota_and_webhooks_are_waited_for() -> None:
    world = await World().start()
    words = (
        'pods "train-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
    )
    world.api.before = lambda method, path: (
        failure(403, "Forbidden", words) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.apply()
    assert world.condition("PodsReady") == ("False", "QuotaExceeded")
    assert world.message("PodsReady") == words
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    denied = 'admission webhook "policy.example" denied the request: no'
    world.api.before = lambda method, path: (
        failure(400, "BadRequest", denied) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.delete("pods", "train-1")
    assert world.condition("PodsReady") == ("False", "PodRefused")
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]


def down(source_port: int) -> str:
    """What the API server says of a webhook that cannot be asked; its own port is another one each time."""
    return (
        'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: Post '
        '"https://policy.system.svc:443/?timeout=10s": read tcp 10.0.0.1:'
        f"{source_port}->10.0.0.9:443: connect: connection refused"
    )


@pytest.mark.parametrize("plural", ["services", "secrets", "pods"])
async def test_a_webhook_that_is_down_is_said_before_the_first_pod_and_waited_for(plural: str) -> None:
    world = await World().start()
    ports = itertools.count(41000)
    world.api.before = lambda method, path: (
        failure(500, "InternalError", down(next(ports))) if method != "GET" and f"/{plural}" in path else None
    )
    await world.apply()
    assert world.condition("PodsReady") == ("False", "PodRefused")
    assert world.message("PodsReady") == down(41000)
    assert [event for event in world.events() if "webhook" in event] == [f"PodRefused: {down(41000)}"]
    await world.passes(6)
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]
    assert world.operator.errors == []


async def test_a_webhook_that_goes_down_is_said_of_a_pod_that_is_to_be_replaced() -> None:
    world = await started()
    ports: list[int] = []

    def refuse(method: str, path: str) -> Answer | None:
        if (method, path[-5:]) != ("POST", "/pods"):
            return None
        ports.append(41000 + len(ports))
        return failure(500, "InternalError", down(ports[-1]))

    world.api.before = refuse
    await world.delete("pods", "train-1")
    assert world.condition("PodsReady") == ("False", "PodRefused")
    assert 'failed calling webhook "policy.example"' in world.message("PodsReady")
    before = len(ports)
    await world.passes(6)
    assert len(ports) == before + 1, "a port of another number is no reason to hurry"
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]
    assert world.operator.errors == []


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": {"hostname": "mine"}}, "spec.template.spec.hostname cannot be set: peers find a pod under"),
        ({"spec": "none"}, "spec.template.spec: expected an object"),
    ],
)
async def test_a_template_that_is_refused_and_edited_in_is_said_of_the_pod_it_keeps_away(
    template: dict[str, Any], words: str
) -> None:
    world = await started()
    await world.patch(template=template)
    assert world.condition("PodsReady") == ("True", "AllPodsReady"), "pods that are there stay as they are"
    await world.delete("pods", "train-1")
    assert world.condition("PodsReady") == ("False", "PodRefused")
    assert world.message("PodsReady").startswith(words)
    assert world.condition("Failed") is None
    await world.patch(template={"spec": {"priorityClassName": "high"}})
    assert [world.pod(name)["spec"].get("priorityClassName") for name in world.live().values()] == [
        None,
        "high",
    ]
    assert world.operator.errors == []


async def test_tolerations_of_a_wrong_type_are_the_api_servers_to_refuse() -> None:
    world = await started()
    world.operator.nodes.watched = False
    await world.patch(template={"spec": {"tolerations": "all"}})
    await world.delete("pods", "train-1")
    assert world.pod(world.live()[1])["spec"]["tolerations"] == "all"
    assert world.operator.errors == []


async def test_an_api_server_in_trouble_of_its_own_refuses_nothing() -> None:
    world = await World().start()
    world.api.before = lambda method, path: (
        failure(500, "InternalError", "etcd is busy") if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.apply()
    assert {str(error) for error in world.operator.errors} == {"500 InternalError: etcd is busy"}
    assert world.status == {}


async def test_a_read_write_once_claim_for_two_nodes_is_refused() -> None:
    world = await World().start()
    claim = {"metadata": {"name": "ckpt", "namespace": "ns"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    world.api.create("persistentvolumeclaims", "ns", claim)
    await world.apply(checkpoint={"persistentVolumeClaim": "ckpt"})
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert "the claim is not ReadWriteMany" in world.message("Failed")


async def test_a_rule_that_the_crd_cannot_say_is_an_invalid_spec() -> None:
    world = await World().start()
    task = {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 7}
    await world.apply(script=None, task=task)
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert "globalBatchSize" in world.message("Failed")


async def test_a_missing_config_map_is_found_in_the_events() -> None:
    world = await World().start()
    await world.apply(workspace={"configMap": "code"})

    def creating(body: dict[str, Any]) -> None:
        body["spec"]["nodeName"] = "node-0"
        state = {"waiting": {"reason": "ContainerCreating"}}
        body["status"] = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}

    for name in ("train-0", "train-1"):
        world.api.change("pods", "ns", name, creating)
    words = 'MountVolume.SetUp failed for volume "workspace" : configmap "code" not found'
    uid = world.pod("train-0")["metadata"]["uid"]
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"uid": uid},
        "type": "Warning",
        "reason": "FailedMount",
        "message": words,
    }
    world.api.create("events", "ns", event)
    await world.settle()
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    await world.passes(11)
    assert world.condition("PodsReady") == ("False", "VolumeNotReady")
    assert words in world.message("PodsReady")
