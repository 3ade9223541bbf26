"""The project's images: built from the Dockerfile, named by the hash of what goes into them, kept in a registry.

Why a registry: it, the builder and the nodes all know layers by their digest, so a change of code moves the code
layer (some hundred kilobytes) and not torch (gigabytes). Nodes know it as `registry.ddpjob.test`, whatever slot it
serves, so that an image has one name everywhere.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from . import paths, slot
from .progress import say, step
from .shell import digest, run, succeeds

HOST = "registry.ddpjob.test"
"""The registry's name in image references; each node's containerd maps it to its slot's address."""

PAUSE = f"{HOST}/pause:1"

TARGETS = {
    "operator": ("api", "operator", "trainer"),
    "trainer": ("api", "trainer"),
}
"""The Dockerfile's targets and the folders whose code they hold (the operator's image hands the trainer package to
pods that run images of other people)."""

TEST_TARGETS = {"frameworks": ("api", "trainer"), "foreign": (), "pythonless": ()}
"""Targets of `tests/cluster/images.Dockerfile`; a test that uses one carries the marker `images`."""

TEST_DOCKERFILE = "tests/cluster/images.Dockerfile"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
SUITE = "bookworm"
KEPT = 3
"""Images of one target that stay in the builder's store."""


def reference(target: str) -> str:
    """The image's name, with a tag that changes exactly when its content does."""
    return f"{HOST}/ddpjob/{target}:{digest(_inputs(target))}"


