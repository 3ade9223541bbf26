"""What is looked at before a job's first pod: the rules, the claim, the names, and the API server's own opinion.

Why apart: it happens once per job (and again after a suspension), and each look has its own answer for the user.
Must not: make pods.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ddpjob_api.conditions import Reason
from ddpjob_api.names import secret_name, service_name
from ddpjob_api.plan import plan
from ddpjob_api.rules import RULES, Facts, Verdict, judge
from ddpjob_api.spec import DDPJob, Metadata, Spec
from ddpjob_operator.cache import Entry
from ddpjob_operator.client import CLAIMS, PODS, SERVICES, Client
from ddpjob_operator.desired import service, service_fits
from ddpjob_operator.errors import Forbidden, Invalid
from ddpjob_operator.model import Runtime, Status
from ddpjob_operator.observe import JobView, owner_of, service_of
from ddpjob_operator.observed import ACCEPTED, Admission
from ddpjob_operator.overlay import Refused
from ddpjob_operator.pod import pod
from ddpjob_operator.tokens import Foreign, Tokens
from ddpjob_operator.trouble import Trouble, is_invalid, refusal_of

EARLIER = "an earlier job of this name is still being deleted"
SECRET_SECONDS = 15.0
"""A job's Secret is looked for as often (or jobs/5 s where that is longer): to watch Secrets, the operator would need
the right to read all of them."""


@dataclass
class Gate:
    """What one operator remembers of what stands before a job's pods; losing it costs a few requests."""

    admitted: tuple[int, Admission] | None = None
    """The spec's generation it was looked at for, and what came out."""
    refused: Trouble | None = None
    """Why the API server did not take a pod."""
    conflict: str | None = None
    """A child's name is somebody else's."""
    secret_seen: datetime | None = None

    async def look(
        self,
        client: Client,
        tokens: Tokens,
        job: JobView,
        entry: Entry,
        runtime: Runtime,
        *,
        now: datetime,
        jobs: int,
    ) -> tuple[Admission, list[str]]:
        """What stands before the first pod, looked at once; afterwards only that Service and Secret are there.

        Returns:
            What came out, and the children of a job that runs that are made again.
        """
        spec = job.spec
        if spec is None or job.status.finished:
            return ACCEPTED, []
        if self.conflict is not None:
            return Admission(reason=Reason.NAME_CONFLICT, message=self.conflict), []
        if job.status.runtime is not None and not spec.suspend:
            return await self._children(client, tokens, job, spec, entry, now=now, jobs=jobs)
        known = self.admitted
        if known is not None and known[0] == job.generation and known[1].reason in (
            Reason.ACCEPTED, Reason.INVALID_SPEC,
        ):  # fmt: skip
            return known[1], []
        found = by_rules(job, spec, job.status, runtime)
        if found is ACCEPTED and not spec.suspend:
            found = await admit(client, tokens, job, spec, entry, runtime)
        self.refused = None
        if found.reason not in (Reason.ACCEPTED, Reason.INVALID_SPEC, Reason.NAME_CONFLICT):
            self.refused = Trouble(reason=found.reason, message=found.message)
        if not spec.suspend:
            self.admitted = (job.generation, found)
        return found, []

    async def _children(
        self,
        client: Client,
        tokens: Tokens,
        job: JobView,
        spec: Spec,
        entry: Entry,
        *,
        now: datetime,
        jobs: int,
    ) -> tuple[Admission, list[str]]:
        """Service and Secret of a job that runs, made again where somebody deleted them."""
        restored = []
        there = entry.service is not None and entry.service.owner_uid == job.uid
        found = await ensure_service(client, job, spec, entry)
        if found is ACCEPTED and not there:
            restored.append(f"Service {service_name(job.key.name)}")
        due = self.secret_due(jobs)
        if due is None:
            self.secret_seen = now
        elif now >= due:
            self.secret_seen = now
            if await tokens.restore(job):
                restored.append(f"Secret {secret_name(job.key.name)}")
        return found, restored

    def secret_due(self, jobs: int) -> datetime | None:
        """When the Secret of a job that runs is looked for again, beside so many jobs."""
        if self.secret_seen is None:
            return None
        return self.secret_seen + timedelta(seconds=max(SECRET_SECONDS, jobs / 5))


