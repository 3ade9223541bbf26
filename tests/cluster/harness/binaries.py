"""Kubernetes and its companions, built from Go modules and cached by the hash of what they are built from.

Why build: where no Docker runs there are no images to take them from, and Go's module proxy is a registry like any
other. The versions are in `gomod/go.mod`; a cold build takes about 25 minutes on two cores, a cached one nothing.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from . import paths, slot
from .errors import CannotRun
from .progress import say, step
from .shell import digest, run

MODULE = paths.HERE / "gomod"

TOOLS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "coredns": "github.com/coredns/coredns",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "helm": "helm.sh/helm/v4/cmd/helm",
}
"""Each program and its package, in build order (the API server first: it shares most with the others)."""

STAGES = (
    "kustomize/stage/node/fast/node-initialize.yaml",
    "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "kustomize/stage/pod/fast/pod-ready.yaml",
    "kustomize/stage/pod/fast/pod-complete.yaml",
    "kustomize/stage/pod/fast/pod-delete.yaml",
)
"""KWOK's life cycle of fake nodes and pods: files of its module, without which it finds "no stages"."""


def missing() -> str | None:
    """Why nothing can be built here, in one line; None if it can."""
    if cached():
        return None
    if not shutil.which("go"):
        return f"Go {'.'.join(map(str, _needed()))} or newer is not on PATH"
    if (found := _go_version()) < _needed():
        return (
            f"Go {'.'.join(map(str, found))} is on PATH, {'.'.join(map(str, _needed()))} or newer is needed"
        )
    return None


def key() -> str:
    """Names the binaries by what they are built from."""
    compiler = ".".join(map(str, _go_version())) if shutil.which("go") else "none"
    sources = [(MODULE / name).read_bytes() for name in ("go.mod", "go.sum")]
    return digest([*sources, compiler, platform.machine()])


def folder() -> Path:
    """Where this version's binaries lie."""
    return paths.cache() / "bin" / key()


def cached(names: Iterable[str] = TOOLS) -> bool:
    """Whether nothing has to be built."""
    return all((folder() / name).exists() for name in names)


def ensure(names: Iterable[str] = TOOLS) -> Path:
    """Build what is not there yet; the folder with the binaries.

    Raises:
        CannotRun: there is no suitable Go.
        CommandFailed: the compiler's own words.
    """
    wanted = [name for name in TOOLS if name in set(names)]
    if cached(wanted):
        return folder()
    if reason := missing():
        raise CannotRun(reason)
    with slot.locked("binaries"):
        work = folder() / "src"
        work.mkdir(parents=True, exist_ok=True)
        for source in MODULE.iterdir():
            shutil.copyfile(source, work / source.name)
        with step("downloading Go modules"):
            _go(work, "mod", "download")
        left = [name for name in wanted if not (folder() / name).exists()]
        for number, name in enumerate(left, 1):
            with step(
                f"building {name} ({number} of {len(left)}; the first takes minutes when Go's cache is cold)"
            ):
                _build(work, name)
        if "kwok" in wanted:
            _copy_stages(work)
        shutil.rmtree(work)
    say(f"binaries are in {folder()}")
    return folder()


def stages() -> list[Path]:
    """KWOK's stage files."""
    return [folder() / "stages" / Path(stage).name for stage in STAGES]


def _build(work: Path, name: str) -> None:
    version = _kubernetes_version()
    major, minor = version.lstrip("v").split(".")[:2]
    stamp = " ".join(
        [
            "-s -w",
            *(
                f"-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
                for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            ),
        ]
    )
    target = work / "out" / name
    _go(work, "build", "-trimpath", "-ldflags", stamp, "-o", str(target), TOOLS[name])
    target.replace(folder() / name)


def _copy_stages(work: Path) -> None:
    module = Path(_go(work, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok").strip())
    into = folder() / "stages"
    into.mkdir(exist_ok=True)
    for stage in STAGES:
        shutil.copyfile(module / stage, into / Path(stage).name)


def _go(work: Path, *argv: str) -> str:
    return run(
        "go", *argv, cwd=work, env={"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}, nice=10
    )


def _kubernetes_version() -> str:
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found, "gomod/go.mod does not name k8s.io/kubernetes"
    return found[1]


def _needed() -> tuple[int, ...]:
    found = re.search(r"^go (\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found, "gomod/go.mod has no go line"
    return tuple(map(int, found[1].split(".")))


def _go_version() -> tuple[int, ...]:
    found = re.search(r"go(\d+(?:\.\d+)*)", run("go", "version", env={"GOTOOLCHAIN": "local"}))
    return tuple(map(int, found[1].split("."))) if found else (0,)
