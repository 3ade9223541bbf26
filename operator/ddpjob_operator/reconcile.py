"""One look at one job: observe, work out the status, write it if it changed, make the pods so, tell.

Level-triggered: nothing here knows what event caused it, and it can be cut off at any point and begun again. The
order is what makes that safe: the status is written first (with the counts and the number that new pods take), then
finalizers go, then pods are made. Must not: decide; `status.py` and `desired.py` do.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ddpjob_api import __version__
from ddpjob_api.conditions import Reason
from ddpjob_api.messages import PROTOCOL
from ddpjob_api.names import pod_name
from ddpjob_api.report import RunState
from ddpjob_api.spec import Spec
from ddpjob_operator import due, tally
from ddpjob_operator.admit import ensure_secret
from ddpjob_operator.cache import Cache, Entry
from ddpjob_operator.client import DDPJOBS, PODS, Client
from ddpjob_operator.desired import PodSet, members, pod_set
from ddpjob_operator.due import RETRY_SECONDS
from ddpjob_operator.errors import AlreadyExists, ApiError, Conflict, NotFound
from ddpjob_operator.events import between, was_restored
from ddpjob_operator.gate import Gate
from ddpjob_operator.hands import Hands, together
from ddpjob_operator.hints import Hints, is_creating
from ddpjob_operator.lost import Weighed, seen_alive, tolerations, weigh
from ddpjob_operator.model import Runtime, Status, write_status
from ddpjob_operator.nodes import Nodes
from ddpjob_operator.observe import JobView, Key, PodView, job_of, owner_of, pod_of
from ddpjob_operator.observed import ACCEPTED, Observed
from ddpjob_operator.overlay import Refused
from ddpjob_operator.pinning import spec_hash
from ddpjob_operator.pod import pod, template_hash
from ddpjob_operator.poller import Poller
from ddpjob_operator.status import advance
from ddpjob_operator.tally import Tally
from ddpjob_operator.tokens import Tokens
from ddpjob_operator.trouble import Trouble, is_refusal, refusal_of, repeated

log = logging.getLogger("ddpjob.reconcile")

NOW = 0.0


@dataclass
class Memory:
    """What one operator remembers of a job between two looks; losing it costs a few requests."""

    gate: Gate = field(default_factory=Gate)
    hints: Hints = field(default_factory=Hints)
    asked_to_stop: bool = False
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
        gate, runtime, jobs = memory.gate, self._runtime(job), len(self._cache.keys())
        admission, restored = await gate.look(
            self._client, self._tokens, job, entry, runtime, now=now, jobs=jobs
        )
        await self._hands.post(job, [was_restored(name) for name in restored], now)
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
            runtime=runtime,
            report=self._poller.report(job, there.get(0)),
            silent=self._poller.silent(job, there.get(0)),
            spent=self._poller.spent(job),
            refused=gate.refused,
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
        expires = due.expiry(status, job.spec)
        if expires is not None and expires <= now:
            log.info("%s: deleted, ttlSecondsAfterFinished is over", job.key)
            await self._client.delete(DDPJOBS, job.key.namespace, job.key.name, uid=job.uid)
            return None
        tried_again = due.is_tried_again(status, job.spec, admission)
        if tried_again:
            gate.conflict = None  # the status tells of it; the next look sees for itself
        moments = due.moments(
            status,
            job.spec,
            seen,
            tried_again=tried_again,
            secret=gate.secret_due(jobs),
            hints=[memory.hints.due(pod) for pod in there.values() if is_creating(pod)],
            now=now,
            progress_every=self._poller.progress_every,
        )
        moments += [moment for moment in (plan.again, weighed.due) if moment is not None]
        return max(0.05, (min(moments) - now).total_seconds()) if moments else None

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
            spec_hash=spec_hash(job.spec) if job.spec else "",
        )

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
        leaving = spec is not None and (spec.suspend or runtime is None)
        if leaving and plan.delete and not memory.asked_to_stop:
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
            memory.gate.conflict = found.message if found.reason is Reason.NAME_CONFLICT else None
            return RETRY_SECONDS
        results = await together(
            self._create(job, spec, status, runtime, index, memory) for index in plan.create
        )
        refused = next((result for result in results if isinstance(result, Trouble)), None)
        refused = repeated(memory.gate.refused, refused)
        changed, memory.gate.refused = memory.gate.refused != refused, refused
        if changed:
            return NOW
        return RETRY_SECONDS if refused is not None or not all(result is True for result in results) else None

    async def _create(
        self, job: JobView, spec: Spec, status: Status, runtime: Runtime, index: int, memory: Memory
    ) -> bool | Trouble:
        """True: the pod is there. False: its name is not free yet. Trouble: it cannot be made, or is not taken."""
        namespace, name = job.key.namespace, pod_name(job.key.name, index, status.incarnation)
        try:
            body = pod(job, spec, status, runtime, index=index, incarnation=status.incarnation)
        except Refused as error:  # the template may be edited while the job runs
            return Trouble(reason=Reason.POD_REFUSED, message=str(error))
        if not self._nodes.watched and isinstance(given := body["spec"].setdefault("tolerations", []), list):
            given.extend(tolerations(spec.recovery.node_lost_timeout))
        try:
            made: dict[str, Any] | None = await self._client.create(PODS, namespace, body)
        except AlreadyExists:
            made = await self._client.get(PODS, namespace, name)
            owner = owner_of(made["metadata"]) if made else None
            if made is not None and owner is None:
                memory.gate.conflict = f"Pod {name} exists and is not this job's"
            if made is None or owner != job.uid:
                return False
        except ApiError as error:
            if not is_refusal(error):
                raise
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
