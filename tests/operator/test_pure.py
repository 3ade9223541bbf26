"""The pure parts as tables: words, numbers for people, views, conditions."""

import ast
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.test_crd import SCHEMA, expected_type, schemas, sizes_in_the_status, walk
from tests.operator.fake_api import last_words, terminated

from ddpjob_api.codec import Shape, parse_spec
from ddpjob_api.conditions import FAILURES, Condition, Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Failure, InEffect, JobReport, Outcome, Progress, RunState, TerminationMessage
from ddpjob_operator import verdict as verdict_module
from ddpjob_operator.errors import error_of
from ddpjob_operator.events import between
from ddpjob_operator.model import (
    ConditionState,
    Incident,
    Misjudged,
    Nodes,
    ProgressState,
    Rendezvous,
    Runtime,
    Startup,
    Status,
    TimeState,
    Truth,
    Waiting,
    read_status,
    set_condition,
    write_status,
)
from ddpjob_operator.observe import Key, pod_of
from ddpjob_operator.progress import bounded, duration, state_of
from ddpjob_operator.settings import BadSetting, Settings, from_environment
from ddpjob_operator.trouble import is_invalid, is_refusal, refusal_of
from ddpjob_operator.verdict import announced
from ddpjob_operator.words import read

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

TEXT = st.text(max_size=20)

STATUSES = st.builds(
    Status,
    observed_generation=st.none() | st.integers(0, 99),
    state=st.none() | TEXT,
    conditions=st.lists(
        st.builds(
            ConditionState, type=TEXT, status=TEXT, reason=TEXT, message=TEXT, last_transition_time=TEXT,
            observed_generation=st.none() | st.integers(0, 99),
        ), max_size=3,
    ).map(tuple),
    nodes=st.builds(Nodes, desired=st.integers(0, 9), ready=st.integers(0, 9)),
    restarts=st.integers(0, 9),
    disruptions=st.integers(0, 9),
    next_incarnation=st.integers(0, 9),
    incident=st.none() | st.builds(
        Incident, generation=st.integers(0, 9), incarnation=st.integers(0, 9), restart=st.booleans(),
    ),
    misjudged=st.none() | st.builds(Misjudged, count=st.integers(1, 9), generation=st.integers(0, 9)),
    rendezvous=st.none() | st.builds(Rendezvous, attempts=st.integers(1, 9), retry_at=st.none() | TEXT),
    startup=st.none() | st.builds(
        Startup, pods_created_at=st.none() | TEXT, pods_running_at=st.none() | TEXT, first_step_at=st.none() | TEXT,
    ),
    progress=st.none() | st.builds(ProgressState, step=st.integers(0, 9), loss=st.none() | st.floats(0, 9)),
    goodput_percent=st.none() | st.integers(0, 100),
    time=st.none() | st.builds(TimeState, **{each.name: st.integers(0, 9) for each in fields(TimeState)}),
    result=st.dictionaries(TEXT, st.integers() | TEXT, max_size=3),
    ddp=st.none() | st.builds(InEffect, backend=st.none() | TEXT, bucket_bytes=st.lists(st.integers(1, 9)).map(tuple)),
    efficiency=st.none() | st.builds(
        Efficiency, exposed_communication_percent=st.none() | st.integers(0, 100),
        ddp_efficiency_percent=st.none() | st.integers(0, 100), slowest_node=st.none() | TEXT,
    ),
    waiting=st.none() | st.builds(Waiting, told=st.booleans(), since=st.none() | TEXT),
    last_failure=st.none() | st.builds(Failure, reason=st.sampled_from(Reason), message=TEXT, rank=st.none() | st.integers(0, 9)),
    runtime=st.none() | st.builds(Runtime, image=TEXT, trainer_version=TEXT, protocol=st.integers(0, 9), template_hash=TEXT, spec_hash=TEXT),
)  # fmt: skip

STATUS_FIELDS = list(walk(Status, SCHEMA["properties"]["status"], "status"))


@pytest.mark.parametrize(
    ("path", "shape", "schema"), STATUS_FIELDS, ids=[path for path, _, _ in STATUS_FIELDS]
)
def test_a_field_of_the_status_stands_in_the_crd(path: str, shape: Shape, schema: Mapping[str, Any]) -> None:
    """One that is missing there is pruned: the operator would forget it with each write."""
    assert schema, f"{path} is not in crds/ddpjob.yaml"
    assert schema["type"] == ("number" if shape.hint is float else expected_type(shape))
    sizes_in_the_status(shape, schema)


def test_the_crd_has_no_field_of_the_status_that_the_types_lack() -> None:
    listed = {path.replace("[]", "") for path, _ in schemas(SCHEMA["properties"]["status"], "status")}
    assert listed - {"status"} == {path for path, _, _ in STATUS_FIELDS}


@given(STATUSES)
def test_a_status_is_read_back_as_it_was_written(status: Status) -> None:
    assert read_status(write_status(status)) == status


