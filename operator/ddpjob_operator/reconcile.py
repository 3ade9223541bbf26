"""One look at one job: observe, work out the status, write it if it changed, make the pods so, tell.

Level-triggered: nothing here knows what event caused it, and it can be cut off at any point and begun again. The
order is what makes that safe: the status is written first (with the counts and the number that new pods take), then
finalizers go, then pods are made. Must not: decide; `status.py` and `desired.py` do.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ddpjob_api import __version__
from ddpjob_api.conditions import Reason
from ddpjob_api.messages import PROTOCOL
from ddpjob_api.names import pod_name, secret_name, service_name
from ddpjob_api.report import RunState
from ddpjob_api.spec import Spec
from ddpjob_operator import rendezvous, tally
from ddpjob_operator.admit import admit, by_rules, ensure_secret, ensure_service
from ddpjob_operator.cache import Cache, Entry
from ddpjob_operator.client import DDPJOBS, PODS, Client
from ddpjob_operator.desired import PodSet, members, pod_set
from ddpjob_operator.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from ddpjob_operator.events import Event, between
from ddpjob_operator.hands import Hands, together
from ddpjob_operator.hints import Hints, is_creating
from ddpjob_operator.lost import Weighed, seen_alive, tolerations, weigh
from ddpjob_operator.model import Runtime, Status, moment_of, write_status
from ddpjob_operator.nodes import Nodes
from ddpjob_operator.observe import JobView, Key, PodView, job_of, owner_of, pod_of
from ddpjob_operator.observed import ACCEPTED, Admission, Observed
from ddpjob_operator.pod import pod, template_hash
from ddpjob_operator.poller import Poller
from ddpjob_operator.progress import fold_report
from ddpjob_operator.status import advance
from ddpjob_operator.tally import Tally
from ddpjob_operator.tokens import Tokens
from ddpjob_operator.trouble import Trouble, refusal_of

log = logging.getLogger("ddpjob.reconcile")

RETRY_SECONDS = 5.0
"""What the cluster refused is tried again after this."""
NOW = 0.0
SECRET_SECONDS = 15.0
"""A job's Secret is looked for as often (or jobs/5 s where that is longer): to watch Secrets, the operator would need
the right to read all of them."""


@dataclass
class Memory:
    """What one operator remembers of a job between two looks; losing it costs a few requests."""

    admitted: tuple[int, Admission] | None = None
    """The spec's generation it was looked at for, and what came out."""
    refused: Trouble | None = None
    conflict: str | None = None
    hints: Hints = field(default_factory=Hints)
    asked_to_stop: bool = False
    secret_seen: datetime | None = None
    members: frozenset[str] = frozenset()


