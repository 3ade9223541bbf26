"""What `ddpjob submit` sends: a DDPJob and the ConfigMap with its code, as documents.

Why apart: pure, so that `--dry-run` and the real thing cannot differ. Must not: talk to a cluster.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ddpjob_api.names import TRAINER_CONTAINER, WORKSPACE_PATH
from ddpjob_api.spec import API_VERSION, KIND, NAME_MAX_LENGTH
from ddpjob_cli.errors import Unusable
from ddpjob_cli.packing import Pack

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the options say of the job."""

    nodes: int
    processes_per_node: int | None = None
    gpus: int | None = None
    cpu: str | None = None
    memory: str | None = None
    image: str | None = None


def job_name(stem: str) -> str:
    """A file's name as the name of a job.

    Raises:
        Unusable: nothing of it can be one.
    """
    name = (
        re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-").lstrip("0123456789-")[:NAME_MAX_LENGTH].strip("-")
    )
    if not name:
        raise Unusable(f"no job can be named after {stem}; give a name with --name")
    return name


def code_name(job: str, pack: Pack) -> str:
    """The ConfigMap of this code."""
    return f"{job}-code-{pack.digest()}"


def document_of(name: str, arguments: Sequence[str], pack: Pack, shape: Shape) -> Body:
    """The DDPJob that runs a packed script."""
    limits = {
        key: value
        for key, value in (("nvidia.com/gpu", shape.gpus), ("cpu", shape.cpu), ("memory", shape.memory))
        if value is not None
    }
    spec: Body = {"nodes": shape.nodes}
    spec |= {"processesPerNode": shape.processes_per_node} if shape.processes_per_node else {}
    spec |= {"image": shape.image} if shape.image else {}
    spec |= {"resourcesPerNode": {"limits": limits}} if limits else {}
    spec["script"] = {"args": list(arguments)}
    code = code_name(name, pack)
    if pack.flat:
        spec["workspace"] = {"configMap": code}
    else:
        spec["template"] = {"spec": with_folders(code, pack)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def with_folders(code: str, pack: Pack) -> Body:
    """A ConfigMap has no folders: the volume gives each key its path."""
    items = [{"key": key, "path": path} for path, key in pack.keys().items()]
    mount = {"name": "code", "mountPath": WORKSPACE_PATH, "readOnly": True}
    return {
        "containers": [{"name": TRAINER_CONTAINER, "workingDir": WORKSPACE_PATH, "volumeMounts": [mount]}],
        "volumes": [{"name": "code", "configMap": {"name": code, "items": items}}],
    }


def owned(config_map: Mapping[str, Any], job: Mapping[str, Any]) -> Body:
    """The ConfigMap as the job's: it goes with it."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "blockOwnerDeletion": False,
    }
    return {**config_map, "metadata": {**config_map["metadata"], "ownerReferences": [owner]}}


class Dumper(yaml.SafeDumper):
    """YAML for people: text of several lines as a block."""


def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, block)


def as_list(documents: Sequence[object]) -> Body:
    """The same as one document, which kubectl applies too."""
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}


def as_yaml(documents: Sequence[object]) -> str:
    """Documents that kubectl applies."""
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
