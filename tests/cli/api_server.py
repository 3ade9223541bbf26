"""As much of an API server as the command line's sentences need: answers by path, and what was asked.

Why: refusals, pages and streams in a moment; that the real one answers so is shown by tests/cluster/test_cli.py.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    content_type: str
    body: Any


class Broken(str):
    """An answer of which the end never comes: the connection is closed before it."""

    __slots__ = ()


class Held(Broken):
    """As from a server that is gone without a word, or cut off: the connection stays, and nothing more comes."""

    __slots__ = ()


@dataclass
class ApiServer:
    """`answers`: by method and path with query, a status and a JSON object or a text; `then`: those from such a request on."""

    answers: dict[str, tuple[int, object]] = field(default_factory=dict)
    then: dict[str, dict[str, tuple[int, object]]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        handler = type("Handler", (Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, folder: Path) -> str:
        """A file with this server and the namespace `team`."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "a", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
            ],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "team"}}],
            "current-context": "a",
        }
        file = folder / "kubeconfig"
        file.write_text(json.dumps(config))
        return str(file)

    def refuse(self, key: str, status: int, message: str) -> None:
        self.answers[key] = (status, {"kind": "Status", "message": message})


class Handler(BaseHTTPRequestHandler):
    """Answers from the table."""

    api: ApiServer

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        body = json.loads(data) if data else None
        path = unquote(self.path)
        self.api.asked.append(Asked(self.command, path, self.headers.get("Content-Type") or "", body))
        missing: tuple[int, object] = (404, {"kind": "Status", "message": f"{path} not found"})
        status, found = self.api.answers.get(f"{self.command} {path}", missing)
        self.api.answers |= self.api.then.get(f"{self.command} {path}", {})
        if found is ...:  # what was sent comes back, as it does from a server that made it
            found = {**body, "metadata": {"namespace": "team", "uid": "1-2-3", **body["metadata"]}}
        out = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(status)
        broken = isinstance(found, Broken)
        self.send_header(*(("Transfer-Encoding", "chunked") if broken else ("Content-Length", str(len(out)))))
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(out), out) if broken and out else out)
        if isinstance(found, Held):
            self.api.over.wait()

    do_GET = do_PATCH = answer

    def log_message(self, format: str, *args: object) -> None:
        """Tests have enough to print."""


def listed(*items: Mapping[str, Any], following: str = "") -> tuple[int, object]:
    return 200, {"items": list(items), "metadata": {"continue": following} if following else {}}
