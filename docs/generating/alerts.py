"""The alerting rules as the chart ships them, for the page that lists them and the tests that try them.

Why apart: tests read them where Grafana's SDK is not installed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "charts" / "ddpjob" / "files" / "alerts.yaml"


def alerts() -> Iterator[Mapping[str, Any]]:
    """The rules of all groups."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]