@pytest.mark.parametrize(
    "document",
    [None, 1, [], {"conditions": 3}, {"restarts": "many"}, {"new": 1}, {"lastFailure": {"reason": "Newer"}}],
)
def test_a_status_from_another_version_does_not_stop_the_operator(document: object) -> None:
    assert read_status(document).restarts == 0


def test_a_condition_moves_its_time_only_with_its_truth() -> None:
    first = set_condition(Status(), Condition.RUNNING, Truth.TRUE, Reason.TRAINING, "a", now=NOW)
    later = NOW + timedelta(hours=1)
    same = set_condition(first, Condition.RUNNING, Truth.TRUE, Reason.TRAINING, "b", now=later)
    moved = set_condition(same, Condition.RUNNING, Truth.FALSE, Reason.NOT_STARTED, "c", now=later)
    assert [s.conditions[0].last_transition_time for s in (first, same, moved)] == [
        "2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z",
    ]  # fmt: skip


def view(status: dict[str, Any], **meta: Any) -> Any:
    labels = {"ddpjob.dev/name": "train", "ddpjob.dev/index": "1", "ddpjob.dev/incarnation": "0"}
    body = {
        "metadata": {"name": "train-1", "namespace": "ns", "uid": "p", "labels": labels,
                     "creationTimestamp": "2026-01-01T00:00:00Z", **meta},
        "spec": {},
        "status": status,
    }  # fmt: skip
    return pod_of(body)


def test_a_pod_is_seen_by_its_trainer_container() -> None:
    side = {"name": "side", "state": {"running": {}}}
    done = {"name": "trainer", "state": terminated(0, message=last_words("Done", 0, 1))}
    found = view({"phase": "Running", "containerStatuses": [side, done]})
    assert found.ended
    assert found.end.done
    assert found.key == Key("ns", "train")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Traceback …",
        "{",
        '{"outcome": "Done"}',
        last_words("Won", 0, 1),
        "{}" * 4096,
        '{"a":' + "[" * 4000,
        last_words("Done", 0, 1, progress={"loss": 10**400}),
    ],
)
def test_what_is_no_report_is_no_verdict(message: str) -> None:
    found = view(
        {
            "phase": "Failed",
            "containerStatuses": [{"name": "trainer", "state": terminated(1, message=message)}],
        }
    )
    assert found.end.report is None


def test_a_newer_trainer_may_say_more_than_we_know() -> None:
    message = last_words("Done", 0, 1, mood="good", progress={"step": 4, "mood": "good"})
    found = view({"containerStatuses": [{"name": "trainer", "state": terminated(0, message=message)}]})
    assert found.end.done
    assert found.end.report.progress.step == 4


def test_half_a_surrogate_pair_is_read_as_the_api_server_stores_it() -> None:
    """A launcher says it where a file name is no UTF-8; another text at each look would be a write and an event."""
    said = {"reason": "ProgramFailed", "message": "ValueError: bad a\udcff 😀"}
    message = last_words("Failed", 1, 1, failure=said, result={"\ud800x": ["\udfff"], "file": "b\udc80"})
    assert "\\udcff" in message
    report = view(
        {"containerStatuses": [{"name": "trainer", "state": terminated(1, message=message)}]}
    ).end.report
    assert report.failure.message == "ValueError: bad a\ufffd 😀"
    assert report.result == {"\ufffdx": ["\ufffd"], "file": "b\ufffd"}
    assert read(Failure, json.dumps(said)).message == report.failure.message


def test_what_is_too_long_for_the_status_is_cut_and_the_rest_is_read() -> None:
    ddp = {"backend": "b" * 40, "warnings": ["w" * 600] * 20, "bucketBytes": [*range(80)], "worldSize": 2}
    failure = {"reason": "ProgramFailed", "message": "m" * 2000, "also": [*range(20)]}
    report = read(TerminationMessage, last_words("Failed", 1, 0, ddp=ddp, failure=failure))
    assert report.ddp == InEffect(
        backend="b" * 32, warnings=("w" * 512,) * 16, bucket_bytes=tuple(range(64)), world_size=2
    )
    assert report.failure == Failure(reason=Reason.PROGRAM_FAILED, message="m" * 1024, also=tuple(range(16)))


