"""What the chart makes for Prometheus and Grafana; what it says is in tests/docs/test_alerts.py and test_expressions.py."""

import json
from datetime import UTC, datetime

import pytest
from docs.generating.alerts import alerts
from tests.operator.charts import CHART, MONITORING, ROOT, helm, kinds, rendered, template

from ddpjob_api.codec import parse_spec
from ddpjob_operator.model import Runtime, Status
from ddpjob_operator.observe import JobView, Key
from ddpjob_operator.pod import pod as make_pod

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ALERTS = {rule["alert"]: rule for rule in alerts()}


@pytest.mark.parametrize(
    ("settings", "apis", "expected"),
    [
        ((), (), {}),
        ((), MONITORING, {"PodMonitor": 1, "ServiceMonitor": 1, "PrometheusRule": 1, "ConfigMap": 2}),
        (("monitors.install=Always",), (), {"PodMonitor": 1, "ServiceMonitor": 1}),
        (("alerts.install=Always",), (), {"PrometheusRule": 1}),
        (("dashboards.install=Always",), (), {"ConfigMap": 2}),
        (("monitors.install=Never", "alerts.install=Never", "dashboards.install=Never"), MONITORING, {}),
    ],
)
def test_what_watches_is_made_where_it_can_be_and_is_wanted(
    settings: tuple[str, ...], apis: tuple[str, ...], expected: dict[str, int]
) -> None:
    found = kinds(rendered(*settings, apis=apis))
    watching = ("PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap")
    assert {kind: found[kind] for kind in watching if found[kind]} == expected


@pytest.mark.parametrize(("apis", "annotated"), [((), True), (MONITORING, False)])
def test_the_operator_is_scraped_one_way_only(apis: tuple[str, ...], annotated: bool) -> None:
    documents = rendered(apis=apis)
    (deployment,) = [d for d in documents if d["kind"] == "Deployment"]
    annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
    assert ("prometheus.io/scrape" in annotations) == annotated
    assert ("ServiceMonitor" in kinds(documents)) != annotated


def test_the_monitors_find_what_they_are_for() -> None:
    """A job's pod by its labels and port, the operator's Service likewise."""
    documents = rendered("monitors.labels.release=stack", "monitors.interval=15s", apis=MONITORING)
    monitors = {d["kind"]: d for d in documents if d["kind"].endswith("Monitor")}
    spec = parse_spec({"nodes": 1, "script": {"args": ["train.py"]}})
    job = JobView(
        key=Key("ns", "digits"), uid="u", version=1, generation=1, created=datetime.now(UTC), deleting=False,
        spec=spec, problem="", status=Status(),
    )  # fmt: skip
    pod = make_pod(job, spec, Status(), Runtime(image="i", template_hash="h"), index=0, incarnation=0)
    (endpoint,) = monitors["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert (
        monitors["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    )
    assert {port["name"] for c in pod["spec"]["containers"] for port in c["ports"]} == {endpoint["port"]}
    assert {*monitors["PodMonitor"]["spec"]["podTargetLabels"]} <= {*pod["metadata"]["labels"]}
    (service,) = [d for d in documents if d["kind"] == "Service"]
    (endpoint,) = monitors["ServiceMonitor"]["spec"]["endpoints"]
    selector = monitors["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert endpoint == {"port": service["spec"]["ports"][0]["name"], "interval": "15s"}
    for monitor in monitors.values():
        assert monitor["metadata"]["labels"]["release"] == "stack"
    (few,) = [d for d in rendered("watchNamespaces={a,b}", apis=MONITORING) if d["kind"] == "PodMonitor"]
    assert few["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_alerts_can_be_left_out_labelled_and_point_to_their_page() -> None:
    settings = (
        "alerts.disabled={DDPJobStraggler}",
        "alerts.alertLabels.team=ml",
        "alerts.runbook=https://x/o",
    )
    (rule,) = [d for d in rendered(*settings, apis=MONITORING) if d["kind"] == "PrometheusRule"]
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert {alert["alert"] for alert in alerts} == {*ALERTS} - {"DDPJobStraggler"}
    page = (ROOT / "docs" / "observability.md").read_text()
    for alert in alerts:
        assert alert["labels"] == {**ALERTS[alert["alert"]]["labels"], "team": "ml"}
        address, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert address == "https://x/o"
        assert f'<a id="{anchor}"></a>' in page
        assert "ddpjob-system" not in json.dumps(alert), "the release's namespace stands in its place"
    down = next(alert for alert in alerts if alert["alert"] == "DDPJobOperatorDown")
    assert 'namespace="system"' in down["expr"]


def test_the_dashboards_are_those_of_the_files() -> None:
    settings = ("dashboards.namespace=grafana", "dashboards.annotations.grafana_folder=Training")
    maps = [d for d in rendered(*settings, apis=MONITORING) if d["kind"] == "ConfigMap"]
    for found in maps:
        assert found["metadata"]["namespace"] == "grafana"
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Training"}
        ((name, text),) = found["data"].items()
        file = CHART / "files" / "dashboards" / name.removeprefix("ddpjob-")
        assert json.loads(text) == json.loads(file.read_text())
    assert len(maps) == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("monitors.install=Perhaps", "one of 'Auto', 'Always', 'Never'"),
        ("alerts.disabled={DDPJobStragler}", "one of 'DDPJobFailed'"),
        ("monitors.interval=often", "does not match pattern"),
        ("dashboard.install=Never", "additional properties 'dashboard' not allowed"),
        ("metrics.service=false", "set metrics.service: true, or monitors.install: Never"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words(setting: str, words: str) -> None:
    result = template(setting, apis=MONITORING)
    assert result.returncode != 0
    assert words in result.stderr


def test_the_schema_knows_every_alert() -> None:
    listed = SCHEMA["properties"]["alerts"]["properties"]["disabled"]["items"]["enum"]
    assert listed == [*ALERTS]


def test_helm_lint_finds_nothing_wrong() -> None:
    for settings in (
        (),
        ("--set", "monitors.install=Always,alerts.install=Always,dashboards.install=Always,replicas=2"),
    ):
        result = helm("lint", "--strict", str(CHART), *settings)
        assert result.returncode == 0, result.stdout
