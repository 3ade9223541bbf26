"""What `GET /status` answers.

Why apart: the report joins what the coordinator knows with what rank 0's page says, within the size a reader takes.
Must not: read a page or ask the coordinator by itself.
"""

import json
from dataclasses import replace

from ddpjob_api.codec import render
from ddpjob_api.report import MAX_REPORT_BYTES, JobReport
from ddpjob_trainer.launcher.progress import Gauge


def encode(report: JobReport, gauge: Gauge) -> bytes:
    """The report as JSON; what does not fit a reader is left out, the settings first."""
    full = replace(
        report,
        progress=gauge.progress,
        ddp=gauge.ddp,
        result=report.result or gauge.result,
        checkpoint_trouble=gauge.checkpoint_trouble,
    )
    for smaller in (full, replace(full, ddp=None), replace(full, ddp=None, result={})):
        text = json.dumps(render(smaller), separators=(",", ":")).encode()
        if len(text) <= MAX_REPORT_BYTES:
            break
    return text
