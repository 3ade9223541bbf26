"""A suspension that began and ended between two looks, and what may have been edited in it."""

from typing import Any

import pytest
import yaml
from docs.generating.crd import crd_schema
from tests.operator.fake_api import Body, Crash
from tests.operator.world import World, started

from ddpjob_api.codec import parse_spec
from ddpjob_operator.model import Runtime
from ddpjob_operator.pinning import SCHEME, overtaken, spec_hash

SCRIPT = {"script": {"args": ["train.py"]}}
DEFAULTS = """
nodes: 1
keepEntrypoint: false
imagePullSecrets: []
resourcesPerNode: {}
env: []
envFrom: []
ddp: {backend: Auto, overrides: Apply}
recovery: {maxRestarts: 3, maxDisruptions: 100, rendezvousTimeoutSeconds: 600, nodeLostTimeoutSeconds: 120,
           progressTimeoutSeconds: 0, gracePeriodSeconds: 60, warmStandby: true}
placement: Spread
ports: {metrics: 9464, coordinator: 29400, rendezvous: 29500}
suspend: false
"""
TASK = {"task": {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 2}, "checkpoint": {"everySteps": 5}}
TASK_DEFAULTS = """
task: {entrypoint: a.b:c, epochs: 1, globalBatchSize: 2, params: {}, seed: 0, precision: FP32, gradientCheckpointing: None}
checkpoint: {everySteps: 5, keep: 3}
"""
EDITS: list[tuple[str, Any]] = [
    ("nodes", 3), ("processesPerNode", 2), ("image", "mine:1"), ("python", "/bin/py"), ("keepEntrypoint", True),
    ("imagePullSecrets", [{"name": "a"}]), ("resourcesPerNode", {"limits": {"cpu": "1"}}),
    ("env", [{"name": "A", "value": "b"}]), ("envFrom", [{"configMapRef": {"name": "a"}}]),
    ("task", {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 2}), ("script", {"args": ["other.py"]}),
    ("command", ["torchrun", "a.py"]), ("workspace", {"configMap": "code"}), ("ddp", {"staticGraph": True}),
    ("checkpoint", {"everySteps": 5}), ("recovery", {"maxRestarts": 1}), ("placement", "Pack"),
    ("ports", {"metrics": 9000}),
]  # fmt: skip
FREE: list[tuple[str, Any]] = [
    ("suspend", True), ("activeDeadlineSeconds", 9), ("ttlSecondsAfterFinished", 9),
    ("template", {"spec": {"priorityClassName": "high"}}),
]  # fmt: skip


def edited(name: str, value: Any) -> Any:
    base = {} if name in ("task", "command") else SCRIPT
    return parse_spec({**base, name: value})


def test_the_hash_is_of_what_may_change_while_the_job_is_suspended_only() -> None:
    assert {name for name, _ in [*EDITS, *FREE]} == set(crd_schema()["properties"])
    plain = spec_hash(parse_spec(SCRIPT))
    assert [name for name, value in EDITS if spec_hash(edited(name, value)) == plain] == []
    assert [name for name, value in FREE if spec_hash(edited(name, value)) != plain] == []


def test_the_order_of_what_has_none_does_not_count() -> None:
    """The API server lets such lists be given in another order while the job runs, as Helm or server-side apply do."""
    unordered = {
        "env": ({"name": "A", "value": "1"}, {"name": "B", "value": "2"}),
        "imagePullSecrets": ({"name": "a"}, {"name": "b"}),
    }
    fields = crd_schema()["properties"]
    assert {name for name in fields if fields[name].get("x-kubernetes-list-type") == "map"} == set(unordered)
    for name, (first, second) in unordered.items():
        assert spec_hash(edited(name, [first, second])) == spec_hash(edited(name, [second, first])), name


@pytest.mark.parametrize(
    ("document", "filled_in", "digest"),
    [
        (SCRIPT, DEFAULTS, "1-67e4971158e4e314"),
        (TASK, DEFAULTS + TASK_DEFAULTS, "1-3b959aadb277a392"),
    ],
)
def test_a_document_has_the_hash_it_had_in_earlier_versions(
    document: dict[str, Any], filled_in: str, digest: str
) -> None:
    """Where this fails, raise SCHEME: a new operator would start every job of an older one anew."""
    assert SCHEME == "1"
    assert spec_hash(parse_spec(document)) == digest
    assert spec_hash(parse_spec({**document, **yaml.safe_load(filled_in)})) == digest, (
        "as the API server has it"
    )