class Reconciler:
    """Makes the cluster so, one job at a time; called by the queue."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        nodes: Nodes,
        tokens: Tokens,
        poller: Poller,
        *,
        image: str,
        operator_image: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._nodes = nodes
        self._tokens = tokens
        self._poller = poller
        self._image = image
        self._operator_image = operator_image
        self._clock = clock
        self._hands = Hands(client, cache)
        self._memory: dict[str, Memory] = {}
        self.counted: Callable[[Tally], None] = lambda tally: None
        """Told of what each status that was written adds to the counters."""

    async def __call__(self, key: Key) -> float | None:
        """One look. Returns after how many seconds to look again although nothing happens; None: never."""
        entry = self._cache.entry(key)
        job = entry.job
        mine = tuple(pod for pod in entry.pods.values() if job is not None and pod.owner_uid == job.uid)
        strangers = [pod for pod in entry.pods.values() if pod.tracked and pod not in mine]
        if strangers and not await self._let_go(key, strangers):
            return NOW
        if job is None:
            return None
        if job.deleting:
            await self._hands.release(pod for pod in mine if pod.tracked)
            return None
        return await self._look(job, entry, mine)

    def forget(self, uid: str) -> None:
        """The job is deleted."""
        self._memory.pop(uid, None)
        self._tokens.forget(uid)
        self._poller.forget(uid)

    async def _look(self, job: JobView, entry: Entry, pods: tuple[PodView, ...]) -> float | None:
        now = self._clock()
        memory = self._memory.setdefault(job.uid, Memory())
        admission = await self._admission(job, entry, memory, now)
        weighed = self._weigh(job, pods, now)
        pods = weighed.pods
        there = members(pods, job.spec.nodes if job.spec else 0)
        if memory.members != (uids := frozenset(f"{p.uid}{p.started}{p.ready}" for p in there.values())):
            memory.members = uids
            self._poller.soon(job.uid)
        await memory.hints.look(self._client, there, now)
        seen = Observed(
            job=job,
            pods=pods,
            admission=admission,
            runtime=self._runtime(job),
            report=self._poller.report(job, there.get(0)),
            silent=self._poller.silent(job, there.get(0)),
            spent=self._poller.spent(job),
            refused=memory.refused,
            nodes=weighed.trouble,
            hints=memory.hints.found,
        )
        status = advance(seen, now=now, progress_every=self._poller.progress_every)
        written = status != job.status
        if written:
            old = job.status
            fresh = await self._write(job, status)
            if fresh is None:
                return NOW
            self.counted(tally.between(job, old, status, seen.report))
            await self._hands.post(job, between(old, status), now)
            job = fresh
            if job.deleting:
                return NOW
        ending = seen.report is not None and seen.report.state is RunState.FINISHED
        plan = pod_set(job, status, pods, now=now, ending=ending)
        if not plan.empty:
            again = await self._act(job, entry, status, plan, memory, fresh=written)
            if again is not None:
                return again
        return await self._later(job, seen, status, plan, memory, now, lost_due=weighed.due)

    def _weigh(self, job: JobView, pods: tuple[PodView, ...], now: datetime) -> Weighed:
        """The pods, with those given up whose node is lost."""
        if job.spec is None:
            return Weighed(pods=pods)
        coordinator = members(pods, job.spec.nodes).get(0)
        report = self._poller.heard(job, coordinator)
        away = self._nodes.away(coordinator.host_node) if coordinator else None
        return weigh(
            pods,
            self._nodes,
            timeout=job.spec.recovery.node_lost_timeout,
            alive=lambda pod: seen_alive(pod, coordinator, report, away),
            now=now,
        )

    def _runtime(self, job: JobView) -> Runtime:
        image = (job.spec.image if job.spec else None) or self._image
        own_way = job.spec is not None and (job.spec.python is not None or job.spec.keep_entrypoint)
        trainer_from = self._operator_image if image != self._image or own_way else ""
        digest = template_hash(job.spec, image) if job.spec and job.status.runtime is None else ""
        return Runtime(
            image=image,
            trainer_from=trainer_from,
            trainer_version=__version__,
            protocol=PROTOCOL,
            template_hash=digest,
        )

    async def _admission(self, job: JobView, entry: Entry, memory: Memory, now: datetime) -> Admission:
        """What stands before the first pod, looked at once; afterwards only that Service and Secret are there."""
        spec = job.spec
        if spec is None or job.status.finished:
            return ACCEPTED
        if memory.conflict is not None:
            return Admission(reason=Reason.NAME_CONFLICT, message=memory.conflict)
        if job.status.runtime is not None and not spec.suspend:
            return await self._children(job, spec, entry, memory, now)
        known = memory.admitted
        if known is not None and known[0] == job.generation and known[1].reason in (
            Reason.ACCEPTED, Reason.INVALID_SPEC,
        ):  # fmt: skip
            return known[1]
        found = by_rules(job, spec, job.status, self._runtime(job))
        if found is ACCEPTED and not spec.suspend:
            found = await admit(self._client, self._tokens, job, spec, entry, self._runtime(job))
        memory.refused = None
        if found.reason not in (Reason.ACCEPTED, Reason.INVALID_SPEC, Reason.NAME_CONFLICT):
            memory.refused = Trouble(reason=found.reason, message=found.message)
        if not spec.suspend:
            memory.admitted = (job.generation, found)
        return found

    async def _children(
        self, job: JobView, spec: Spec, entry: Entry, memory: Memory, now: datetime
    ) -> Admission:
        """Service and Secret of a job that runs, made again where somebody deleted them."""
        restored = []
        there = entry.service is not None and entry.service.owner_uid == job.uid
        found = await ensure_service(self._client, job, spec, entry)
        if found is ACCEPTED and not there:
            restored.append(f"Service {service_name(job.key.name)}")
        if memory.secret_seen is None:
            memory.secret_seen = now
        elif now - memory.secret_seen >= self._secret_every:
            memory.secret_seen = now
            if await self._tokens.restore(job):
                restored.append(f"Secret {secret_name(job.key.name)}")
        told = [
            Event(type="Warning", reason="ChildRestored", message=f"{name} was deleted and is made again")
            for name in restored
        ]
        await self._hands.post(job, told, now)
        return found

    @property
    def _secret_every(self) -> timedelta:
        return timedelta(seconds=max(SECRET_SECONDS, len(self._cache.keys()) / 5))

    async def _write(self, job: JobView, status: Status) -> JobView | None:
        """Put the status into the job. None: the job is not what we thought; the cache knows better now."""
        key = job.key
        try:
            body = await self._client.write_status(
                DDPJOBS,
                key.namespace,
                key.name,
                resource_version=str(job.version),
                status=write_status(status),
            )
        except NotFound:
            self._cache.drop(job)
            self.forget(job.uid)
            return None
        except Conflict:
            await self._refresh(job)
            return None
        fresh = job_of(body)
        self._cache.put_job(fresh)
        return fresh

    async def _refresh(self, job: JobView) -> JobView | None:
        """The job as it is now, in the cache as well; None where it is gone or another one."""
        body = await self._client.get(DDPJOBS, job.key.namespace, job.key.name)
        fresh = job_of(body) if body else None
        if fresh is None or fresh.uid != job.uid:
            self._cache.drop(job)
            self.forget(job.uid)
        if fresh is not None:
            self._cache.put_job(fresh)
        return fresh if fresh is not None and fresh.uid == job.uid else None

    async def _act(
        self, job: JobView, entry: Entry, status: Status, plan: PodSet, memory: Memory, *, fresh: bool
    ) -> float | None:
        """Make the pods so. Returns when to look again, or None where all went well."""
        spec, runtime = job.spec, status.runtime
        if spec is not None and spec.suspend and plan.delete and not memory.asked_to_stop:
            # All save at one step; the deletions below would end each pod by itself.
            memory.asked_to_stop = True
            coordinator = next((pod for pod in plan.delete if pod.index == 0 and pod.address), None)
            if coordinator is not None:
                await self._poller.stop(job, coordinator)
        if status.runtime is not None:
            memory.asked_to_stop = False
        await self._hands.release(plan.release)
        await together(self._hands.track(pod) for pod in plan.track)
        await together(self._hands.delete(pod) for pod in plan.delete)
        again = None
        if plan.create and spec is not None and runtime is not None:
            again = await self._fill(job, spec, status, runtime, plan, memory, fresh=fresh)
        await together(self._hands.delete(pod, force=True) for pod in plan.force)
        return again

    async def _fill(
        self,
        job: JobView,
        spec: Spec,
        status: Status,
        runtime: Runtime,
        plan: PodSet,
        memory: Memory,
        *,
        fresh: bool,
    ) -> float | None:
        """Make the pods that are missing."""
        if not fresh:
            there = await self._refresh(job)
            if there is None or there.deleting or there.version != job.version:
                return NOW
        found = await ensure_secret(self._tokens, job)
        if found is not ACCEPTED:
            memory.conflict = found.message if found.reason is Reason.NAME_CONFLICT else None
            return RETRY_SECONDS
        results = await together(
            self._create(job, spec, status, runtime, index, memory) for index in plan.create
        )
        refused = next((result for result in results if isinstance(result, Trouble)), None)
        changed, memory.refused = memory.refused != refused, refused
        if changed:
            return NOW
        return RETRY_SECONDS if refused is not None or not all(result is True for result in results) else None

    async def _create(
        self, job: JobView, spec: Spec, status: Status, runtime: Runtime, index: int, memory: Memory
    ) -> bool | Trouble:
        """True: the pod is there. False: its name is not free yet. Trouble: the API server does not take it."""
        namespace, name = job.key.namespace, pod_name(job.key.name, index, status.incarnation)
        body = pod(job, spec, status, runtime, index=index, incarnation=status.incarnation)
        if not self._nodes.watched:
            body["spec"].setdefault("tolerations", []).extend(tolerations(spec.recovery.node_lost_timeout))
        try:
            made: dict[str, Any] | None = await self._client.create(PODS, namespace, body)
        except AlreadyExists:
            made = await self._client.get(PODS, namespace, name)
            owner = owner_of(made["metadata"]) if made else None
            if made is not None and owner is None:
                memory.conflict = f"Pod {name} exists and is not this job's"
            if made is None or owner != job.uid:
                return False
        except (Forbidden, Invalid) as error:
            return refusal_of(error)
        view = pod_of(made) if made is not None else None
        if view is not None:
            self._cache.put_pod(view)
        log.info("%s: pod %s is there (incarnation %d)", job.key, name, status.incarnation)
        return True

    async def _let_go(self, key: Key, strangers: list[PodView]) -> bool:
        """Release pods whose job is gone, seen with our own eyes. False: it is there, and we did not know."""
        body = await self._client.get(DDPJOBS, key.namespace, key.name)
        live = job_of(body) if body else None
        if live is not None:
            known = self._cache.entry(key).job
            if self._cache.put_job(live) and (known is None or known.uid != live.uid):
                return False
        await self._hands.release(pod for pod in strangers if live is None or pod.owner_uid != live.uid)
        return True

    async def _later(
        self,
        job: JobView,
        seen: Observed,
        status: Status,
        plan: PodSet,
        memory: Memory,
        now: datetime,
        *,
        lost_due: datetime | None,
    ) -> float | None:
        """Seconds until something is due by the clock alone."""
        spec = job.spec
        due: list[timedelta] = []
        if plan.again is not None:
            due.append(plan.again - now)
        if lost_due is not None:
            due.append(lost_due - now)
        if status.finished:
            end = moment_of(status.completion_time)
            if spec is not None and spec.ttl_after_finished is not None and end is not None:
                left = end + spec.ttl_after_finished - now
                if left <= timedelta():
                    log.info("%s: deleted, ttlSecondsAfterFinished is over", job.key)
                    await self._client.delete(DDPJOBS, job.key.namespace, job.key.name, uid=job.uid)
                    return None
                due.append(left)
        elif spec is not None and not spec.suspend:
            if spec.active_deadline is not None and status.active_since:
                due.append(spec.active_deadline - status.active_for(now))
            if memory.secret_seen is not None and status.runtime is not None:
                due.append(memory.secret_seen + self._secret_every - now)
            met_by = rendezvous.deadline(status, spec, members(seen.pods, spec.nodes), seen.report)
            if met_by is not None:
                due.append(met_by - now)
            if seen.admission.reason not in (Reason.ACCEPTED, Reason.INVALID_SPEC):
                memory.conflict = None
                due.append(timedelta(seconds=RETRY_SECONDS))
            due += [
                memory.hints.due(pod) - now
                for pod in members(seen.pods, spec.nodes).values()
                if is_creating(pod)
            ]
            written_at = moment_of(status.progress.updated_at) if status.progress else None
            if written_at is not None and fold_report(status, seen.report, now=now) != status:
                due.append(written_at + self._poller.progress_every - now)
        return max(0.05, min(due).total_seconds()) if due else None
