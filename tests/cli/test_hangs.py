"""`ddpjob explain NAME --stacks`: what each rank did in the newest hang, from files and from logs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.api_server import ApiServer, listed
from tests.cli.jobs import inside

from ddpjob_api.codec import render
from ddpjob_api.conditions import Reason
from ddpjob_api.postmortem import LOG_MARK, PostMortem, RankKept, pack
from ddpjob_api.report import Failure, RankView
from ddpjob_cli.cluster.hangs import asked_since
from ddpjob_cli.hangs import put_together
from ddpjob_trainer.launcher.postmortems import PostMortems

AT = "2026-01-01T00:10:00Z"
VERDICT = Failure(
    reason=Reason.NO_PROGRESS,
    rank=2,
    node=1,
    message="no step for 60 s: it stands in train.py:20 in load",
    location="train.py:20",
    generation=4,
    at=AT,
    also=(1,),
)


def kept(rank: int, **view: Any) -> RankKept:
    seen = {"step": 7, "phase": "backward", "phase_seconds": 45.0, "joined": True, "sequence": 14, **view}
    return RankKept(
        view=RankView(rank=rank, **seen),
        node=rank // 2,
        page={"step": 7.0},
        stacks=f'Current thread 0x1:\n  File "train.py", line 20 in rank_{rank}\n',
    )


CULPRIT = kept(2, step=6, phase="data", stopped=True, place="train.py:20 in load")


def test_parts_of_all_nodes_make_one_hang_the_culprit_first() -> None:
    parts = [
        PostMortem(generation=4, at="2026-01-01T00:09:58Z", ranks=(kept(0), kept(1))),
        PostMortem(generation=4, at="2026-01-01T00:09:59Z", ranks=(CULPRIT, kept(3))),
        PostMortem(generation=4, at=AT, verdict=VERDICT),
        PostMortem(generation=3, at="2026-01-01T00:01:00Z", ranks=(kept(0),)),
        PostMortem(
            generation=4, at="2026-01-01T00:09:58Z", ranks=(kept(0), kept(1))
        ),  # said again at the end
    ]
    hang = put_together(parts)
    assert hang is not None and (hang.generation, hang.at) == (4, AT)
    assert [rank.view.rank for rank in hang.ranks] == [2, 1, 0, 3]
    lines = list(hang.lines())
    assert lines[0] == (
        "generation 4, 2026-01-01T00:10:00Z: rank 2 (node 1): no step for 60 s: it stands in train.py:20 in load "
        "(also rank 1)"
    )
    assert lines[2:5] == [
        "rank 2 (node 1): step 6, in data for 45 s, collective 14, stopped (SIGSTOP), at train.py:20 in load",
        "  Current thread 0x1:",
        '    File "train.py", line 20 in rank_2',
    ]
    assert put_together([]) is None


def test_without_a_verdict_the_ranks_are_shown_all_the_same() -> None:
    hang = put_together([PostMortem(generation=4, at=AT, ranks=(kept(1), kept(0)))])
    assert hang is not None
    assert next(hang.lines()) == (
        f"generation 4, {AT}: the verdict is not known: node 0 has not given one, or its log cannot be read"
    )
    assert [rank.view.rank for rank in hang.ranks] == [0, 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs below `.ddpjob`: one that saves on each node, one that does not save, one that never hung."""
    for name, places in {
        "saves": ["node-0/checkpoints", "node-1/checkpoints"], "bare": ["node-0", "node-1"], "sound": [],
    }.items():  # fmt: skip
        run = tmp_path / ".ddpjob" / name
        run.mkdir(parents=True)
        (run / "state.json").write_text('{"run": 0, "finished": false}')
        for node, place in enumerate(places):
            (run / place).mkdir(parents=True)
            keeper = PostMortems(run / place / "post-mortem", in_log=False, say=lambda _: None)
            keeper.examined(3, [kept(0)])
            os.utime(run / place / "post-mortem" / "generation-3", (1, 1))
            keeper.examined(4, [[kept(0), kept(1)], [CULPRIT, kept(3)]][node])
            if node == 0:
                keeper.judged([VERDICT])
    return tmp_path


