"""docs/metrics.md and docs/api.md: tables of the code and of the CRD."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docs.generating.crd import crd_root
from docs.generating.markdown import SOURCES, marked, page, table
from prometheus_client.metrics import MetricWrapperBase

from ddpjob_api.metrics import METRICS, MetricKind
from ddpjob_operator.health import Metrics

METRICS_HEAD = """\
# Metrics

```console
$ curl -s http://<pod>:9464/metrics
```

Each launcher serves these for the ranks of its pod (`spec.ports.metrics`; `ddpjob run` prints the address of node 0).
Base units; a counter's name ends in `_total` when it is scraped; counters go on across restarts of the ranks. Nothing
runs in the training process for this: each rank writes numbers into a memory-mapped page, and the launcher reads it.
"""


OPERATOR_METRICS_HEAD = """\
## The operator's

On its port 8080 (`metrics.port` of the chart). None is labelled by job, and every label has a closed list of values.
"""


def metrics_page() -> str:
    rows = [metric_row(metric.name, metric.kind.value, metric.labels, metric.help) for metric in METRICS]
    heads = ("metric", "kind", "labels", "how to read it")
    return page(
        [
            marked(METRICS_HEAD, "in api/ddpjob_api/metrics.py or operator/ddpjob_operator/health.py"),
            table(heads, rows),
            OPERATOR_METRICS_HEAD,
            table(heads, list(operators_metrics())),
        ]
    )


def operators_metrics() -> Iterable[Sequence[str]]:
    """A row for each metric of the operator, in the order in which it makes them."""
    for made in vars(Metrics()).values():
        if isinstance(made, MetricWrapperBase):
            (found,) = made.describe()
            yield metric_row(found.name, found.type, made._labelnames, found.documentation)


def metric_row(name: str, kind: str, labels: Sequence[str], text: str) -> Sequence[str]:
    total = "_total" if kind == MetricKind.COUNTER else ""
    return f"`{name}{total}`", kind, ", ".join(f"`{label}`" for label in labels), text


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
    parts = [marked(API_HEAD, SOURCES)]
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
