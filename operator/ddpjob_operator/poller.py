"""The coordinators of running jobs, asked how far they are.

Why apart: it talks to pods and not to the API server, at its own pace. A report is news for the queue when something
happened; mere progress is told at the pace of status writes. Must not: write anything, or trust what it reads beyond
its schema and size.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import aiohttp

from ddpjob_api.codec import Invalid
from ddpjob_api.goodput import Spent
from ddpjob_api.messages import status_key
from ddpjob_api.report import MAX_REPORT_BYTES, JobReport, RunState
from ddpjob_operator.cache import Cache
from ddpjob_operator.desired import members
from ddpjob_operator.errors import ApiError
from ddpjob_operator.observe import JobView, Key, PodView
from ddpjob_operator.tokens import Tokens
from ddpjob_operator.words import read

log = logging.getLogger("ddpjob.poller")
AT_ONCE = 32
TIMEOUT = aiohttp.ClientTimeout(total=3, connect=1)
HEARD = timedelta(seconds=15)
"""A coordinator that was silent for longer (and for three questions) is not taken to be alive."""
EAGER = timedelta(seconds=1)
"""Pause between questions while a job starts or restarts."""
QUICK = timedelta(seconds=0.1)
"""The first pause after no answer (a launcher that is just starting); it doubles."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a coordinator said last, and which pod that was."""

    pod_uid: str
    report: JobReport
    at: datetime
    pause: timedelta
    """Between two questions to a coordinator whose job runs, at that time."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Since when a coordinator is asked, which pod that is, and at which pace."""

    pod_uid: str
    since: datetime
    pause: timedelta


