"""An HttpServer on a loop in a thread of its own, and a raw client for it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from penstock.net.http_router import Router
from penstock.net.http_server import HttpLimits, HttpServer

T = TypeVar("T")
SECONDS_MAX = 10.0


class Harness:
    """Serves ``router`` while entered; ``on_loop`` runs a function where the server lives."""

    def __init__(self, router: Router, limits: HttpLimits | None = None) -> None:
        self.server = HttpServer(router, limits)
        self.errors: list[dict[str, Any]] = []
        self.port = 0
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self.wait(self.server.listen("127.0.0.1", 0))[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wait(self.server.close(0.2))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()
        # An exception in the loop fails the test.
        assert not self.errors

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result(SECONDS_MAX)

    def on_loop(self, function: Callable[..., T], *arguments: Any) -> T:
        async def run() -> T:
            return function(*arguments)

        result: T = self.wait(run())
        return result

    def connect(self) -> RawHttp:
        return RawHttp(self.port)

    def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own."""
        with self.connect() as raw:
            raw.send(data)
            return raw.answer()


class RawHttp:
    """Bytes out, answers in."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the next answer."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        raw_head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = raw_head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1."), first
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, line
            headers[name.lower()] = value
        size = 0 if head else int(headers.get("content-length", "0"))
        while len(self._buffer) < size:
            self._more()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return int(first.split(" ")[1]), headers, body

    def closed(self) -> bool:
        """Whether the server closes without anything more."""
        if self._buffer:
            return False
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def silent(self, seconds: float) -> bool:
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
            return False
        except TimeoutError:
            return not self._buffer
        finally:
            self.sock.settimeout(SECONDS_MAX)

    def _more(self) -> None:
        chunk = self.sock.recv(65536)
        if not chunk:
            raise EOFError(f"closed after {self._buffer!r}")
        self._buffer += chunk


def get(target: str, *headers: str, version: str = "1.1") -> bytes:
    return request("GET", target, b"", *headers, version=version)


def post(target: str, body: bytes = b"", *headers: str) -> bytes:
    return request("POST", target, body, f"Content-Length: {len(body)}", *headers)


def request(method: str, target: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: x", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
