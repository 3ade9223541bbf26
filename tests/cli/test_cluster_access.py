"""What a cluster answers becomes values or sentences, and what is sent is what was meant."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.api_server import ApiServer, Broken, Held, listed
from tests.cli.jobs import inside, last_json, write
from tests.cli.test_top import metrics

from ddpjob_api.history import LOG_MARK, History, RankSums, Row, pack
from ddpjob_cli.cluster import logs
from ddpjob_cli.cluster.access import Access, Target
from ddpjob_cli.commands import submit
from ddpjob_cli.errors import CommandError, Forbidden, Unreachable, Unusable
from ddpjob_cli.lines import Wanted
from ddpjob_cli.main import cli

JOBS = "/apis/ddpjob.dev/v1alpha1/namespaces/team/ddpjobs"
PODS = "/api/v1/namespaces/team/pods"
JOB = {
    "metadata": {"name": "digits", "namespace": "team", "uid": "j"},
    "spec": {"nodes": 2, "script": {"args": ["a.py"]}},
    "status": {
        "state": "Running",
        "nodes": {"desired": 2, "ready": 2},
        "conditions": [
            {"type": "PodsReady", "status": "True", "reason": "AllPodsReady", "message": ""},
            {"type": "Running", "status": "True", "reason": "Training", "message": ""},
        ],
        "progress": {"step": 25},
        "lastFailure": {"reason": "Killed", "rank": 1, "node": 1},
        "restarts": 1,
    },
}


def pod(index: int, phase: str = "Running", *, incarnation: int = 0, job: str = "j") -> dict[str, Any]:
    name = f"digits-{index}" + (f"-r{incarnation}" if incarnation else "")
    return {
        "metadata": {
            "name": name,
            "uid": f"p{index}" if job == "j" else f"{job}-{name}",
            "labels": {"ddpjob.dev/index": str(index), "ddpjob.dev/incarnation": str(incarnation)},
            "ownerReferences": [{"kind": "DDPJob", "name": "digits", "uid": job, "controller": True}],
        },
        "spec": {"nodeName": "w1", "containers": [{"name": "trainer"}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "ready": True, "state": {}}]},
    }


def ended(name: str, uid: str = "p1") -> dict[str, Any]:
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "trainer", "state": {"terminated": {}}}]}
    return {"metadata": {"name": name, "uid": uid}, "status": status}


def done(job: dict[str, Any]) -> dict[str, Any]:
    conditions = [{"type": "Complete", "status": "True", "reason": "AllRanksSucceeded", "message": ""}]
    return {**job, "status": {**job["status"], "conditions": conditions}}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob_cli.scraping.FIRST_SECONDS", 0.01)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.answers = {
            f"GET {JOBS}/digits": (200, JOB),
            f"GET {JOBS}?limit=500": listed(JOB),
            f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500": listed(pod(1, "Succeeded"), pod(0)),
            "GET /api/v1/namespaces/team/events?limit=500": listed(
                {
                    "involvedObject": {"uid": "p1"},
                    "reason": "BackOff",
                    "message": "slow\n down",
                    "type": "Warning",
                    "count": 3,
                },
                {
                    "involvedObject": {"uid": "another"},
                    "reason": "BackOff",
                    "message": "not ours",
                    "type": "Warning",
                },
            ),
            f"GET {PODS}/digits-0:9464/proxy/metrics": (200, metrics(20, data=0.2, comm=0.4, rank=0)),
            f"GET {PODS}/digits-0/log?container=trainer": (200, "[rank 0] one\n[rank 0] two"),
            f"GET {PODS}/digits-1/log?container=trainer": (200, "[rank 1] three\n[ddpjob] history: x\n"),
        }
        yield server


def run(api: ApiServer, folder: Path, *arguments: str) -> Any:
    """The command in this process: what it prints, or the error that would be a sentence."""
    result = CliRunner().invoke(
        cli, [*arguments, "--kubeconfig", api.kubeconfig(folder)], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_job_is_seen_with_its_pods_events_and_ranks(api: ApiServer, tmp_path: Path) -> None:
    found = json.loads(run(api, tmp_path, "top", "digits", "--json"))
    assert (found["state"], found["place"]) == ("Running", "namespace team")
    assert [(rank["rank"], rank["hostNode"], rank["step"]) for rank in found["ranks"]] == [(0, "w1", 25)]
    explained = json.loads(run(api, tmp_path, "explain", "digits", "--json"))["findings"]
    assert [(one["weight"], one["where"]) for one in explained] == [
        ("fails", ""),
        ("note", "spec.checkpoint"),
        ("note", "pod digits-1"),
        ("fine", ""),
    ]
    assert explained[3]["what"] == "it runs again: step 25"
    assert explained[2]["what"] == "BackOff: slow down (3 times)"
    assert [one["name"] for one in json.loads(run(api, tmp_path, "top", "--json"))] == ["digits"]


def test_logs_of_pods_that_run_and_ended(api: ApiServer, tmp_path: Path) -> None:
    assert run(api, tmp_path, "logs", "digits") == "[rank 0] one\n[rank 0] two\n[rank 1] three\n"
    assert run(api, tmp_path, "logs", "digits", "--failed") == "[rank 1] three\n"


@pytest.fixture
def deleted(api: ApiServer) -> ApiServer:
    """Beside the pods of the job those of an earlier one of its name, which save for as long as they may."""
    earlier = [pod(0, incarnation=3, job="earlier"), pod(1, "Failed", incarnation=2, job="earlier")]
    for one in earlier:
        one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        log = f"GET {PODS}/{one['metadata']['name']}/log?container=trainer"
        api.answers[log] = (200, "[rank 0] the earlier job's\n")
        api.answers[f"{log}&follow=true&timestamps=true"] = (
            200, "2026-01-01T00:00:00.200000000Z [rank 0] the earlier job's\n",
        )  # fmt: skip
        api.answers[f"GET {PODS}/{one['metadata']['name']}"] = (404, {})
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(*earlier, pod(1, "Succeeded"), pod(0))
    return api


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ((), "[rank 0] one\n[rank 0] two\n[rank 1] three\n"),
        (("--failed",), "[rank 1] three\n"),
    ],
    ids=["the newest", "failed"],
)
def test_the_logs_of_a_job_are_not_those_of_an_earlier_one_of_its_name(
    deleted: ApiServer, tmp_path: Path, arguments: tuple[str, ...], shown: str
) -> None:
    assert run(deleted, tmp_path, "logs", "digits", *arguments) == shown


def test_the_output_of_an_earlier_job_is_not_before_that_of_the_job(
    deleted: ApiServer, tmp_path: Path
) -> None:
    with pytest.raises(Unusable, match="there is no pod that ended before"):
        run(deleted, tmp_path, "logs", "digits", "--previous")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("uid", ["j", "earlier"], ids=["the new job", "the old job"])
def test_the_job_that_is_followed_is_the_one_that_was_there_first(
    deleted: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: str
) -> None:
    """Deleted and sent again while it is followed, it has ended, and the output of the other is not its own."""
    for index in (0, 1):
        log = f"GET {PODS}/digits-{index}/log?container=trainer&follow=true&timestamps=true"
        deleted.answers[log] = (200, f"2026-01-01T00:00:00.200000000Z [rank {index}] the new job's\n")
        deleted.answers[f"GET {PODS}/digits-{index}"] = (404, {})
    first = {**JOB, "metadata": {**JOB["metadata"], "uid": uid}}
    deleted.answers[f"GET {JOBS}/digits"] = (200, done(JOB) if uid == "j" else JOB)
    access = Access(Target(kubeconfig=deleted.kubeconfig(tmp_path)))
    shown = sorted(line.text for line in logs.followed(access, first, Wanted()))
    assert shown == ["the new job's" if uid == "j" else "the earlier job's"] * 2


def test_what_is_found_out_about_a_job_is_not_about_an_earlier_one_of_its_name(
    deleted: ApiServer, tmp_path: Path
) -> None:
    warning = {"reason": "Evicted", "message": "the earlier job's", "type": "Warning"}
    deleted.answers["GET /api/v1/namespaces/team/events?limit=500"] = listed(
        {"involvedObject": {"uid": "earlier-digits-0-r3"}, **warning}
    )
    explained = json.loads(run(deleted, tmp_path, "explain", "digits", "--json"))["findings"]
    assert [one["what"] for one in explained if "earlier" in one["what"]] == []
    ranks = json.loads(run(deleted, tmp_path, "top", "digits", "--json"))
    assert ([rank["pod"] for rank in ranks["ranks"]], ranks["notSeen"]) == (["digits-0"], [])
    deleted.asked.clear()
    run(deleted, tmp_path, "report", "digits", "--json")
    with pytest.raises(Unusable, match="no hang is known"):
        run(deleted, tmp_path, "explain", "digits", "--stacks")
    assert [asked.path for asked in deleted.asked if "digits-0-r3" in asked.path or "-r2" in asked.path] == []


def test_a_report_is_made_of_what_runs_and_of_the_logs_of_what_ended(api: ApiServer, tmp_path: Path) -> None:
    rows = tuple(
        Row(at=1e9 + 10 * n, step=10 * n, ranks=(RankSums(rank=1, steps=10 * n, samples=80 * n),))
        for n in range(3)
    )
    history = History(job="j", node=1, rows=rows)
    tail = f"GET {PODS}/digits-1/log?container=trainer&tailLines=40"
    api.answers[tail] = (200, f"[rank 1] x\n[ddpjob] {LOG_MARK}{pack(history)}\n[ddpjob] done\n")
    api.refuse(f"GET {PODS}/digits-0:9464/proxy/history", 503, "no endpoints")
    found = json.loads(run(api, tmp_path, "report", "digits", "--json"))
    assert [step for _, step in found["curves"]["step"]] == [0, 10, 20]
    assert [value for _, value in found["curves"]["samplesPerSecond"]] == [8.0, 8.0]
    assert len(found["notInThisReport"]) == 1
    assert "the history of pod digits-0" in found["notInThisReport"][0]


def test_a_pod_that_ends_while_a_report_asks_it_is_read_from_its_log(api: ApiServer, tmp_path: Path) -> None:
    rows = (Row(at=1e9, step=3), Row(at=1e9 + 10, step=9))
    word = f"[ddpjob] {LOG_MARK}{pack(History(job='j', node=0, rows=rows))}\n"
    api.refuse(f"GET {PODS}/digits-0:9464/proxy/history", 503, "dial tcp: no route to host")
    api.answers[f"GET {PODS}/digits-0/log?container=trainer&tailLines=40"] = (200, word)
    found = json.loads(run(api, tmp_path, "report", "digits", "--json"))
    assert [step for _, step in found["curves"]["step"]] == [3, 9]
    assert [each for each in found["notInThisReport"] if "digits-0" in each] == []


def test_what_may_not_be_read_is_said_and_the_rest_shown(api: ApiServer, tmp_path: Path) -> None:
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.refuse(pods, 403, "pods is forbidden")
    found = json.loads(run(api, tmp_path, "explain", "digits", "--json"))["findings"]
    assert any("not allowed to list pods in namespace team" in one["what"] for one in found)
    with pytest.raises(Forbidden, match="pods is forbidden"):
        run(api, tmp_path, "logs", "digits")


def test_a_list_is_read_page_by_page(api: ApiServer, tmp_path: Path) -> None:
    api.answers[f"GET {JOBS}?limit=500"] = listed(JOB, following="next")
    api.answers[f"GET {JOBS}?limit=500&continue=next"] = listed(
        {**JOB, "metadata": {**JOB["metadata"], "name": "b"}}
    )
    assert [one["name"] for one in json.loads(run(api, tmp_path, "top", "--json"))] == ["b", "digits"]


@pytest.mark.parametrize(
    ("status", "message", "kind", "words"),
    [
        (401, "Unauthorized", Forbidden, "does not know this user"),
        (404, "the server could not find the requested resource", Unusable, "install the operator"),
        (
            404,
            'ddpjobs "digits" not found',
            Unusable,
            "there is no DDPJob digits in namespace team; ddpjob top -A",
        ),
        (500, "etcd is gone", CommandError, "the cluster answers 500: etcd is gone"),
    ],
)
def test_a_refusal_is_a_sentence(
    api: ApiServer, tmp_path: Path, status: int, message: str, kind: type[CommandError], words: str
) -> None:
    api.refuse(f"GET {JOBS}/digits", status, message)
    with pytest.raises(kind, match=words):
        run(api, tmp_path, "explain", "digits")


@pytest.mark.parametrize("answer", ["<html>log in</html>", "[1]", "", '{"half": '])
def test_a_server_that_is_no_kubernetes_is_named(api: ApiServer, tmp_path: Path, answer: str) -> None:
    api.answers[f"GET {JOBS}/digits"] = (200, answer)
    with pytest.raises(Unreachable, match="does not answer as Kubernetes does"):
        run(api, tmp_path, "explain", "digits")


def test_a_log_that_is_followed_goes_on_where_it_broke_off(api: ApiServer, tmp_path: Path) -> None:
    """The API server was restarted: nothing is missing and nothing comes twice.

    Also not where several lines have one stamp, on both sides of the break, or the node's clock was set back before it.
    """
    stamps = [f"2026-01-01T00:00:0{second:.9f}Z" for second in (0.2, 1.1, 1.9, 1.4, 1.4, 1.4, 1.6, 1.6, 1.2)]
    lines = [f"{stamp} [rank 1] {number}\n" for number, stamp in enumerate(stamps)]
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, Broken("".join(lines[:5])))
    from_the_whole_second = "".join(lines[1:])
    api.answers[f"{log}&sinceTime={stamps[4]}"] = (200, from_the_whole_second)
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    shown = run(api, tmp_path, "logs", "digits", "-f", "--rank", "1")
    assert shown == "".join(f"[rank 1] {number}\n" for number in range(len(lines)))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("trainer", ["runs", "has ended"])
def test_a_log_whose_connection_is_dead_without_a_word_is_asked_for_again(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    """A load balancer forgot it, or a machine on the way is off: neither an end nor an error ever comes."""
    monkeypatch.setattr("ddpjob_cli.cluster.access.SILENCE_SECONDS", 0.3)
    one, two, three = (f"2026-01-01T00:00:00.{n}00000000Z [rank 1] line {n}" for n in (1, 1, 3))
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, Held(f"{one}\n{two}\n{three[:40]}"))
    api.answers[f"{log}&sinceTime={one[:30]}"] = (200, f"{one}\n{two}\n{three}\n")
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(pod(1, "Running" if trainer == "runs" else "Succeeded"))
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    shown = run(api, tmp_path, "logs", "digits", "-f", "--rank", "1")
    assert shown == "[rank 1] line 1\n[rank 1] line 1\n[rank 1] line 3\n"


@pytest.mark.timeout(30)
def test_a_log_that_is_silent_for_long_is_followed_all_the_same(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer says nothing while it loads; that its connection is made again and again is not told."""
    monkeypatch.setattr("ddpjob_cli.cluster.access.SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logs, "PATIENCE_SECONDS", 0.1)
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers |= {log: (200, Held("")), f"GET {PODS}/digits-1": (200, pod(1))}
    access = Access(Target(kubeconfig=api.kubeconfig(tmp_path)))
    asked, silences = logs.again, iter(range(9))

    def again(access: Access, seen: dict[str, Any]) -> dict[str, Any] | None:
        if next(silences) == 3:
            api.answers[log] = (200, "2026-01-01T00:00:00.100000000Z [rank 1] at last\n")
            api.answers[f"{log}&sinceTime=2026-01-01T00:00:00.100000000Z"] = api.answers[log]
            api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
        return asked(access, seen)

    monkeypatch.setattr(logs, "again", again)
    shown = [line.text for line in logs.grown(access, pod(1), Wanted())]
    assert shown == ["at last"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("cut", [0, 10, 40], ids=["nothing", "half a stamp", "half a line"])
def test_a_log_whose_connection_ends_in_good_order_before_the_trainer_goes_on(
    api: ApiServer, tmp_path: Path, cut: int
) -> None:
    """It does so where the API server loses the kubelet, wherever in a line that is; the trainer ends after it."""
    one, two, three = (f"2026-01-01T00:00:00.{n}00000000Z [rank 1] line {n}" for n in (1, 2, 3))
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, f"{one}\n{two[:cut]}")
    api.answers[f"{log}&sinceTime={one[:30]}"] = (200, f"{one}\n{two}\n{three}")
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(pod(1))
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    shown = run(api, tmp_path, "logs", "digits", "-f", "--rank", "1")
    assert shown == "[rank 1] line 1\n[rank 1] line 2\n[rank 1] line 3\n"


@pytest.mark.timeout(30)
def test_a_job_that_is_over_is_followed_until_its_pods_are_known(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, "2026-01-01T00:00:00.200000000Z [rank 1] one\n")
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    looks, asked = iter(range(9)), logs.pods_of

    def pods_of(access: Access, job: dict[str, Any]) -> list[dict[str, Any]]:
        if next(looks) == 1:
            raise Unreachable("the cluster answers 503")
        return asked(access, job)

    monkeypatch.setattr(logs, "pods_of", pods_of)
    assert run(api, tmp_path, "logs", "digits", "-f", "--rank", "1") == "[rank 1] one\n"


def test_what_the_kubelet_says_of_a_log_is_shown_once_and_is_no_line_of_it(
    api: ApiServer, tmp_path: Path
) -> None:
    """A server refuses to begin at a time that is none."""
    stamp = "2026-01-01T00:00:00.200000000Z"
    remark = "unable to retrieve container logs for containerd://1"
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, Broken(f"{stamp} [rank 1] one\n{remark}\n"))
    later = f"2026-01-01T00:00:00.{'3' * 9}Z [rank 1] two\n"
    api.answers[f"{log}&sinceTime={stamp}"] = (200, f"{stamp} [rank 1] one\n{remark}\n{later}")
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    shown = run(api, tmp_path, "logs", "digits", "-f", "--node", "1")
    assert shown == f"[rank 1] one\n[node 1] {remark}\n[rank 1] two\n"


