"""A real Prometheus on this machine that scrapes the pods of a job."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness.errors import TimedOut

Series = dict[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    targets: Path
    """The file that says what to scrape."""

    def discover(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Scrape these pods, as their annotations say: what a PodMonitor or a scrape job does in a cluster."""
        found = []
        for pod in pods:
            metadata = pod["metadata"]
            if metadata["annotations"].get("prometheus.io/scrape") == "true" and pod["status"].get("podIP"):
                labels = {
                    "namespace": metadata["namespace"],
                    "pod": metadata["name"],
                    "job_name": metadata["labels"]["ddpjob.dev/name"],
                }
                address = f"{pod['status']['podIP']}:{metadata['annotations']['prometheus.io/port']}"
                found.append({"targets": [address], "labels": labels})
        beside = self.targets.with_suffix(".new")
        beside.write_text(json.dumps(found))
        beside.replace(self.targets)

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


def configuration(targets: Path) -> dict[str, object]:
    """Scrape what the file names, every second.

    Debian's Prometheus is built without discovery by Kubernetes, so `Prometheus.discover` writes the file.
    """
    scrape = {"job_name": "ddpjob-trainer", "file_sd_configs": [{"files": [str(targets)]}]}
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}


@contextmanager
def running(binary: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus on a free loopback port, with its data in `folder`, ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "prometheus.yml"
    targets = folder / "targets.json"
    targets.write_text("[]")
    config.write_text(yaml.safe_dump(configuration(targets)))
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
