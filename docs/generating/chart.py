"""charts/ddpjob/README.md: the chart's values, from the comments in values.yaml."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from docs.generating.markdown import marked, page, table

VALUES = Path(__file__).parents[2] / "charts" / "ddpjob" / "values.yaml"
KEY = re.compile(r"^( *)([A-Za-z]\w*):")
COMMENT = re.compile(r"^ *# (?:-- )?(.*)$")

HEAD = """\
# DDPJob's Helm chart

```console
$ helm upgrade --install ddpjob charts/ddpjob --namespace ddpjob-system --create-namespace \\
  --set image.reference=REGISTRY/ddpjob/operator:TAG --set trainerImage=REGISTRY/ddpjob/trainer:TAG --wait
$ helm test ddpjob --namespace ddpjob-system
```

The operator, the DDPJob resource, roles, and (where the cluster has the Prometheus operator) monitors, alerts and Grafana
dashboards. Kubernetes 1.34 or newer. `helm test` asks whether the operator is ready and DDPJobs are served. What the
operator does: [docs/operations.md](../../docs/operations.md); what the alerts and dashboards say:
[docs/observability.md](../../docs/observability.md).

## Values

A value that is not here is refused, and so is one that cannot be (`values.schema.json`).
"""


def readme() -> str:
    text = VALUES.read_text()
    values = yaml.safe_load(text)
    rows = [
        (f"`{'.'.join(path)}`", f"`{shown(values, path)}`", meaning) for path, meaning in documented(text)
    ]
    return page(
        [marked(HEAD, "or in charts/ddpjob/values.yaml"), table(("value", "default", "what it is"), rows)]
    )


def documented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every value that has a comment beginning with `# --`, as its path, and the comment as one line."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("# -- "):
            comment = []
        if (said := COMMENT.match(line)) is not None:
            comment.append(said[1].strip())
        elif (key := KEY.match(line)) is not None:
            depth = len(key[1])
            path = [(at, name) for at, name in path if at < depth] + [(depth, key[2])]
            if comment:
                yield tuple(name for _, name in path), " ".join(comment)
            comment = []


def shown(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """The default as one would write it."""
    value: Any = values
    for part in path:
        value = value[part]
    return json.dumps(value, ensure_ascii=False)
