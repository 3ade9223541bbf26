"""The operator on the cluster, installed with Helm as a user would."""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.cluster import Cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "ddpjob"
NAMESPACE = "ddpjob-system"
RELEASE = "ddpjob"


@dataclass(frozen=True)
class Installation:
    """A Helm release of the chart with the images of this tree."""

    cluster: Cluster

    def upgrade(self, *settings: str) -> None:
        """`helm upgrade --install`, and wait until the operator is ready. Settings are `key=value`."""
        operator, trainer = self.cluster.images.operator, self.cluster.images.trainer
        sets = [f"image.reference={operator}", f"trainerImage={trainer}", *settings]
        flags = [
            word for setting in sets for word in ("--set-string" if "=" in setting else "--set", setting)
        ]
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        self.cluster.helm(
            "upgrade", "--install", RELEASE, str(CHART), *where, *flags, "--wait", "--timeout", "180s"
        )

    def uninstall(self) -> None:
        self.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s")

    def logs(self) -> str:
        return self.cluster.kubectl("logs", "-n", NAMESPACE, "deployment/ddpjob", "--tail=200", check=False)

    def scale(self, replicas: int) -> None:
        """Stop (0) or start (1) the operator, and wait until it is so."""
        deployment = "deployment/ddpjob"
        self.cluster.kubectl("scale", deployment, "-n", NAMESPACE, f"--replicas={replicas}")
        self.cluster.kubectl("rollout", "status", deployment, "-n", NAMESPACE, "--timeout=120s")
        if replicas == 0:
            selector = "app.kubernetes.io/name=ddpjob"
            self.cluster.kubectl(
                "wait", "pods", "-n", NAMESPACE, "-l", selector, "--for=delete", "--timeout=60s"
            )
