"""A server with nsqlookupd's /lookup only, for tests of discovery."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit


class Lookup:
    """Responds with ``addresses`` for every topic, and with ``status``."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.status = 200
        self.topics: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._answerer())
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def _answerer(self) -> type[BaseHTTPRequestHandler]:
        lookup = self

        class Answerer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                lookup.topics += parse_qs(parts.query)["topic"]
                lookup.headers.append(dict(self.headers))
                nodes = [address.rsplit(":", 1) for address in lookup.addresses]
                producers = [{"broadcast_address": h, "tcp_port": int(p)} for h, p in nodes]
                body = json.dumps({"channels": [], "producers": producers}).encode()
                self.send_response(lookup.status if parts.path == "/lookup" else 404)
                self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Answerer

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
