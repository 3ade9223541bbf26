"""Everything a job's status follows from, as one typed value.

Why apart: whoever looks at the cluster fills it, and what is pure reads it. Must not: hold anything that is not observed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpjob_api.conditions import Reason
from ddpjob_api.goodput import Spent
from ddpjob_api.report import JobReport
from ddpjob_operator.model import Runtime
from ddpjob_operator.observe import JobView, PodView, Waiting
from ddpjob_operator.trouble import Trouble


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What was found out before the first pod."""

    reason: Reason
    """Accepted, InvalidSpec, NameConflict, or what PodsReady carries while no pod can be made."""
    message: str = ""


ACCEPTED = Admission(reason=Reason.ACCEPTED, message="the spec is valid and its pods can be made")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything a status follows from."""

    job: JobView
    pods: tuple[PodView, ...]
    """The job's own, ended and leaving ones included."""
    admission: Admission
    runtime: Runtime
    """What a first pod made now would be made from."""
    report: JobReport | None = None
    """What the coordinator of the live pod of index 0 said last."""
    silent: bool = False
    """That pod is asked, and has not answered for some time; it may never have."""
    spent: Spent | None = None
    """What any coordinator of the job said last of the time, also one that is gone."""
    refused: Trouble | None = None
    """Why the API server did not take a pod."""
    nodes: Trouble | None = None
    """What is known against the nodes of its pods."""
    hints: Mapping[str, Waiting] = field(default_factory=dict)
    """By pod uid: what the cluster's events say about a pod that waits without a reason of its own."""

    @property
    def word(self) -> JobReport | None:
        """The report while it is the coordinator's word; that of one that is silent may long be wrong."""
        return None if self.silent else self.report
