"""What can go wrong between the operator and the API server.

ApiError                     the server answered with an error; `status`, `reason`, `message` are its own words
├── NotFound        404
├── AlreadyExists   409      a create met an object of that name
├── Conflict        409      a write was based on an old version
├── Forbidden       403      RBAC, quota, Pod Security, a webhook
├── Invalid         400, 422 the object itself is wrong
└── Unavailable     429, 5xx (also for a webhook that cannot be asked), no connection: worth another try later
"""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, *, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds the server asks to wait."""


class NotFound(ApiError):
    pass


class AlreadyExists(ApiError):
    pass


class Conflict(ApiError):
    pass


class Forbidden(ApiError):
    pass


class Invalid(ApiError):
    pass


class Unavailable(ApiError):
    pass


def error_of(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """The error for an answer; `body` is a Kubernetes Status, or empty where there was none."""
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or "no message")
    kind: type[ApiError] = ApiError
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status == 403:
        kind = Forbidden
    elif status in (400, 422):
        kind = Invalid
    elif status == 429 or status >= 500:
        kind = Unavailable
    return kind(status=status, reason=reason, message=message, retry_after=retry_after)
