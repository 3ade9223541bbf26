"""Node software from Debian: container runtime, CNI plugins, network tools, image builder, registry."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .errors import CannotRun, CommandFailed
from .progress import step
from .shell import run

PROGRAMS = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "ipset": "/usr/sbin/ipset",
    "iproute2": "/usr/sbin/ip",
    "openssl": "/usr/bin/openssl",
    "podman": "/usr/bin/podman",
    "buildah": "/usr/bin/buildah",
    "debootstrap": "/usr/sbin/debootstrap",
    "catatonit": "/usr/bin/catatonit",
    "docker-registry": "/usr/bin/docker-registry",
    "prometheus": "/usr/bin/prometheus",
}
"""Each package and a file that shows it is installed."""


def lacking() -> list[str]:
    """Packages that are not installed."""
    return [name for name, proof in PROGRAMS.items() if not Path(proof).exists()]


def missing() -> str | None:
    """Why the node software cannot be had, in one line; None if it can."""
    if lacking() and not (shutil.which("apt-get") and Path("/etc/debian_version").exists()):
        return f"Debian's apt-get is not here to install {', '.join(lacking())}"
    return None


def ensure() -> None:
    """Install what is not there, once, without questions and without starting services.

    Raises:
        CannotRun: apt-get failed; its own words.
    """
    wanted = lacking()
    if not wanted:
        return
    with step(f"installing Debian packages {' '.join(wanted)}"), tempfile.TemporaryDirectory() as scratch:
        # The daemons these packages bring are started by the harness, in slots; the machine's own stay off.
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        try:
            if ours:
                policy.write_text("#!/bin/sh\nexit 101\n")
                policy.chmod(0o755)
            env = {"DEBIAN_FRONTEND": "noninteractive", "TMPDIR": scratch}
            run("apt-get", "update", "-qq", env=env)
            run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted, env=env)
        except CommandFailed as failure:
            raise CannotRun(
                f"Debian packages {', '.join(wanted)} cannot be installed: {failure.stderr}"
            ) from failure
        finally:
            if ours:
                policy.unlink(missing_ok=True)
