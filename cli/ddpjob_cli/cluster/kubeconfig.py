"""Which cluster is meant, and as whom: the user's kubeconfig, or the service account of a pod.

Why apart: what the Kubernetes client says of a file that cannot be used becomes a sentence here; what a server says does
in `access`. Must not: ask the cluster anything.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import YAMLError

from ddpjob_cli.errors import Unusable

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAME_ONE = "name one with --kubeconfig or KUBECONFIG"


class NoCluster(Unusable):
    """The kubeconfig leads to none."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no cluster to ask: {why}")


class Said(logging.Handler):
    """What the client only writes into a log while it reads a kubeconfig: that a credential plugin failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(" ".join(record.getMessage().split()))


@dataclass(frozen=True, kw_only=True)
class Target:
    """Which cluster, as kubectl's flags say it."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None

    @property
    def given(self) -> bool:
        """Whether the user named one."""
        return any((self.kubeconfig, self.context, self.namespace))


def login(target: Target) -> "tuple[Configuration, str | None]":
    """The client's settings, and the namespace that the context or the service account names.

    Raises:
        Unusable: there is no kubeconfig, or no context or user in it that can be used.
    """
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    settings = Configuration()
    files = (
        target.kubeconfig.split(os.pathsep) if target.kubeconfig else [str(file) for file in kubeconfigs()]
    )
    if not files and not SERVICE_ACCOUNT.is_dir():
        looked = os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise NoCluster(f"there is no kubeconfig ({looked}); {NAME_ONE}")
    said = Said()
    try:
        logging.getLogger().addHandler(said)
        if files:
            namespace = namespace_of(merged(files), target.context)
            load_kube_config(os.pathsep.join(files), context=target.context, client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(settings)  # type: ignore[no-untyped-call]
            namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except (ConfigException, OSError) as error:
        raise NoCluster(
            f"{' '.join(str(error).split())}; name a kubeconfig with --kubeconfig or KUBECONFIG"
        ) from error
    except (YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoCluster(
            f"{' or '.join(files)} is no kubeconfig: {' '.join(str(error).split())}; kubectl config view shows what is wrong"
        ) from error
    finally:
        logging.getLogger().removeHandler(said)
    if said.words:
        # The client goes on without a user, and the server would say that it does not know who asks.
        raise NoCluster(
            f"the kubeconfig's way to log in failed: {'; '.join(said.words)}; kubectl get pods shows whether it works"
        )
    return settings, namespace


def kubeconfigs() -> list[Path]:
    """The files of KUBECONFIG, or kubectl's own, that are there."""
    names = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return [path for name in names.split(os.pathsep) if name and (path := Path(name).expanduser()).is_file()]


def merged(files: Sequence[str]) -> Any:
    """What the files say together; those that are not there say nothing, as for kubectl.

    Raises:
        NoCluster: none is there.
    """
    from kubernetes.config.kube_config import KubeConfigMerger

    found = KubeConfigMerger(os.pathsep.join(files)).config  # type: ignore[no-untyped-call]
    if found is None:
        raise NoCluster(f"there is no kubeconfig {' or '.join(files)}; {NAME_ONE}")
    return found


def namespace_of(config: Any, context: str | None) -> str | None:
    """That of a context; None stands for the current one, which a kubeconfig needs not have where another is meant.

    Raises:
        Unusable: there is no such context.
    """
    from kubernetes.config.kube_config import KubeConfigLoader

    if context is not None:
        named = [one["name"] for one in config["contexts"]]
        if context not in named:
            raise Unusable(
                f"--context {context}: not in the kubeconfig; it has {', '.join(sorted(named)) or 'none'}"
            )
    loader = KubeConfigLoader(config, active_context=context)  # type: ignore[no-untyped-call]
    found: str | None = loader.current_context["context"].get("namespace")
    return found
