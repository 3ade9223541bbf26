"""A real Prometheus on this machine that scrapes the pods of a job and of the operator, with the chart's alerts."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from docs.generating.alerts import RULES
from tests.cluster.harness.errors import TimedOut
from tests.operator.charts import MONITORING, ROOT, rendered

Series = dict[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    targets: Path
    """The file that says what to scrape."""
    fired: set[str] = field(default_factory=set, compare=False)
    """Alerts that were waited for and came (`fires`)."""

    def discover(self, *pods: Mapping[str, Any]) -> None:
        """Know these pods, as discovery by Kubernetes would show them."""
        beside = self.targets.with_suffix(".new")
        beside.write_text(json.dumps([target for pod in pods for target in shown_by_kubernetes(pod)]))
        beside.replace(self.targets)

    def query(self, expression: str) -> Series:
        """The instant vector of an expression, by its sorted labels.

        Raises:
            ValueError: Prometheus cannot evaluate it; its own words.
        """
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        return {
            tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in body["data"]["result"]
        }

    def until(self, expression: str, predicate: Callable[[Series], bool], timeout: float = 120) -> Series:
        """The vector once the predicate holds.

        Raises:
            TimedOut: with the vector as it was last.
        """
        end = time.monotonic() + timeout
        while not predicate(found := self.query(expression)):
            if time.monotonic() > end:
                raise TimedOut(f"{expression}: still {found} after {timeout} s")
            time.sleep(0.5)
        return found

    def fires(self, alert: str, timeout: float = 120, **labels: str) -> Series:
        """What an alert fires for, once it does.

        Raises:
            TimedOut: it did not.
        """
        found = self.until(firing(alert, **labels), bool, timeout)
        self.fired.add(alert)
        return found


def firing(alert: str, **labels: str) -> str:
    """The expression for an alert that fires."""
    also = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'ALERTS{{alertname="{alert}",alertstate="firing"{also}}}'


def shown_by_kubernetes(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A target for each port of a pod, with the labels of `kubernetes_sd_configs: [{role: pod}]`."""
    metadata, address = pod["metadata"], pod["status"].get("podIP")
    known = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_ip": address,
        "pod_phase": pod["status"]["phase"],
        "pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for kind in ("label", "annotation"):
        for name, value in metadata.get(f"{kind}s", {}).items():
            known[f"pod_{kind}_{sanitized(name)}"] = value
            known[f"pod_{kind}present_{sanitized(name)}"] = "true"
    for container in pod["spec"]["containers"] if address else ():
        for port in container.get("ports", ()):
            own = {"pod_container_name": container["name"], "pod_container_port_name": port["name"]}
            labels = {f"__meta_kubernetes_{name}": value for name, value in (known | own).items()}
            yield {"targets": [f"{address}:{port['containerPort']}"], "labels": labels}


def sanitized(name: str) -> str:
    return re.sub(r"\W", "_", name)


def relabelled(monitor: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The relabelling that the Prometheus operator makes of a PodMonitor with one endpoint."""
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]

    def copied(source: str, target: str) -> dict[str, Any]:
        return {
            "source_labels": [f"__meta_kubernetes_{source}"],
            "regex": "(.+)",
            "target_label": target,
            "replacement": "$1",
        }

    selected = [
        {"source_labels": [f"__meta_kubernetes_pod_label_{sanitized(name)}"], "action": "keep", "regex": re.escape(value)}
        for name, value in spec["selector"]["matchLabels"].items()
    ]  # fmt: skip
    return [
        *selected,
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "action": "keep", "regex": endpoint["port"]},
        {"source_labels": ["__meta_kubernetes_pod_phase"], "action": "drop", "regex": "(Failed|Succeeded)"},
        copied("namespace", "namespace"),
        copied("pod_container_name", "container"),
        copied("pod_name", "pod"),
        copied(f"pod_label_{sanitized(spec['jobLabel'])}", "job"),
        *(copied(f"pod_label_{sanitized(name)}", sanitized(name)) for name in spec["podTargetLabels"]),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *(
            copied(one["sourceLabels"][0].removeprefix("__meta_kubernetes_"), one["targetLabel"])
            for one in endpoint["relabelings"]
        ),
    ]  # fmt: skip


def faster(rules: Mapping[str, Any]) -> dict[str, Any]:
    """The chart's alerts where a minute is a second."""

    def seconds(found: "re.Match[str]") -> str:
        return f"{int(found[1]) * (60 if found[2] == 'h' else 1)}s"

    quick: dict[str, Any] = json.loads(json.dumps(rules))
    for group in quick["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"(?<=[\[:])(\d+)([hm])(?=[\]:])", seconds, rule["expr"])
            if "for" in rule:
                rule["for"] = re.sub(r"(\d+)([hm])", seconds, rule["for"])
    return quick


def configuration(targets: Path, rules: Path) -> dict[str, object]:
    """Scrape every second: jobs' pods as the chart's PodMonitor says, others as docs/observability.md does by annotations.

    Debian's Prometheus is built without discovery by Kubernetes, so `Prometheus.discover` writes a file.
    """
    discovery = [{"files": [str(targets)], "refresh_interval": "1s"}]
    monitor = next(one for one in rendered(apis=MONITORING) if one["kind"] == "PodMonitor")
    page = (ROOT / "docs" / "observability.md").read_text()
    (annotated,) = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["scrape_configs"]
    del annotated["kubernetes_sd_configs"]
    others = {
        "source_labels": ["__meta_kubernetes_pod_label_ddpjob_dev_name"],
        "action": "drop",
        "regex": ".+",
    }
    annotated["relabel_configs"].insert(0, others)
    jobs = {"job_name": "jobs", "relabel_configs": relabelled(monitor)}
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{**one, "file_sd_configs": discovery} for one in (jobs, annotated)],
    }


@contextmanager
def running(binary: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus on a free loopback port, with its data in `folder`, ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "prometheus.yml"
    targets = folder / "targets.json"
    targets.write_text("[]")
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump(faster(yaml.safe_load(RULES.read_text()))))
    config.write_text(yaml.safe_dump(configuration(targets, rules)))
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield wait_ready(Prometheus(f"http://127.0.0.1:{port}", targets), process, folder / "log")
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def wait_ready(prometheus: Prometheus, process: "subprocess.Popen[bytes]", log: Path) -> Prometheus:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=5):
                return prometheus
        except OSError:
            time.sleep(0.1)
    raise TimedOut(f"Prometheus did not get ready: {log.read_text()[-1000:]}")