class Poller:
    """Keeps the newest report of each job."""

    def __init__(
        self,
        cache: Cache,
        tokens: Tokens,
        *,
        tell: Callable[[Key], None],
        poll: timedelta,
        progress: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._tokens = tokens
        self._tell = tell
        self._poll = poll
        self._progress = progress
        self._clock = clock
        self._said: dict[str, Said] = {}
        self._asked = 0
        """Jobs that are asked now; what one that has ended said last is kept beside theirs."""
        self._first: dict[str, Asked] = {}
        """By job uid: the first question to the pod that is its coordinator now."""
        self._due: dict[str, float] = {}
        """By job uid, in the loop's time; absent: now."""
        self._told: dict[str, float] = {}
        self._misses: dict[str, int] = {}
        self._silent: set[str] = set()
        """Jobs whose coordinator's silence has been told."""
        self._wake = asyncio.Event()
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self.observe: Callable[[str], None] = lambda result: None
        """Told of every poll, for metrics."""

    def report(self, job: JobView, coordinator: PodView | None) -> JobReport | None:
        """The newest report, if it came from this pod."""
        said = self._said.get(job.uid)
        return said.report if said and coordinator and said.pod_uid == coordinator.uid else None

    def spent(self, job: JobView) -> Spent | None:
        """What the job's time went to, whichever pod said so: a coordinator that is gone was not wrong."""
        said = self._said.get(job.uid)
        return said.report.spent if said else None

    def heard(self, job: JobView, coordinator: PodView | None) -> JobReport | None:
        """The report, if this pod gave it a moment ago: it is alive, and so are those it does not miss."""
        report, said = self.report(job, coordinator), self._said.get(job.uid)
        return report if said is not None and self._clock() - said.at <= patience(said.pause) else None

    def silent(self, job: JobView, coordinator: PodView | None) -> bool:
        """Whether this pod is asked, and has not answered for some time; one that never has is no exception."""
        if self.report(job, coordinator) is not None:
            return self.heard(job, coordinator) is None
        first = self._first.get(job.uid)
        if first is None or coordinator is None or first.pod_uid != coordinator.uid:
            return False
        return self._clock() - first.since > patience(first.pause)

    def soon(self, job_uid: str) -> None:
        """Something happened to the job's pods: ask at once."""
        self._due.pop(job_uid, None)
        self._misses.pop(job_uid, None)
        self._wake.set()

    def forget(self, job_uid: str) -> None:
        for kept in (self._said, self._first, self._due, self._told, self._misses):
            kept.pop(job_uid, None)
        self._silent.discard(job_uid)

    @property
    def progress_every(self) -> timedelta:
        """How often progress may be written, so that all jobs together stay a small part of the rate limit."""
        return max(self._progress, timedelta(seconds=self._asked / 10))

    @property
    def _settled(self) -> timedelta:
        """Between two questions to a coordinator whose job runs."""
        return max(self._poll, timedelta(seconds=self._asked / 50))

    async def run(self) -> None:
        """Ask, for ever."""
        asking: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        try:
            while True:
                now = loop.time()
                targets = self._targets()
                self._asked = len(targets)
                for job, coordinator in targets:
                    if self._due.get(job.uid, 0.0) <= now:
                        self._due[job.uid] = now + 3600
                        task = asyncio.create_task(self._ask(job, coordinator))
                        asking.add(task)
                        task.add_done_callback(asking.discard)
                self._wake.clear()
                try:
                    await asyncio.wait_for(self._wake.wait(), 0.2)
                except TimeoutError:
                    continue
                await asyncio.sleep(0.05)  # a burst of pod events is one reason to ask
        finally:
            for task in asking:
                task.cancel()
            if self._session is not None:
                await self._session.close()

    async def stop(self, job: JobView, coordinator: PodView) -> bool:
        """Ask the coordinator to save and end the whole job. False where it could not be asked."""
        try:
            token = await self._tokens.look_up(job)
            if token is None or job.spec is None:
                return False
            url = f"http://{host(coordinator)}:{job.spec.ports.metrics}/stop"
            async with self._http().post(url, headers=key(token), allow_redirects=False) as answer:
                return answer.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError, ApiError) as error:
            log.info("%s: the coordinator could not be asked to stop: %s", job.key, type(error).__name__)
            return False

    async def _introduce(self, job: JobView, coordinator: PodView) -> None:
        """Tell the coordinator where its launchers are, so that none waits for a name server."""
        if job.spec is None:
            return
        pods = [pod for pod in self._cache.entry(job.key).pods.values() if pod.owner_uid == job.uid]
        addresses = {
            str(index): pod.address
            for index, pod in members(pods, job.spec.nodes).items()
            if index != coordinator.index and pod.started and pod.address
        }
        if not addresses:
            return
        try:
            token = await self._tokens.look_up(job)
            if token is None:
                return
            url = f"http://{host(coordinator)}:{job.spec.ports.metrics}/addresses"
            async with self._http().post(
                url, json=addresses, headers=key(token), allow_redirects=False
            ) as answer:
                log.debug("%s: addresses of %d pods: %s", job.key, len(addresses), answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError, ApiError) as error:
            log.debug("%s: the coordinator was not told addresses: %s", job.key, type(error).__name__)

    def _targets(self) -> list[tuple[JobView, PodView]]:
        found = []
        for cached in self._cache.jobs():
            if cached.spec is None or cached.deleting or cached.status.finished:
                continue
            pods = [
                pod for pod in self._cache.entry(cached.key).pods.values()
                if pod.index == 0 and pod.owner_uid == cached.uid and pod.started and pod.address and pod.live
            ]  # fmt: skip
            if pods:
                found.append((cached, max(pods, key=lambda pod: pod.incarnation)))
        return found

    async def _ask(self, job: JobView, coordinator: PodView) -> None:
        loop = asyncio.get_running_loop()
        async with self._limit:
            first = self._first.get(job.uid)
            if first is None or first.pod_uid != coordinator.uid:
                self._first[job.uid] = Asked(
                    pod_uid=coordinator.uid, since=self._clock(), pause=self._settled
                )
                self._silent.discard(job.uid)
            report = await self._fetch(job, coordinator)
        self.observe("ok" if report else "failed")
        settled = self._settled
        if report is None:
            misses = self._misses[job.uid] = self._misses.get(job.uid, 0) + 1
            pause = min(settled, QUICK * 2 ** min(misses, 8))
            if self.silent(job, coordinator) and job.uid not in self._silent:
                self._silent.add(job.uid)
                self._tell(job.key)
        else:
            self._misses.pop(job.uid, None)
            self._silent.discard(job.uid)
            if report.missing_nodes:
                await self._introduce(job, coordinator)
            pause = settled if report.state is RunState.RUNNING else min(EAGER, settled)
            before, silent = self._said.get(job.uid), self.silent(job, coordinator)
            # Not the shorter pause of a job that is yet to run: with very many, no question comes as early as that.
            self._said[job.uid] = Said(
                pod_uid=coordinator.uid, report=report, at=self._clock(), pause=settled
            )
            happened = (
                before is None
                or before.pod_uid != coordinator.uid
                or silent  # that it answers again is news, whatever it says
                or news(before.report) != news(report)
            )
            waited = loop.time() - self._told.get(job.uid, float("-inf"))
            moved = before is not None and replace(before.report, spent=None) != replace(report, spent=None)
            if happened or (moved and waited >= self.progress_every.total_seconds()):
                self._told[job.uid] = loop.time()
                self._tell(job.key)
        if self._due.get(job.uid, 0.0) > loop.time():  # unless `soon` was called meanwhile
            self._due[job.uid] = loop.time() + pause.total_seconds()

    async def _fetch(self, job: JobView, coordinator: PodView) -> JobReport | None:
        if job.spec is None:
            return None
        try:
            token = await self._tokens.look_up(job)
            if token is None:
                return None
            url = f"http://{host(coordinator)}:{job.spec.ports.metrics}/status"
            async with self._http().get(url, headers=key(token), allow_redirects=False) as answer:
                if answer.status != 200:
                    log.debug("%s: /status answered %s", job.key, answer.status)
                    return None
                text = await answer.content.read(MAX_REPORT_BYTES + 1)
                while len(text) <= MAX_REPORT_BYTES and (more := await answer.content.read(MAX_REPORT_BYTES)):
                    text += more
            if len(text) > MAX_REPORT_BYTES:
                log.warning("%s: /status is larger than %d bytes and not read", job.key, MAX_REPORT_BYTES)
                return None
            return read(JobReport, text)
        except (Invalid, ValueError, OverflowError, RecursionError) as error:
            log.warning("%s: /status is no report: %s", job.key, error)
        except (aiohttp.ClientError, TimeoutError, OSError, ApiError) as error:
            log.debug("%s: the coordinator did not answer: %s", job.key, type(error).__name__)
        return None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=TIMEOUT, trust_env=False)
        return self._session


def patience(pause: timedelta) -> timedelta:
    """How long a coordinator may be silent that is asked at that pace: the one it has, whatever is the pace by now."""
    return max(HEARD, 3 * pause)


def news(report: JobReport) -> tuple[object, ...]:
    """What of a report changes conditions or counters."""
    return (
        report.term, report.generation, report.state, report.restarts, report.disruptions, report.last_failure,
        report.outcome, report.nodes_joined, report.missing_nodes, report.progress.step > 0, report.progress.total_steps,
        report.progress.checkpoint_step is not None, report.restoring.partition(":")[0],
        report.checkpoint_trouble, report.passed_over, report.spent is not None and report.spent.first_step_at,
    )  # fmt: skip


def key(token: bytes) -> dict[str, str]:
    return {"Authorization": f"Bearer {status_key(token)}"}


def host(pod: PodView) -> str:
    address = pod.address or ""
    return f"[{address}]" if ":" in address else address
