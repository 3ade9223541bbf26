"""A real Prometheus with the chart's alerts scrapes a real job that is healthy, slow, fails, hangs, cannot save.

A minute of the rules is a second here (`prometheus.faster`); what is scraped, and under which labels, is as in a cluster.
The job has two nodes and one model for all of it: its task does what files in its pods' /tmp ask for.
"""

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from docs.generating.alerts import alerts
from tests.cli.jobs import COMMAND
from tests.cluster.installation import NAMESPACE, Installation
from tests.cluster.jobs import Job, example, submit
from tests.cluster.prometheus import Prometheus, Series, firing
from tests.docs.expressions import Query, queries

from ddpjob_api.metrics import METRICS, MetricKind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
slow = pytest.mark.slow
QUICK = {"DDPJobFailed", "DDPJobOperatorDown"}
"""Alerts that are caused in `make test`; the others in `make slow`."""
UNCAUSED = {"DDPJobOperatorBehind"}
"""An operator that serves and is a minute late cannot be had here."""

TASK = """
import dataclasses, resource, time
from pathlib import Path
from ddpjob_trainer.tasks import digits
from torch.utils.data import Dataset

HARD = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def asked(what):
    return Path("/tmp", what).exists()

class Samples(Dataset):
    def __init__(self, inner):
        self.inner = inner
    def __len__(self):
        return len(self.inner)
    def __getitem__(self, index):
        if asked("starved"):
            time.sleep(0.01)
        return self.inner[index]

def loss(model, batch):
    time.sleep(0.6 if asked("slow") else 0.15)
    if asked("failing"):
        Path("/tmp/failing").unlink()
        raise RuntimeError("asked for")
    while asked("stuck"):
        time.sleep(0.1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if asked("full") else HARD, HARD))
    return digits.loss(model, batch)

def task():
    whole = digits.task()
    return dataclasses.replace(whole, loss=loss, train_dataset=Samples(whole.train_dataset))
"""
DEVICE = re.compile("ddpjob_trainer_device_memory")
"""Needs a device, which there is none of here."""
ENDINGS = {MetricKind.COUNTER: "_total", MetricKind.GAUGE: "", MetricKind.HISTOGRAM: "_bucket"}
NAMES = {metric.name + ENDINGS[metric.kind] for metric in METRICS if not DEVICE.search(metric.name)}
"""Every metric of a launcher, as it is scraped."""


@pytest.fixture(scope="module")
def watched(installation: Installation, prometheus: Prometheus) -> Iterator[Job]:
    """A healthy job, known to Prometheus like the operator."""
    cluster = installation.cluster
    with cluster.namespace("watched") as namespace:
        prometheus.discover(*operators(installation))
        prometheus.until("sum(ddpjob_operator_leader)", lambda found: [*found.values()] == [1])
        document = example(
            "digits",
            workspace={"configMap": "watched"},
            task={"entrypoint": "watched:task", "epochs": 1000, "globalBatchSize": 64},
            checkpoint={"everySeconds": 5},
            recovery={"maxRestarts": 9, "progressTimeoutSeconds": 15},
        )
        document["metadata"]["name"] = "watched"
        code = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "watched"},
            "data": {"watched.py": TASK},
        }
        job = submit(cluster, namespace, code, document)
        job.until_step(1)
        prometheus.discover(*job.pods(), *operators(installation))
        yield job
        job.delete()


def operators(installation: Installation) -> list[dict[str, Any]]:
    found = installation.cluster.get("pods", namespace=NAMESPACE, selector="app.kubernetes.io/name=ddpjob")
    return list(found["items"])


def ask(job: Job, *what: str, index: int | None = None, stop: bool = False) -> None:
    """Make the ranks of all pods, or of one, do what the task can."""
    command = ["rm", "-f"] if stop else ["touch"]
    for number, pod in job.live().items():
        if index is None or number == index:
            files = [f"/tmp/{one}" for one in what]
            where = ("exec", pod["metadata"]["name"], "-c", "trainer", "-n", job.namespace)
            job.cluster.kubectl(*where, "--", *command, *files)


