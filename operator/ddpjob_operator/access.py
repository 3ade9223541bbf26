"""How the operator gets to the API server: a service account in a pod, else a kubeconfig.

Why apart: kopf's watches and our own client log in the same way, and neither should import the whole of the official
client (60 MB) for it. Only a kubeconfig that needs a program or a cloud's plugin falls back to that.
"""

import logging
import os
from pathlib import Path
from typing import Any

import kopf
import yaml

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def connection() -> kopf.ConnectionInfo:
    """Server and credentials as they are now (a service account's token is renewed every hour).

    Raises:
        kopf.LoginError: there is neither a service account nor a kubeconfig.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings)
    if found is None:
        found = (
            kopf.login_via_client(logger=logging.getLogger("ddpjob.login"), settings=settings)
            if needs_plugin()
            else kopf.login_with_kubeconfig(settings=settings)
        )
    if found is None:
        raise kopf.LoginError("no service account and no kubeconfig; set KUBECONFIG to run outside a cluster")
    return found


def needs_plugin() -> bool:
    """Whether some user of the kubeconfig logs in by a program (`exec`) or a cloud's provider."""
    users: list[dict[str, Any]] = []
    for name in os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep):
        path = Path(name).expanduser()
        if name and path.is_file():
            document = yaml.safe_load(path.read_text()) or {}
            users += [entry.get("user") or {} for entry in document.get("users") or []]
    return any("exec" in user or "auth-provider" in user for user in users)
