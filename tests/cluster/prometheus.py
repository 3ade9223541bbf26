"""A real Prometheus on this machine that scrapes the job's pods through the API server's service discovery."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import TimedOut

Series = dict[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def query(self, expression: str) -> Series:
        """The instant vector of an expression, by its sorted labels."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            body = json.load(answer)
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


def configuration(cluster: Cluster) -> dict[str, object]:
    """Scrape every pod that carries the scrape annotations of a DDPJob, every second."""
    keep = "__meta_kubernetes_pod_annotation_prometheus_io"
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": "ddpjob-trainer",
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(cluster.kubeconfig)}],
                "relabel_configs": [
                    {"source_labels": [f"{keep}_scrape"], "action": "keep", "regex": "true"},
                    {
                        "source_labels": ["__meta_kubernetes_pod_label_ddpjob_dev_name"],
                        "action": "keep",
                        "regex": ".+",
                    },
                    {
                        "source_labels": ["__meta_kubernetes_pod_ip", f"{keep}_port"],
                        "separator": ":",
                        "target_label": "__address__",
                    },
                    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
                    {
                        "source_labels": ["__meta_kubernetes_pod_label_ddpjob_dev_name"],
                        "target_label": "job_name",
                    },
                ],
            }
        ],
    }


@contextmanager
def running(cluster: Cluster, binary: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus on a free loopback port, with its data in `folder`, ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(cluster)))
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
        yield wait_ready(Prometheus(f"http://127.0.0.1:{port}"), process, folder / "log")
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
