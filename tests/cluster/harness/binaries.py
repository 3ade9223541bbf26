"""Kubernetes and its companions, built from Go modules and cached by the hash of what they are built from.

Why build: where no Docker runs there are no images to take them from, and Go's module proxy is a registry like any
other. The versions are in `gomod/*/go.mod`; a cold build takes about 25 minutes on two cores, a cached one nothing.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import paths, slot
from .errors import CannotRun
from .progress import say, step
from .shell import digest, run

STAGES = (
    "kustomize/stage/node/fast/node-initialize.yaml",
    "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "kustomize/stage/pod/fast/pod-ready.yaml",
    "kustomize/stage/pod/fast/pod-complete.yaml",
    "kustomize/stage/pod/fast/pod-delete.yaml",
)
"""KWOK's life cycle of fake nodes and pods: files of its module, without which it finds "no stages"."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Go module that pins programs with its tool list."""

    sources: Path
    """Folder with go.mod and go.sum."""

    tools: Mapping[str, str]
    """Each program and its package, in build order."""

    def missing(self) -> str | None:
        """Why it cannot be built here, in one line; None if it can or is."""
        if self.cached():
            return None
        needed = ".".join(map(str, self._needed()))
        if not shutil.which("go"):
            return f"Go {needed} or newer is not on PATH"
        if (found := _go_version()) < self._needed():
            return f"Go {'.'.join(map(str, found))} is on PATH, {needed} or newer is needed"
        return None

    def key(self) -> str:
        """Names the binaries by what they are built from."""
        compiler = ".".join(map(str, _go_version())) if shutil.which("go") else "none"
        sources = [(self.sources / name).read_bytes() for name in ("go.mod", "go.sum")]
        return digest([*sources, compiler, platform.machine()])

    def folder(self) -> Path:
        """Where this version's binaries lie."""
        return paths.cache() / "bin" / self.key()

    def cached(self, names: Iterable[str] = ()) -> bool:
        """Whether nothing has to be built, of all tools or of these."""
        return all((self.folder() / name).exists() for name in names or self.tools)

    def ensure(self, names: Iterable[str] = ()) -> Path:
        """Build what is not there yet, of all tools or of these; the folder with the binaries.

        Raises:
            CannotRun: there is no suitable Go.
            CommandFailed: the compiler's own words.
        """
        wanted = [name for name in self.tools if name in set(names or self.tools)]
        if self.cached(wanted):
            return self.folder()
        if reason := self.missing():
            raise CannotRun(reason)
        with slot.locked("binaries"):
            work = self.folder() / "src"
            shutil.copytree(self.sources, work, dirs_exist_ok=True)
            with step("downloading Go modules"):
                _go(work, "mod", "download")
            left = [name for name in wanted if not (self.folder() / name).exists()]
            for number, name in enumerate(left, 1):
                with step(f"building {name} ({number} of {len(left)}; minutes while Go's cache is cold)"):
                    self._build(work, name)
            shutil.rmtree(work)
        say(f"binaries are in {self.folder()}")
        return self.folder()

    def _build(self, work: Path, name: str) -> None:
        target = work / "out" / name
        _go(work, "build", "-trimpath", "-ldflags", self._stamp(), "-o", str(target), self.tools[name])
        if name == "kwok":
            _copy_stages(work, self.folder() / "stages")
        target.replace(self.folder() / name)

    def _stamp(self) -> str:
        """Linker flags: no symbols, and the version that a release build of Kubernetes would tell."""
        found = re.search(
            r"^\s*k8s\.io/kubernetes (v\S+)", (self.sources / "go.mod").read_text(), re.MULTILINE
        )
        if not found:
            return "-s -w"
        version, (major, minor, *_) = found[1], found[1].lstrip("v").split(".")
        return " ".join(
            [
                "-s -w",
                *(
                    f"-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
                    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
                ),
            ]
        )

    def _needed(self) -> tuple[int, ...]:
        found = re.search(r"^go (\S+)", (self.sources / "go.mod").read_text(), re.MULTILINE)
        assert found, f"{self.sources}/go.mod has no go line"
        return tuple(map(int, found[1].split(".")))


KUBERNETES = Module(
    sources=paths.HERE / "gomod" / "kubernetes",
    tools={
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
    },
)
"""The cluster's programs (the API server early: it shares most with the others)."""

NETWORK_POLICY = Module(
    sources=paths.HERE / "gomod" / "network-policy",
    tools={"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
)
"""What enforces NetworkPolicy; built when a test asks for it, and apart because its libraries are older."""


def stages() -> list[Path]:
    """KWOK's stage files."""
    return [KUBERNETES.folder() / "stages" / Path(stage).name for stage in STAGES]


def _copy_stages(work: Path, into: Path) -> None:
    module = Path(_go(work, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok").strip())
    into.mkdir(exist_ok=True)
    for stage in STAGES:
        shutil.copyfile(module / stage, into / Path(stage).name)


def _go(work: Path, *argv: str) -> str:
    return run(
        "go", *argv, cwd=work, env={"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}, nice=10
    )


def _go_version() -> tuple[int, ...]:
    found = re.search(r"go(\d+(?:\.\d+)*)", run("go", "version", env={"GOTOOLCHAIN": "local"}))
    return tuple(map(int, found[1].split("."))) if found else (0,)
