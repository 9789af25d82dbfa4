"""The workers of the load generator, which publish or consume at full speed or at a fixed rate.

The generator shares its cores with the server it measures, so it must be cheap: commands are
encoded once, sockets block in the kernel instead of in an event loop, and the compiled frame
reader turns a run of messages into one run of FINs.

Rule 1: every wait is bounded.  If a reply is due and the server sends nothing for
        ``SILENCE_SECONDS_MAX``, the run ends with an error.
Rule 2: workers do not communicate with each other; they share the `Board`, one row each.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import struct
import time
from array import array
from collections import Counter
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass
from typing import Any

from penstock.core.frames import FrameReader, Message, Reply
from penstock.errors import ProtocolError
from penstock.wire import commands

CONNECT_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 30.0
# The longest wait in the kernel before a worker checks whether it should stop.
WAIT_SECONDS = 0.25
# Large enough for a full ready count of 2500 small messages in a few reads.
RECEIVE_SIZE = 512 * 1024
# Finer than the latencies that matter, and still only 1,000 wake-ups per second.
PACE_SECONDS = 0.001

OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
STAMP_SIZE = 8

_STAMP = struct.Struct(">q")


@dataclass(frozen=True)
class Task:
    """The task of one worker.  ``messages`` is its share; 0 means run for ``seconds``."""

    kind: str
    host: str
    port: int
    topic: str
    channel: str
    size: int = 200
    batch: int = 1
    connections: int = 1
    window: int = 1
    messages: int = 0
    seconds: float = 0.0
    idle_seconds: float = 5.0
    rdy: int = 2500
    rate: float = 0.0
    output_buffer_size: int = 0
    output_buffer_timeout_ms: int = 0
    upgrade: str = ""


class Board:
    """The counters of all workers of a run, in shared memory.

        | stop | expected | count, size, first_ns, last_ns of worker 0 | .. of worker 1 | ..

    Each worker writes only its own row; the parent writes the first two cells.
    """

    HEAD, ROW = 2, 4

    def __init__(self, cells: MutableSequence[int], subscribers: tuple[int, ...]) -> None:
        self.cells = cells
        self.subscribers = subscribers

    @classmethod
    def cell_count(cls, workers: int) -> int:
        return cls.HEAD + cls.ROW * workers

    @property
    def stopped(self) -> bool:
        return self.cells[0] != 0

    def stop(self) -> None:
        self.cells[0] = 1

    def expect(self, count: int) -> None:
        """Subscribers end when together they have ``count`` messages; -1: not known yet."""
        self.cells[1] = count

    @property
    def complete(self) -> bool:
        expected = self.cells[1]
        return 0 <= expected <= sum(self.count(worker) for worker in self.subscribers)

    def count(self, worker: int) -> int:
        return self.cells[self.HEAD + self.ROW * worker]

    def row(self, worker: int) -> tuple[int, int, int, int]:
        at = self.HEAD + self.ROW * worker
        count, size, first_ns, last_ns = self.cells[at : at + self.ROW]
        return count, size, first_ns, last_ns

    def write(self, worker: int, count: int, size: int, first_ns: int, last_ns: int) -> None:
        at = self.HEAD + self.ROW * worker
        for place, value in enumerate((count, size, first_ns, last_ns)):
            self.cells[at + place] = value


class Histogram:
    """Times in buckets less than 1 % wide, so that memory is bounded for any number of samples."""

    PRECISION_BITS = 7

    def __init__(self, buckets: Iterable[tuple[int, int]] = ()) -> None:
        self.buckets: Counter[int] = Counter(dict(buckets))

    def add(self, value_ns: int) -> None:
        # A bucket's key is its upper end, so that a percentile is never too low.
        value_ns = max(0, value_ns)
        shift = max(0, value_ns.bit_length() - self.PRECISION_BITS)
        self.buckets[((value_ns >> shift) + 1 << shift) - 1] += 1

    def merge(self, other: Histogram) -> None:
        self.buckets.update(other.buckets)

    @property
    def count(self) -> int:
        return self.buckets.total()

    def percentile(self, percent: float) -> int:
        """The time that ``percent`` of the samples do not exceed; 0 without samples."""
        rank = self.count * percent / 100
        seen = 0
        for value_ns in sorted(self.buckets):
            seen += self.buckets[value_ns]
            if seen >= rank:
                return value_ns
        return 0


class Connection:
    """A V2 connection on a blocking socket, after IDENTIFY."""

    def __init__(self, host: str, port: int, upgrade: str = "", **fields: object) -> None:
        self.sock: Any = socket.create_connection((host, port), CONNECT_SECONDS_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Python's own timeout would poll before each call; the kernel's costs nothing.
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            seconds = WAIT_SECONDS if option == socket.SO_RCVTIMEO else SILENCE_SECONDS_MAX
            limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, option, limit)
        self.reader = FrameReader()
        identity = {"client_id": "bench", "user_agent": "penstock-bench", **fields}
        identity["feature_negotiation"] = True
        self.sock.sendall(commands.MAGIC_V2)
        if upgrade:
            from penstock.cli.load_stream import UpgradedSocket, fields_of, read_settings

            self.sock.sendall(commands.identify({**identity, **fields_of(upgrade)}))
            self.server = read_settings(self.sock)
            self.sock = UpgradedSocket(self.sock, self.server)
        else:
            self.server = json.loads(self.request(commands.identify(identity)))

    def request(self, command: bytes) -> bytes:
        """Send a command and return its reply; no messages are expected before it."""
        self.sock.sendall(command)
        give_up_s = time.monotonic() + SILENCE_SECONDS_MAX
        while time.monotonic() < give_up_s:
            for frame in self.reader.feed(self.receive(4096)):
                if isinstance(frame, Reply) and not self.served(frame):
                    return frame.text
            if self.reader.error is not None:
                raise self.reader.error
        raise TimeoutError(f"no reply to {command[:40]!r} for {SILENCE_SECONDS_MAX:.0f} s")

    def receive(self, size: int, flags: int = 0) -> bytes:
        """Received data; empty if none arrived for ``WAIT_SECONDS``."""
        received: bytes
        try:
            received = self.sock.recv(size, flags)
        except BlockingIOError:
            return b""
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

    def served(self, reply: Reply) -> bool:
        """Answer a heartbeat, raise an error; False for the reply to a command."""
        if reply.error:
            code, _, text = reply.text.decode("utf-8", "replace").partition(" ")
            raise ProtocolError(code, text)
        if reply.text == b"_heartbeat_":
            self.sock.sendall(commands.NOP)
            return True
        return False

    def oks(self, received: bytes) -> int:
        """The number of publishes that ``received`` acknowledges."""
        if received == OK_FRAME and not self.reader.held_size:
            return 1
        count = 0
        for frame in self.reader.feed(received):
            if isinstance(frame, Reply) and not self.served(frame):
                count += 1
        if self.reader.error is not None:
            raise self.reader.error
        return count

    def close(self) -> None:
        self.sock.close()


class Poll:
    """The connections that are readable.  A single one waits in its own recv()."""

    def __init__(self, connections: list[Connection]) -> None:
        self.connections = connections
        self.selector: selectors.BaseSelector | None = None
        if len(connections) > 1:
            self.selector = selectors.DefaultSelector()
            for connection in connections:
                self.selector.register(connection.sock, selectors.EVENT_READ, connection)

    def ready(self) -> list[Connection]:
        if self.selector is None:
            return self.connections
        return [key.data for key, _ in self.selector.select(WAIT_SECONDS)]


class Worker:
    """Common to publishers and subscribers: connections, a row on the board, the end."""

    def __init__(self, task: Task, board: Board, number: int) -> None:
        self.task = task
        self.board = board
        self.number = number
        self.count = 0
        self.size = 0
        self.first_ns = 0
        self.last_ns = 0
        self.histogram = Histogram()
        self.connections: list[Connection] = []
        self.seconds_end = float("inf")

    def connect(self, **fields: object) -> dict[str, object]:
        """Open all connections; return the server's reply to IDENTIFY."""
        for _ in range(self.task.connections):
            self.connections.append(
                Connection(self.task.host, self.task.port, self.task.upgrade, **fields)
            )
        server: dict[str, object] = self.connections[0].server
        return server

    def start(self) -> None:
        self.first_ns = self.last_ns = time.monotonic_ns()
        if self.task.seconds:
            self.seconds_end = time.monotonic() + self.task.seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.seconds_end or self.board.stopped

    def note(self, count: int, size: int) -> None:
        self.count += count
        self.size += size
        self.last_ns = time.monotonic_ns()
        self.board.write(self.number, self.count, self.size, self.first_ns, self.last_ns)

    def check_silence(self) -> None:
        if time.monotonic_ns() - self.last_ns > SILENCE_SECONDS_MAX * 1e9:
            raise TimeoutError(f"no reply for {SILENCE_SECONDS_MAX:.0f} s")


