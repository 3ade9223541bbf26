"""What is looked at before a job's first pod: the rules, the claim, the names, and the API server's own opinion.

Why apart: it happens once per job (and again after a suspension), and each look has its own answer for the user.
Must not: make pods, or remember what came out (that is `gate.py`).
"""

from typing import Any

from ddpjob_api.conditions import Reason
from ddpjob_api.names import service_name
from ddpjob_api.plan import plan
from ddpjob_api.rules import RULES, Facts, Verdict, judge
from ddpjob_api.spec import DDPJob, Metadata, Spec
from ddpjob_operator.cache import Entry
from ddpjob_operator.client import CLAIMS, PODS, SERVICES, Client
from ddpjob_operator.desired import service, service_fits
from ddpjob_operator.errors import ApiError
from ddpjob_operator.model import Runtime, Status
from ddpjob_operator.observe import JobView, owner_of, service_of
from ddpjob_operator.observed import ACCEPTED, Admission
from ddpjob_operator.overlay import Refused
from ddpjob_operator.pod import pod
from ddpjob_operator.tokens import Foreign, Tokens
from ddpjob_operator.trouble import is_invalid, is_refusal, refusal_of

EARLIER = "an earlier job of this name is still being deleted"


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
    except ApiError as error:
        if is_invalid(error):
            return Admission(
                reason=Reason.INVALID_SPEC, message=f"the API server does not take its pods: {error.message}"
            )
        return refused(error)
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
    except ApiError as error:
        return refused(error)
    entry.service = made
    return ACCEPTED


async def ensure_secret(tokens: Tokens, job: JobView) -> Admission:
    try:
        await tokens.ensure(job)
    except Foreign as error:
        if error.earlier:
            return Admission(reason=Reason.PODS_STARTING, message=EARLIER)
        return Admission(reason=Reason.NAME_CONFLICT, message=str(error))
    except ApiError as error:
        return refused(error)
    return ACCEPTED


def refused(error: ApiError) -> Admission:
    """What a user is told of an object that the server does not take.

    Raises:
        ApiError: this one, where it is no refusal but trouble of the server's own.
    """
    if not is_refusal(error):
        raise error
    trouble = refusal_of(error)
    return Admission(reason=trouble.reason, message=trouble.message)