@pytest.mark.parametrize("name", ["saves", "bare"])
def test_the_stacks_of_a_local_run(folder: Path, name: str) -> None:
    result = inside("explain", name, "--stacks", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["name"], found["generation"], found["verdict"]) == (name, 4, render(VERDICT))
    assert [(rank["rank"], rank["node"]) for rank in found["ranks"]] == [(2, 1), (1, 0), (0, 0), (3, 1)]
    assert found["ranks"][0]["stacks"] == CULPRIT.stacks
    assert found["ranks"][0]["page"] == {"step": 7.0}
    assert found["notSeen"] == []
    text = inside("explain", name, "--stacks", cwd=folder).stdout
    assert text.startswith("generation 4, ") and "line 20 in rank_3" in text
    assert "not seen" not in text


def test_no_hang_is_a_sentence(folder: Path) -> None:
    result = inside("explain", "sound", "--stacks", cwd=folder)
    assert result.returncode == 2
    assert "sound: no hang is known. Stacks are kept when" in result.stderr


def test_the_stacks_of_a_job_on_a_cluster_come_from_the_logs_of_its_pods(tmp_path: Path) -> None:
    def pod(index: int) -> dict[str, Any]:
        labels = {"ddpjob.dev/index": str(index), "ddpjob.dev/incarnation": "0"}
        state = {"name": "trainer", "state": {"terminated": {"exitCode": 88}}}
        return {
            "metadata": {
                "name": f"train-{index}",
                "uid": f"u{index}",
                "labels": labels,
                "ownerReferences": [{"kind": "DDPJob", "name": "train", "uid": "j", "controller": True}],
            },
            "status": {"phase": "Failed", "containerStatuses": [state]},
        }

    def log(*parts: PostMortem) -> tuple[int, object]:
        packed = "".join(f"[ddpjob] {LOG_MARK}{pack(part)}\n" for part in parts)
        return 200, f"[rank 0] step 7\n[ddpjob] {LOG_MARK}broken\n{packed}[ddpjob] failed\n"

    base = "/api/v1/namespaces/team/pods"
    # The verdict comes when all ranks have ended, for which they have ten minutes here.
    since = "&sinceTime=2025-12-31T23:55:00Z"
    spec = {"script": {"args": ["train.py"]}, "recovery": {"gracePeriodSeconds": 600}}
    job = {
        "metadata": {"name": "train", "uid": "j"},
        "spec": spec,
        "status": {"lastFailure": render(VERDICT)},
    }
    with ApiServer() as api:
        asked = ("explain", "train", "--stacks", "--kubeconfig", api.kubeconfig(tmp_path))
        first, second = (f"GET {base}/train-{index}/log?container=trainer{since}" for index in (0, 1))
        api.answers = {
            "GET /apis/ddpjob.dev/v1alpha1/namespaces/team/ddpjobs/train": (200, job),
            f"GET {base}?labelSelector=ddpjob.dev/name=train&limit=500": listed(pod(0), pod(1)),
            first: log(
                PostMortem(generation=4, at=AT, ranks=(kept(0), kept(1))),
                PostMortem(generation=4, at=AT, verdict=VERDICT),
            ),
            second: log(PostMortem(generation=4, at=AT, ranks=(CULPRIT, kept(3)))),
        }
        whole = json.loads(inside(*asked, "--json").stdout)
        assert [rank["rank"] for rank in whole["ranks"]] == [2, 1, 0, 3]
        assert whole["notSeen"] == []
        api.refuse(second, 404, "gone")
        result = inside(*asked)
        assert result.returncode == 0, result.stderr
        assert "rank 1 (node 0): step 7, in backward for 45 s, collective 14" in result.stdout
        assert result.stdout.endswith("\nnot seen: the log of pod train-1: not found (gone)\n")
        (gap,) = json.loads(inside(*asked, "--json").stdout)["notSeen"]
        assert gap == "the log of pod train-1: not found (gone)"
        api.answers[first] = (200, "[rank 0] step 7\n")
        result = inside(*asked)
        assert result.returncode == 2
        assert (
            "train: no hang is known in what can be read (not seen: the log of pod train-1" in result.stderr
        )
        api.refuse(first, 403, "no pods/log for you")
        result = inside(*asked)
    assert result.returncode == 77
    assert "no pods/log for you" in result.stderr


@pytest.mark.parametrize("at", ["", "soon", "0001-01-01T00:00:00+00:00"])
def test_a_verdict_without_a_usable_time_has_the_whole_logs_read(at: str) -> None:
    failure = {"reason": "NoProgress", "at": at}
    job = {"spec": {"script": {"args": ["train.py"]}}, "status": {"lastFailure": failure}}
    assert asked_since(job) is None
