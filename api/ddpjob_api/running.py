"""Why and how a job runs, by its coordinator's report: the reason and message of the condition Running.

Why apart: the operator and `ddpjob`, of a run on this machine, say the same of the same report. Must not: judge whether
it runs.
"""

from ddpjob_api.conditions import Reason
from ddpjob_api.report import JobReport

RUNS = "the workers of every node run"


def how_it_runs(report: JobReport) -> tuple[Reason, str]:
    """What a person should do something about first (`conditions.ADVICE`), else that it trains."""
    if report.checkpoint_trouble:
        return Reason.CHECKPOINT_FAILED, f"{RUNS}; {report.checkpoint_trouble}"
    if report.ddp is not None and report.ddp.not_resuming:
        return Reason.NOT_RESUMING, report.ddp.not_resuming
    if report.passed_over:
        return Reason.CHECKPOINT_DAMAGED, f"{RUNS}; a checkpoint was passed over: {report.passed_over}"
    return Reason.TRAINING, RUNS
