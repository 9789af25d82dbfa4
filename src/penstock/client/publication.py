"""One publish on its way, and the connection it is on.

    publish -> Publication -> Pipe: PUB PUB PUB ... -> OK OK OK      answers come in order

Rule 1: a pipe's answers belong to its publications in the order they were sent.
Rule 2: a publication is settled once: stored, refused, or of unknown outcome.
Rule 3: behind an error nsqd executes nothing more, so those publications were surely not stored;
        when a connection is just lost, all unanswered ones are of unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.client.connection import Connection, refusal
from penstock.client.message import Message
from penstock.core.frames import Reply
from penstock.errors import ClientError, RefusedError
from penstock.wire import commands
from penstock.wire.names import is_valid_name

log = logging.getLogger("penstock.client")

HEADS_MAX = 4096
_SIZE = struct.Struct(">i").pack


class Publication:
    """A command, and those who wait for its answer."""

    __slots__ = ("begun_s", "command", "futures", "retries", "sent_s", "size", "unknown")

    def __init__(
        self,
        command: bytes,
        size: int,
        futures: Sequence[asyncio.Future[None]],
        retries: int,
        begun_s: float,
    ) -> None:
        self.command = command
        self.size = size
        self.futures = futures
        self.retries = retries
        self.begun_s = begun_s
        self.sent_s = begun_s
        self.unknown = False  # an earlier try may have been stored

    def settle(self) -> None:
        """It is stored.  A future that is done already is one whose waiter was cancelled."""
        for future in self.futures:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


class Publisher(Protocol):
    """What a pipe reports to."""

    def stored(self, publications: Sequence[Publication]) -> None: ...

    def refused(self, publication: Publication, error: RefusedError) -> None: ...

    def unanswered(self, pipe: Pipe, error: Exception | None) -> None:
        """The pipe is at its end; what it had is in ``pipe.pending``."""


class Pipe:
    """A connection that publishes."""

    def __init__(self, publisher: Publisher, connection: Connection) -> None:
        self.connection = connection
        self.address = connection.address
        self.pending: deque[Publication] = deque()
        self.ended = False  # nsqd refused something: it executes nothing more
        self._publisher = publisher

    def write(self, publication: Publication, now_s: float) -> None:
        publication.sent_s = now_s
        self.pending.append(publication)
        self.connection.send(publication.command)

    def received(self, messages: list[Message], replies: list[Reply]) -> None:
        stored: list[Publication] = []
        for reply in replies:
            if not self.pending or messages:
                self.connection.abort(
                    ClientError(f"{self.address}: unexpected {reply.text[:80]!r}")
                )
                break
            publication = self.pending.popleft()
            if reply.error:
                self.ended = True
                self._publisher.refused(publication, refusal(reply.text))
                self.connection.abort()
                break
            stored.append(publication)
        if stored:
            self._publisher.stored(stored)

    def lost(self, error: Exception | None) -> None:
        self._publisher.unanswered(self, error)

    def overdue(self, now_s: float, timeout_s: float) -> bool:
        return bool(self.pending) and now_s - self.pending[0].sent_s > timeout_s


class Encoder:
    """Publish commands; what nsqd would refuse for its form is refused here, in its words.

    On the wire such a refusal costs the connection and everything behind it in the pipe.
    """

    def __init__(self) -> None:
        self._heads: dict[str, bytes] = {}

    def head(self, topic: str) -> bytes:
        """``PUB <topic>\\n``, of a valid topic."""
        head = self._heads.get(topic)
        if head is None:
            if not is_valid_name(topic):
                raise RefusedError("E_BAD_TOPIC", f'PUB topic name "{topic}" is not valid')
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[topic] = f"PUB {topic}\n".encode()
        return head

    def one(self, topic: str, body: bytes) -> bytes:
        return (self._heads.get(topic) or self.head(topic)) + _SIZE(len(body)) + body

    def deferred(self, topic: str, delay_ms: int, body: bytes) -> bytes:
        self.head(topic)
        return commands.dpub(topic, delay_ms, body)

    def many(self, topic: str, bodies: Sequence[bytes]) -> bytes:
        parts = [b"M" + self.head(topic), b"", _SIZE(len(bodies))]
        for body in bodies:
            parts += (_SIZE(len(body)), body)
        parts[1] = _SIZE(sum(map(len, parts)) - len(parts[0]))
        return b"".join(parts)


def checked(body: bytes | bytearray | memoryview) -> bytes:
    """``body`` as bytes; nsqd has no empty messages."""
    if not body:
        raise RefusedError("E_BAD_MESSAGE", "PUB invalid message body size 0")
    return bytes(body)


class Gathering:
    """Messages of one topic that will go out in one MPUB."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_s: float, due: Callable[[], None]):
        self.bodies: list[bytes] = []
        self.futures: list[asyncio.Future[None]] = []
        self.size = 0
        self._timer = loop.call_later(wait_s, due)

    def add(self, body: bytes, future: asyncio.Future[None]) -> None:
        self.bodies.append(body)
        self.futures.append(future)
        self.size += len(body) + 4

    def end(self) -> None:
        self._timer.cancel()
