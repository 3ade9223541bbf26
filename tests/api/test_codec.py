"""Documents to types and back."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_api import Invalid, parse, render
from ddpjob_api.codec import dotted, load, nearest
from ddpjob_api.report import Failure, InEffect, Progress
from ddpjob_api.spec import DDP, Backend, Checkpoint, DDPJob, Metadata, Recovery, Spec, Task


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "digits"},
        "spec": {"script": {"args": ["train.py"]}, **spec},
    }


def problems(doc: object) -> list[str]:
    with pytest.raises(Invalid) as caught:
        parse(doc)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ddp": {"bucketCapMb": 25}}, "spec.ddp.bucketCapMb: unknown field; did you mean bucketCapMB?"),
        ({"ddp": {"find_unused_parameters": True}}, "spec.ddp.find_unused_parameters: unknown field; did you mean findUnusedParameters?"),
        ({"node": 2}, "spec.node: unknown field; did you mean nodes?"),
        ({"nodes": "2"}, "spec.nodes: expected a whole number, found a string ('2')"),
        ({"nodes": 0}, "spec.nodes: 0 is too small; at least 1"),
        ({"nodes": True}, "spec.nodes: expected a whole number, found a boolean (True)"),
        ({"nodes": 1.5}, "spec.nodes: expected a whole number, found a number (1.5)"),
        ({"suspend": "yes"}, "spec.suspend: expected true or false, found a string ('yes')"),
        ({"ddp": {"backend": "nccl"}}, "spec.ddp.backend: 'nccl' is not one of Auto, NCCL, Gloo, XCCL, HCCL, CNCL, MPI; did you mean NCCL?"),
        ({"ddp": {"timeoutSeconds": 0}}, "spec.ddp.timeoutSeconds: 0 is too small; at least 1"),
        ({"env": [{"name": "A", "value": 3}]}, "spec.env[0].value: expected a string, found a number (3); put it in quotes"),
        ({"env": [{"value": "3"}]}, "spec.env[0].name: missing; this field is required"),
        ({"command": []}, "spec.command: too short; at least 1 item"),
        ({"script": {"args": "train.py"}}, "spec.script.args: expected a list, found a string ('train.py')"),
        ({"task": {"entrypoint": "train.py", "globalBatchSize": 8}}, r"spec.task.entrypoint: 'train.py' does not match"),
        ({"resourcesPerNode": {"limits": {"cpu": True}}}, "spec.resourcesPerNode.limits.cpu: expected a quantity, found a boolean (True)"),
        ({"resourcesPerNode": {"limits": {"cpu": "lots"}}}, "spec.resourcesPerNode.limits.cpu: 'lots' is no quantity; like 4, 500m, 16Gi"),
        ({"resourcesPerNode": {"requests": {"memory": "16GB"}}}, "spec.resourcesPerNode.requests.memory: '16GB' is no quantity"),
        ({"resourcesPerNode": {"limits": {"cpu": "4\n"}}}, "spec.resourcesPerNode.limits.cpu: '4\\n' is no quantity"),
        ({"resourcesPerNode": {"limits": {"cpu": "1" * 65}}}, "spec.resourcesPerNode.limits.cpu: '111"),
        ({"resourcesPerNode": {"limits": {"cpu": 0.5}}}, "spec.resourcesPerNode.limits.cpu: expected a quantity, found a number (0.5); put it in quotes"),
        ({"env": [{"name": "A=B", "value": "3"}]}, "spec.env[0].name: 'A=B' does not match"),
        ({"command": ["echo", "a\0b"]}, r"spec.command[1]: 'a\x00b' has a character (NUL, or half of a surrogate pair)"),
        ({"script": {"args": ["a.py", "\ud800"]}}, r"spec.script.args[1]: '\ud800' has a character"),
        ({"env": [{"name": "A", "value": "\0"}]}, r"spec.env[0].value: '\x00' has a character"),
        ({"task": {"entrypoint": "a:b", "globalBatchSize": 8, "params": {"x": [{"y": "\0"}]}}}, "spec.task.params.x[0].y: "),
        ({"command": ["sh", "-c", "x" * 100_000]}, "spec: 1000"),
        ({"ddp": None, "checkpoint": 3}, "spec.checkpoint: expected an object, found a number (3)"),
    ],
)  # fmt: skip
def test_a_problem_names_the_field_and_what_was_expected(spec: dict[str, Any], expected: str) -> None:
    assert any(found.startswith(expected) for found in problems(document(**spec))), problems(document(**spec))


def test_what_does_not_travel_may_be_large() -> None:
    big = [{"name": f"A{number}", "value": "x" * 32_000} for number in range(8)]
    assert len(parse(document(env=big)).spec.env) == 8


def test_all_problems_are_named_at_once() -> None:
    assert len(problems(document(nodes=0, node=1, ddp={"backend": "x", "timeoutSeconds": "a"}))) == 4


@pytest.mark.parametrize("doc", [None, [], "x", {}, {"apiVersion": "v1", "kind": "Pod"}])
def test_what_is_no_ddpjob_is_told_so(doc: object) -> None:
    assert "expected" in problems(doc)[0]


def test_a_job_without_a_name_is_told_so() -> None:
    doc = document()
    doc["metadata"] = {}
    assert problems(doc) == ["metadata.name: missing; a job needs a name"]
    doc["metadata"] = {"name": 5}
    assert problems(doc) == [
        "metadata.name: expected a string, found a number (5); put it in quotes; a job needs a name"
    ]


def test_a_namespace_that_is_no_string_is_told_so() -> None:
    doc = document()
    doc["metadata"]["namespace"] = 5
    assert problems(doc) == ["metadata.namespace: expected a string, found a number (5); put it in quotes"]


def test_quantities_may_be_numbers() -> None:
    job = parse(document(resourcesPerNode={"limits": {"nvidia.com/gpu": 8, "memory": "4Gi"}}))
    assert job.spec.resources_per_node.limits == {"nvidia.com/gpu": "8", "memory": "4Gi"}


@pytest.mark.parametrize(
    "quantity", ["4", "0.5", ".5", "4.", "+1", "-1", "500m", "100n", "2k", "3E", "16Gi", "1.5Ti", "12e6", "1E-3", "5e+2"]
)  # fmt: skip
def test_every_form_of_a_quantity_is_taken(quantity: str) -> None:
    spec = parse(document(resourcesPerNode={"limits": {"cpu": quantity}})).spec
    assert spec.resources_per_node.limits == {"cpu": quantity}


@pytest.mark.parametrize(
    "word", ["", ".", "-", "Gi", "4 Gi", "4gi", "4KI", "4Ki2", "1e", "1e1.5", "0x10", "1_000", "٤"]
)
def test_what_the_grammar_of_quantities_has_not_is_none(word: str) -> None:
    assert "is no quantity" in problems(document(resourcesPerNode={"limits": {"cpu": word}}))[0]


def test_an_absent_setting_is_none_and_not_a_default() -> None:
    assert parse(document()).spec.ddp == DDP()
    assert parse(document()).spec.ddp.bucket_cap_mb is None


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
seconds = st.integers(1, 10_000).map(lambda s: timedelta(seconds=s))
specs = st.builds(
    Spec,
    nodes=st.integers(1, 64),
    task=st.builds(
        Task,
        entrypoint=st.just("pkg.mod:make"),
        epochs=st.integers(1, 9),
        global_batch_size=st.integers(1, 512),
        params=st.dictionaries(words, st.integers() | words, max_size=3),
    ),
    ddp=st.builds(
        DDP,
        backend=st.sampled_from(Backend),
        bucket_cap_mb=st.none() | st.integers(1, 100),
        broadcast_buffers=st.none() | st.booleans(),
        timeout=st.none() | seconds,
    ),
    checkpoint=st.none() | st.builds(Checkpoint, every=st.none() | seconds, keep=st.integers(1, 9)),
    recovery=st.builds(Recovery, grace_period=seconds),
    suspend=st.booleans(),
)


@given(specs)
def test_parse_after_render_is_the_identity(spec: Spec) -> None:
    job = DDPJob(metadata=Metadata(name="digits", namespace="ml"), spec=spec)
    assert parse(render(job)) == job


@pytest.mark.parametrize(
    "value",
    [
        Progress(step=3, loss=0.5, eta=12.5),
        InEffect(backend="gloo", bucket_bytes=(1, 2), timeout=99.0),
        load(Failure, {"reason": "Killed", "rank": 1, "signal": "SIGKILL", "also": [2]}),
    ],
)
def test_reports_travel_unchanged(value: Any) -> None:
    assert load(type(value), render(value)) == value


def test_paths_read_as_kubernetes_writes_them() -> None:
    assert dotted(("spec", "env", 0, "name")) == "spec.env[0].name"


def test_a_far_name_gets_no_suggestion() -> None:
    assert nearest("zzz", ["nodes", "ddp"]) == ""


def test_a_text_in_a_list_has_a_size() -> None:
    assert load(InEffect, {"warnings": ["w" * 512]}).warnings == ("w" * 512,)
    with pytest.raises(Invalid, match=r"warnings\W0"):
        load(InEffect, {"warnings": ["w" * 513]})
