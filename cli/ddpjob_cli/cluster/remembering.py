"""What a job's pods remember, for its report: those that run are asked, those that ended left a line in their log.

Why apart: the only reader of `/history` and of that line. Must not: draw.
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import yaml

from ddpjob_api.codec import Invalid, load
from ddpjob_api.history import LOG_MARK, History, unpack
from ddpjob_api.names import LABEL_INDEX, TRAINER_CONTAINER
from ddpjob_api.spec import Ports
from ddpjob_cli.cluster.access import Access, Body, core_path
from ddpjob_cli.cluster.logs import has_output
from ddpjob_cli.cluster.observe import (
    number,
    observation,
    places_of,
    read,
    scraper_of,
    seen_events,
    spec_of,
)
from ddpjob_cli.errors import CommandError, Unreachable
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.lines import OWN
from ddpjob_cli.ranks import ranks
from ddpjob_cli.report.data import ReportData, incidents_of

AT_ONCE = 16
TAIL_LINES = 40
"""The history is among a launcher's last lines."""


def collect(access: Access, name: str, made_at: str) -> ReportData:
    """Everything that can still be had.

    Raises:
        CommandError: the job cannot be read.
    """
    job, pods, blind = read(access, name)
    spec = spec_of(job)
    port = (spec.ports if spec else Ports()).metrics
    events = seen_events(access, name, job, pods, blind)
    found = ranks(scraper_of(access).look(places_of(pods, port)))
    seen = observation(job, pods, events, found, (), namespace=access.namespace, now=time.time())
    histories, gaps = remembered(access, [pod for pod in pods if has_output(pod)], port)
    status: Body = job.get("status") or {}
    runtime = status.get("runtime") or {}
    environment = {
        "image": runtime.get("image") or (spec.image if spec else None),
        "trainer version": runtime.get("trainerVersion"),
        "nodes": ", ".join(sorted({pod.host for pod in seen.pods if pod.host})),
        "started": status.get("startTime"),
        "completed": status.get("completionTime"),
    }
    return ReportData(
        seen=seen,
        findings=tuple(findings(seen)),
        histories=tuple(histories),
        incidents=incidents_of(tuple(histories), seen.last_failure),
        spec=yaml.safe_dump(job.get("spec"), sort_keys=False, allow_unicode=True),
        result=status.get("result") or {},
        environment={key: str(value) for key, value in environment.items() if value},
        gaps=(*blind, *gaps),
        made_at=made_at,
    )


def remembered(access: Access, pods: Sequence[Body], port: int) -> tuple[list[History], list[str]]:
    """The history of each pod that has one, and what is missing."""

    def one(pod: Body) -> History | str:
        try:
            return (
                of_pod(access, pod, port)
                or f"pod {pod['metadata']['name']} ended without a word of its history"
            )
        except CommandError as error:
            return str(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(one, pods))
    return (
        [answer for answer in answers if isinstance(answer, History)],
        [answer for answer in answers if isinstance(answer, str)],
    )


def of_pod(access: Access, pod: Body, port: int) -> History | None:
    """One pod's; None where it left none.

    Raises:
        CommandError: it cannot be read.
    """
    name = pod["metadata"]["name"]
    unanswered: Unreachable | None = None
    if (pod.get("status") or {}).get("phase") == "Running":
        path = core_path(access.namespace, "pods", f"{name}:{port}", "/proxy/history")
        try:
            return load(History, json.loads(access.text(path, f"the history of pod {name}")))
        except (ValueError, Invalid):
            return None
        except Unreachable as error:
            unanswered = error  # it may have ended since it was listed, and then its log has it
    path = core_path(access.namespace, "pods", name, "/log")
    query = {"container": TRAINER_CONTAINER, "tailLines": str(TAIL_LINES)}
    try:
        text = access.text(path, f"the log of pod {name}", **query)
    except CommandError as error:
        raise unanswered or error from None
    for line in reversed(text.splitlines()):
        if line.startswith(OWN + LOG_MARK):
            history = unpack(line.removeprefix(OWN + LOG_MARK))
            return history if history is not None and history.node == number(pod, LABEL_INDEX) else None
    if unanswered is not None:
        raise unanswered
    return None
