"""A small HTTP/1.1 client for the requests a daemon makes itself: one a connection, all bounded.
`http_pool.py` is for many requests to the same servers.

httptools, which reads the requests of our servers, reads the answers here; a client library would
double the time nsqd takes to start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any
from urllib.parse import urlsplit

import httptools

from penstock.errors import PenstockError
from penstock.record import record

BODY_SIZE_MAX = 1 << 20
HEAD_SIZE_MAX = 64 << 10
_READ_SIZE = 64 << 10
_CONTROL = re.compile(r"[\x00-\x1f]")


class HttpClientError(PenstockError):
    """No answer: unreachable, too slow, or not HTTP."""


@record
class Timeouts:
    """Limits in seconds: to connect, and for everything together."""

    connect_s: float
    request_s: float


@dataclass(slots=True)
class Answer:
    """What came back; ``headers`` by lower-case name."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def fetch(
    url: str,
    timeouts: Timeouts,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: SSLContext | None = None,
    body_size_max: int = BODY_SIZE_MAX,
    incoming: Incoming | None = None,
) -> Answer:
    """Make one request and return its answer, whatever its status.  Raises HttpClientError.

    ``incoming`` takes the answer, for callers with further limits.
    """
    incoming = incoming or Incoming(method == "HEAD", body_size_max)
    try:
        async with asyncio.timeout(timeouts.request_s):
            return await _fetch(url, timeouts, method, headers or {}, body, tls, incoming)
    except TimeoutError:
        raise HttpClientError(f"{origin_of(url)}: timed out") from None
    except (OSError, SSLError, httptools.HttpParserError, ValueError) as error:
        raise HttpClientError(f"{origin_of(url)}: {error}") from error
    finally:
        incoming.release()


async def _fetch(
    url: str,
    timeouts: Timeouts,
    method: str,
    headers: Mapping[str, str],
    body: bytes,
    tls: SSLContext | None,
    incoming: Incoming,
) -> Answer:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http or https address")
    port = parts.port or (443 if secure else 80)
    async with asyncio.timeout(timeouts.connect_s):
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, ssl=tls if secure else None
        )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        writer.write(request_bytes(method, target, host, headers, body))
        while not incoming.complete:
            data = await reader.read(_READ_SIZE)
            if not data:
                incoming.end()
                break
            incoming.feed(data)
        return incoming.answer
    finally:
        writer.transport.abort()


def request_bytes(
    method: str,
    target: str,
    host: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    stays: bool = False,
) -> bytes:
    """A request; with ``stays`` the connection may be used again after the answer."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    if not stays:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join((*lines, "", ""))
    if _CONTROL.search(target) or _CONTROL.search(host):
        raise ValueError("control characters in the address")
    return head.encode("latin-1") + body


def origin_of(url: str) -> str:
    """Scheme and host: the rest may hold secrets and does not belong into a log."""
    return url.partition("?")[0]


class Incoming:
    """An answer as it arrives; the ``on_*`` methods are httptools' callbacks."""

    def __init__(self, head_only: bool, body_size_max: int = BODY_SIZE_MAX) -> None:
        self.answer = Answer()
        self.complete = False
        self._head_only = head_only
        self._body_size_max = body_size_max
        self._parser: Any = httptools.HttpResponseParser(self)
        self._head_done = False
        self._head_size = 0
        self.stays = False  # the server keeps the connection open behind its answer
        self._body: list[bytes] = []
        self._body_size = 0

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if not self._head_done:
            self._head_size += len(data)
            if self._head_size > HEAD_SIZE_MAX:
                raise ValueError("head too big")

    def end(self) -> None:
        """The server has closed; without a length that is how a body ends."""
        sized = {"content-length", "transfer-encoding"} & self.answer.headers.keys()
        if not self._head_done or sized:
            raise ValueError("closed before the end of its answer")
        self.on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._head_done = True
            self.answer.status = status
            self.complete = self._head_only
        else:
            self.answer.headers.clear()

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > self._body_size_max:
            raise ValueError("body too big")
        self._body.append(data)

    def forget_body(self) -> None:
        """Let go of what has come of the body."""
        self._body.clear()

    def release(self) -> None:
        """Nothing more comes.  The parser refers back, and would keep the body until it is found
        by the garbage collector, which daemons let run rarely.
        """
        self._parser = None
        self._body.clear()

    def on_message_complete(self) -> None:
        if self._head_done and not self.complete:
            self.answer.body = b"".join(self._body)
            self.stays = bool(self._parser.should_keep_alive())
            self.complete = True
