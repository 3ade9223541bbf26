"""The way to the API server: a few verbs in dictionaries.

Why apart: the Kubernetes client takes half a second to import and is an extra, so it is met here and in `kubeconfig` and
nowhere else; and what a server answers becomes a sentence here. Must not: know what a DDPJob is.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ddpjob_cli.cluster.kubeconfig import Target, login
from ddpjob_cli.errors import CommandError, Forbidden, RefusedJob, Unreachable, Unusable

Body = dict[str, Any]
CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
SILENCE_SECONDS = 300.0
"""How long nothing may come of an answer that is read as it comes: whoever is gone without a word is not told from one who
has nothing to say."""
PATIENCE_SECONDS = 120.0
"""How long a cluster may not answer while something is followed."""
FIELD_MANAGER = "ddpjob-cli"
JSON_TYPE = "application/json"
APPLY = "application/apply-patch+yaml"
PAGE = 500
"""Objects per answer of a list."""


class NotThere(Unusable):
    """No such object."""


def jobs_path(namespace: str | None, name: str | None = None) -> str:
    """`/apis/ddpjob.dev/v1alpha1/…/ddpjobs`."""
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/ddpjob.dev/v1alpha1{inside}/ddpjobs" + (f"/{quote(name, safe='')}" if name else "")


def core_path(namespace: str, plural: str, name: str | None = None, sub: str = "") -> str:
    """`/api/v1/namespaces/…`."""
    inside = f"/api/v1/namespaces/{quote(namespace, safe='')}/{plural}"
    return inside + (f"/{quote(name, safe=':')}{sub}" if name else "")


class Access:
    """One cluster and the namespace that is meant."""

    def __init__(self, target: Target) -> None:
        """Read the kubeconfig; nothing is asked of the cluster yet.

        Raises:
            Unusable: the extra is not installed, or as `login`.
        """
        try:
            from kubernetes.client import ApiClient
        except ImportError as error:
            raise Unusable(
                "a command about a cluster needs the Kubernetes client, which is not installed; "
                "pip install 'ddpjob[cluster]'"
            ) from error
        settings, namespace = login(target)
        settings.retries = 1
        self.namespace = target.namespace or namespace or "default"
        self.server: str = settings.host
        self._client = ApiClient(configuration=settings)

    def get(self, path: str, what: str, **query: str) -> Body:
        """One object.

        Raises:
            CommandError: as `text`.
        """
        return self._object(self.text(path, what, accept=JSON_TYPE, **query))

    def items(self, path: str, what: str, **query: str) -> list[Body]:
        """All objects of a list, page by page.

        Raises:
            CommandError: as `text`.
        """
        found: list[Body] = []
        following = ""
        while True:
            more = {"limit": str(PAGE)} | ({"continue": following} if following else {})
            page = self.get(path, what, **query, **more)
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return found

    def text(self, path: str, what: str, *, accept: str = "*/*", **query: str) -> str:
        """What is at a path; `what` names it in sentences.

        Raises:
            Unreachable: nobody answers.
            Forbidden: the user may not.
            NotThere: there is no such thing.
        """
        with self._opened("GET", path, what, query, {"Accept": accept}, None) as response:
            data: bytes = response.read()
            return data.decode(errors="replace")

    def lines(self, path: str, what: str, *, half: bool = True, **query: str) -> Iterator[str]:
        """The lines of an answer as they come, which may be for ever; its last one also where its end is missing (`half`).

        Raises:
            Unreachable: as `text`, and where nothing came for `SILENCE_SECONDS`.
            CommandError: as `text`.
        """
        with self._opened("GET", path, what, query, {"Accept": "*/*"}, None, patient=True) as response:
            rest = b""
            for chunk in response.stream(65536):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
            if rest and half:
                yield rest.decode(errors="replace")

    def apply(self, path: str, what: str, body: Body, *, dry_run: bool = False) -> Body:
        """Server-side apply.

        Raises:
            RefusedJob: the server does not take it; its own words.
            CommandError: as `text`.
        """
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        with self._opened("PATCH", path, what, query, {"Content-Type": APPLY}, body) as response:
            return self._object(response.read().decode(errors="replace"))

    def _object(self, text: str) -> Body:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Unreachable(
                f"{self.server} does not answer as Kubernetes does ({text[:60].strip()!r}); is it the right server, "
                "or is a proxy or a login page in the way?"
            )
        return found

    @contextlib.contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Body | None,
        *,
        patient: bool = False,
    ) -> Iterator[Any]:
        from urllib3.exceptions import HTTPError

        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=dict(headers),
                body=body,
                auth_settings=["BearerToken"],
            )
            timeout = (CONNECT_SECONDS, SILENCE_SECONDS if patient else READ_SECONDS)
            response = self._client.call_api(*request, _request_timeout=timeout).response
            try:
                if not 200 <= response.status < 300:
                    raise self._error(response.status, response.read(), method, path, what)
                yield response
            finally:
                response.close()
        except (HTTPError, OSError) as error:
            raise Unreachable(
                f"{self.server} does not answer ({reason(error)}); is the cluster up, and the context the right one?"
            ) from error

    def _error(self, status: int, data: bytes, method: str, path: str, what: str) -> CommandError:
        words = message_of(data)
        if status == 401:
            return Forbidden(f"{self.server} does not know this user ({words}); log in again, as for kubectl")
        if status == 403:
            return Forbidden(
                f"{what}: not allowed to {right(method, path)}; ask for that right "
                f"(docs/command-line.md, Rights). The cluster says: {words}"
            )
        if status == 404:
            if "could not find the requested resource" in words and "/ddpjobs" in path:
                return Unusable(f"{self.server} has no DDPJobs; install the operator (docs/operations.md)")
            return NotThere(f"{what}: not found ({words})")
        if method == "PATCH" and status in {400, 409, 422}:
            return RefusedJob(f"{what}: refused: {words}")
        return Unreachable(f"{what}: the cluster answers {status}: {words}")


def message_of(data: bytes) -> str:
    """The message of a Status object, or the text itself."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    words = found.get("message") if isinstance(found, dict) else None
    return str(words or data.decode(errors="replace")[:500].strip() or "no words")


def right(method: str, path: str) -> str:
    """`get pods/log in namespace x`: what a Role would have to allow."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = parts[1] if parts[:1] == ["namespaces"] and len(parts) > 2 else ""
    rest = parts[2:] if namespace else parts
    resource = rest[0] + (f"/{rest[2]}" if len(rest) > 2 else "")
    verb = {"GET": "get" if len(rest) > 1 else "list"}.get(method, method.lower())
    return f"{verb} {resource}" + (f" in namespace {namespace}" if namespace else " in all namespaces")


def reason(error: Exception) -> str:
    """The innermost words of a failed connection."""
    while getattr(error, "reason", None) is not None and isinstance(error.reason, Exception):  # type: ignore[attr-defined]
        error = error.reason  # type: ignore[attr-defined]
    return str(error).rpartition(": ")[2] or type(error).__name__