@dataclass(frozen=True)
class PodmanBuilder:
    """Builds as root without a daemon, in a store of its own in the cache."""

    registry: str
    """Where to push, `host:port` of plain HTTP."""

    def ensure(self, target: str) -> str:
        """Build and push the target's image unless the registry has it; its reference."""
        name = reference(target)
        with slot.locked(f"image-{target}"):  # one lock each: operator tests must not wait for torch
            if not self.has(name):
                self._build(target, name)
                self._push(name)
                self._forget_old(target)
        return name

    def ensure_pause(self) -> None:
        """The sandbox image: Debian's static `catatonit`, which reaps and waits."""
        if self.has(PAUSE):
            return
        with slot.locked("image-pause"), tempfile.TemporaryDirectory() as scratch:
            shutil.copy("/usr/bin/catatonit", f"{scratch}/pause")
            run("tar", "-C", scratch, "-cf", f"{scratch}/pause.tar", "pause")
            self._podman("import", "--change", 'ENTRYPOINT ["/pause", "-P"]', f"{scratch}/pause.tar", PAUSE)
            self._push(PAUSE)

    def has(self, name: str) -> bool:
        """Whether the registry has this image."""
        try:
            self._manifest(name)
        except urllib.error.HTTPError as answer:
            if answer.code == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def layers(self, name: str) -> dict[str, int]:
        """The image's layers as the registry holds them: digest and size in bytes."""
        return {layer["digest"]: layer["size"] for layer in self._manifest(name)["layers"]}

    def _manifest(self, name: str) -> dict[str, Any]:
        repository, _, tag = name.removeprefix(f"{HOST}/").rpartition(":")
        url = f"http://{self.registry}/v2/{repository}/manifests/{tag}"
        request = urllib.request.Request(
            url, headers={"Accept": "application/vnd.oci.image.manifest.v1+json"}
        )
        with _direct.open(request, timeout=10) as answer:
            manifest: dict[str, Any] = json.load(answer)
        return manifest

    def _build(self, target: str, name: str) -> None:
        base = self._ensure_base()
        certificates = "/etc/ssl/certs"
        extra = ["-v", "/etc/pip.conf:/etc/pip.conf:ro"] if Path("/etc/pip.conf").exists() else []
        with (
            step(f"building image {name} (the first with torch downloads 3 GB)"),
            dockerfile(target) as file,
        ):
            self._podman(
                "build",
                f"--file={file}",
                "--isolation=chroot",
                "--network=host",
                f"--volume={certificates}:{certificates}:ro",
                *extra,
                f"--build-arg=BASE_IMAGE={base}",
                f"--target={target}",
                f"--tag={name}",
                "--layers",
                str(paths.CLONE),
            )

    def _push(self, name: str) -> None:
        with step(f"pushing {name} (layers that are there already are skipped)"):
            there = name.replace(HOST, self.registry, 1)
            flags = ["--tls-verify=false", "--compression-format=zstd", "--format=oci"]
            self._podman("push", *flags, name, f"docker://{there}")

    def _ensure_base(self) -> str:
        name = f"localhost/ddpjob/base:{digest([BASE_PACKAGES, SUITE, 'cleaned'])}"
        with slot.locked("image-base"):
            if not succeeds(*_PODMAN, *self._store(), "image", "exists", name):
                with step("making the base image with debootstrap"):
                    self._bootstrap(name)
        return name

    def _bootstrap(self, name: str) -> None:
        scratch = paths.cache() / "base-scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # of a build that was killed; the lock is ours
        root = scratch / "root"
        root.mkdir(parents=True)
        # What debootstrap mounts goes with it: a /proc left in the cache would be in the way of whoever clears it.
        unshared = ("unshare", "--mount", "--propagation", "private")
        command = ("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, root)
        run(*unshared, *command, nice=5)
        for junk in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
            shutil.rmtree(root / junk, ignore_errors=True)
        run("tar", "-C", root, "-cf", scratch / "base.tar", ".", nice=5)
        self._podman("import", str(scratch / "base.tar"), name)
        shutil.rmtree(scratch)

    def _forget_old(self, target: str) -> None:
        listed = self._podman(
            "images", "--sort=created", "--format={{.Repository}}:{{.Tag}}", f"{HOST}/ddpjob/{target}"
        )
        for old in listed.split()[KEPT:]:
            say(f"forgetting the old image {old}")
            run(*_PODMAN, *self._store(), "rmi", old, check=False)  # one that is in use stays

    def _podman(self, command: str, *argv: str) -> str:
        return run(*_PODMAN, *self._store(), command, *argv, nice=5)

    def _store(self) -> list[str]:
        return [f"--root={paths.cache()}/podman", f"--runroot={paths.RUN}/podman", "--storage-driver=overlay"]


@dataclass(frozen=True)
class DockerBuilder:
    """Builds with a Docker or Podman engine that runs already, from the Dockerfile's own base image."""

    engine: str

    def ensure(self, target: str) -> str:
        """Build the target's image unless the engine has it; its reference."""
        name = reference(target)
        if not succeeds(self.engine, "image", "inspect", name):
            with step(f"building image {name}"), dockerfile(target) as file:
                run(self.engine, "build", "--file", file, "--target", target, "--tag", name, paths.CLONE)
        return name


@contextmanager
def dockerfile(target: str) -> Iterator[Path]:
    """The file that has the target: the project's, with the tests' stages behind it where they are needed."""
    if target in TARGETS:
        yield paths.CLONE / "Dockerfile"
        return
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "Dockerfile"
        whole.write_text(
            "\n".join((paths.CLONE / name).read_text() for name in ("Dockerfile", TEST_DOCKERFILE))
        )
        yield whole


def registry_config(gateway: str) -> str:
    """The registry's configuration; its storage is shared by all slots of this cache."""
    return f"""version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {paths.cache()}/registry}}
  delete: {{enabled: true}}
http: {{addr: "{gateway}:5000"}}
"""


def _inputs(target: str) -> Iterator[bytes | str]:
    root = paths.CLONE
    files = [root / name for name in ("Dockerfile", ".dockerignore", "pyproject.toml")]
    if target in TEST_TARGETS:
        files.append(root / TEST_DOCKERFILE)
    for folder in (TARGETS | TEST_TARGETS)[target]:
        files += sorted(
            path for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
    for path in files:
        if path.exists():
            yield str(path.relative_to(root))
            yield f"{os.access(path, os.X_OK)}"
            yield path.read_bytes()


_PODMAN = ("podman",)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
