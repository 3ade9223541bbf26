"""The chart's text; that Helm installs it is shown on a real cluster (tests/cluster/)."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.operator.charts import CHART, MONITORING, ROOT, helm, rendered

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_chart_carries_the_crd_as_it_is() -> None:
    same = (CHART / "files" / "ddpjob.yaml").read_bytes() == (ROOT / "crds" / "ddpjob.yaml").read_bytes()
    assert same, "cp crds/ddpjob.yaml charts/ddpjob/files/"
    assert "metadata:\n  name: ddpjobs.ddpjob.dev\n" in (CHART / "files" / "ddpjob.yaml").read_text()


def test_the_default_values_fit_the_schema_and_an_unknown_one_does_not() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    for path in ((), ("image",), ("operator",), ("rbac",)):
        wrong = json.loads(json.dumps(VALUES))
        here = wrong
        for part in path:
            here = here[part]
        here["unknown"] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_every_value_is_in_the_schema_has_a_comment_and_is_used() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    text = (CHART / "values.yaml").read_text()

    def walk(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        assert set(values) == set(schema["properties"]), path
        for name, value in values.items():
            here = f"{path}.{name}"
            inner = schema["properties"][name]
            if isinstance(value, dict) and "properties" in inner:
                walk(value, inner, here)
                continue
            assert f".Values{here}" in templates, f"{here} is used nowhere"
            assert re.search(rf"# -- .*\n( *# .*\n)* *{name}:", text), f"{here} has no comment"

    walk(VALUES, SCHEMA, "")


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_helm_nothing_is_rendered_and_ci_fails(
    ci: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", ci)
    for place in ("PATH", "XDG_CACHE_HOME"):
        monkeypatch.setenv(place, str(tmp_path))
    with pytest.raises(ends, match="helm is not installed"):
        helm("version")


def test_the_versions_agree() -> None:
    from ddpjob_api import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_common_labels_are_on_every_object_and_pod_and_only_the_operators_pods_are_selected() -> None:
    everything = ("commonLabels.team=ml", "replicas=2", "watchNamespaces={a,b}")
    documents = [*rendered("commonLabels.team=ml", apis=MONITORING), *rendered(*everything, apis=MONITORING)]
    (selector,) = {tuple(d["spec"]["selector"].items()) for d in documents if d["kind"] == "Service"}
    pods = 0
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        assert document["metadata"]["labels"]["team"] == "ml", name
        template = document if document["kind"] == "Pod" else document.get("spec", {}).get("template")
        if template is not None:
            labels = template["metadata"]["labels"]
            assert labels["team"] == "ml", f"pods of {name}"
            assert ({*selector} <= {*labels.items()}) == (document["kind"] == "Deployment"), name
            pods += 1
    assert pods == 2 * len(("operator", "release", "test"))


def test_rendered_objects_are_restricted_and_namespaced_installs_have_no_cluster_role() -> None:
    documents = rendered()
    for kind in ("Deployment", "Job"):
        spec = next(d for d in documents if d["kind"] == kind)["spec"]["template"]["spec"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
    (role,) = [d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "ddpjob"]
    assert {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]} in role["rules"]
    crd = next(d for d in documents if d["kind"] == "CustomResourceDefinition")
    source = yaml.safe_load((ROOT / "crds" / "ddpjob.yaml").read_text())
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    few = rendered("watchNamespaces={a,b}", "rbac.aggregate=false")
    assert [d["metadata"]["namespace"] for d in few if d["kind"] == "Role"] == ["a", "b", "system", "system"]
    assert not [d for d in documents if d["kind"] == "PodDisruptionBudget"]
    (budget,) = [d for d in rendered("replicas=2") if d["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert not [d for d in few if d["kind"] == "ClusterRole"]
    for document in (d for d in documents if d["kind"] in ("ClusterRole", "Role")):
        assert not any("*" in rule.get(field, []) for rule in document["rules"] for field in rule)
