"""An HTTP server that gives every request the same response, and records the requests."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

Answer = tuple[int, bytes, str]

SECONDS_MAX = 10.0


@dataclass(frozen=True)
class HttpRequest:
    """A received request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        return urlsplit(self.target).query


class Endpoint:
    """Listens on a port of 127.0.0.1 while entered; ``answer`` may be changed at any time."""

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        kind: str = "text/plain",
        tls: SSLContext | None = None,
    ) -> None:
        self.answer: Answer = (status, body, kind)
        self.requests: list[HttpRequest] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._answerer())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.port = int(self._server.server_address[1])
        self.url = f"http{'s' if tls is not None else ''}://127.0.0.1:{self.port}"

    def respond(self, request: HttpRequest) -> Answer:
        """The response; subclasses may override it."""
        return self.answer

    def wait(self, count: int) -> list[HttpRequest]:
        """The requests, when there are ``count`` of them."""
        deadline_s = time.monotonic() + SECONDS_MAX
        with self._changed:
            while len(self.requests) < count:
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"{len(self.requests)} requests instead of {count}"
                self._changed.wait(left_s)
            return list(self.requests)

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
        self._thread.join(SECONDS_MAX)

    def _answerer(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Answerer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = HttpRequest(self.command, self.path, headers, self.rfile.read(size))
                with endpoint._changed:  # before the response, to keep the order
                    endpoint.requests.append(request)
                    endpoint._changed.notify_all()
                status, body, kind = endpoint.respond(request)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Answerer
