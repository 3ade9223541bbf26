"""The chart as Helm renders it."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness.binaries import KUBERNETES
from tests.lacking import lacking

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "ddpjob"
MONITORING = tuple(
    f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
)
"""What a cluster with the Prometheus operator serves."""


def helm(*words: str) -> "subprocess.CompletedProcess[str]":
    built = KUBERNETES.folder() / "helm"
    binary = shutil.which("helm") or (
        built if built.exists() else lacking("helm is not installed (the cluster of `make test` brings one)")
    )
    return subprocess.run([binary, *words], check=False, capture_output=True, text=True)


def template(*settings: str, apis: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    sets = [word for setting in settings for word in ("--set", setting)]
    served = [word for api in apis for word in ("--api-versions", api)]
    return helm("template", "ddpjob", str(CHART), "--namespace", "system", *sets, *served)


def rendered(*settings: str, apis: Sequence[str] = ()) -> list[dict[str, Any]]:
    result = template(*settings, apis=apis)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def kinds(documents: list[dict[str, Any]]) -> Counter[str]:
    return Counter(document["kind"] for document in documents)
