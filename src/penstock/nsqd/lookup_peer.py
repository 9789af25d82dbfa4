"""nsqd's connection to one nsqlookupd: identifies, registers topics and channels, sends PINGs.

    connect -> IDENTIFY -> REGISTER everything -> changes as they come, PING every 15 s
       ^                                              |
       +---- wait, longer each time up to 8 s <-------+ lost, silent for 1 s, or an error

NSQ reconnects when it next has something to send, after at most 15 s; here a lost connection is
noticed at once and reopened.

Rule 1: changes are sent in the order they happened, after everything that existed at IDENTIFY.
Rule 2: everything is limited: a batch, a reply, the time for each, and pending changes.  With too
        many of them it reconnects, since a new connection needs none of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from ssl import SSLContext
from typing import Any

from penstock.errors import PenstockError, ProtocolError
from penstock.wire.address import join_address, split_address
from penstock.wire.lookup import (
    MAGIC,
    OK,
    Identity,
    Place,
    ReplyReader,
    decode_place,
    encode_identify,
)

log = logging.getLogger(__name__)

# NSQ's limits for connecting, reading and writing, each.
TIMEOUT_S = 1.0
# To connect with TLS: the handshake needs CPU and two more round trips.
TLS_TIMEOUT_S = 5.0
PING_INTERVAL_S = 15.0
RETRY_MIN_S = 0.2
RETRY_MAX_S = 8.0
# Commands sent before waiting for their replies.
BATCH_COUNT = 256
CHANGE_COUNT_MAX = 100_000

# nsqlookupd's reply to a name beyond its limits; the connection stays open.
LIMITED = b"E_LIMIT REGISTER"

_PING = b"PING\n"


class LookupPeer:
    """One address; ``snapshot`` returns the commands that register all topics and channels."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Identity],
        snapshot: Callable[[], Iterator[bytes]],
        reply_size_max: int,
        tls: Callable[[], SSLContext | None] = lambda: None,
    ) -> None:
        self.address = address
        # Its HTTP address, from the reply to IDENTIFY; kept when the connection is lost.
        self.http_url = ""
        self.tried = asyncio.Event()  # the first attempt to connect has succeeded or failed
        self._identity = identity
        self._snapshot = snapshot
        self._reply_size_max = reply_size_max
        self._tls = tls
        self._changes: deque[bytes] = deque()
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._complaint = ""
        self._limit_logged = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Disconnect; nsqlookupd then removes this node."""
        if self._task is not None:
            self._task.cancel()
        self.tried.set()

    def change(self, command: bytes) -> None:
        """Send a change; without a connection do nothing: a snapshot will include it."""
        link = self._link
        if link is None:
            return
        if len(self._changes) >= CHANGE_COUNT_MAX:
            self._link = None
            link.fail(ProtocolError("E_OVERFLOW", f"{CHANGE_COUNT_MAX} changes wait, reconnecting"))
            return
        self._changes.append(command)
        link.wake()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failure_count = 0
        while True:
            started_s = loop.time()
            try:
                await self._session()
            except (OSError, PenstockError, ValueError) as error:
                self._complain(error)
            finally:
                self._link = None
            if loop.time() - started_s > RETRY_MAX_S:
                failure_count = 0
            self.tried.set()
            await asyncio.sleep(retry_delay_s(failure_count, random.random()))
            failure_count += 1

    def _complain(self, error: Exception) -> None:
        """Log a failure once, however often it repeats."""
        complaint = str(error) or f"no answer within {TIMEOUT_S:g} s"
        level = logging.DEBUG if complaint == self._complaint else logging.ERROR
        self._complaint = complaint
        log.log(level, "lookupd=%s: %s", self.address, complaint)

    async def _session(self) -> None:
        """One connection, until an exception ends it."""
        link = await self._connect()
        try:
            (reply,) = await link.request([MAGIC + encode_identify(self._identity())])
            self.http_url = self._http_url(decode_place(reply))
            await self._register(link)
            await self._follow(link)
        finally:
            link.abort()

    def _http_url(self, place: Place) -> str:
        """The URL for queries; empty if there is none, or none with TLS when that is required."""
        secure = self._tls() is not None
        port = place.https_port if secure else place.http_port
        if not place.host or not port:
            return ""
        return f"{'https' if secure else 'http'}://{join_address(place.host, port)}"

    async def _connect(self) -> _Link:
        host, port = split_address(self.address)
        link = _Link(ReplyReader(self._reply_size_max))
        loop = asyncio.get_running_loop()
        tls = self._tls()
        async with asyncio.timeout(TIMEOUT_S if tls is None else TLS_TIMEOUT_S):
            if port is None:
                await loop.create_unix_connection(lambda: link, host)
            else:
                await loop.create_connection(lambda: link, host, port, ssl=tls)
        return link

    async def _register(self, link: _Link) -> None:
        # From here on changes are queued; the snapshot has everything before.
        self._changes.clear()
        self._link = link
        commands = self._snapshot()
        count = 0
        while batch := list(islice(commands, BATCH_COUNT)):
            await self._send(link, batch)
            count += len(batch)
        log.info("lookupd=%s: connected, %d names registered", self.address, count)
        self._complaint = ""
        self.tried.set()

    async def _follow(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        ping_s = loop.time() + PING_INTERVAL_S
        while True:
            if not self._changes:
                await link.wait(ping_s - loop.time())
            count = min(BATCH_COUNT, len(self._changes))
            batch = [self._changes.popleft() for _ in range(count)]
            # nsqlookupd counts only PINGs, so they are sent between changes too.
            if loop.time() >= ping_s:
                ping_s = loop.time() + PING_INTERVAL_S
                batch.append(_PING)
            await self._send(link, batch)

    def _limited(self, reply: bytes) -> None:
        """Consumers cannot find this name there; reconnecting would not help."""
        if not self._limit_logged:
            self._limit_logged = True
            text = reply[:200].decode("utf-8", "replace")
            log.error("lookupd=%s: accepts no more names: %s", self.address, text)

    async def _send(self, link: _Link, batch: list[bytes]) -> None:
        for command, reply in zip(batch, await link.request(batch), strict=True):
            if reply.startswith(LIMITED):
                self._limited(reply)
            elif reply != OK:
                what = command.decode("utf-8", "replace").strip()
                answer = reply[:200].decode("utf-8", "replace")
                raise ProtocolError("E_REFUSED", f"{what}: {answer}")


def retry_delay_s(failure_count: int, chance: float) -> float:
    """Delay before the next attempt; ``chance`` in 0..1 is jitter that spreads many nodes."""
    longest_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(failure_count, 30))
    return longest_s * (0.5 + 0.5 * chance)


class _Link(asyncio.Protocol):
    """Sends commands and receives replies; waiting calls fail at once if the connection is lost."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader
        self._transport: Any = None
        self._replies: list[bytes] = []
        self._expected_count = 0
        self._error: Exception | None = None
        self._event = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.fail(exc or ConnectionResetError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        try:
            self._replies += self._reader.feed(data)
        except ProtocolError as error:
            self.fail(error)
        if len(self._replies) > self._expected_count:
            self.fail(ProtocolError("E_BAD_BODY", "a reply without a command"))
        self._event.set()

    def wake(self) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Fail the current or next wait with ``error``; the first error counts."""
        if self._error is None:
            self._error = error
        self._event.set()
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def request(self, commands: list[bytes]) -> list[bytes]:
        """Send commands and return their replies; each may take TIMEOUT_S."""
        if self._transport is not None:
            self._transport.write(b"".join(commands))
        self._replies = []
        self._expected_count = len(commands)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S) as limit:
            while self._error is None and len(self._replies) < self._expected_count:
                count = len(self._replies)
                await self._next_event()
                if len(self._replies) > count:
                    limit.reschedule(loop.time() + TIMEOUT_S)
        replies, self._replies, self._expected_count = self._replies, [], 0
        if len(replies) < len(commands):
            assert self._error is not None
            # An error reply precedes the end of the connection, and is more specific.
            if replies and replies[-1] != OK:
                raise ProtocolError("E_REFUSED", replies[-1][:200].decode("utf-8", "replace"))
            raise self._error
        return replies

    async def wait(self, timeout_s: float) -> None:
        """Wait for wake(), at most ``timeout_s``; raises if the connection is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                if self._error is None:
                    await self._next_event()
        if self._error is not None:
            raise self._error

    async def _next_event(self) -> None:
        self._event.clear()
        await self._event.wait()
