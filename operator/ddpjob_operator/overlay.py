"""The user's pod template laid over our pod (`spec.template`).

Why apart: the rules are a promise (docs/settings.md), small and worth a table of tests. Maps are merged, lists of
named things (containers, volumes, variables, mounts) are merged by name, other lists are appended, single values are
the template's. Ours win where the launcher depends on it; what would break it is refused with a sentence. What has the
wrong type is handed on: the API server's dry run then says so in its own words.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ddpjob_api.fields import Json
from ddpjob_api.names import TRAINER_CONTAINER, is_reserved_env

Body = dict[str, Any]


class Refused(ValueError):
    """The template asks for what cannot be; the message names the field and says what to do."""


NOT_IN_SPEC = {
    "hostname": "peers find a pod under the name that the operator gives it",
    "subdomain": "peers find a pod under the name that the operator gives it",
    "hostnameOverride": "peers would not find the pod under the name it sees itself by",
    "restartPolicy": "the launcher restarts ranks, the operator replaces pods",
    "activeDeadlineSeconds": "it would end one pod only; set spec.activeDeadlineSeconds of the DDPJob",
}
NOT_IN_TRAINER = ("command", "args")
OUR_VOLUMES = frozenset({"tmp", "shm", "run", "memory", "token", "checkpoints", "workspace", "code"})


def laid_over(pod: Body, template: Json) -> Body:
    """The pod with the template over it; neither argument is changed.

    Raises:
        Refused: for a field that is not the template's to set.
    """
    if not template:
        return pod
    unknown = [name for name in template if name not in ("metadata", "spec", "apiVersion", "kind")]
    if unknown:
        raise Refused(f"spec.template.{unknown[0]}: a pod template has metadata and spec only")
    pod = copy.deepcopy(pod)
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for name, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping):
            raise Refused(f"spec.template.{name}: expected an object")
    lay_metadata(pod["metadata"], metadata)
    lay_spec(pod["spec"], spec)
    return pod


def lay_metadata(ours: Body, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in ("labels", "annotations"):
            raise Refused(f"spec.template.metadata.{name}: only labels and annotations can be set")
        if not isinstance(value, Mapping):
            raise Refused(f"spec.template.metadata.{name}: expected an object")
        ours[name] = {**copy.deepcopy(dict(value)), **ours.get(name, {})}


def lay_spec(ours: Body, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in NOT_IN_SPEC:
            raise Refused(f"spec.template.spec.{name} cannot be set: {NOT_IN_SPEC[name]}")
        if name == "containers":
            ours[name] = by_name(ours[name], value, lay_container)
        elif name == "initContainers":
            ours[name] = by_name(ours.get(name, []), value, refuse_init)
        elif name == "volumes":
            ours[name] = by_name(ours[name], value, keep_ours(OUR_VOLUMES.__contains__))
        else:
            ours[name] = merged(ours.get(name), value)


def lay_container(ours: Body, given: Mapping[str, Any]) -> None:
    """The template's container over ours of the same name, which is the trainer."""
    for name, value in given.items():
        if name in NOT_IN_TRAINER:
            raise Refused(
                f"spec.template.spec.containers[{TRAINER_CONTAINER}].{name} cannot be set: the launcher runs there; "
                "say what to run in spec.task, spec.script or spec.command"
            )
        if name == "env":
            ours[name] = by_name(ours.get(name, []), value, keep_ours(is_reserved_env))
        elif name == "volumeMounts":
            paths = {mount["mountPath"] for mount in ours[name]}
            added = value if isinstance(value, list) else [value]
            ours[name] += [m for m in added if not (isinstance(m, Mapping) and m.get("mountPath") in paths)]
        elif name == "ports":
            ours[name] = merged(ours.get(name), value)
        else:
            ours[name] = merged(ours.get(name), value)


def merged(ours: Any, given: Any) -> Any:
    """Maps merged, lists appended, anything else the template's."""
    given = copy.deepcopy(given)
    if isinstance(ours, dict) and isinstance(given, Mapping):
        result = dict(ours)
        for name, value in given.items():
            result[name] = merged(ours.get(name), value)
        return result
    if isinstance(ours, list) and isinstance(given, list):
        return ours + given
    return given


def refuse_init(ours: Body, given: Mapping[str, Any]) -> None:
    raise Refused(
        f"spec.template.spec.initContainers[{ours['name']}]: the name is that of the container that puts the trainer "
        "into the pod; choose another"
    )


def keep_ours(reserved: Callable[[str], bool]) -> Callable[[Body, Mapping[str, Any]], None]:
    """An entry of a reserved name stays as it is; of another name it is the template's."""

    def lay(ours: Body, given: Mapping[str, Any]) -> None:
        if not reserved(str(ours["name"])):
            ours.clear()
            ours.update(copy.deepcopy(dict(given)))

    return lay


def by_name(ours: list[Body], given: Any, lay: Callable[[Body, Mapping[str, Any]], None]) -> Any:
    """Two lists of named entries: those we have are laid over by `lay`, others appended."""
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        return given
    result = list(ours)
    known = {entry["name"]: entry for entry in result}
    for entry in given:
        mine = known.get(entry.get("name"))
        if mine is None:
            result.append(copy.deepcopy(dict(entry)))
        else:
            lay(mine, entry)
    return result
