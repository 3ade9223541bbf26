"""The pod of one rank group: what a launcher finds around it.

Why apart: this is the contract with the launcher (environment, mounts, ports) and with the cluster (restricted pods),
in one readable place; the user's template is laid over it afterwards (`overlay.py`).
Must not: know which pods exist or talk to anybody.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any

from ddpjob_api.codec import render
from ddpjob_api.names import (
    ANNOTATION_JOB_UID,
    ANNOTATION_TEMPLATE_HASH,
    CHECKPOINT_PATH,
    CODE_CONTAINER,
    CODE_PATH,
    FINALIZER_TRACKING,
    LABEL_INCARNATION,
    LABEL_INDEX,
    LABEL_JOB,
    MEMORY_FOLDER,
    RUN_PATH,
    TERMINATION_LOG,
    TOKEN_PATH,
    TRAINER_CONTAINER,
    WORKSPACE_PATH,
    LauncherEnv,
    host_name,
    pod_name,
    secret_name,
    service_name,
)
from ddpjob_api.spec import API_VERSION, KIND, Placement, Recovery, Spec
from ddpjob_operator import spending
from ddpjob_operator.model import Runtime, Status
from ddpjob_operator.observe import JobView
from ddpjob_operator.overlay import laid_over

Body = dict[str, Any]

LAUNCHER = ["python", "-I", "-m", "ddpjob_trainer.launcher"]
"""Isolated: a `queue.py` in the workspace is the program's, not the launcher's."""
HAND_OUT = ["python", "-I", "-m", "ddpjob_trainer.handout", CODE_PATH]
CARRIED_RESOURCES = ("cpu", "memory", "ephemeral-storage")
GRACE_MARGIN_SECONDS = 15
"""What the kubelet adds to the workers' grace period, for the launcher's own end."""
GROUP = 65532
"""The images' group: volumes are made writable for it, whatever uid an image runs as."""
READY_PERIOD_SECONDS = 1


def pod(job: JobView, spec: Spec, status: Status, runtime: Runtime, *, index: int, incarnation: int) -> Body:
    """The pod of an index, in the incarnation the ledger gave it.

    Raises:
        Refused: the template touches what is not its own (`overlay.py`).
    """
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.key.name, index, incarnation),
            "namespace": job.key.namespace,
            "labels": {
                **labels(job.key.name),
                LABEL_INDEX: str(index),
                LABEL_INCARNATION: str(incarnation),
                "sidecar.istio.io/inject": "false",
            },
            "annotations": {
                ANNOTATION_JOB_UID: job.uid,
                ANNOTATION_TEMPLATE_HASH: runtime.template_hash,
                "kubectl.kubernetes.io/default-container": TRAINER_CONTAINER,
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(spec.ports.metrics),
                "prometheus.io/path": "/metrics",
            },
            "finalizers": [FINALIZER_TRACKING],
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "hostname": host_name(job.key.name, index),
            "subdomain": service_name(job.key.name),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": int(spec.recovery.grace_period.total_seconds())
            + GRACE_MARGIN_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # The kernel drops signals that a PID 1 has no handler for: a pod deleted while Python still starts would
            # not hear its SIGTERM and stay for the whole grace period. In a shared namespace the launcher is not PID 1.
            "shareProcessNamespace": True,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": GROUP,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container(job, spec, status, runtime, index=index, incarnation=incarnation)],
            "volumes": volumes(job.key.name, spec),
        },
    }
    if runtime.trainer_from:
        body["spec"]["initContainers"] = [code_container(spec, runtime)]
        body["spec"]["volumes"].append({"name": "code", "emptyDir": {}})
    if spec.image_pull_secrets:
        body["spec"]["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    affinity = affinity_of(job.key.name, spec.placement)
    if affinity:
        body["spec"]["affinity"] = affinity
    return laid_over(body, spec.template)


def container(
    job: JobView, spec: Spec, status: Status, runtime: Runtime, *, index: int, incarnation: int
) -> Body:
    """The trainer container."""
    given: Body = {
        "name": TRAINER_CONTAINER,
        "image": runtime.image,
        ("args" if spec.keep_entrypoint else "command"): launcher(spec, runtime),
        "workingDir": WORKSPACE_PATH if spec.workspace else "/tmp",
        "env": [
            *(render(variable) for variable in spec.env),
            *launcher_env(job, spec, status, index=index, incarnation=incarnation),
        ],
        "ports": [{"name": "metrics", "containerPort": spec.ports.metrics, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": spec.ports.metrics},
            "periodSeconds": READY_PERIOD_SECONDS,
            "failureThreshold": 1,
        },
        "resources": render(spec.resources_per_node),
        "securityContext": restricted(),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(spec),
    }
    if runtime.trainer_from:
        given["volumeMounts"].append({"name": "code", "mountPath": CODE_PATH, "readOnly": True})
    if spec.env_from:
        given["envFrom"] = [render(source) for source in spec.env_from]
    return given


def launcher(spec: Spec, runtime: Runtime) -> list[str]:
    """What the trainer container runs."""
    if not runtime.trainer_from:
        return list(LAUNCHER)
    if spec.python:
        return [spec.python, "-I", f"{CODE_PATH}/enter.py"]
    return ["/bin/sh", f"{CODE_PATH}/enter.sh"]


def code_container(spec: Spec, runtime: Runtime) -> Body:
    """Puts the trainer into a pod whose image is not ours."""
    # The trainer container's own: the pod's class of service and its share of a quota stay what they were.
    resources = {
        kind: {name: amount for name, amount in amounts.items() if name in CARRIED_RESOURCES}
        for kind, amounts in render(spec.resources_per_node).items()
    }
    return {
        "name": CODE_CONTAINER,
        "image": runtime.trainer_from,
        "command": list(HAND_OUT),
        "resources": {kind: amounts for kind, amounts in resources.items() if amounts},
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "code", "mountPath": CODE_PATH}],
    }


