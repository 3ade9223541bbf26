"""Writes the pages that are tables of the code: settings, metrics, API reference. `make docs` runs it.

Why generated: a field, a default, a rule's sentence or a metric's help stands once, in the api or in the CRD, and
`tests/docs` compares these pages with what this prints. What only a person can say (Hugging Face's name, what torch
does where a field is absent) stands here, and a field without it stops the script.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from ddpjob_api.codec import Path as FieldPath
from ddpjob_api.codec import Shape, dotted, render, shapes
from ddpjob_api.metrics import METRICS, MetricKind
from ddpjob_api.rules import RULES, Rule, Verdict, message_of
from ddpjob_api.spec import DDP, Checkpoint, Ports, Recovery, Resources, Spec, Task

DOCS = Path(__file__).parent
CRD = DOCS.parent / "crds" / "ddpjob.yaml"

TORCH: Mapping[str, tuple[str, str, str]] = {
    # field of spec.ddp: (torch's name, Hugging Face's name, what is in effect where the field is absent)
    "backend": ("`init_process_group(backend=…)`", "`ddp_backend`", ""),
    "gradientAccumulationSteps": (
        "`DistributedDataParallel.no_sync()`",
        "`gradient_accumulation_steps`",
        "1 in a task; a script's own",
    ),
    "bucketCapMB": ("`bucket_cap_mb`", "`ddp_bucket_cap_mb`", "25 MiB, the first bucket 1 MiB"),
    "broadcastBuffers": (
        "`broadcast_buffers` (from 2.13 on `forward_sync_buffers`)",
        "`ddp_broadcast_buffers`",
        "true",
    ),
    "findUnusedParameters": ("`find_unused_parameters`", "`ddp_find_unused_parameters`", "false"),
    "staticGraph": ("`static_graph`", "`ddp_static_graph`", "false"),
    "gradientAsBucketView": ("`gradient_as_bucket_view`", "none", "true in a task; in a script false"),
    "timeoutSeconds": (
        "`init_process_group(timeout=…)`",
        "`ddp_timeout`",
        "600 with NCCL, 1800 with the others",
    ),
    "overrides": ("none", "none", ""),
}

SETTINGS_HEAD = """\
# Settings

```console runnable
$ ddpjob lint examples/hf-guide.yaml
```

Every field of a DDPJob, what it means, what it is where you leave it out, and what it does not go with.
Names are exact: an unknown field is an error in `ddpjob lint`, which names the nearest right one.

## The example of Hugging Face's guide, side by side

The guide to DDP sets these with `TrainingArguments`; a DDPJob takes the same values for any program.

```python
TrainingArguments(
    gradient_accumulation_steps=4,
    ddp_backend="nccl",
    ddp_find_unused_parameters=False,
    ddp_bucket_cap_mb=25,
    ddp_broadcast_buffers=True,
    ddp_timeout=1800,
)
```

```yaml
ddp:
  gradientAccumulationSteps: 4
  backend: NCCL
  findUnusedParameters: false
  bucketCapMB: 25
  broadcastBuffers: true
  timeoutSeconds: 1800
```

[examples/hf-guide.yaml](../examples/hf-guide.yaml) is that job: a Trainer script that names
none of them. On a machine without a GPU, with `transformers` and `accelerate` beside torch:

```console
$ ddpjob run examples/hf-guide.yaml --backend Gloo
```

What differs from Hugging Face: an absent field touches nothing, while `TrainingArguments` turns
`find_unused_parameters` on for most models unless gradient checkpointing is on; `bucketCapMB: 25` is passed to torch
(accelerate drops it, because it equals its own default).
"""

DDP_TEXT = """\
A field that is set wins over what the program asks for, and the difference is reported with the program's file and line
(`overrides: Report` only reports). A field that is absent touches nothing. What is in effect is read back from the
running DDP object: `ddpjob run` prints it, and `status.ddp` of the resource has it.

`gradientAccumulationSteps` is carried out by our own loop, and where a framework owns the loop: Hugging Face's Trainer,
Accelerate's `accumulate`, Lightning. A plain script's loop is its own: the value is offered as
`DDPJOB_GRADIENT_ACCUMULATION_STEPS`, what the script does is observed, and a difference is a warning, because skipping
another program's optimizer steps trains something else without saying so ([running a script](running-a-script.md)).
"""

TASK_TEXT = """\
`task`, `script` and `command` exclude each other. How a Task is written: [writing a task](writing-a-task.md).
"""

CHECKPOINT_TEXT = """\
Without this section nothing is saved, and a restart begins anew. `everySteps`, `everySeconds` and `keep` are for our own
loop; a script saves by itself, into `DDPJOB_CHECKPOINT_DIR`.