@pytest.mark.parametrize(
    ("pinned", "now", "other"),
    [
        ("1-a", "1-a", False), ("1-a", "1-b", True), ("", "1-a", False), ("0-b", "1-a", False),
        ("2-b", "1-a", False), ("0123456789abcdef", "1-a", False), ("1-a", "", False), ("", "", False),
    ],
)  # fmt: skip
def test_hashes_of_one_scheme_are_compared_and_no_others(pinned: str, now: str, other: bool) -> None:
    assert overtaken(Runtime(spec_hash=pinned), Runtime(spec_hash=now)) is other
    assert not overtaken(None, Runtime(spec_hash=now))


def made_from(world: World, name: str) -> list[Body]:
    return [v for v in world.pod(name)["spec"]["containers"][0]["env"] if v["name"] == "A"]


@pytest.mark.parametrize(
    ("before", "edit", "pods"),
    [
        (2, {"env": [{"name": "A", "value": "b"}]}, 2),
        (2, {"nodes": 4, "env": [{"name": "A", "value": "b"}]}, 4),
        (4, {"nodes": 2, "env": [{"name": "A", "value": "b"}]}, 2),
    ],
)
async def test_a_job_edited_in_a_suspension_that_nobody_saw_is_made_anew(
    before: int, edit: dict[str, Any], pods: int
) -> None:
    world = await started(nodes=before)
    old = world.status["runtime"]
    assert old["specHash"].startswith(f"{SCHEME}-")
    await world.patch(**edit)  # suspended and resumed as well, as far as one look can tell
    assert world.live() == {index: f"train-{index}-r1" for index in range(pods)}
    assert all(made_from(world, name) for name in world.live().values())
    assert world.status["runtime"]["specHash"] != old["specHash"]
    assert world.operator.poller.asked == 1, "the coordinator is asked to save, once"
    for index in range(before):
        await world.stopped(f"train-{index}")
    await world.run()
    assert (world.status["state"], world.status["ready"]) == ("Running", f"{pods}/{pods}")
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 0)
    assert world.condition("Restarting") is None
    assert world.condition("Suspended") == ("False", "Resumed")
    (told,) = (event for event in world.events() if event.startswith("Suspended: "))
    assert f"its spec may be another one; {before} pods are saving and ending" in told
    assert world.operator.errors == []


async def test_it_goes_on_though_no_pod_is_left_that_could_end() -> None:
    world = await started()
    world.operators.clear()
    for index in (0, 1):
        world.api.change("pods", "ns", f"train-{index}", lambda body: body["metadata"].update(finalizers=[]))
        world.api.delete("pods", "ns", f"train-{index}", grace=0)
    await world.patch(nodes=3)
    await world.start()
    await world.settle()
    await world.passes(1)
    assert sorted(world.live()) == [0, 1, 2]
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 0)


async def test_an_operator_that_dies_before_it_deleted_the_pods_of_a_suspension_leaves_them_to_the_next() -> (
    None
):
    world = await started()

    def dies(method: str, path: str) -> None:
        if method == "DELETE":
            world.api.before = lambda method, path: None
            world.operator.todo.clear()
            world.api.change("ddpjobs", "ns", "train", lambda body: body["spec"].update(suspend=False))
            raise Crash

    world.api.before = dies
    await world.patch(suspend=True, env=[{"name": "A", "value": "b"}])
    assert world.crashes == 1
    assert world.live() == {0: "train-0-r1", 1: "train-1-r1"}
    assert all(made_from(world, name) for name in world.live().values())


@pytest.mark.parametrize(
    "edit",
    [
        {"template": {"spec": {"priorityClassName": "high"}}},
        {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 86_400},
        {"suspend": False},
    ],
)
async def test_what_may_change_while_the_job_runs_replaces_nothing(edit: dict[str, Any]) -> None:
    world = await started()
    await world.patch(**edit)
    await world.passes(60)
    assert world.live() == {0: "train-0", 1: "train-1"}


@pytest.mark.parametrize("pinned", [None, "0-0123456789abcdef"])
async def test_an_upgrade_replaces_nothing_and_writes_nothing(pinned: str | None) -> None:
    world = await started()

    def older(body: Body) -> None:
        runtime = {**body["status"]["runtime"], "specHash": pinned}
        body["status"]["runtime"] = {name: value for name, value in runtime.items() if value is not None}

    world.operators.clear()
    world.api.change("ddpjobs", "ns", "train", older)
    writes = len(world.api.writes)
    await world.start()
    await world.settle()
    await world.passes(60)
    assert world.live() == {0: "train-0", 1: "train-1"}
    assert len(world.api.writes) == writes