def by_rules(
    job: JobView, spec: Spec, status: Status, runtime: Runtime, *, read_write_once: bool = False
) -> Admission:
    """What can be said without asking anybody: the table of rules, and the template's merge rules."""
    resource = DDPJob(metadata=Metadata(name=job.key.name, namespace=job.key.namespace), spec=spec)
    facts = Facts(
        name=resource.metadata.name, spec=spec, plan=plan(spec), claim_read_write_once=read_write_once or None
    )
    refused = [found for found in judge(facts, RULES) if found.verdict is Verdict.REFUSE]
    if refused:
        words = "; ".join(f"{'.'.join(str(part) for part in f.path)}: {f.message}" for f in refused)
        return Admission(reason=Reason.INVALID_SPEC, message=words)
    try:
        pod(job, spec, status, runtime, index=0, incarnation=status.incarnation)
    except Refused as error:
        return Admission(reason=Reason.INVALID_SPEC, message=str(error))
    return ACCEPTED


async def admit(
    client: Client, tokens: Tokens, job: JobView, spec: Spec, entry: Entry, runtime: Runtime
) -> Admission:
    """Everything a first pod needs is there, or why not. The Service and the Secret are made on the way."""
    claim = spec.checkpoint.persistent_volume_claim if spec.checkpoint else None
    if claim and spec.nodes > 1 and await is_read_write_once(client, job, claim):
        found = by_rules(job, spec, job.status, runtime, read_write_once=True)
        if found is not ACCEPTED:
            return found
    found = await ensure_service(client, job, spec, entry)
    if found is ACCEPTED:
        found = await ensure_secret(tokens, job)
    if found is not ACCEPTED:
        return found
    try:
        # Under a name of its own: the real one may be held by a pod that is still ending.
        first = pod(job, spec, job.status, runtime, index=0, incarnation=job.status.incarnation)
        first["metadata"]["name"] += "-dry-run"
        await client.create(PODS, job.key.namespace, first, dry_run=True)
    except (Forbidden, Invalid) as error:
        if is_invalid(error):
            return Admission(
                reason=Reason.INVALID_SPEC, message=f"the API server does not take its pods: {error.message}"
            )
        trouble = refusal_of(error)
        return Admission(reason=trouble.reason, message=trouble.message)
    return ACCEPTED


async def is_read_write_once(client: Client, job: JobView, claim: str) -> bool:
    """Whether a claim exists and cannot be written from several nodes."""
    body = await client.get(CLAIMS, job.key.namespace, claim)
    if body is None:
        return False  # the scheduler will say so
    modes: list[Any] = (body.get("spec") or {}).get("accessModes") or []
    return bool(modes) and "ReadWriteMany" not in modes


async def ensure_service(client: Client, job: JobView, spec: Spec, entry: Entry) -> Admission:
    """The Service as it should be; one that is somebody else's is left alone."""
    name, known = service_name(job.key.name), entry.service
    if known is not None and known.owner_uid == job.uid:
        if service_fits(known, spec):
            return ACCEPTED
    else:
        there = await client.get(SERVICES, job.key.namespace, name)
        owner = owner_of(there["metadata"]) if there else job.uid
        if there and owner is None:
            return Admission(
                reason=Reason.NAME_CONFLICT, message=f"Service {name} exists and is not this job's"
            )
        if owner != job.uid:
            return Admission(reason=Reason.PODS_STARTING, message=EARLIER)
    try:
        made = service_of(await client.apply(SERVICES, job.key.namespace, name, service(job, spec)))
    except Forbidden as error:
        return Admission(reason=refusal_of(error).reason, message=error.message)
    entry.service = made
    return ACCEPTED


async def ensure_secret(tokens: Tokens, job: JobView) -> Admission:
    try:
        await tokens.ensure(job)
    except Foreign as error:
        if error.earlier:
            return Admission(reason=Reason.PODS_STARTING, message=EARLIER)
        return Admission(reason=Reason.NAME_CONFLICT, message=str(error))
    except Forbidden as error:
        return Admission(reason=refusal_of(error).reason, message=error.message)
    return ACCEPTED
