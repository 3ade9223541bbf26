"""Whether a job's pods are still those of its spec.

Why apart: most of a spec may change only while the job is suspended, and the API server sees to that; but a suspension
may begin and end between two looks (while no operator served, say), and what was made before is then of another spec.
Must not: act on it (`status.py`).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from ddpjob_api.codec import render
from ddpjob_api.spec import Spec
from ddpjob_operator.model import Runtime, Status
from ddpjob_operator.observe import PodView

SCHEME = "1"
"""Another one when the same document of a user gives another digest than before (a default that changes, a field that is
left out): digests of two schemes say nothing of each other, or a new operator would start every job anew."""


def spec_hash(spec: Spec) -> str:
    """Changes with whatever of a spec may not change while the job runs, and with nothing of the operator."""
    fixed = replace(
        spec,
        suspend=False,
        active_deadline=None,
        ttl_after_finished=None,
        template={},
        # Maps to the API server, which lets their order change while the job runs.
        env=tuple(sorted(spec.env, key=lambda each: each.name)),
        image_pull_secrets=tuple(sorted(spec.image_pull_secrets, key=lambda each: each.name)),
    )
    document = json.dumps(render(fixed), sort_keys=True)
    return f"{SCHEME}-{hashlib.sha256(document.encode()).hexdigest()[:16]}"


def overtaken(pinned: Runtime | None, now: Runtime) -> bool:
    """Whether pods were made from another spec than the one there is; where that cannot be told, they were not."""
    if pinned is None:
        return False
    scheme, _, digest = pinned.spec_hash.partition("-")
    today, _, wanted = now.spec_hash.partition("-")
    return scheme == today and digest != wanted


def left_over(status: Status, pods: Iterable[PodView]) -> list[PodView]:
    """Pods of a run that is over, which nobody has deleted yet: no new ones are made beside them."""
    if status.runtime is not None:
        return []
    return [pod for pod in pods if pod.live and pod.incarnation < status.incarnation]
