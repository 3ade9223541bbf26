"""Each job's token: made once, kept in the job's Secret, remembered here for as long as the operator lives.

Why apart: nothing else may hold a token; it never gets into a log, an event, a status or an exception.
"""

import base64
import secrets
from contextlib import suppress

from ddpjob_api.names import TOKEN_PATH, secret_name
from ddpjob_operator.client import SECRETS, Body, Client
from ddpjob_operator.desired import secret
from ddpjob_operator.errors import AlreadyExists
from ddpjob_operator.observe import JobView, owner_of

TOKEN_BYTES = 32


class Foreign(Exception):
    """A Secret of that name is not this job's. `earlier`: it belongs to a deleted job of the same name."""

    def __init__(self, name: str, *, earlier: bool) -> None:
        super().__init__(f"Secret {name} exists and is not this job's")
        self.earlier = earlier


class Tokens:
    """Tokens by the job's uid."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<Tokens of {len(self._known)} jobs>"

    async def ensure(self, job: JobView) -> bytes:
        """The job's token, its Secret made where there is none.

        Raises:
            Foreign: a Secret of that name is somebody else's.
        """
        for _ in range(2):
            found = await self._read(job)
            if found is not None:
                self._known[job.uid] = found
                return found
            token = self._known.get(job.uid) or secrets.token_hex(TOKEN_BYTES).encode()
            with suppress(AlreadyExists):  # another operator was quicker: read that one
                await self._client.create(SECRETS, job.key.namespace, secret(job, token))
                self._known[job.uid] = token
                return token
        raise Foreign(secret_name(job.key.name), earlier=True)

    async def restore(self, job: JobView) -> bool:
        """Make the Secret again where somebody deleted it; whether that was so. One that is not ours is left alone."""
        try:
            if await self._read(job) is not None:
                return False
            await self.ensure(job)
        except Foreign:
            return False
        return True

    async def look_up(self, job: JobView) -> bytes | None:
        """The token if there is one; at most one request per job and life of the operator."""
        if job.uid not in self._known:
            with suppress(Foreign):
                found = await self._read(job)
                if found is not None:
                    self._known[job.uid] = found
        return self._known.get(job.uid)

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    async def _read(self, job: JobView) -> bytes | None:
        body = await self._client.get(SECRETS, job.key.namespace, secret_name(job.key.name))
        if body is None:
            return None
        return token_of(body, job)


def token_of(body: Body, job: JobView) -> bytes:
    owner = owner_of(body.get("metadata") or {})
    text = (body.get("data") or {}).get(TOKEN_PATH.rsplit("/", 1)[1])
    if owner != job.uid or not text:
        raise Foreign(secret_name(job.key.name), earlier=owner is not None and owner != job.uid)
    return base64.b64decode(text)
