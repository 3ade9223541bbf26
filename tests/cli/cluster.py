"""A job on a cluster, as an API server tells of it, and a command that asks for it."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.cli.api_server import ApiServer

from ddpjob_cli.main import cli

JOBS = "/apis/ddpjob.dev/v1alpha1/namespaces/team/ddpjobs"
PODS = "/api/v1/namespaces/team/pods"
FOLLOWED = f"GET {PODS}/digits-1/log?container=trainer&follow=true&timestamps=true"
"""What `logs -f` asks for."""
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


def run(api: ApiServer, folder: Path, *arguments: str) -> Any:
    """The command in this process: what it prints, or the error that would be a sentence."""
    result = CliRunner().invoke(
        cli, [*arguments, "--kubeconfig", api.kubeconfig(folder)], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result.stdout


def over(api: ApiServer) -> None:
    """Its second pod has ended, and the job with it."""
    api.answers[f"GET {PODS}/digits-1"] = (200, ended("digits-1"))
    api.answers[f"GET {JOBS}/digits"] = (200, done(JOB))
