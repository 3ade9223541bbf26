"""What stands before a job's pods, as it was when it was last looked at, and when it is looked at again.

Why apart: it is remembered from one reconcile to the next, so that an answer of `admit.py` that lasts is not asked for
again, and a job that runs costs no more than a look for its Service and Secret.
Must not: judge (that is `admit.py`), or remember what could not be asked again.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ddpjob_api.conditions import Reason
from ddpjob_api.names import secret_name, service_name
from ddpjob_api.spec import Spec
from ddpjob_operator.admit import admit, by_rules, ensure_service
from ddpjob_operator.cache import Entry
from ddpjob_operator.client import Client
from ddpjob_operator.model import Runtime
from ddpjob_operator.observe import JobView
from ddpjob_operator.observed import ACCEPTED, Admission
from ddpjob_operator.tokens import Tokens
from ddpjob_operator.trouble import Trouble, repeated

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
        before, self.refused = self.refused, None
        if found.reason not in (Reason.ACCEPTED, Reason.INVALID_SPEC, Reason.NAME_CONFLICT):
            self.refused = repeated(before, Trouble(reason=found.reason, message=found.message))
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