class Publisher(Worker):
    """Keeps ``window`` commands in flight on each connection."""

    def start(self) -> None:
        super().start()
        task = self.task
        body = random.Random(task.size).randbytes(task.size)
        self.command = self.encode(body, task.batch)
        whole, remainder = divmod(task.messages, task.batch)
        self.left = whole + (remainder > 0)
        self.last_command = self.encode(body, remainder) if remainder else self.command
        self.unanswered = 0

    def encode(self, body: bytes, count: int) -> bytes:
        if self.task.batch == 1:
            return commands.pub(self.task.topic, body)
        return commands.mpub(self.task.topic, [body] * count)

    def run(self) -> None:
        poll = Poll(self.connections)
        for _ in range(self.task.window):
            for connection in self.connections:
                self.send(connection)
        while self.unanswered:
            for connection in poll.ready():
                received = connection.receive(4096)
                if not received:
                    self.check_silence()
                    continue
                oks = connection.oks(received)
                # Send before counting, so that the server is not idle.
                for _ in range(oks):
                    self.send(connection)
                self.answer(oks)

    def send(self, connection: Connection) -> None:
        """Send the next command, if there is one."""
        if self.task.messages:
            if not self.left:
                return
            self.left -= 1
        if self.over:
            self.left = 0
            return
        last = self.task.messages and not self.left
        connection.sock.sendall(self.last_command if last else self.command)
        self.unanswered += 1

    def answer(self, oks: int) -> None:
        self.unanswered -= oks
        count = oks * self.task.batch
        if self.task.messages:
            # The last command may have fewer messages.
            count = min(count, self.task.messages - self.count)
        self.note(count, count * self.task.size)