Without a claim each node keeps a copy of its own in its pod. Before a generation begins, the newest step that any node
has is compared with its hashes and sent to the nodes that lack it or whose copy is damaged: the loss of all pods but
one costs no step. When all are gone at once (a suspension, a job of one node) the training begins anew, so name a claim
where that matters. `ddpjob run` keeps all copies in its directory.

What a script writes into `DDPJOB_CHECKPOINT_DIR` without a claim is treated the same way, file by file: before a
generation begins every node gets what is newer elsewhere, so the folder is as if it were shared. While the script runs,
the next node keeps a copy of what has not changed for some seconds, in `.ddpjob-kept` of its own folder. A file that a
script deletes on one node may come back from another; links are not sent.

`inMemoryEverySteps` is for a task whose checkpoints take long: in between, the state is copied into memory, and a
restart of the ranks, or of another pod, goes on from there. Two copies (model, optimizer: about the size of a
checkpoint each) count against the memory limit of the pod; a copy is written only if as much again stays free, and that
one was left out is said once. The newest of both kinds is resumed from.
"""

REST_TEXT = """\
Fields that speak of pods (image, workspace, placement, template …) have no meaning in `ddpjob run`, which names them
and goes on.

`template` is laid over the operator's pod. Maps are merged; containers, volumes and variables are merged by name (ours
is the container `trainer`); other lists are appended; single values are the template's. Ours stay: labels, annotations,
variables of the launcher, volumes and mount paths that the pod has already. `ddpjob lint` and `kubectl apply` do not
look into it: what is refused there ends the job with InvalidSpec.
"""

RULES_TEXT = """\
One table ([api/ddpjob_api/rules.py](../api/ddpjob_api/rules.py)) judges settings everywhere: `kubectl apply` (rows
marked apply), `ddpjob lint` and the operator (marked lint), and the training process, which knows the device and the
model (marked run; `claim-read-write-once` is the operator's, before the first pod). **Refuse**: the job does not run. **Warn**: it runs, and it costs something. **Handle**: it would
fail, and we do what makes it work.
"""

METRICS_HEAD = """\
# Metrics

```console
$ curl -s http://<pod>:9464/metrics
```

Each launcher serves these for the ranks of its pod (`spec.ports.metrics`; `ddpjob run` prints the address of node 0).
Base units; a counter's name ends in `_total` when it is scraped; counters go on across restarts of the ranks. Nothing
runs in the training process for this: each rank writes numbers into a memory-mapped page, and the launcher reads it.
"""


def settings_page() -> str:
    schema = crd_schema()
    parts = [
        SETTINGS_HEAD,
        "## `spec.ddp`: how the ranks work together\n",
        DDP_TEXT,
        ddp_table(schema),
        "## `spec.task`: our own loop\n",
        TASK_TEXT,
        table_of(Task, ("task",), schema),
        "## `spec.checkpoint`: what is saved\n",
        CHECKPOINT_TEXT,
        table_of(Checkpoint, ("checkpoint",), schema),
        "## `spec.recovery`: what is survived\n",
        table_of(Recovery, ("recovery",), schema),
        "## `spec.ports`\n",
        "In pods only: `ddpjob run` takes free ports.\n",
        table_of(Ports, ("ports",), schema),
        "## `spec.resourcesPerNode`\n",
        table_of(Resources, ("resourcesPerNode",), schema),
        "## The rest of `spec`\n",
        REST_TEXT,
        table_of(Spec, (), schema),
        "## Rules: what does not go together\n",
        RULES_TEXT,
        rules_table(RULES),
    ]
    return page(parts)


def metrics_page() -> str:
    rows = [
        (
            f"`{metric.name}{'_total' if metric.kind is MetricKind.COUNTER else ''}`",
            metric.kind.value,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help,
        )
        for metric in METRICS
    ]
    return page([METRICS_HEAD, table(("metric", "kind", "labels", "how to read it"), rows)])


API_HEAD = """\
# API reference

```console
$ kubectl explain ddpjob.spec.ddp
```

Every field of `ddpjob.dev/v1alpha1`, kind DDPJob, as the CRD has it. What a setting means for a training stands in
[settings.md](settings.md).
"""


def api_page() -> str:
    schema = crd_root()["properties"]
    parts = [API_HEAD]
    for part, text in (
        ("spec", "What is asked for."),
        ("status", "What is. Only the operator writes it; programs read conditions, people read `state`."),
    ):
        rows = list(api_rows(schema[part], part))
        parts += [f"## `{part}`\n", f"{text}\n", table(("field", "type", "default", "description"), rows)]
    return page(parts)


def api_rows(schema: Mapping[str, Any], path: str) -> Iterable[Sequence[str]]:
    """A row per field below `schema`, in the CRD's order, items of lists as `path[]`."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default_value = f"`{str(field['default']).lower()}`" if "default" in field else ""
        enum = " of " + ", ".join(str(one) for one in field["enum"]) if "enum" in field else ""
        kind = field["type"] + enum + (", required" if name in required else "")
        yield f"`{path}.{name}`", kind, default_value, " ".join(field["description"].split())
        yield from api_rows(field, f"{path}.{name}")
        yield from api_rows(field.get("items", {}), f"{path}.{name}[]")


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page, "api.md": api_page}


