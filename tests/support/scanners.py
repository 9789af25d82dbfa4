"""A connection's scanner with real topics and a real window behind it, for tests."""

from __future__ import annotations

from typing import Any

from penstock.core.appender import Appender
from penstock.core.scanner import CLOSING, INIT, SUBSCRIBED, Scanner
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer, Window
from penstock.errors import ProtocolError
from penstock.wire.ids import message_id
from tests.support.blocks import NODE_ID, block_of, read_frames
from tests.support.bodies import several, sized

STATES = {"init": INIT, "subscribed": SUBSCRIBED, "closing": CLOSING}
MS = 1_000_000
NOW_NS = 5_000_000
WALL_NS = 1_700_000_000_000_000_000
# nsqd's defaults.
MESSAGE_SIZE_MAX = 1_048_576
BODY_SIZE_MAX = 5_242_880


def multi(*bodies: bytes) -> bytes:
    """The body of an MPUB, preceded by its size."""
    return sized(several(*bodies))


def id_of(index: int) -> bytes:
    return message_id(NODE_ID, index)


class Peer:
    """Feeds bytes to a scanner and handles the results as a server would."""

    def __init__(
        self,
        state: str = "init",
        topics: tuple[str, ...] = ("t1",),
        in_flight: int = 8,
        **limits: int,
    ) -> None:
        self.appenders: dict[bytes, Appender] = {}
        self.tickets: list[Ticket] = []
        self.settled_tickets: list[Ticket] = []
        self._topics: dict[Ticket, str] = {}
        settings = {
            "message_size_max": MESSAGE_SIZE_MAX,
            "body_size_max": BODY_SIZE_MAX,
            "ready_count_max": 2500,
            "requeue_ms_max": 3_600_000,
            "defer_ms_max": 3_600_000,
            "msg_timeout_max_ns": 900_000 * MS,
        }
        self.scanner = Scanner(self.appenders, self.settled_tickets.append, **(settings | limits))
        for topic in topics:
            self.create(topic)
        self.scanner.msg_timeout_ns = 60_000 * MS
        self.in_flight = in_flight
        self.window = Window(0)
        self.consumer = Consumer("me", 60_000 * MS)
        if state != "init":
            self.subscribe()
        self.scanner.state = STATES[state]
        self.open = True

    def create(self, topic: str) -> None:
        def opened() -> None:
            self._topics[appender.ticket] = topic
            self.tickets.append(appender.ticket)

        appender = Appender(topic, NODE_ID, 0, opened)
        self.appenders[topic.encode()] = appender

    def subscribe(self) -> None:
        """Half of the messages in flight are this client's, the others another client's."""
        other = Consumer("other", 60_000 * MS)
        self.window.join(other)
        self.window.join(self.consumer)
        if self.in_flight:
            self.window.load(block_of(range(self.in_flight)))
            self.window.deliver(self.consumer, self.in_flight // 2, 1 << 20, 1 << 50, NOW_NS)
            self.window.deliver(other, self.in_flight, 1 << 20, 1 << 50, NOW_NS)
        self.scanner.window = self.window
        self.scanner.consumer = self.consumer
        self.scanner.state = SUBSCRIBED

    def send(self, *pieces: bytes) -> list[Any]:
        """Feed the pieces; return the results of next() for Python, errors as text."""
        results = []
        for piece in pieces:
            if not self.open:
                break
            buffer = bytearray(piece)
            self.scanner.feed_from(buffer, len(piece))
            while self.open and (found := self.scanner.next(NOW_NS, WALL_NS)) is not None:
                results.append(self.take(found))
            self.scanner.keep()
            buffer[:] = b"#" * len(piece)  # the next connection receives here
        return results

    def take(self, found: Any) -> Any:
        if isinstance(found, ProtocolError):
            self.open = not found.fatal
            return str(found)
        if found[0] in ("BAD_NAME", "LINE_TOO_LONG"):
            self.open = False
        elif found[0] == "TOPIC":
            self.create(found[2])
        elif found[0] == "SUB":
            self.subscribe()
        elif found[0] == "CLS":
            self.scanner.state = CLOSING
        elif found[0] == "DPUB":
            ticket = Ticket()
            self._topics[ticket] = "deferred"
            self.scanner.owe_ticket(ticket, "DPUB")
        return found

    def published(self) -> dict[str, list[bytes]]:
        """Bodies by topic; ends the batches."""
        bodies = {}
        for appender in self.appenders.values():
            if appender.count:
                bodies[appender.topic] = [
                    sent.body for sent in read_frames(appender.seal(0).payload)
                ]
        return bodies

    def owed(self) -> list[tuple[str, str, int]]:
        """Pending replies: (topic, command, count)."""
        return [(self._topics[one.ticket], one.command, one.count) for one in self.scanner.owed]

    def window_state(self) -> dict[int, Any]:
        return {index: self.window.describe(index) for index in range(self.in_flight)}

    def eof(self) -> str | None:
        error = self.scanner.eof()
        return None if error is None else str(error)
