"""A small real auth server, as the ones people write for NSQ.

    with AuthServer(grants={"s3cret": reply(entry("^ok"))}) as server:
        Nsqd(path, f"--auth-http-address={server.address}")
        ...
        assert server.requests[0].fields["secret"] == "s3cret"

An unknown secret is answered with 403.  ``override`` replaces every answer.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, str]:
        if self.method == "POST":
            return {key: values[0] for key, values in json.loads(self.body).items()}
        found = parse_qs(self.query, keep_blank_values=True)
        return {key: values[0] for key, values in found.items()}


def entry(
    topic: str = ".*",
    channels: tuple[str, ...] = (".*",),
    permissions: tuple[str, ...] = ("subscribe", "publish"),
) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def reply(*entries: dict[str, Any], ttl: int = 3600, identity: str = "bob") -> dict[str, Any]:
    return {
        "ttl": ttl,
        "identity": identity,
        "identity_url": f"http://x/{identity}",
        "authorizations": list(entries),
    }


class AuthServer:
    """Listens on a port of 127.0.0.1 from the beginning of ``with``."""

    def __init__(
        self, grants: dict[str, dict[str, Any]] | None = None, tls: SSLContext | None = None
    ) -> None:
        self.grants = grants or {}
        self.requests: list[Asked] = []
        self.override: tuple[int, bytes] | None = None
        self.delay_s = 0.0
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """As --auth-http-address takes it."""
        if self._scheme == "http":
            return f"127.0.0.1:{self.port}"
        return f"https://127.0.0.1:{self.port}/auth"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        self.requests.append(asked)
        time.sleep(self.delay_s)
        if self.override is not None:
            return self.override
        granted = self.grants.get(asked.fields["secret"])
        if granted is None:
            return 403, b'{"message":"FORBIDDEN"}'
        return 200, json.dumps(granted).encode()


class _Handler(BaseHTTPRequestHandler):
    owner: AuthServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, parts.path, parts.query, headers, body)
        status, answer = self.owner.answer(asked)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""
