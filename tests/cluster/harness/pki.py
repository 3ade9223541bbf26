"""Certificates and kubeconfigs of one cluster, made anew at each start."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from .shell import run


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    def create(self) -> None:
        """Make the authority and the key pair that signs service-account tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        subject = ["-subj", "/CN=ddpjob-test-ca", "-addext", "basicConstraints=critical,CA:TRUE"]
        run(
            "openssl",
            "req",
            "-x509",
            *_EC,
            "-days",
            "365",
            "-keyout",
            self.key,
            "-out",
            self.certificate,
            *subject,
        )
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.folder / "sa.key")
        run("openssl", "ec", "-in", self.folder / "sa.key", "-pubout", "-out", self.folder / "sa.pub")

    def issue(self, name: str, subject: str, names: str = "") -> None:
        """A certificate `<name>.crt` with key `<name>.key`, for client and server use."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        run("openssl", "req", *_EC, "-keyout", self.key_of(name), "-out", request, "-subj", subject)
        extensions.write_text(
            f"extendedKeyUsage=clientAuth,serverAuth\nsubjectAltName={names or f'DNS:{name}'}\n"
        )
        signer: list[str | Path] = [
            "-CA",
            self.certificate,
            "-CAkey",
            self.key,
            "-CAcreateserial",
            "-days",
            "365",
        ]
        run(
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            *signer,
            "-out",
            self.certificate_of(name),
            "-extfile",
            extensions,
        )

    def certificate_of(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key_of(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str, server: str, context: str, into: Path) -> Path:
        """A self-contained kubeconfig that signs in with the certificate of that name."""
        into.write_text(
            f"""apiVersion: v1
kind: Config
clusters:
- name: {context}
  cluster: {{server: "{server}", certificate-authority-data: {_inline(self.certificate)}}}
users:
- name: {context}
  user: {{client-certificate-data: {_inline(self.certificate_of(name))}, client-key-data: {_inline(self.key_of(name))}}}
contexts:
- name: {context}
  context: {{cluster: {context}, user: {context}}}
current-context: {context}
"""
        )
        into.chmod(0o600)
        return into


_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
