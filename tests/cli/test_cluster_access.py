"""What a cluster answers becomes values or sentences."""

import json
from pathlib import Path

import pytest
from tests.cli.api_server import ApiServer, listed
from tests.cli.cluster import JOB, JOBS, PODS, run

from ddpjob_api.history import LOG_MARK, History, RankSums, Row, pack
from ddpjob_cli.cluster.access import Access
from ddpjob_cli.cluster.kubeconfig import Target
from ddpjob_cli.errors import CommandError, Forbidden, Unreachable, Unusable


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
    assert "ddpjob logs digits -n team --rank 1" in explained[0]["do"]
    assert explained[2]["what"] == "BackOff: slow down (3 times)"
    assert [one["name"] for one in json.loads(run(api, tmp_path, "top", "--json"))] == ["digits"]


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


@pytest.mark.parametrize("current", [None, "", "gone"], ids=["none", "empty", "one that is gone"])
def test_a_context_that_is_named_needs_no_current_one(
    api: ApiServer, tmp_path: Path, current: str | None
) -> None:
    file = Path(api.kubeconfig(tmp_path))
    config = json.loads(file.read_text())
    del config["current-context"]
    file.write_text(json.dumps(config | ({} if current is None else {"current-context": current})))
    access = Access(Target(kubeconfig=str(file), context="a"))
    assert access.get(f"{JOBS}/digits", "digits") == JOB
    assert access.namespace == "team"


def test_an_empty_kubeconfig_variable_is_none(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(api.kubeconfig(tmp_path))
    (tmp_path / ".kube").mkdir()
    file.rename(tmp_path / ".kube" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    # As the client has it in a process that begins with such an environment.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "")
    assert Access(Target()).get(f"{JOBS}/digits", "digits") == JOB


@pytest.mark.parametrize("answer", ["<html>log in</html>", "[1]", "", '{"half": '])
def test_a_server_that_is_no_kubernetes_is_named(api: ApiServer, tmp_path: Path, answer: str) -> None:
    api.answers[f"GET {JOBS}/digits"] = (200, answer)
    with pytest.raises(Unreachable, match="does not answer as Kubernetes does"):
        run(api, tmp_path, "explain", "digits")
