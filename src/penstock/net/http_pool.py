"""HTTP/1.1 requests over connections that stay open, for whoever makes many to the same servers.

    fetch -> an idle connection to that server, or a new one -> request -> answer -> idle again

Rule 1: a connection has one request at a time.  Who needs more at once gets more connections, so
        the caller's own limit is theirs.
Rule 2: a server may close a connection it has seen idle just when the next request leaves.  A
        request that meets this, before a byte of its answer, is sent again on another connection.
Rule 3: idle connections are bounded in number and in time, answers in size, requests in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from ssl import SSLContext, SSLError
from typing import cast
from urllib.parse import urlsplit

import httptools

from penstock.net.http_client import (
    Answer,
    HttpClientError,
    Incoming,
    Timeouts,
    origin_of,
    request_bytes,
)

# Less than the minute or more that servers usually wait.
IDLE_S = 30.0

Place = tuple[str, int, bool]  # host, port, whether TLS


class Lost(Exception):
    """The connection ended before a byte of the answer."""


class HttpPool:
    """Connections to any number of servers; ``idle_count_max`` are kept for each."""

    def __init__(
        self, timeouts: Timeouts, tls: Callable[[], SSLContext], idle_count_max: int
    ) -> None:
        self._timeouts = timeouts
        self._tls = tls
        self._idle_count_max = idle_count_max
        # The last one used is the first one taken, so that those not needed fall out of use.
        self._idle: dict[Place, list[_Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.opened = 0

    async def fetch(
        self, url: str, *, method: str = "GET", headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Make a request and return its answer, whatever its status.  Raises HttpClientError."""
        try:
            parts = urlsplit(url)
            secure = parts.scheme == "https"
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not an http or https address")
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            host = parts.netloc.rpartition("@")[2]
            request = request_bytes(method, target, host, headers, body, stays=True)
            place = (parts.hostname, parts.port or (443 if secure else 80), secure)
            async with asyncio.timeout(self._timeouts.request_s):
                return await self._ask(place, request, method == "HEAD")
        except TimeoutError:
            raise HttpClientError(f"{origin_of(url)}: timed out") from None
        except (OSError, SSLError, httptools.HttpParserError, ValueError, Lost) as error:
            raise HttpClientError(f"{origin_of(url)}: {error}") from error

    async def close(self) -> None:
        """Close what is idle; requests must have ended."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    async def _ask(self, place: Place, request: bytes, head_only: bool) -> Answer:
        while True:
            connection = self._take(place)
            # Each round uses up an idle connection, and a new one is not tried twice.
            used = connection is not None
            if connection is None:
                connection = await self._connect(place)
            try:
                answer = await connection.ask(request, head_only)
            except Lost:
                if not used:
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
        async with asyncio.timeout(self._timeouts.connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), host, port, ssl=self._tls() if secure else None
            )
        self.opened += 1
        return connection

    def _put(self, place: Place, connection: _Connection) -> None:
        idle = self._idle.setdefault(place, [])
        if len(idle) >= self._idle_count_max:
            connection.abort()
            return
        connection.idle_since_s = connection.loop.time()
        idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_S / 2, self._look, connection.loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
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
        self._sweep = loop.call_later(IDLE_S / 2, self._look, loop) if self._idle else None


class _Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended = False
        self.stays = False  # after the last answer
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._incoming: Incoming | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._heard = False

    async def ask(self, request: bytes, head_only: bool) -> Answer:
        """Send a request and return its answer; Lost if nothing of it came."""
        if self.ended or self._transport is None:
            raise Lost("closed")
        self._incoming = Incoming(head_only)
        self._heard = self.stays = False
        self._waiter = self.loop.create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None
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
            # Nobody asked.
            self.abort()
            return
        self._heard = True
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
        if not self._heard:
            waiter.set_exception(Lost(str(error or "closed without an answer")))
            return
        with suppress(ValueError):
            incoming.end()
            waiter.set_result(incoming.answer)
            return
        waiter.set_exception(ConnectionResetError("closed before the end of its answer"))
