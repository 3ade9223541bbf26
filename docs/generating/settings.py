"""docs/settings.md: every field, its value where it is left out, and the rules.

What only a person can say (Hugging Face's name, what torch does where a field is absent) stands here, and a field
without it stops the script.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from docs.generating.crd import crd_schema
from docs.generating.markdown import SOURCES, marked, page, table

from ddpjob_api.codec import Path as FieldPath
from ddpjob_api.codec import Shape, dotted, render, shapes
from ddpjob_api.rules import RULES, Rule, Verdict, message_of
from ddpjob_api.spec import DDP, Checkpoint, Ports, Recovery, Resources, Spec, Task

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

With `backend: Auto` a job that asks for an accelerator (`nvidia.com/gpu`, `habana.ai/gaudi` …) is refused (exit 86)
where torch sees no such device, before its first step; the sentence names the package that the image lacks. A script
that names Gloo or the CPU itself is warned, and so is any with `overrides: Report`.
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
script deletes on one node may come back from another; links are not sent. Old checkpoints of Hugging Face's Trainer and
of Accelerate (`checkpoint-<n>`) do not come back where a newer one is whole, and only newer ones need room. A framework
deletes on rank 0's node: the others keep what a restart has brought them, so their volumes need room for more.

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


def settings_page() -> str:
    schema = crd_schema()
    parts = [
        marked(SETTINGS_HEAD, SOURCES),
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