def test_a_force_deleted_pod_is_over() -> None:
    assert view({"phase": "Running"}, deletionTimestamp="x", deletionGracePeriodSeconds=0).ended
    assert not view({"phase": "Running"}, deletionTimestamp="x", deletionGracePeriodSeconds=30).ended
    assert pod_of({"metadata": {"labels": {"ddpjob.dev/name": "x"}}}) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (720, "12m"), (12000, "3h20m"), (7200, "2h"), (187200, "2d4h"), (864000, "10d")],
)
def test_durations_for_people(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_progress_for_people() -> None:
    half = state_of(
        Progress(step=41, total_steps=100, eta=724.6, loss=float("nan"), samples_per_second=1234.5678)
    )
    assert (half.text, half.percent, half.eta, half.eta_seconds) == ("41 %", 41, "12m", 725)
    assert (half.loss, half.samples_per_second) == (None, 1234.57)
    assert state_of(Progress(step=1200)).text == "step 1200"
    assert state_of(Progress(step=10, total_steps=10, eta=3.0)).eta is None
    assert state_of(Progress(step=999, total_steps=1000)).text == "99 %"


def test_a_result_is_bounded_json() -> None:
    assert bounded({"a": 1.5, "b": float("inf"), "c": "x" * 9999, "d": {"no": 1}, "e": True}) == {
        "a": 1.5, "c": "x" * 1024, "e": True,
    }  # fmt: skip
    assert len(bounded({str(n): n for n in range(99)})) == 32
    ends = {"least": 1 - 2**63, "most": 2**63 - 1, "float": 1e300}
    assert bounded({**ends, "more": 2**63, "less": -(2**64), "no float": 10**400}) == ends


@pytest.mark.parametrize("said", list(Reason))
def test_a_job_has_failed_with_a_reason_of_the_closed_list(said: Reason) -> None:
    spec = parse_spec({"script": {"args": ["a"]}})
    report = JobReport(
        protocol=1, name="train", state=RunState.FINISHED, term=1, generation=1, nodes_joined=1, nodes_expected=1,
        outcome=Outcome.FAILED, last_failure=Failure(reason=said),
    )  # fmt: skip
    verdict = announced(report, spec)
    assert verdict is not None
    assert verdict.reason is (said if said in FAILURES else Reason.UNKNOWN)


def test_every_reason_of_failed_in_the_code_is_in_the_closed_list() -> None:
    given: set[str] = set()
    for path in Path(verdict_module.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Verdict":
                words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                if words["condition"] == "Condition.FAILED":
                    given.add(words["reason"].removeprefix("Reason."))
    assert given - {"reason"} <= {reason.name for reason in FAILURES}
    assert {"RENDEZVOUS_TIMEOUT", "DEADLINE_EXCEEDED", "INVALID_SPEC", "CONFIGURATION_REFUSED"} <= given


@pytest.mark.parametrize(
    ("status", "message", "reason", "final"),
    [
        (403, "exceeded quota: small", Reason.QUOTA_EXCEEDED, False),
        (403, 'violates PodSecurity "restricted:latest"', Reason.POD_REFUSED, False),
        (400, 'admission webhook "x" denied the request', Reason.POD_REFUSED, False),
        (500, 'failed calling webhook "x": connection refused', Reason.POD_REFUSED, False),
        (500, 'admission webhook "x" denied the request', Reason.POD_REFUSED, False),
        (422, "spec.dnsPolicy: Unsupported value", Reason.POD_REFUSED, True),
    ],
)
def test_refusals_have_reasons(status: int, message: str, reason: Reason, final: bool) -> None:
    error = error_of(status, {"message": message})
    assert refusal_of(error).reason is reason
    assert is_invalid(error) is final
    assert is_refusal(error)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, "etcdserver: request timed out"),
        (503, "POST /api/v1/namespaces/webhook/pods: ClientConnectorError"),
        (429, 'failed calling webhook "x": too many requests'),
        (409, "the object has been modified"),
    ],
)
def test_what_is_the_servers_own_trouble_is_no_refusal(status: int, message: str) -> None:
    assert not is_refusal(error_of(status, {"message": message}))


def test_events_tell_each_change_once() -> None:
    old = Status()
    new = set_condition(old, Condition.FAILED, Truth.TRUE, Reason.INVALID_SPEC, "no", now=NOW)
    assert [(e.type, e.reason, e.message) for e in between(old, new)] == [("Warning", "InvalidSpec", "no")]
    assert between(new, new) == []


def test_a_rank_that_makes_the_others_wait_is_told_with_advice_and_so_is_its_end() -> None:
    well = Status(efficiency=Efficiency(exposed_communication_percent=4))
    found = Efficiency(
        exposed_communication_percent=60, slowest_rank=2, slowest_rank_cause="data_wait", slowest_node="w7"
    )
    slow = Status(efficiency=found)
    worse = Status(efficiency=replace(found, exposed_communication_percent=70))
    (told,) = between(well, slow)
    assert (told.type, told.reason) == ("Warning", "Straggler")
    assert told.message.startswith("rank 2 on w7 makes the others wait, in data_wait: ")
    assert "more DataLoader workers" in told.message
    assert between(slow, worse) == []
    (gone,) = between(slow, well)
    assert (gone.type, gone.reason) == ("Normal", "StragglerGone")
    assert read_status(write_status(slow)).efficiency == slow.efficiency


def test_settings_come_from_the_environment() -> None:
    found = from_environment(
        {"DDPJOB_WATCH_NAMESPACES": "a, b", "DDPJOB_RESYNC": "30", "DDPJOB_API_QPS": "5"}
    )
    assert (found.watch_namespaces, found.resync, found.api_qps) == (("a", "b"), timedelta(seconds=30), 5.0)
    assert from_environment({}) == Settings()
    with pytest.raises(BadSetting, match="DDPJOB_WORKERS=many: expected a number, like 16"):
        from_environment({"DDPJOB_WORKERS": "many"})