@pytest.mark.timeout(30)
def test_the_log_of_an_ended_trainer_that_cannot_be_read_is_not_waited_for_without_end(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpjob_cli.cluster.logs.PATIENCE_SECONDS", 0.5)
    api.refuse(f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true", 502, "no kubelet")
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    log = f"GET {PODS}/digits-0/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, "2026-01-01T00:00:00.200000000Z [rank 0] one\n")
    api.answers[f"GET {PODS}/digits-0"] = (200, ended("digits-0", "p0"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    access = Access(Target(kubeconfig=api.kubeconfig(tmp_path)))
    said: list[str] = []
    with pytest.raises(Unreachable, match="the log of pod digits-1: the cluster answers 502: no kubelet"):
        said.extend(line.text for line in logs.lines(access, "digits", Wanted(), follow=True))
    assert said == ["one"]


@pytest.mark.timeout(30)
def test_a_log_is_followed_to_the_trainers_end_whatever_runs_beside_it(
    api: ApiServer, tmp_path: Path
) -> None:
    beside = {"name": "upload", "ready": True, "state": {"running": {}}}
    trainer = {"name": "trainer", "ready": False, "state": {"terminated": {"exitCode": 0}}}
    left = {**pod(1), "status": {"phase": "Running", "containerStatuses": [beside, trainer]}}
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    stamp = "2026-01-01T00:00:00.000000000Z"
    api.answers[log] = api.answers[f"{log}&sinceTime={stamp}"] = (200, f"{stamp} [rank 1] three\n")
    api.answers[f"GET {PODS}/digits-1"] = (200, left)
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    assert run(api, tmp_path, "logs", "digits", "-f", "--rank", "1") == "[rank 1] three\n"


def test_a_script_is_sent_with_its_code_which_is_the_jobs(api: ApiServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    apply = "fieldManager=ddpjob-cli&force=true&fieldValidation=Strict"
    for query in (apply, f"{apply}&dryRun=All"):
        api.answers[f"PATCH {JOBS}/train?{query}"] = (200, ...)
    access = Access(Target(kubeconfig=api.kubeconfig(tmp_path)))
    assert access.namespace == "team"
    with pytest.raises(CommandError, match="ConfigMap"):
        run(api, tmp_path, "submit", str(script), "--detach")
    name = next(asked.path for asked in api.asked if "configmaps" in asked.path).partition("?")[0]
    api.answers[f"PATCH {name}?{apply}"] = (200, ...)
    api.asked.clear()
    assert "train in namespace team: sent" in run(api, tmp_path, "submit", str(script), "--detach")
    sent = [(asked.method, asked.path.partition("?")[0], "dryRun" in asked.path) for asked in api.asked]
    assert sent == [
        ("GET", f"{JOBS}/train", False),
        ("PATCH", f"{JOBS}/train", True),
        ("PATCH", name, False),
        ("PATCH", f"{JOBS}/train", False),
        ("PATCH", name, False),
    ]
    assert {asked.content_type for asked in api.asked[1:]} == {"application/apply-patch+yaml"}
    assert api.asked[2].body["data"] == {"train.py": "print('hello')\n"}
    (owner,) = api.asked[4].body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DDPJob", "train", "1-2-3")


@pytest.mark.parametrize(
    ("status", "words", "code", "outcome"),
    [
        (None, "", 1, "Deleted"),
        (403, "no", 77, "Forbidden"),
        (503, "down", 69, "Unreachable"),
        (401, "who", 77, "Forbidden"),
    ],
)
def test_a_program_gets_a_line_when_the_job_cannot_be_followed(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: int | None, words: str, code: int, outcome: str,
) -> None:  # fmt: skip
    file = write(tmp_path, {"script": {"args": ["train.py"]}}, name="train")
    monkeypatch.setattr("ddpjob_cli.cluster.following.PATIENCE_SECONDS", 0.0)
    apply = "fieldManager=ddpjob-cli&force=true&fieldValidation=Strict"
    for query in (apply, f"{apply}&dryRun=All"):
        api.answers[f"PATCH {JOBS}/train?{query}"] = (200, ...)
    send = submit.send

    def sent(*arguments: Any) -> Any:
        job = send(*arguments)
        if status is not None:
            api.refuse(f"GET {JOBS}/train", status, words)
        return job

    monkeypatch.setattr(submit, "send", sent)
    result = inside("submit", file, "--json", "--kubeconfig", api.kubeconfig(tmp_path))
    assert result.returncode == code, result.stderr
    ending = last_json(result)
    assert (ending["name"], ending["namespace"], ending["outcome"]) == ("train", "team", outcome)
    assert words in ending.get("message", "")


@pytest.mark.parametrize(
    ("status", "code", "outcome"), [(422, 86, "Refused"), (403, 77, "Forbidden"), (503, 69, "Unreachable")]
)
def test_a_program_gets_a_line_when_the_job_cannot_be_sent(
    api: ApiServer, tmp_path: Path, status: int, code: int, outcome: str
) -> None:
    file = write(tmp_path, {"script": {"args": ["train.py"]}}, name="train")
    path = f"{JOBS}/train?fieldManager=ddpjob-cli&force=true&fieldValidation=Strict&dryRun=All"
    api.refuse(f"PATCH {path}", status, "spec.nodes: Invalid value")
    result = inside("submit", file, "--json", "--kubeconfig", api.kubeconfig(tmp_path))
    assert result.returncode == code, result.stderr
    message = result.stderr.rstrip("\n")
    assert last_json(result) == {"name": "train", "namespace": None, "outcome": outcome, "message": message}


def test_a_job_that_the_server_refuses_is_not_sent(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    path = f"{JOBS}/train?fieldManager=ddpjob-cli&force=true&fieldValidation=Strict&dryRun=All"
    api.refuse(f"PATCH {path}", 422, "spec.nodes: Invalid value")
    with pytest.raises(CommandError, match=r"refused: spec\.nodes") as caught:
        run(api, tmp_path, "submit", str(tmp_path / "train.py"))
    assert caught.value.exit_code == 86
    assert not any("configmaps" in asked.path for asked in api.asked)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "now",
    [(404, {"kind": "Status", "message": "gone"}), (200, ended("digits-1", "p9"))],
    ids=["gone", "replaced"],
)
def test_a_log_that_broke_off_ends_with_its_pod(api: ApiServer, tmp_path: Path, now: tuple[int, Any]) -> None:
    stamp = "2026-01-01T00:00:00.200000000Z"
    log = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
    api.answers[log] = (200, Broken(f"{stamp} [rank 1] one\n"))
    later = f"{stamp} [rank 1] one\n{stamp} [rank 1] the successor's\n"
    api.answers[f"{log}&sinceTime={stamp}"] = (200, later)
    api.answers[f"GET {PODS}/digits-1"] = now
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    assert run(api, tmp_path, "logs", "digits", "-f", "--rank", "1") == "[rank 1] one\n"