def some(found: Series) -> bool:
    return bool(found)


def filled(query: Query, job: Job) -> str:
    """A dashboard's query as Grafana sends it for this job."""
    return (
        query.expression.replace("$namespace", job.namespace)
        .replace("$job", job.name)
        .replace("$rank", ".*")
        .replace("$__rate_interval", "60s")
        .replace("$__range", "10m")
    )


def test_every_rank_is_scraped_under_the_labels_that_alerts_and_dashboards_use(
    watched: Job, prometheus: Prometheus
) -> None:
    query = (
        f'ddpjob_trainer_optimizer_steps_total{{namespace="{watched.namespace}",ddpjob_dev_name="watched"}}'
    )
    first = prometheus.until(
        query, lambda found: len(found) == 2 and all(value > 0 for value in found.values())
    )
    grown = prometheus.until(
        query, lambda found: len(found) == 2 and all(found[key] > value for key, value in first.items())
    )
    pods = watched.live()
    for series in map(dict, grown):
        pod = pods[int(series["ddpjob_dev_index"])]
        assert series["rank"] == series["ddpjob_dev_index"]
        assert series["pod"] == pod["metadata"]["name"]
        assert series["node"] == pod["spec"]["nodeName"]
        assert series["job"] == "watched"


def test_a_healthy_job_causes_no_alert(watched: Job, prometheus: Prometheus) -> None:
    """For longer than the slowest of them waits (`faster`: half a minute)."""
    of_job = f'namespace="{watched.namespace}",ddpjob_dev_name="watched"'
    of_none = 'alertname=~"DDPJob(Failed|NoCheckpoint|Hung|Operator.*)"'
    seen = f'count_over_time(ddpjob_trainer_step{{{of_job},rank="0"}}[5m])'
    prometheus.until(f"{seen} > 35", some, timeout=180)
    assert not prometheus.query(f'max_over_time(ALERTS{{alertstate="firing",{of_job}}}[5m])')
    # Those that name no job; before its first scrape of the operator Prometheus is right to miss it.
    assert not prometheus.query(f'max_over_time(ALERTS{{alertstate="firing",{of_none}}}[35s])')


def test_prometheus_evaluates_every_query_of_the_dashboards(watched: Job, prometheus: Prometheus) -> None:
    for query in queries():
        prometheus.query(filled(query, watched))


@slow
def test_a_slow_and_starved_job_is_seen_and_every_expression_has_data(
    watched: Job, prometheus: Prometheus
) -> None:
    ask(watched, "starved")
    ask(watched, "slow", index=1)
    try:
        named = {"namespace": watched.namespace, "ddpjob_dev_name": "watched"}
        named_ranks = prometheus.fires("DDPJobStraggler", timeout=240, **named)
        assert {(dict(series)["rank"], dict(series)["cause"]) for series in named_ranks} == {("1", "forward")}
        told = watched.until(
            lambda job: "slowestRank" in job["status"].get("efficiency", {}), "the slow rank in the status"
        )
        efficiency = told["status"]["efficiency"]
        assert (efficiency["slowestRank"], efficiency["slowestRankCause"]) == (1, "forward")
        assert efficiency["slowestNode"] == watched.live()[1]["spec"]["nodeName"]
        prometheus.until(
            f'count by (__name__) ({{__name__=~"ddpjob_trainer_.+",namespace="{watched.namespace}"}})',
            lambda found: {dict(series)["__name__"] for series in found} >= NAMES,
        )
        prometheus.fires("DDPJobLowEfficiency", **named)
        for query in queries():
            if not DEVICE.search(query.expression):
                prometheus.until(
                    filled(query, watched),
                    lambda found: any(not math.isnan(value) for value in found.values()),
                    timeout=60,
                )
    finally:
        ask(watched, "starved", "slow", stop=True)


