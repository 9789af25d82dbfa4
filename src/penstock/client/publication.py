"""Pending publishes and the connection they are sent on.

    publish -> Publication -> Pipe: PUB PUB PUB ... -> OK OK OK      responses come in order

Rule 1: a pipe's responses belong to its publications in the order they were sent.
Rule 2: a publication is settled once: stored, refused, or of unknown outcome.
Rule 3: after an error nsqd executes nothing more, so later publications were not stored; when a
        connection is lost without an error, all pending ones are of unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.client.connection import Connection, refusal
from penstock.client.message import Message
from penstock.core.frames import Reply
from penstock.core.publisher import Publication, answer, mpub
from penstock.errors import ClientError, RefusedError
from penstock.wire import commands
from penstock.wire.names import is_valid_name

log = logging.getLogger("penstock.client")

HEADS_MAX = 4096
_SIZE = struct.Struct(">i").pack


class Publisher(Protocol):
    """Callbacks of a pipe."""

    def stored(self, size: int) -> None:
        """Publications of ``size`` bytes in total were stored; their futures are done."""

    def refused(self, publication: Publication, error: RefusedError) -> None: ...

    def unanswered(self, pipe: Pipe, error: Exception | None) -> None:
        """The pipe was closed; its publications are in ``pipe.pending``."""


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
        size, other = answer(self.pending, replies)
        if size:
            self._publisher.stored(size)
        if other is None and not messages:
            return
        if other is not None and other.error and self.pending:
            self.ended = True
            self._publisher.refused(self.pending.popleft(), refusal(other.text))
            self.connection.abort()
        else:
            text = messages[0].body if other is None else other.text
            self.connection.abort(ClientError(f"{self.address}: unexpected {text[:80]!r}"))

    def lost(self, error: Exception | None) -> None:
        self._publisher.unanswered(self, error)

    def overdue(self, now_s: float, timeout_s: float) -> bool:
        return bool(self.pending) and now_s - self.pending[0].sent_s > timeout_s


class Encoder:
    """Encodes publish commands; refuses invalid ones with nsqd's texts.

    If nsqd refused one, it would close the connection and drop everything after it in the pipe.
    """

    def __init__(self) -> None:
        self.heads: dict[str, bytes] = {}

    def head(self, topic: str) -> bytes:
        """Return ``PUB <topic>\\n``; raises RefusedError if the topic is invalid."""
        head = self.heads.get(topic)
        if head is None:
            if not isinstance(topic, str):
                raise TypeError(f"a topic must be a str, not {type(topic).__name__}")
            if not is_valid_name(topic):
                raise RefusedError("E_BAD_TOPIC", f'PUB topic name "{topic}" is not valid')
            if len(self.heads) >= HEADS_MAX:
                self.heads.clear()
            head = self.heads[topic] = f"PUB {topic}\n".encode()
        return head

    def one(self, topic: str, body: bytes) -> bytes:
        return self.head(topic) + _SIZE(len(body)) + body

    def deferred(self, topic: str, delay_ms: int, body: bytes) -> bytes:
        self.head(topic)
        return commands.dpub(topic, delay_ms, body)

    def many(self, topic: str, bodies: Iterable[bytes | bytearray | memoryview]) -> bytes:
        return mpub(b"M" + self.head(topic), bodies)


def checked(body: bytes | bytearray | memoryview) -> bytes:
    """Return ``body`` as bytes; raises RefusedError if it is empty."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        # bytes(5) would be five zeros, and bytes("a") an error about encodings.
        hint = ": encode it, as in body.encode()" if isinstance(body, str) else ""
        raise TypeError(f"a body must be bytes, not {type(body).__name__}{hint}")
    if not len(body):
        raise RefusedError("E_BAD_MESSAGE", "PUB invalid message body size 0")
    return bytes(body)


class Gathering:
    """Messages of one topic that will be sent in one MPUB."""

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
