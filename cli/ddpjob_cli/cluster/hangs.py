"""What the launchers of a job's pods have left in their logs about a hang, also those of pods that have ended.

Why apart: the only reader of those lines. Must not: judge.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from ddpjob_api.conditions import Reason
from ddpjob_api.names import TRAINER_CONTAINER
from ddpjob_api.postmortem import LOG_MARK, PostMortem, unpack
from ddpjob_cli.cluster.access import Access, Body, core_path
from ddpjob_cli.cluster.logs import has_output
from ddpjob_cli.cluster.observe import job_of, pods_of, spec_of
from ddpjob_cli.errors import CommandError
from ddpjob_cli.lines import OWN

AT_ONCE = 16
BEFORE = timedelta(minutes=5)
"""Stacks are taken at most so long before the verdict, beside the time that ranks are given to end in between."""


def collect(access: Access, name: str) -> tuple[list[PostMortem], list[str]]:
    """All parts that can be had, and what could not be read.

    Raises:
        CommandError: the job cannot be read, or no log of it.
    """
    job = job_of(access, name)
    since = asked_since(job)
    pods = [pod for pod in pods_of(access, job) if has_output(pod)]

    def one(pod: Body) -> list[PostMortem] | CommandError:
        try:
            return of_pod(access, pod, since)
        except CommandError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(one, pods))
    errors = [answer for answer in answers if isinstance(answer, CommandError)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    parts = [part for answer in answers if not isinstance(answer, CommandError) for part in answer]
    return parts, [str(error) for error in errors]


def asked_since(job: Body) -> datetime | None:
    """From when on logs are read: a log may be long. None: all of it."""
    failure = (job.get("status") or {}).get("lastFailure") or {}
    spec = spec_of(job)
    if failure.get("reason") != Reason.NO_PROGRESS or spec is None:
        return None
    try:
        return datetime.fromisoformat(failure.get("at") or "") - spec.recovery.grace_period - BEFORE
    except (ValueError, OverflowError):
        return None


def of_pod(access: Access, pod: Body, since: datetime | None) -> list[PostMortem]:
    """One pod's.

    Raises:
        CommandError: its log cannot be read.
    """
    name = pod["metadata"]["name"]
    query = {"container": TRAINER_CONTAINER}
    if since is not None:
        query["sinceTime"] = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = core_path(access.namespace, "pods", name, "/log")
    lines = access.lines(path, f"the log of pod {name}", half=False, **query)
    return parts_in([line for line in lines if line.startswith(OWN + LOG_MARK)])


def parts_in(lines: Sequence[str]) -> list[PostMortem]:
    found = [unpack(line.rstrip("\r\n").removeprefix(OWN + LOG_MARK)) for line in lines]
    return [part for part in found if part is not None]
