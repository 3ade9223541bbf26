"""`logs` and `logs -f` of a job on a cluster: no line is missing, none comes twice, and it ends with the trainer."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.api_server import ApiServer, Broken, Held, listed
from tests.cli.cluster import FOLLOWED, JOB, JOBS, PODS, done, ended, over, pod, run

from ddpjob_cli.cluster import logs
from ddpjob_cli.cluster.access import Access
from ddpjob_cli.cluster.kubeconfig import Target
from ddpjob_cli.errors import Unreachable, Unusable
from ddpjob_cli.lines import Wanted


def test_logs_of_pods_that_run_and_ended(api: ApiServer, tmp_path: Path) -> None:
    assert run(api, tmp_path, "logs", "digits") == "[rank 0] one\n[rank 0] two\n[rank 1] three\n"
    assert run(api, tmp_path, "logs", "digits", "--failed") == "[rank 1] three\n"


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ({"pod": "digits-1-r1", "podUid": "second"}, "the successor's"),
        ({"pod": "digits-1-r1"}, "the successor's"),
        ({"pod": "digits-1", "podUid": "p1"}, "the evicted one's"),
        ({"pod": "digits-1", "podUid": "gone"}, "the evicted one's"),
        ({}, "the evicted one's"),
    ],
    ids=["it replaced another", "by its name", "it was replaced", "it is gone", "not known"],
)
def test_the_log_of_a_failure_is_that_of_the_pod_it_was_in(
    api: ApiServer, tmp_path: Path, known: dict[str, str], shown: str
) -> None:
    """A pod that was evicted is kept, and a rank of its successor fails and is started again in the same pod."""
    evicted, successor = pod(1, "Failed"), pod(1, incarnation=1)
    successor["metadata"]["uid"] = "second"
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(pod(0), evicted, successor)
    for name, owner in (("digits-1", "the evicted one"), ("digits-1-r1", "the successor")):
        api.answers[f"GET {PODS}/{name}/log?container=trainer"] = (200, f"[rank 1] {owner}'s\n")
    failure = {"reason": "ProgramFailed", "rank": 1, "node": 1, **known}
    api.answers[f"GET {JOBS}/digits"] = (200, {**JOB, "status": {**JOB["status"], "lastFailure": failure}})
    assert run(api, tmp_path, "logs", "digits", "--failed") == f"[rank 1] {shown}\n"


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


def test_a_log_that_is_followed_goes_on_where_it_broke_off(api: ApiServer, tmp_path: Path) -> None:
    """The API server was restarted: nothing is missing and nothing comes twice.

    Also not where several lines have one stamp, on both sides of the break, or the node's clock was set back before it.
    """
    stamps = [f"2026-01-01T00:00:0{second:.9f}Z" for second in (0.2, 1.1, 1.9, 1.4, 1.4, 1.4, 1.6, 1.6, 1.2)]
    lines = [f"{stamp} [rank 1] {number}\n" for number, stamp in enumerate(stamps)]
    log = FOLLOWED
    api.answers[log] = (200, Broken("".join(lines[:5])))
    from_the_whole_second = "".join(lines[1:])
    api.answers[f"{log}&sinceTime={stamps[4]}"] = (200, from_the_whole_second)
    over(api)
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
    log = FOLLOWED
    api.answers[log] = (200, Held(f"{one}\n{two}\n{three[:40]}"))
    api.answers[f"{log}&sinceTime={one[:30]}"] = (200, f"{one}\n{two}\n{three}\n")
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(pod(1, "Running" if trainer == "runs" else "Succeeded"))
    over(api)
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
    log = FOLLOWED
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
    log = FOLLOWED
    api.answers[log] = (200, f"{one}\n{two[:cut]}")
    api.answers[f"{log}&sinceTime={one[:30]}"] = (200, f"{one}\n{two}\n{three}")
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(pod(1))
    over(api)
    shown = run(api, tmp_path, "logs", "digits", "-f", "--rank", "1")
    assert shown == "[rank 1] line 1\n[rank 1] line 2\n[rank 1] line 3\n"


@pytest.mark.timeout(30)
def test_a_job_that_is_over_is_followed_until_its_pods_are_known(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FOLLOWED
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
    log = FOLLOWED
    api.answers[log] = (200, Broken(f"{stamp} [rank 1] one\n{remark}\n"))
    later = f"2026-01-01T00:00:00.{'3' * 9}Z [rank 1] two\n"
    api.answers[f"{log}&sinceTime={stamp}"] = (200, f"{stamp} [rank 1] one\n{remark}\n{later}")
    over(api)
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
    log = FOLLOWED
    stamp = "2026-01-01T00:00:00.000000000Z"
    api.answers[log] = api.answers[f"{log}&sinceTime={stamp}"] = (200, f"{stamp} [rank 1] three\n")
    api.answers[f"GET {PODS}/digits-1"] = (200, left)
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    assert run(api, tmp_path, "logs", "digits", "-f", "--rank", "1") == "[rank 1] three\n"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "now",
    [(404, {"kind": "Status", "message": "gone"}), (200, ended("digits-1", "p9"))],
    ids=["gone", "replaced"],
)
def test_a_log_that_broke_off_ends_with_its_pod(api: ApiServer, tmp_path: Path, now: tuple[int, Any]) -> None:
    stamp = "2026-01-01T00:00:00.200000000Z"
    log = FOLLOWED
    api.answers[log] = (200, Broken(f"{stamp} [rank 1] one\n"))
    later = f"{stamp} [rank 1] one\n{stamp} [rank 1] the successor's\n"
    api.answers[f"{log}&sinceTime={stamp}"] = (200, later)
    api.answers[f"GET {PODS}/digits-1"] = now
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
    assert run(api, tmp_path, "logs", "digits", "-f", "--rank", "1") == "[rank 1] one\n"