def restricted() -> Body:
    """What Pod Security's level `restricted` asks of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def launcher_env(job: JobView, spec: Spec, status: Status, *, index: int, incarnation: int) -> list[Body]:
    """The launcher's contract (`names.LauncherEnv`)."""
    name, namespace = job.key.name, job.key.namespace
    coordinator = f"{host_name(name, 0)}.{service_name(name)}.{namespace}.svc:{spec.ports.coordinator}"
    values = {
        LauncherEnv.NAME: name,
        LauncherEnv.NAMESPACE: namespace,
        LauncherEnv.UID: job.uid,
        LauncherEnv.SPEC: json.dumps(render(for_launcher(spec)), separators=(",", ":")),
        LauncherEnv.NODE_INDEX: str(index),
        LauncherEnv.INCARNATION: str(incarnation),
        LauncherEnv.COORDINATOR: coordinator,
        LauncherEnv.TOKEN_FILE: TOKEN_PATH,
        LauncherEnv.RESTARTS: str(status.restarts),
        # A living coordinator counts the disruption that this pod replaces itself; told of ours, it would count two.
        LauncherEnv.DISRUPTIONS: str(status.coordinators_disruptions if index == 0 else 0),
        LauncherEnv.GENERATION: str(status.generation),
        LauncherEnv.RUN_DIR: RUN_PATH,
        LauncherEnv.CHECKPOINT_DIR: checkpoint_dir(job, spec),
        LauncherEnv.TERMINATION_LOG: TERMINATION_LOG,
    }
    if index == 0:
        spent = render(spending.for_coordinator(status))
        values[LauncherEnv.SPENT] = json.dumps(spent, separators=(",", ":"))
    fields = {
        LauncherEnv.ADVERTISE_HOST: "status.podIP",
        LauncherEnv.POD_NAME: "metadata.name",
        LauncherEnv.POD_UID: "metadata.uid",
        LauncherEnv.HOST_NODE: "spec.nodeName",
    }
    # A `$(NAME)` in the user's text must reach the launcher as it stands, so `$` is doubled for the kubelet.
    plain = [{"name": key.value, "value": value.replace("$(", "$$(")} for key, value in values.items()]
    return plain + [
        {"name": key.value, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()
    ]


def checkpoint_dir(job: JobView, spec: Spec) -> str:
    """A folder of the job's own on a claim, which others may name too; a job made anew starts anew."""
    shared = spec.checkpoint is not None and spec.checkpoint.persistent_volume_claim is not None
    return f"{CHECKPOINT_PATH}/{job.key.name}-{job.uid[:8]}" if shared else CHECKPOINT_PATH


def for_launcher(spec: Spec) -> Spec:
    """The spec without what only Kubernetes reads."""
    return replace(
        spec, template={}, env=(), env_from=(), image=None, python=None, keep_entrypoint=False,
        image_pull_secrets=(), suspend=False, active_deadline=None, ttl_after_finished=None,
        recovery=replace(spec.recovery, node_lost_timeout=Recovery().node_lost_timeout),
    )  # fmt: skip


def mounts(spec: Spec) -> list[Body]:
    found: list[Body] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "run", "mountPath": RUN_PATH},
        {"name": "token", "mountPath": TOKEN_PATH.rsplit("/", 1)[0], "readOnly": True},
        {"name": "checkpoints", "mountPath": CHECKPOINT_PATH},
    ]
    if keeps_copies(spec):
        found.append({"name": "memory", "mountPath": f"{RUN_PATH}/{MEMORY_FOLDER}"})
    if spec.workspace:
        found.append({"name": "workspace", "mountPath": WORKSPACE_PATH, "readOnly": True})
    return found


def volumes(job: str, spec: Spec) -> list[Body]:
    claim = spec.checkpoint.persistent_volume_claim if spec.checkpoint else None
    found: list[Body] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "token", "secret": {"secretName": secret_name(job), "defaultMode": 0o440}},
        {
            "name": "checkpoints",
            **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}),
        },
    ]
    if keeps_copies(spec):
        # Without a size of its own it is as large as the pod's memory limit; what is written is counted before.
        found.append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    if spec.workspace and spec.workspace.config_map:
        found.append({"name": "workspace", "configMap": {"name": spec.workspace.config_map}})
    elif spec.workspace:
        source = {"claimName": spec.workspace.persistent_volume_claim, "readOnly": True}
        found.append({"name": "workspace", "persistentVolumeClaim": source})
    return found


def keeps_copies(spec: Spec) -> bool:
    """Whether checkpoints are copied into memory."""
    return spec.task is not None and bool(spec.checkpoint and spec.checkpoint.in_memory_every_steps)


def affinity_of(job: str, placement: Placement) -> Body:
    """How the job's pods lie to each other."""
    term = {"labelSelector": {"matchLabels": {LABEL_JOB: job}}, "topologyKey": "kubernetes.io/hostname"}
    preferred = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
    }
    if placement is Placement.REQUIRE:
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"podAffinity" if placement is Placement.PACK else "podAntiAffinity": preferred}


def labels(job: str) -> dict[str, str]:
    """On every object of a job."""
    return {
        LABEL_JOB: job,
        "app.kubernetes.io/name": "ddpjob-training",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/managed-by": "ddpjob-operator",
    }


def owner(job: JobView) -> Body:
    """The reference by which deleting the job deletes the object."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.key.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def template_hash(spec: Spec, image: str) -> str:
    """Changes with whatever of the spec shapes a pod."""
    shape = render(replace(spec, suspend=False, active_deadline=None, ttl_after_finished=None, image=image))
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
