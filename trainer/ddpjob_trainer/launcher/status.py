"""What leaves a launcher about the job, in JSON and in a sentence.

Why apart: the report joins what the coordinator knows with what rank 0's page says, within the size a reader takes.
Must not: read a page or ask the coordinator by itself.
"""

import json
from dataclasses import replace

from ddpjob_api.codec import render
from ddpjob_api.messages import Finish
from ddpjob_api.report import MAX_REPORT_BYTES, Failure, JobReport, Outcome
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.progress import Gauge


def encode(report: JobReport, gauge: Gauge) -> bytes:
    """`GET /status`."""
    full = replace(report, progress=gauge.progress, ddp=gauge.ddp, result=report.result or gauge.result)
    for smaller in (full, replace(full, ddp=None), replace(full, ddp=None, result={})):
        text = json.dumps(render(smaller), separators=(",", ":")).encode()
        if len(text) <= MAX_REPORT_BYTES:
            break
    return text


def sentence(finish: Finish, config: Config) -> str:
    """How the job ended, for `kubectl describe` and the log."""
    plan = config.plan
    match finish.outcome:
        case Outcome.DONE:
            return f"done: all workers of {plan.nodes} nodes ended with 0"
        case Outcome.STOPPED:
            return "stopped on request" + (f" after {blame(finish.failure)}" if finish.failure else "")
        case Outcome.REFUSED:
            return f"the configuration was refused: {finish.failure.message if finish.failure else 'no reason given'}"
        case Outcome.FAILED:
            return f"failed after {finish.restarts} restarts: {blame(finish.failure)}"


def blame(failure: Failure | None) -> str:
    """`rank 1 of node 1 (digits-1 on worker-a): ValueError: bad sample 17 (train.py:20)`."""
    if failure is None:
        return "no failure is known"
    who = (
        f"rank {failure.rank} of node {failure.node}" if failure.rank is not None else f"node {failure.node}"
    )
    if failure.node is None:
        return failure.message
    place = " on ".join(part for part in (failure.pod, failure.host_node) if part)
    where = f" ({failure.location})" if failure.location else ""
    return f"{who}{f' ({place})' if place else ''}: {failure.message}{where}"
