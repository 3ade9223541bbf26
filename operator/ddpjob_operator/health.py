"""`/healthz`, `/readyz`, `/metrics` of the operator.

Why our own: kopf's liveness says only that its own server runs. Healthy means here: the event loop turns, no key is
stuck, and the last resync was not long ago. Must not: label anything by job.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ddpjob_api import __version__
from ddpjob_api.conditions import FAILURES, Condition
from ddpjob_api.goodput import Use
from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_operator.census import Census
from ddpjob_operator.tally import INCIDENT_REASONS, Stage, Tally

STUCK_SECONDS = 300.0
CREATION_BUCKETS = (1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)


class Metrics:
    """What the operator counts. Names begin with `ddpjob_operator_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry, "namespace": "ddpjob_operator"}
        self.reconciles = Counter("reconciles", "Looks at a job, by result.", ["result"], **make)
        self.reconcile_seconds = Histogram("reconcile_duration_seconds", "Time of one look at a job.", **make)
        self.requests = Counter(
            "api_requests",
            "Requests to the API server (kopf's watches apart).",
            ["verb", "resource", "code"],
            **make,
        )
        self.request_seconds = Histogram(
            "api_request_duration_seconds", "Time of one request to the API server.", ["verb"], **make
        )
        self.polls = Counter("polls", "Questions to coordinators, by result.", ["result"], **make)
        self.ghosts = Counter("resync_ghosts", "Objects whose deletion no watch reported.", **make)
        self.resyncs = Counter("resyncs", "Full lists of all objects, by result.", ["result"], **make)
        self.depth = Gauge("queue_depth", "Jobs waiting for a look, or being looked at.", **make)
        self.oldest = Gauge("queue_oldest_seconds", "How long the oldest of them has waited.", **make)
        self.jobs = Gauge("jobs", "DDPJobs known, by state.", ["state"], **make)
        self.by_condition = Gauge(
            "jobs_by_condition",
            "DDPJobs whose condition is True, by its reason.",
            ["condition", "reason"],
            **make,
        )
        self.creation_seconds = Histogram(
            "creation_seconds",
            "From the making of a DDPJob, or its resumption, until all its pods are made, until all run, and until its "
            "first optimizer step.",
            ["stage"],
            buckets=CREATION_BUCKETS,
            **make,
        )
        self.incidents = Counter(
            "incidents",
            "Restarts, disruptions, and failures that no restart followed, of all jobs, by what caused them.",
            ["reason"],
            **make,
        )
        self.job_seconds = Counter(
            "job_seconds",
            "What the time of all jobs went to, suspended time left out; goodput is useful / sum.",
            ["use"],
            **make,
        )
        self.slow = Gauge(
            "slow_jobs",
            "Jobs in which one rank makes the others wait, by what it is slower in.",
            ["cause"],
            **make,
        )
        self.inefficient = Gauge(
            "inefficient_jobs",
            "Jobs that spend more than half of their steps on waiting for data and for gradients.",
            **make,
        )
        self.checkpoint_failing = Gauge(
            "checkpoint_failing_jobs", "Jobs that run and whose newest checkpoint could not be saved.", **make
        )
        self.stale_checkpoint = Gauge(
            "stale_checkpoint_jobs",
            "Jobs that save by steps or seconds, have run for three times checkpoint.everySeconds (without that: for 6 "
            "hours), and whose newest checkpoint is older.",
            **make,
        )
        for stage in Stage:
            self.creation_seconds.labels(stage=stage.value)
        for reason in INCIDENT_REASONS:
            self.incidents.labels(reason=reason.value)
        for use in Use:
            self.job_seconds.labels(use=use.value)
        for cause in LOCAL_PHASES:
            self.slow.labels(cause=cause)
        self.leader = Gauge("leader", "1 while this operator serves, 0 while it stands by.", **make)
        self.build = Gauge("build_info", "Always 1; the label says the version.", ["version"], **make)
        self.build.labels(version=__version__).set(1)

    def count(self, tally: Tally) -> None:
        """A status was written."""
        for stage, seconds in tally.stages.items():
            self.creation_seconds.labels(stage=stage.value).observe(seconds)
        for reason in tally.incidents:
            self.incidents.labels(reason=reason.value).inc()
        for use, more in tally.seconds.items():
            self.job_seconds.labels(use=use.value).inc(more)

    def show(self, census: Census) -> None:
        """Set the gauges that count jobs."""
        self.jobs.clear()
        for state, count in census.by_state.items():
            self.jobs.labels(state=state).set(count)
        self.by_condition.clear()
        # An alert compares with what was before: a first failure of its kind has to be more than 0, not more than nothing.
        for failure in FAILURES:
            self.by_condition.labels(condition=Condition.FAILED.value, reason=failure.value).set(0)
        for (condition, reason), count in census.by_condition.items():
            self.by_condition.labels(condition=condition, reason=reason).set(count)
        self.checkpoint_failing.set(census.checkpoint_failing)
        self.stale_checkpoint.set(census.stale_checkpoint)
        self.inefficient.set(census.inefficient)
        for cause in LOCAL_PHASES:
            self.slow.labels(cause=cause).set(census.slow[cause])

    def request(self, verb: str, resource: str, status: int, seconds: float) -> None:
        """A `client.Observer`."""
        self.requests.labels(verb=verb, resource=resource, code=str(status)).inc()
        self.request_seconds.labels(verb=verb).observe(seconds)


class Health:
    """The server. `synced` is called after every full list."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        resync: timedelta,
        oldest_seconds: Callable[[], float],
        refresh: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._patience = 3 * resync.total_seconds() + 60
        self._oldest_seconds = oldest_seconds
        self._refresh = refresh
        self._synced: float | None = None
        self._born = time.monotonic()
        self._runner: web.AppRunner | None = None
        self.standby = False
        """Another operator serves: this one has nothing to show."""

    def synced(self) -> None:
        self._synced = time.monotonic()

    @property
    def ready(self) -> bool:
        """All objects are known."""
        return self._synced is not None

    def trouble(self) -> str | None:
        """Why the process should be restarted, or None."""
        if self.standby:
            self._born = time.monotonic()
            return None
        since = time.monotonic() - (self._synced or self._born)
        if since > self._patience:
            return f"no full list of the objects for {since:.0f} s"
        if (oldest := self._oldest_seconds()) > STUCK_SECONDS:
            return f"a job has waited for {oldest:.0f} s"
        return None

    async def start(self, host: str, port: int) -> int:
        """Serve; returns the port (of 0: the one that was free)."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        trouble = self.trouble()
        return web.Response(text=trouble or "ok", status=503 if trouble else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.standby:
            return web.Response(text="standing by")
        return web.Response(
            text="ok" if self.ready else "not all objects are listed yet", status=200 if self.ready else 503
        )

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        self._refresh()
        body = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
