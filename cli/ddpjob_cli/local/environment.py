"""The environment of a local launcher: what the operator would set in a pod.

Why apart: a pure function of the spec and of where things are, so that it can be compared with a pod's.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpjob_api.codec import render
from ddpjob_api.names import LauncherEnv, is_reserved_env
from ddpjob_api.plan import plan
from ddpjob_api.spec import DDPJob, Placement, Ports, Resources, Spec
from ddpjob_cli.errors import RefusedJob
from ddpjob_cli.local.ports import HOST


@dataclass(frozen=True, kw_only=True)
class NodePaths:
    """Where one node's files are."""

    run: Path
    """Pages, error files, stacks: in memory where there is a memory file system."""
    checkpoints: Path
    termination: Path
    log: Path
    history: Path


def launcher_environment(
    job: DDPJob,
    *,
    node: int,
    ports: Ports,
    paths: NodePaths,
    token: Path,
    run_id: str,
    incarnation: int,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """All variables of one launcher. What the user's shell exports stays, but for the launcher's own names.

    No pod is named: a launcher without one knows that no operator stands behind it, and ends what cannot begin.
    """
    ours = {
        LauncherEnv.NAME: job.metadata.name,
        LauncherEnv.NAMESPACE: job.metadata.namespace,
        LauncherEnv.UID: run_id,
        LauncherEnv.SPEC: json.dumps(render(pod_spec(job.spec, ports))),
        LauncherEnv.NODE_INDEX: str(node),
        LauncherEnv.INCARNATION: str(incarnation),
        LauncherEnv.COORDINATOR: f"{HOST}:{ports.coordinator}",
        LauncherEnv.BIND_HOST: HOST,
        LauncherEnv.ADVERTISE_HOST: HOST,
        LauncherEnv.TOKEN_FILE: str(token),
        LauncherEnv.RESTARTS: "0",
        LauncherEnv.DISRUPTIONS: "0",
        LauncherEnv.GENERATION: "0",
        LauncherEnv.RUN_DIR: str(paths.run),
        LauncherEnv.CHECKPOINT_DIR: str(paths.checkpoints),
        LauncherEnv.HISTORY: str(paths.history),
        LauncherEnv.TERMINATION_LOG: str(paths.termination),
    }
    base = {name: value for name, value in inherited.items() if not is_reserved_env(name)}
    given = {**base, **variables(job.spec, inherited)}
    # Ranks that each take all cores wait for each other; torchrun sets 1 for this reason.
    threads = str(max(1, cores() // plan(job.spec).world_size))
    return {"OMP_NUM_THREADS": threads, **given, **{name.value: value for name, value in ours.items()}}


def variables(spec: Spec, inherited: Mapping[str, str]) -> dict[str, str]:
    """`spec.env`; what a cluster would look up is taken from the user's shell.

    Raises:
        RefusedJob: a `valueFrom` whose variable the shell does not have.
    """
    found = {}
    for index, variable in enumerate(spec.env):
        if variable.value_from is not None:
            if variable.name not in inherited:
                raise RefusedJob(
                    f"spec.env[{index}].valueFrom: names an object of a cluster, and here is none; "
                    f"export {variable.name} before ddpjob run, or give it a value"
                )
            continue
        found[variable.name] = variable.value or ""
    return found


def pod_spec(spec: Spec, ports: Ports) -> Spec:
    """The spec as it travels to a launcher: without what only Kubernetes reads."""
    return dataclasses.replace(
        spec,
        image=None,
        python=None,
        keep_entrypoint=False,
        image_pull_secrets=(),
        env=(),
        env_from=(),
        workspace=None,
        placement=Placement.SPREAD,
        active_deadline=None,
        ttl_after_finished=None,
        template={},
        ports=ports,
    )


def left_to_a_cluster(spec: Spec) -> tuple[str, ...]:
    """The fields given that have no meaning on one machine, for the line that says so."""
    here = pod_spec(spec, Ports())
    names = {
        "image": spec.image != here.image,
        "python": spec.python is not None,
        "keepEntrypoint": spec.keep_entrypoint,
        "imagePullSecrets": bool(spec.image_pull_secrets),
        "envFrom": bool(spec.env_from),
        "workspace": spec.workspace is not None,
        "resourcesPerNode.requests": spec.resources_per_node.requests != Resources().requests,
        "placement": spec.placement != here.placement,
        "activeDeadlineSeconds": spec.active_deadline is not None,
        "ttlSecondsAfterFinished": spec.ttl_after_finished is not None,
        "template": bool(spec.template),
        "ports": spec.ports != here.ports,
    }
    return tuple(name for name, given in names.items() if given)


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
