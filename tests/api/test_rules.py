"""The table of rules: each row fires where it should, and only there."""

import dataclasses
from typing import Any

import pytest

from ddpjob_api import parse
from ddpjob_api.accelerators import ACCELERATORS, Accelerator, accelerator, of_resource
from ddpjob_api.plan import Refused, micro_batch, plan
from ddpjob_api.rules import RULES, Facts, Verdict, facts_of, judge
from ddpjob_api.spec import Backend, GradientCheckpointing

TASK: dict[str, Any] = {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 64}
SCRIPT: dict[str, Any] = {"script": {"args": ["train.py"]}}
GPU: dict[str, Any] = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}


def facts(spec: dict[str, Any], name: str = "digits", **known: Any) -> Facts:
    document = {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": spec,
    }
    return dataclasses.replace(facts_of(parse(document)), **known)


def fired(found: Facts) -> set[str]:
    return {finding.rule for finding in judge(found)}


def task(**more: Any) -> dict[str, Any]:
    return {"task": {**TASK, **more}}


CASES: list[tuple[str, Facts]] = [
    ("one-program", facts({})),
    ("one-program", facts({**SCRIPT, "command": ["x"]})),
    ("name", facts(SCRIPT, name="Digits")),
    ("name", facts(SCRIPT, name="9digits")),
    ("name", facts(SCRIPT, name="digits-")),
    ("name", facts(SCRIPT, name="di_gits")),
    ("name", facts(SCRIPT, name="d" * 41)),
    ("reserved-env", facts({**SCRIPT, "env": [{"name": "RANK", "value": "0"}]})),
    ("reserved-env", facts({**SCRIPT, "env": [{"name": "DDPJOB_X", "value": "0"}]})),
    ("env-value", facts({**SCRIPT, "env": [{"name": "A", "value": "0", "valueFrom": {}}]})),
    ("command-contradicts", facts({"command": ["torchrun", "--nnodes", "3", "train.py"], "nodes": 2})),
    ("image-is-missing", facts({**SCRIPT, "keepEntrypoint": True})),
    ("image-is-missing", facts({**SCRIPT, "python": "/opt/conda/bin/python"})),
    ("bucket-cap", facts({**SCRIPT, "ddp": {"bucketCapMB": 0}})),
    ("bucket-cap", facts({**SCRIPT, "ddp": {"bucketCapMB": -1}})),
    ("epochs-or-steps", facts(task(maxSteps=3))),
    ("workspace-source", facts({**SCRIPT, "workspace": {}})),
    ("ports-overlap", facts({**SCRIPT, "ports": {"metrics": 29500}})),
    ("ports-overlap", facts({**SCRIPT, "ports": {"metrics": 29400}})),
    ("reentrant-unused", facts({**task(gradientCheckpointing="Reentrant"), "ddp": {"findUnusedParameters": True}})),
    (
        "reentrant-unused-seen",
        facts(
            {**SCRIPT, "ddp": {"findUnusedParameters": True}},
            checkpointing_seen=GradientCheckpointing.REENTRANT,
        ),
    ),
    (
        "unused-non-reentrant",
        facts(
            {**SCRIPT, "ddp": {"findUnusedParameters": True}},
            checkpointing_seen=GradientCheckpointing.NON_REENTRANT,
        ),
    ),
    ("global-batch", facts({**task(globalBatchSize=65), "nodes": 2})),
    ("nccl-without-gpu", facts({**SCRIPT, "ddp": {"backend": "NCCL"}})),
    ("nccl-without-gpu-seen", facts({**SCRIPT, "ddp": {"backend": "NCCL"}}, accelerator_present=False)),
    ("vendor-backend-without-device", facts({**SCRIPT, "ddp": {"backend": "HCCL"}})),
    ("accelerator-not-seen", facts(SCRIPT, accelerator_missing=ACCELERATORS[0])),
    ("accelerator-not-seen", facts({**task(), "ddp": {"overrides": "Report"}}, accelerator_missing=ACCELERATORS[0])),
    ("accelerator-not-used", facts(SCRIPT, accelerator_missing=ACCELERATORS[0], cpu_chosen=True)),
    ("accelerator-not-used", facts({**SCRIPT, "ddp": {"overrides": "Report"}}, accelerator_missing=ACCELERATORS[0])),
    ("backend-not-available", facts(SCRIPT, backend_available=False)),
    ("sync-batch-norm-cpu", facts(SCRIPT, sync_batch_norm_on_cpu=True)),
    ("bf16-hook-gloo", facts(SCRIPT, bf16_hook_on_gloo=True)),
    ("claim-read-write-once", facts({**SCRIPT, "nodes": 2}, claim_read_write_once=True)),
    ("checkpoint-on-nodes", facts({**task(), "checkpoint": {"everySteps": 5}}, in_cluster=True)),
    ("checkpoint-of-a-script", facts({**SCRIPT, "checkpoint": {"everySteps": 5}})),
    ("copies-of-a-script", facts({**SCRIPT, "checkpoint": {"inMemoryEverySteps": 5}})),
    ("unused-non-reentrant", facts({**task(gradientCheckpointing="NonReentrant"), "ddp": {"findUnusedParameters": True}})),
    ("unused-not-needed", facts(SCRIPT, nothing_unused=True)),
    ("buffers-and-checkpointing", facts({**task(gradientCheckpointing="NonReentrant"), "ddp": {"broadcastBuffers": True}})),
    ("no-buffers", facts({**SCRIPT, "ddp": {"broadcastBuffers": True}}, has_buffers=False)),
    ("gloo-on-gpu", facts({**SCRIPT, **GPU, "ddp": {"backend": "Gloo"}})),
    ("bucket-cap-25", facts({**SCRIPT, "ddp": {"bucketCapMB": 25}})),
    ("static-graph-overrides-unused", facts({**SCRIPT, "ddp": {"staticGraph": True, "findUnusedParameters": True}})),
    ("hang-of-a-command", facts({"command": ["bash", "run.sh"], "recovery": {"progressTimeoutSeconds": 60}})),
    ("static-graph-accumulation", facts({**SCRIPT, "ddp": {"staticGraph": True, "gradientAccumulationSteps": 2}})),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "found"), CASES, ids=[rule for rule, _ in CASES])
