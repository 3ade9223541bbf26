"""The schema of the resource, as the CRD has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CRD = Path(__file__).parents[2] / "crds" / "ddpjob.yaml"


def crd_root() -> Mapping[str, Any]:
    """The schema of the resource in the CRD."""
    document = yaml.safe_load(CRD.read_text())
    root: Mapping[str, Any] = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


def crd_schema() -> Mapping[str, Any]:
    """The schema of `spec` in the CRD."""
    spec: Mapping[str, Any] = crd_root()["properties"]["spec"]
    return spec
