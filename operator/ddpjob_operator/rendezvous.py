"""When the launchers of a job should have met (`recovery.rendezvousTimeoutSeconds`), and when they may try again.

Why apart: a gang of which a part never comes holds nodes that others wait for, so it is ended; what counts as "never
came" is easy to get wrong in ways that would end a healthy training. Must not: read the clock, or judge pods that wait
for a node: pending time does not count.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta

from ddpjob_api.conditions import Condition
from ddpjob_api.report import JobReport
from ddpjob_api.spec import Spec
from ddpjob_operator.model import Status, Truth, moment_of
from ddpjob_operator.observe import PodView

ATTEMPTS = 3
"""So often the ranks may fail to meet in a row."""
PAUSE = timedelta(seconds=30)
"""Before the second attempt, doubled before each further one."""


def pause(job_uid: str, attempts: int) -> timedelta:
    """How long nodes are left to others after that many attempts: by a quarter more or less, differently for each job.

    Two gangs that hold a part of the nodes each would otherwise meet again and again.
    """
    share = hashlib.sha256(f"{job_uid}|{attempts}".encode()).digest()[0] / 255
    return PAUSE * float(2 ** (attempts - 1)) * (0.75 + share / 2)


def deadline(
    status: Status, spec: Spec, now_there: Mapping[int, PodView], report: JobReport | None
) -> datetime | None:
    """The moment at which the launchers must have met; None while that is no question.

    It begins when the last pod was scheduled, or, in a job that ran before, when its ranks were last together: if they
    were until now, when a status says first that they are not.

    Args:
        report: None where the coordinator does not answer: those that it missed long ago may have come.
    """
    moments = [pod.scheduled_at for pod in now_there.values() if pod.scheduled_at is not None]
    if len(moments) < spec.nodes or met(spec, now_there, report):
        return None
    for kind in (Condition.RENDEZVOUS_READY, Condition.RUNNING):
        known = status.condition(kind)
        if known is not None and known.status != Truth.FALSE:
            return None
        since = moment_of(known.last_transition_time) if known is not None else None
        moments += [since] if since is not None else []
    return max(moments) + spec.recovery.rendezvous_timeout


def met(spec: Spec, now_there: Mapping[int, PodView], report: JobReport | None) -> bool:
    """Whether the launchers have met, as far as anybody knows.

    A program without a process group is never ready, and a coordinator may be out of the operator's reach: only its own
    word that some are missing, or a container that does not run, says that they have not.
    """
    if all(pod.ready for pod in now_there.values()):
        return True
    if not all(pod.started for pod in now_there.values()):
        return False
    return report is None or report.nodes_joined >= report.nodes_expected
