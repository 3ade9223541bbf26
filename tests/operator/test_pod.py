"""The pods a job gets, as a function of its spec: what is ours in them, and what the template may change."""

import copy
import re
from typing import Any

import pytest

from ddpjob_api.codec import parse_spec
from ddpjob_api.names import MEMORY_FOLDER, LauncherEnv
from ddpjob_operator.model import (
    Runtime,
    Status,
)
from ddpjob_operator.observe import JobView, job_of
from ddpjob_operator.overlay import Refused, laid_over
from ddpjob_operator.pod import pod, template_hash

RUNTIME = Runtime(image="trainer:1", trainer_version="1", protocol=1, template_hash="h")


def job(**spec: Any) -> JobView:
    body = {
        "metadata": {"name": "train", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                     "resourceVersion": "7", "generation": 2},
        "spec": {"nodes": 2, "script": {"args": ["train.py"]}, **spec},
    }  # fmt: skip
    return job_of(body)


def made(**spec: Any) -> dict[str, Any]:
    view = job(**spec)
    assert view.spec is not None
    return pod(view, view.spec, Status(), RUNTIME, index=1, incarnation=3)


def container(body: dict[str, Any], name: str = "trainer") -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in body["spec"]["containers"] if c["name"] == name)
    return found


def test_a_pod_passes_the_restricted_standard() -> None:
    body = made()
    assert body["spec"]["securityContext"]["runAsNonRoot"] is True
    assert body["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert body["spec"]["automountServiceAccountToken"] is False
    assert body["spec"]["enableServiceLinks"] is False
    assert container(body)["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "livenessProbe" not in container(body)
    assert {v["name"] for v in body["spec"]["volumes"]} == {"tmp", "shm", "run", "token", "checkpoints"}
    assert body["metadata"]["name"] == "train-1-r3"
    assert body["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("placement", "kind", "rule"),
    [
        ("Spread", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution"),
        ("Require", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("Pack", "podAffinity", "preferredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_placement(placement: str, kind: str, rule: str) -> None:
    assert list(made(placement=placement)["spec"]["affinity"]) == [kind]
    assert list(made(placement=placement)["spec"]["affinity"][kind]) == [rule]


def test_volumes_follow_workspace_and_claim() -> None:
    body = made(workspace={"configMap": "code"}, checkpoint={"persistentVolumeClaim": "ckpt"})
    volumes = {v["name"]: v for v in body["spec"]["volumes"]}
    assert volumes["workspace"]["configMap"] == {"name": "code"}
    assert volumes["checkpoints"]["persistentVolumeClaim"] == {"claimName": "ckpt"}
    folder = next(v["value"] for v in container(body)["env"] if v["name"] == "DDPJOB_CHECKPOINT_DIR")
    assert re.fullmatch(r"/checkpoints/[a-z0-9]+-.{1,8}", folder), "jobs that share a claim must not meet"
    assert container(body)["workingDir"] == "/workspace"
    mount = next(m for m in container(body)["volumeMounts"] if m["name"] == "workspace")
    assert mount["readOnly"] is True
    assert made()["spec"]["volumes"][-1] == {"name": "checkpoints", "emptyDir": {}}


TASK: dict[str, Any] = {"task": {"entrypoint": "x:y", "maxSteps": 1, "globalBatchSize": 2}, "script": None}
COPIES: list[tuple[str, dict[str, Any], bool]] = [
    ("a task", {**TASK, "checkpoint": {"inMemoryEverySteps": 5}}, True),
    ("a task that does not ask for it", {**TASK, "checkpoint": {"everySteps": 5}}, False),
    ("a script", {"checkpoint": {"inMemoryEverySteps": 5}}, False),
]


@pytest.mark.parametrize(("spec", "copied"), [case[1:] for case in COPIES], ids=[case[0] for case in COPIES])
def test_copies_of_a_task_have_a_volume_in_memory_where_the_launcher_has_them_written(
    spec: dict[str, Any], copied: bool
) -> None:
    body = made(**spec)
    volumes = [v for v in body["spec"]["volumes"] if v["name"] == "memory"]
    assert volumes == ([{"name": "memory", "emptyDir": {"medium": "Memory"}}] if copied else [])
    env = {v["name"]: v.get("value") for v in container(body)["env"]}
    path = f"{env[LauncherEnv.RUN_DIR]}/{MEMORY_FOLDER}"
    mounts = [m for m in container(body)["volumeMounts"] if m["name"] == "memory"]
    assert mounts == ([{"name": "memory", "mountPath": path}] if copied else [])


FOREIGN = Runtime(
    image="theirs:1", trainer_from="operator:1", trainer_version="1", protocol=1, template_hash="h"
)


def in_image(**spec: Any) -> dict[str, Any]:
    view = job(image="theirs:1", **spec)
    assert view.spec is not None
    return pod(view, view.spec, Status(), FOREIGN, index=1, incarnation=3)


def test_an_image_that_is_not_ours_gets_the_trainer_put_beside_it() -> None:
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "8"}
    body = in_image(resourcesPerNode={"limits": limits, "requests": limits})
    (init,) = body["spec"]["initContainers"]
    assert (init["image"], container(body)["image"]) == ("operator:1", "theirs:1")
    assert init["securityContext"] == container(body)["securityContext"]
    # its class of service stays, and no accelerator is held for it
    assert init["resources"] == {kind: {"cpu": "2", "memory": "1Gi"} for kind in ("limits", "requests")}
    assert [mount["name"] for mount in init["volumeMounts"]] == ["code"]
    assert container(body)["volumeMounts"][-1] == {
        "name": "code", "mountPath": "/opt/ddpjob-trainer", "readOnly": True
    }  # fmt: skip
    assert "initContainers" not in made()["spec"]


@pytest.mark.parametrize(
    ("spec", "field", "expected"),
    [
        ({}, "command", ["/bin/sh", "/opt/ddpjob-trainer/enter.sh"]),
        ({"python": "/o/python"}, "command", ["/o/python", "-I", "/opt/ddpjob-trainer/enter.py"]),
        ({"keepEntrypoint": True}, "args", ["/bin/sh", "/opt/ddpjob-trainer/enter.sh"]),
    ],
)
def test_what_runs_in_an_image_that_is_not_ours(
    spec: dict[str, Any], field: str, expected: list[str]
) -> None:
    found = container(in_image(**spec))
    assert [found[name] for name in ("command", "args") if name in found] == [expected]
    assert found[field] == expected


def test_the_template_may_not_have_our_init_container() -> None:
    template = {"spec": {"initContainers": [{"name": "ddpjob-trainer", "image": "x"}]}}
    with pytest.raises(Refused, match="choose another"):
        in_image(template=template)
    body = in_image(template={"spec": {"initContainers": [{"name": "data"}]}})
    assert [init["name"] for init in body["spec"]["initContainers"]] == ["ddpjob-trainer", "data"]


REFUSED = [
    ({"spec": {"hostname": "a"}}, "spec.template.spec.hostname cannot be set"),
    ({"spec": {"subdomain": "a"}}, "spec.template.spec.subdomain cannot be set"),
    ({"spec": {"hostnameOverride": "a"}}, "spec.template.spec.hostnameOverride cannot be set"),
    ({"spec": {"restartPolicy": "Always"}}, "the launcher restarts ranks"),
    ({"spec": {"activeDeadlineSeconds": 1}}, "set spec.activeDeadlineSeconds of the DDPJob"),
    ({"spec": {"containers": [{"name": "trainer", "command": ["x"]}]}}, "say what to run in spec.task"),
    ({"spec": {"containers": [{"name": "trainer", "args": ["x"]}]}}, "say what to run in spec.task"),
    ({"metadata": {"name": "x"}}, "only labels and annotations"),
    ({"kindly": 1}, "spec.template.kindly"),
    ({"spec": []}, "spec.template.spec: expected an object"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "words"), [case for case in REFUSED if case[0] != {"spec": []}])
def test_the_template_may_not_touch_what_is_ours(template: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words.replace(".", r"\.").replace("[", r"\[")):
        made(template=template)


def test_the_template_is_laid_over_by_name() -> None:
    template = {
        "metadata": {"labels": {"team": "vision", "ddpjob.dev/name": "other"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "high",
            "securityContext": {"runAsUser": 1000},
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "token", "emptyDir": {}}],
            "containers": [
                {
                    "name": "trainer",
                    "env": [{"name": "A", "value": "theirs"}, {"name": "DDPJOB_NAME", "value": "x"}],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/dev/shm"},
                    ],
                    "resources": {"limits": {"memory": "1Gi"}},
                },
                {"name": "side", "image": "side:1"},
            ],
        },
    }  # fmt: skip
    before = copy.deepcopy(template)
    body = made(
        template=template,
        env=[{"name": "A", "value": "ours"}],
        resourcesPerNode={"limits": {"nvidia.com/gpu": 1}},
    )
    assert template == before
    assert body["metadata"]["labels"]["team"] == "vision"
    assert body["metadata"]["labels"]["ddpjob.dev/name"] == "train"
    assert body["metadata"]["annotations"]["a"] == "b"
    assert body["spec"]["nodeSelector"] == {"zone": "a"}
    assert body["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert body["spec"]["priorityClassName"] == "high"
    assert body["spec"]["securityContext"]["runAsUser"] == 1000
    assert body["spec"]["securityContext"]["runAsNonRoot"] is True
    volumes = {v["name"]: v for v in body["spec"]["volumes"]}
    assert "data" in volumes
    assert "secret" in volumes["token"]
    trainer = container(body)
    env = {v["name"]: v.get("value") for v in trainer["env"]}
    assert (env["A"], env["DDPJOB_NAME"]) == ("theirs", "train")
    paths = [m["mountPath"] for m in trainer["volumeMounts"]]
    assert "/data" in paths
    assert paths.count("/dev/shm") == 1
    assert trainer["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "1Gi"}
    assert container(body, "side")["image"] == "side:1"


def test_a_template_of_the_wrong_type_is_left_to_the_api_server() -> None:
    assert made(template={"spec": {"tolerations": "all"}})["spec"]["tolerations"] == "all"
    assert laid_over({"metadata": {}, "spec": {}}, {}) == {"metadata": {}, "spec": {}}


def test_the_template_hash_follows_what_shapes_pods_only() -> None:
    one = parse_spec({"script": {"args": ["a"]}})
    same = parse_spec({"script": {"args": ["a"]}, "suspend": True, "ttlSecondsAfterFinished": 5})
    other = parse_spec({"script": {"args": ["b"]}})
    assert template_hash(one, "i") == template_hash(same, "i")
    assert len({template_hash(one, "i"), template_hash(other, "i"), template_hash(one, "j")}) == 3