def crd_root() -> Mapping[str, Any]:
    """The schema of the resource in the CRD."""
    document = yaml.safe_load(CRD.read_text())
    root: Mapping[str, Any] = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


def crd_schema() -> Mapping[str, Any]:
    """The schema of `spec` in the CRD."""
    spec: Mapping[str, Any] = crd_root()["properties"]["spec"]
    return spec


def ddp_table(schema: Mapping[str, Any]) -> str:
    rows = []
    for shape in shapes(DDP):
        torch_name, hugging_face, absent = TORCH[shape.name]
        rows.append(
            (
                f"`{shape.name}`",
                meaning(("ddp", shape.name), schema),
                values(shape),
                default(shape) if absent == "" else f"absent: {absent}",
                torch_name,
                hugging_face,
                rules_of(("spec", "ddp", shape.name)),
            )
        )
    return table(("field", "meaning", "values", "default", "torch", "Hugging Face", "rules"), rows)


def table_of(kind: type, path: FieldPath, schema: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{shape.name}`",
            meaning((*path, shape.name), schema),
            values(shape),
            default(shape),
            rules_of(("spec", *path, shape.name)),
        )
        for shape in shapes(kind)
    ]
    return table(("field", "meaning", "values", "default", "rules"), rows)


def rules_table(rules: Iterable[Rule]) -> str:
    rows = []
    for row in rules:
        places = ["apply"] * row.in_crd + (["run"] if row.at_run_time else ["lint"])
        message = message_of(row)
        if row.source and row.source.startswith("https://"):
            message += f" ([source]({row.source}))"
        rows.append(
            (
                f'<a id="{row.id}"></a>`{row.id}`',
                row.verdict.value,
                ", ".join(places),
                dotted(row.path),
                message,
            )
        )
    return table(("rule", "verdict", "where", "field", "what it says"), sorted(rows, key=verdict_order))


def verdict_order(row: Sequence[str]) -> int:
    return [verdict.value for verdict in Verdict].index(row[1])


def meaning(path: FieldPath, schema: Mapping[str, Any]) -> str:
    """The CRD's description, without the field's name before it."""
    node: Mapping[str, Any] = schema
    for part in path:
        node = node["properties"][part]
    text = " ".join(str(node["description"]).split())
    # Kubernetes' style begins with the field's name, which stands in the column before.
    text = re.sub(rf"^{path[-1]} (?:is |are |- |(?=\w+s\b))", "", text)
    return text if re.match(r"\w+:", text) else text[0].upper() + text[1:]


def values(shape: Shape) -> str:
    limits = shape.limits
    if isinstance(shape.hint, type) and issubclass(shape.hint, StrEnum):
        return ", ".join(member.value for member in shape.hint)
    if shape.hint is bool:
        return "true, false"
    least, most = limits.minimum, limits.maximum
    if shape.name == "bucketCapMB":
        least = 1  # the rule bucket-cap says it, with a reason
    if least is not None or most is not None:
        return f"{least} to {most}"
    return {"str": "text", "tuple": "list"}.get(getattr(shape.hint, "__name__", ""), "object")


def default(shape: Shape) -> str:
    if shape.required:
        return "required"
    value = render(shape.default())
    if value is None or value in ([], {}):
        return "absent"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rules_of(path: FieldPath) -> str:
    found = [row.id for row in RULES if row.path == path]
    return ", ".join(f"[{identity}](#{identity})" for identity in found)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def page(parts: Sequence[str]) -> str:
    mark = (
        "<!-- written by docs/generate.py (make docs); change it there, in the CRD or in api/ddpjob_api -->\n"
    )
    head, *rest = parts
    title, _, body = head.partition("\n\n")
    return "\n".join([f"{title}\n\n{mark}\n{body}", *rest])


def main() -> None:
    for name, write in PAGES.items():
        (DOCS / name).write_text(write())


if __name__ == "__main__":
    main()