def test_a_rule_fires(rule: str, found: Facts) -> None:
    assert rule in fired(found)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in CASES} == {row.id for row in RULES}


@pytest.mark.parametrize(
    "spec",
    [
        SCRIPT,
        task(),
        {"command": ["torchrun", "train.py"]},
        {**SCRIPT, **GPU, "ddp": {"backend": "NCCL", "bucketCapMB": 50}},
        task(gradientCheckpointing="NonReentrant"),
        {**task(), "nodes": 4, "ddp": {"gradientAccumulationSteps": 4}},
        {**SCRIPT, "env": [{"name": "WORLD", "value": "1"}], "ports": {"metrics": 29564}},
    ],
)
def test_a_sound_spec_has_no_findings(spec: dict[str, Any]) -> None:
    assert fired(facts(spec)) == set()


def test_nothing_fires_on_what_is_not_known() -> None:
    run_time = {row.id for row in RULES if row.at_run_time}
    assert not run_time & fired(
        facts({**SCRIPT, "nodes": 2, "ddp": {"broadcastBuffers": True, "backend": "NCCL"}})
    )


@pytest.mark.parametrize("missing", ACCELERATORS, ids=lambda known: known.resource)
@pytest.mark.parametrize("chosen", [True, False])
def test_a_missing_accelerator_is_named_with_what_brings_it(missing: Accelerator, chosen: bool) -> None:
    [finding] = judge(facts(SCRIPT, accelerator_missing=missing, cpu_chosen=chosen))
    assert finding.verdict is (Verdict.WARN if chosen else Verdict.REFUSE)
    for words in (missing.resource, f"no {missing.device} device", f"install {missing.package} in the image"):
        assert words in finding.message
    assert missing.package.startswith("a torch build for ") or missing.package == missing.plugin
    assert of_resource(missing.resource) is missing


def test_refusals_come_first() -> None:
    verdicts = [f.verdict for f in judge(facts({**SCRIPT, "ddp": {"bucketCapMB": 0, "backend": "NCCL"}}))]
    assert verdicts == [Verdict.REFUSE, Verdict.WARN]


def test_a_batch_that_does_not_divide_names_the_sizes_that_do() -> None:
    message = next(
        f.message for f in judge(facts({**task(globalBatchSize=65), "nodes": 4})) if f.rule == "global-batch"
    )
    assert "64 or 68" in message


@pytest.mark.parametrize(
    ("batch", "world", "accumulation", "expected"), [(64, 2, 1, 32), (64, 2, 4, 8), (6, 3, 2, 1)]
)
def test_micro_batch(batch: int, world: int, accumulation: int, expected: int) -> None:
    assert micro_batch(batch, world, accumulation) == expected


def test_a_batch_smaller_than_the_world_names_only_possible_sizes() -> None:
    with pytest.raises(Refused, match=r"use 8$"):
        micro_batch(3, 4, 2)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"cpu": "4", "memory": "1Gi", "rdma/hca": "1"}, None),
        ({"nvidia.com/gpu": "8"}, ("cuda", 8)),
        ({"amd.com/gpu": "4"}, ("cuda", 4)),
        ({"nvidia.com/mig-1g.5gb": "2"}, ("cuda", 2)),
        ({"habana.ai/gaudi": "8"}, ("hpu", 8)),
        ({"huawei.com/Ascend910": "2"}, ("npu", 2)),
        ({"gpu.intel.com/i915": "1"}, ("xpu", 1)),
        ({"cambricon.com/mlu": "1"}, ("mlu", 1)),
        ({"nvidia.com/gpu": "0"}, None),
    ],
)
def test_accelerators(limits: dict[str, str], expected: tuple[str, int] | None) -> None:
    found = accelerator(limits)
    assert (None if found is None else (found[0].device, found[1])) == expected


def test_ranks_and_backend_follow_the_accelerator() -> None:
    found = plan(facts({**SCRIPT, **GPU, "nodes": 3}).spec)
    assert (found.world_size, found.backend) == (6, Backend.NCCL)
    assert plan(facts({**SCRIPT, **GPU, "processesPerNode": 1}).spec).world_size == 1
    assert plan(facts(SCRIPT).spec).backend is Backend.GLOO
