"""The operator's settings, read once from the environment.

Why apart: one place lists everything that can be set, with its default; the chart's values map onto these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from ddpjob_api import __version__


class BadSetting(ValueError):
    """A variable that cannot be read; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field per variable `DDPJOB_<FIELD>`; durations are whole or fractional seconds there."""

    trainer_image: str = f"ddpjob/trainer:{__version__}"
    """Image of jobs that name none."""

    operator_image: str = f"ddpjob/operator:{__version__}"
    """Image from which the trainer is put into the pods of jobs that name an image of their own."""

    watch_namespaces: tuple[str, ...] = ()
    """Namespaces served, comma-separated; empty: all of the cluster."""

    health_host: str = "0.0.0.0"
    health_port: int = 8080
    """`/healthz`, `/readyz`, `/metrics`; 0: none."""

    resync: timedelta = timedelta(minutes=10)
    """Everything is listed anew this often: kopf does not report what was deleted while a watch was broken."""

    workers: int = 16
    """Jobs reconciled at once."""

    api_qps: float = 50.0
    api_burst: int = 100
    """Token bucket of the operator's own requests; kopf's watches do not count."""

    poll: timedelta = timedelta(seconds=5)
    """A running job's coordinator is asked this often, or jobs/50 s where that is longer."""

    progress: timedelta = timedelta(seconds=15)
    """Progress is written to a job's status at most this often, or jobs/10 s where that is longer."""

    lease: str = ""
    """`namespace/name` of the Lease that the serving one of several operators holds; empty: none is asked for."""

    log_level: str = "INFO"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings in these variables.

    Raises:
        BadSetting: a value that is no number where one is needed.
    """
    values: dict[str, object] = {}
    defaults = Settings()
    for field in fields(Settings):
        name = f"DDPJOB_{field.name.upper()}"
        text = environment.get(name, "").strip()
        if not text:
            continue
        default = getattr(defaults, field.name)
        try:
            if isinstance(default, timedelta):
                values[field.name] = timedelta(seconds=float(text))
            elif isinstance(default, tuple):
                values[field.name] = tuple(part.strip() for part in text.split(",") if part.strip())
            else:
                values[field.name] = type(default)(text)
        except ValueError:
            raise BadSetting(f"{name}={text}: expected a number, like {default}") from None
    if lease := values.get("lease"):
        parts = str(lease).split("/")
        if len(parts) != 2 or not all(parts):
            raise BadSetting(f"DDPJOB_LEASE={lease}: expected namespace/name")
    return Settings(**values)  # type: ignore[arg-type]
