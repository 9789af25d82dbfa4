"""HTTP/1.1 requests on the loop: the client of daemons, tools and consumers, bounded throughout.

    fetch -> an idle connection to that server, or a new one -> request -> answer -> idle again

Rule 1: a connection has one request at a time.  A caller that sends more at once gets more
        connections, so its own limit applies.
Rule 2: a server may close an idle connection just when the next request is sent.  A request that
        fails this way, before a byte of its answer, is retried on another connection.
Rule 3: idle connections are bounded in number and in time, answers in size, requests in time.

httptools, which reads the requests of our servers, reads the answers here; a client library would
double the time nsqd takes to start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any, Protocol, cast

import httptools

from penstock.errors import HttpClientError
from penstock.net.tls import client_context
from penstock.record import record
from penstock.wire.url import Url, parse_url

BODY_SIZE_MAX = 1 << 20
HEAD_SIZE_MAX = 64 << 10
# Less than the minute or more that servers usually wait.
IDLE_S = 30.0
_CONTROL = re.compile(r"[\x00-\x1f]")

Place = tuple[str, int, bool]  # host, port, whether TLS


class TimeoutOptions(Protocol):
    """The two flags of every program that makes requests."""

    @property
    def http_client_connect_timeout_ns(self) -> int: ...
    @property
    def http_client_request_timeout_ns(self) -> int: ...


@record
class Timeouts:
    """Limits in seconds: to connect, and for everything together."""

    connect_s: float
    request_s: float

    @staticmethod
    def of(options: TimeoutOptions) -> Timeouts:
        return Timeouts(
            options.http_client_connect_timeout_ns / 1e9,
            options.http_client_request_timeout_ns / 1e9,
        )


@dataclass(slots=True)
class Answer:
    """A response; ``headers`` by lower-case name."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpClient:
    """Makes requests to any number of servers; keeps ``idle_count_max`` connections to each."""

    def __init__(
        self,
        timeouts: Timeouts,
        tls: Callable[[], SSLContext | None] = lambda: None,
        idle_count_max: int = 0,
    ) -> None:
        self._timeouts = timeouts
        self._tls = tls
        self._idle_count_max = idle_count_max
        # Last in, first out: connections that are not needed time out.
        self._idle: dict[Place, list[_Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        incoming: AnswerReader | None = None,
    ) -> Answer:
        """Make a request and return its answer, whatever its status.  Raises HttpClientError.

        ``incoming`` reads the answer, for callers with further limits.
        """
        incoming = incoming or AnswerReader(method == "HEAD")
        try:
            at = parse_url(url)
            stays = self._idle_count_max > 0
            request = request_bytes(method, at, headers or {}, body, stays=stays)
            async with asyncio.timeout(self._timeouts.request_s):
                return await self._ask((at.host, at.port, at.secure), request, incoming)
        except TimeoutError:
            raise HttpClientError(f"{origin_of(url)}: timed out") from None
        except (OSError, SSLError, httptools.HttpParserError, ValueError) as error:
            raise HttpClientError(f"{origin_of(url)}: {error}") from error
        finally:
            incoming.release()

    async def close(self) -> None:
        """Close what is idle; requests must have ended."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    async def _ask(self, place: Place, request: bytes, incoming: AnswerReader) -> Answer:
        while True:
            connection = self._take(place)
            # Each round uses up an idle connection, and a new one is not tried twice.
            used = connection is not None
            if connection is None:
                connection = await self._connect(place)
            try:
                answer = await connection.ask(request, incoming)
            except OSError:
                if not used or connection.answered:
                    raise
                continue
            if connection.stays:
                self._put(place, connection)
            return answer

    def _take(self, place: Place) -> _Connection | None:
        idle = self._idle.get(place, [])
        while idle:
            connection = idle.pop()
            if not connection.ended:
                return connection
        return None

    async def _connect(self, place: Place) -> _Connection:
        host, port, secure = place
        loop = asyncio.get_running_loop()
        tls = (self._tls() or client_context()) if secure else None
        async with asyncio.timeout(self._timeouts.connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), host, port, ssl=tls
            )
        return connection

    def _put(self, place: Place, connection: _Connection) -> None:
        idle = self._idle.setdefault(place, [])
        if len(idle) >= self._idle_count_max:
            connection.abort()
            return
        connection.idle_since_s = connection.loop.time()
        idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_S / 2, self._expire, connection.loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for too long."""
        before_s = loop.time() - IDLE_S
        for place, connections in list(self._idle.items()):
            kept = [each for each in connections if each.idle_since_s > before_s and not each.ended]
            for connection in connections:
                if connection not in kept:
                    connection.abort()
            if kept:
                self._idle[place] = kept
            else:
                del self._idle[place]
        self._sweep = loop.call_later(IDLE_S / 2, self._expire, loop) if self._idle else None


async def fetch(
    url: str,
    timeouts: Timeouts,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: SSLContext | None = None,
    incoming: AnswerReader | None = None,
) -> Answer:
    """`HttpClient.fetch` on a connection of its own."""
    client = HttpClient(timeouts, lambda: tls)
    return await client.fetch(url, method=method, headers=headers, body=body, incoming=incoming)


def request_bytes(
    method: str, url: Url, headers: Mapping[str, str], body: bytes, *, stays: bool = False
) -> bytes:
    """A request; with ``stays`` the connection may be used again after the answer."""
    lines = [f"{method} {url.target} HTTP/1.1", f"Host: {url.authority}"]
    if not stays:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join((*lines, "", ""))
    if _CONTROL.search(url.target) or _CONTROL.search(url.authority):
        raise ValueError("control characters in the address")
    return head.encode("latin-1") + body


def origin_of(url: str) -> str:
    """The URL without its query, which may contain secrets and must not be logged."""
    return url.partition("?")[0]


class _Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended = False
        self.stays = False  # after the last answer
        self.answered = False  # a byte of the answer was received
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._incoming: AnswerReader | None = None
        self._waiter: asyncio.Future[Answer] | None = None

    async def ask(self, request: bytes, incoming: AnswerReader) -> Answer:
        """Send a request and return its answer."""
        self.answered = self.stays = False
        if self.ended or self._transport is None:
            raise ConnectionResetError("closed")
        self._incoming = incoming
        self._waiter = self.loop.create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = self._incoming = None
            if not self.stays:
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        waiter, incoming = self._waiter, self._incoming
        if waiter is None or incoming is None or waiter.done():
            # No request is pending.
            self.abort()
            return
        self.answered = True
        try:
            incoming.feed(data)
        except (httptools.HttpParserError, ValueError) as error:
            waiter.set_exception(error)
            return
        if incoming.complete:
            self.stays = incoming.stays
            waiter.set_result(incoming.answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        waiter, incoming = self._waiter, self._incoming
        if waiter is None or incoming is None or waiter.done():
            return
        if not self.answered:
            waiter.set_exception(error or ConnectionResetError("closed without an answer"))
            return
        try:
            incoming.end()
            waiter.set_result(incoming.answer)
        except ValueError as unfinished:
            waiter.set_exception(error or unfinished)


class AnswerReader:
    """An answer as it arrives; the ``on_*`` methods are httptools' callbacks."""

    def __init__(self, head_only: bool, body_size_max: int = BODY_SIZE_MAX) -> None:
        self.answer = Answer()
        self.complete = False
        self._head_only = head_only
        self._body_size_max = body_size_max
        self._parser: Any = httptools.HttpResponseParser(self)
        self._head_done = False
        self._head_size = 0
        self.stays = False  # the server keeps the connection open after its answer
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
        """Drop what was received of the body."""
        self._body.clear()

    def release(self) -> None:
        """Break the reference cycle with the parser, which would keep the body until a garbage
        collection: daemons run those rarely.
        """
        self._parser = None
        self._body.clear()

    def on_message_complete(self) -> None:
        if self._head_done and not self.complete:
            self.answer.body = b"".join(self._body)
            self.stays = bool(self._parser.should_keep_alive())
            self.complete = True