class PacedPublisher(Worker):
    """Publishes ``rate`` messages per second without waiting for replies, each with its time.

    Messages that are due are sent once a millisecond, with the time of sending, not the due time: a
    generator that is late must not make the server look slow.
    """

    def start(self) -> None:
        super().start()
        task = self.task
        pad = random.Random(task.size).randbytes(task.size - STAMP_SIZE)
        self.head = commands.pub(task.topic, _STAMP.pack(0) + pad)[: -task.size]
        self.pad = pad
        self.sent = 0

    def run(self) -> None:
        task = self.task
        total = task.messages or int(task.rate * task.seconds)
        turn = 0
        start_s = time.monotonic()
        while self.sent < total and not self.board.stopped:
            due = min(total, int((time.monotonic() - start_s) * task.rate) + 1)
            if due > self.sent:
                self.send(self.connections[turn % len(self.connections)], due - self.sent)
                turn += 1
                self.sent = due
            for connection in self.connections:
                self.collect(connection, socket.MSG_DONTWAIT)
            time.sleep(PACE_SECONDS)
        while self.count < self.sent:
            for connection in self.connections:
                self.collect(connection, 0)
            self.check_silence()

    def send(self, connection: Connection, count: int) -> None:
        head, pad = self.head, self.pad
        stamp = _STAMP.pack(time.time_ns())
        connection.sock.sendall(b"".join((head, stamp, pad)) * count)

    def collect(self, connection: Connection, flags: int) -> None:
        if received := connection.receive(65536, flags):
            count = connection.oks(received)
            self.note(count, count * self.task.size)


class Subscriber(Worker):
    """Finishes every message.  Time runs from the first message's arrival to the last one's."""

    def connect(self, **fields: object) -> dict[str, object]:
        task = self.task
        if task.output_buffer_size:
            fields["output_buffer_size"] = task.output_buffer_size
        if task.output_buffer_timeout_ms:
            fields["output_buffer_timeout"] = task.output_buffer_timeout_ms
        server = super().connect(**fields)
        for connection in self.connections:
            connection.request(commands.sub(task.topic, task.channel))
        return server

    def start(self) -> None:
        super().start()
        self.buffer = memoryview(bytearray(RECEIVE_SIZE))

    def run(self) -> None:
        poll = Poll(self.connections)
        for connection in self.connections:
            connection.sock.sendall(commands.rdy(self.task.rdy))
        while not (self.board.complete or self.over or self.idle):
            for connection in poll.ready():
                self.consume(connection)
        for connection in self.connections:
            self.close(connection)

    @property
    def idle(self) -> bool:
        return time.monotonic_ns() - self.last_ns > self.task.idle_seconds * 1e9

    def consume(self, connection: Connection) -> None:
        try:
            size = connection.sock.recv_into(self.buffer)
        except BlockingIOError:
            return
        if not size:
            raise ConnectionError("the server closed the connection")
        finished = connection.reader.finish(self.buffer[:size])
        if finished.count:
            if not self.count:
                self.first_ns = time.monotonic_ns()
            connection.sock.sendall(finished.commands)
            self.note(finished.count, finished.body_size)
            if self.task.rate:
                self.measure(finished.stamps)
        for reply in finished.replies:
            connection.served(reply)
        if connection.reader.error is not None:
            raise connection.reader.error

    def measure(self, stamps: bytes) -> None:
        now_ns = time.time_ns()
        for stamp_ns in array("q", stamps):
            self.histogram.add(now_ns - stamp_ns)

    def close(self, connection: Connection) -> None:
        """Send CLS and finish messages until its reply: closing before would lose the FINs."""
        connection.sock.sendall(commands.CLS)
        give_up_s = time.monotonic() + 2.0
        while time.monotonic() < give_up_s:
            frames = connection.reader.feed(connection.receive(RECEIVE_SIZE))
            messages = [frame for frame in frames if isinstance(frame, Message)]
            if messages:
                connection.sock.sendall(b"".join(commands.fin(m.id) for m in messages))
                self.note(len(messages), sum(len(m.body) for m in messages))
            if any(isinstance(f, Reply) and f.text == b"CLOSE_WAIT" for f in frames):
                break
        connection.close()


KINDS: dict[str, type[Publisher] | type[PacedPublisher] | type[Subscriber]] = {
    "pub": Publisher,
    "paced": PacedPublisher,
    "sub": Subscriber,
}