@slow
def test_a_rank_that_is_stuck_is_a_hang(watched: Job, prometheus: Prometheus) -> None:
    before = watched.get()["status"]["restarts"]
    ask(watched, "stuck", index=1)
    found = watched.until(lambda found: found["status"]["restarts"] > before, "the hang is found")
    ask(watched, "stuck", stop=True)
    assert found["status"]["time"]["hangSeconds"] >= 14
    assert 0 < found["status"]["goodputPercent"] < 100
    prometheus.fires("DDPJobHung")
    prometheus.until('ddpjob_operator_job_seconds_total{use="hang"} >= 14', some)
    explain = [*COMMAND, "explain", watched.name, "--stacks", "--json", "-n", watched.namespace]
    environment = {**os.environ, **watched.cluster.environment}
    told = subprocess.run(explain, env=environment, capture_output=True, text=True, timeout=60, check=True)
    hang = json.loads(told.stdout)
    assert (hang["verdict"]["rank"], hang["verdict"]["pod"]) == (1, "watched-1")
    assert [(rank["rank"], rank["node"]) for rank in hang["ranks"]] == [(1, 1), (0, 0)]
    assert "in loss" in hang["ranks"][0]["stacks"]
    assert "Current thread" in hang["ranks"][1]["stacks"]


@slow
def test_a_job_that_fails_again_and_again_is_seen(watched: Job, prometheus: Prometheus) -> None:
    of_job = f'namespace="{watched.namespace}",ddpjob_dev_name="watched"'
    restarts = f"max(ddpjob_trainer_restarts_total{{{of_job}}})"
    (before,) = prometheus.query(restarts).values()
    for times in range(1, 4):
        prometheus.until(f'changes(ddpjob_trainer_step{{{of_job},rank="1"}}[5s]) > 1', some)
        ask(watched, "failing", index=1)
        prometheus.until(f"{restarts} >= {before + times}", some)
    prometheus.fires("DDPJobRestartingOften", namespace=watched.namespace, ddpjob_dev_name="watched")


@slow
def test_a_job_that_cannot_save_is_seen(watched: Job, prometheus: Prometheus) -> None:
    prometheus.until(
        f'changes(ddpjob_trainer_step{{namespace="{watched.namespace}",rank="0"}}[5s]) > 1', some
    )
    ask(watched, "full")
    named = {"namespace": watched.namespace, "ddpjob_dev_name": "watched"}
    prometheus.fires("DDPJobCheckpointFailing", **named)
    prometheus.fires("DDPJobNoCheckpoint")
    ask(watched, "full", stop=True)
    prometheus.until(firing("DDPJobCheckpointFailing", **named), lambda found: not found)


def test_a_failed_job_is_seen(watched: Job, prometheus: Prometheus) -> None:
    """No pod of it is ever made."""
    document = example("digits", template={"spec": {"restartPolicy": "Always"}})
    document["metadata"]["name"] = "impossible"
    job = submit(watched.cluster, watched.namespace, document)
    job.until_true("Failed")
    prometheus.fires("DDPJobFailed", reason="InvalidSpec")


def test_an_operator_that_is_gone_is_seen(
    watched: Job, installation: Installation, prometheus: Prometheus
) -> None:
    assert prometheus.query("max(ddpjob_operator_queue_oldest_seconds)"), "what DDPJobOperatorBehind looks at"
    installation.scale(0)
    try:
        prometheus.fires("DDPJobOperatorDown")
    finally:
        installation.scale(1)
    prometheus.discover(*watched.pods(), *operators(installation))
    prometheus.until(firing("DDPJobOperatorDown"), lambda found: not found)


def test_what_make_test_says_it_causes_has_fired(prometheus: Prometheus) -> None:
    assert prometheus.fired >= QUICK


@slow
def test_every_alert_has_fired(prometheus: Prometheus) -> None:
    assert prometheus.fired | QUICK | UNCAUSED == {rule["alert"] for rule in alerts()}
