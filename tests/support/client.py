"""A small V2 client on a blocking socket, for tests of deliveries.

    with Client.of(nsqd, heartbeat_interval=1000) as consumer:      # fields of IDENTIFY
        consumer.sub("orders", "email", ready=10)
        message = consumer.message()
        consumer.fin(message)

Messages, replies and heartbeats are interleaved on the wire; here each kind has its own queue, so
that a test can wait for one kind.  Heartbeats are answered with NOP unless ``answers`` is off.
Every wait has a limit.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from penstock.core.frames import FrameReader, Message, Reply
from penstock.wire import commands
from tests.support.daemon import Nsqd

WAIT_SECONDS_MAX = 30.0
RECEIVE_SIZE = 1 << 18
HEARTBEAT = b"_heartbeat_"


class Client:
    """One connection; by itself it sends only the magic."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(WAIT_SECONDS_MAX)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, WAIT_SECONDS_MAX)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = True
        self.heartbeat_times_s: list[float] = []
        self.closed_s: float | None = None
        self._reader = FrameReader()
        self._messages: deque[Message] = deque()
        self._replies: deque[Reply] = deque()
        self.send(commands.MAGIC_V2)

    @classmethod
    def of(cls, nsqd: Nsqd, **fields: object) -> Self:
        """A client of ``nsqd``, identified if any fields are given."""
        client = cls(("127.0.0.1", nsqd.tcp_port))
        if fields:
            client.identify(**fields)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    # Commands

    def send(self, *parts: bytes) -> None:
        self.sock.sendall(b"".join(parts))

    def command(self, *parts: bytes) -> bytes:
        """Send and return the text of the reply, which must not be an error."""
        self.send(*parts)
        reply = self.reply()
        assert not reply.error, reply
        return reply.text

    def identify(self, **fields: object) -> Any:
        return json.loads(self.command(commands.identify({"feature_negotiation": True, **fields})))

    def sub(self, topic: str, channel: str, ready: int = 0) -> Self:
        assert self.command(commands.sub(topic, channel)) == b"OK"
        if ready:
            self.rdy(ready)
        return self

    def pub(self, topic: str, *bodies: bytes) -> None:
        """PUB each body, pipelined."""
        self.send(*(commands.pub(topic, body) for body in bodies))
        for _ in bodies:
            assert self.reply().text == b"OK"

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        assert self.command(commands.mpub(topic, bodies)) == b"OK"

    def dpub(self, topic: str, delay_ms: int, body: bytes) -> None:
        assert self.command(commands.dpub(topic, delay_ms, body)) == b"OK"

    def rdy(self, count: int) -> None:
        self.send(commands.rdy(count))

    def fin(self, *messages: Message) -> None:
        self.send(*(commands.fin(message.id) for message in messages))

    def req(self, message: Message, delay_ms: int = 0) -> None:
        self.send(commands.req(message.id, delay_ms))

    def touch(self, message: Message) -> None:
        self.send(commands.touch(message.id))

    def begin_close(self) -> None:
        assert self.command(commands.cls()) == b"CLOSE_WAIT"

    def settle(self) -> None:
        """Wait until all commands sent so far are executed, by the error of an unknown FIN."""
        self.send(commands.fin(b"0" * 16))
        reply = self.reply()
        assert reply.text == b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight", reply

    # Frames

    def message(self, timeout_s: float = WAIT_SECONDS_MAX) -> Message:
        """The next message."""
        if not self._receive_until(lambda: bool(self._messages), timeout_s):
            raise AssertionError(f"no message in {timeout_s} s; {self._state()}")
        return self._messages.popleft()

    def messages(self, count: int, timeout_s: float = WAIT_SECONDS_MAX) -> list[Message]:
        """The next ``count`` messages; together they may take ``timeout_s``."""
        if not self._receive_until(lambda: len(self._messages) >= count, timeout_s):
            raise AssertionError(f"not {count} messages in {timeout_s} s; {self._state()}")
        return [self._messages.popleft() for _ in range(count)]

    def finish_all(self, count: int, timeout_s: float = WAIT_SECONDS_MAX) -> list[Message]:
        """Finish messages as they arrive until there were ``count``."""
        taken: list[Message] = []
        deadline_s = time.monotonic() + timeout_s
        while len(taken) < count:
            left_s = deadline_s - time.monotonic()
            if not self._receive_until(lambda: bool(self._messages), max(0.0, left_s)):
                raise AssertionError(f"{len(taken)} of {count} messages; {self._state()}")
            self.fin(*self._messages)
            taken += self._messages
            self._messages.clear()
        return taken

    def arrived(self, seconds: float, count: int | None = None) -> list[Message]:
        """The messages that arrive in ``seconds``; with ``count``, return after that many."""
        self._receive_until(lambda: count is not None and len(self._messages) >= count, seconds)
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def quiet(self, seconds: float) -> bool:
        """Whether no message arrives for ``seconds``; heartbeats are answered meanwhile."""
        return not self._receive_until(lambda: bool(self._messages), seconds)

    def reply(self, timeout_s: float = WAIT_SECONDS_MAX) -> Reply:
        """The next response or error that is not a heartbeat."""
        if not self._receive_until(lambda: bool(self._replies), timeout_s):
            raise AssertionError(f"no reply in {timeout_s} s; {self._state()}")
        return self._replies.popleft()

    def error(self, timeout_s: float = WAIT_SECONDS_MAX) -> str:
        """The next reply, which must be an error."""
        reply = self.reply(timeout_s)
        assert reply.error, reply
        return reply.text.decode()

    def heartbeat(self, timeout_s: float = WAIT_SECONDS_MAX) -> float:
        """Wait for one more heartbeat and return the time of its arrival (monotonic)."""
        count = len(self.heartbeat_times_s)
        if not self._receive_until(lambda: len(self.heartbeat_times_s) > count, timeout_s):
            raise AssertionError(f"no heartbeat in {timeout_s} s; {self._state()}")
        return self.heartbeat_times_s[count]

    def wait_closed(self, timeout_s: float = WAIT_SECONDS_MAX) -> float:
        """Wait until the peer has closed and return the time (monotonic)."""
        self._receive_until(lambda: self.closed_s is not None, timeout_s)
        if self.closed_s is None:
            raise AssertionError(f"not closed in {timeout_s} s; {self._state()}")
        return self.closed_s

    def _state(self) -> str:
        return f"messages: {list(self._messages)[:3]}, replies: {list(self._replies)[:3]}"

    def _receive_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Receive until ``reached``; False after the timeout or if the peer closed."""
        deadline_s = time.monotonic() + timeout_s
        while not reached():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self.closed_s is not None:
                return False
            self.sock.settimeout(left_s)
            try:
                data = self.sock.recv(RECEIVE_SIZE)
            except TimeoutError:
                return False
            except ConnectionResetError:
                data = b""
            finally:
                self.sock.settimeout(WAIT_SECONDS_MAX)
            if not data:
                self.closed_s = time.monotonic()
            self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if isinstance(frame, Message):
                self._messages.append(frame)
            elif frame.text != HEARTBEAT:
                self._replies.append(frame)
            else:
                self.heartbeat_times_s.append(time.monotonic())
                if self.answers:
                    self._answer()

    def _answer(self) -> None:
        # The peer may be closing; what it sent before must still be read.
        try:
            self.send(commands.NOP)
        except (BrokenPipeError, ConnectionResetError):
            self.closed_s = time.monotonic()


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    """Publish ``bodies`` over a new connection."""
    with Client.of(nsqd) as producer:
        if len(bodies) == 1:
            producer.pub(topic, *bodies)
        else:
            producer.mpub(topic, bodies)
