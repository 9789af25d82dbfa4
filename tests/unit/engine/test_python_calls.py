"""The plain path runs no Python function: publish, write, show, answer, deliver, finish."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.core.scanner import SUBSCRIBED, Scanner
from penstock.core.window import Consumer
from penstock.storage.files import Files
from penstock.wire.ids import message_id
from tests.support.engine import MINUTE, Engine

COUNT = 10_000
NODE_ID = 5
SOURCE = str(Path(penstock.__file__).parent)
LIMITS = {
    "message_size_max": 1 << 20,
    "body_size_max": 5 << 20,
    "ready_count_max": 2500,
    "requeue_ms_max": 3_600_000,
    "defer_ms_max": 3_600_000,
    "msg_timeout_max_ns": 15 * MINUTE,
}


def python_calls(run: Callable[[], None]) -> Counter[str]:
    """The functions of Penstock that ``run`` calls in the interpreter, and how often."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


class Plain:
    """A topic with a channel, a publisher and a consumer, driven packet by packet."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(Files(), root=str(folder), sync_every=1 << 40)
        self.engine.broker.create_topic("t")
        self.topic = self.engine.topic("t")
        self.channel = self.topic.create_channel("c")[0]
        self.answers: list[Any] = []
        self.sent: list[Any] = []
        self.publisher = Scanner({b"t": self.topic.appender}, self.answers.append, **LIMITS)
        self.consumer = Consumer(SimpleNamespace(send=self.sent.append), MINUTE)
        self.channel.join(self.consumer)
        self.reader = Scanner({}, self.answers.append, **LIMITS)
        self.reader.window, self.reader.consumer = self.channel.window, self.consumer
        self.reader.state = SUBSCRIBED
        self.packet(self.publisher, PUB)  # the first write opens the file, on a thread
        self.engine.settle()
        self.next = self.topic.released

    def packet(self, scanner: Scanner, data: bytes) -> None:
        """What a connection does with a packet, and then the turn."""
        calls = self.engine.turns.calls
        scanner.feed(data)
        assert scanner.next(self.engine.clock.monotonic_ns(), self.engine.clock.wall_ns()) is None
        if scanner.answered:
            scanner.answered = False
            self.channel.offer(self.consumer)
        while calls:
            calls.popleft()()
        scanner.settle()

    def finishes(self, first: int, count: int) -> list[bytes]:
        return [b"FIN %b\n" % message_id(NODE_ID, first + i) for i in range(count)]


BODY = bytes(200)
PUB = b"PUB t\n" + len(BODY).to_bytes(4, "big") + BODY
MULTI = (10).to_bytes(4, "big") + 10 * (len(BODY).to_bytes(4, "big") + BODY)
MPUB = b"MPUB t\n" + len(MULTI).to_bytes(4, "big") + MULTI


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Plain]:
    made = Plain(tmp_path)
    yield made
    made.engine.kill()


def test_the_counter_sees_a_call_of_ours(plain: Plain) -> None:
    assert python_calls(lambda: plain.topic.publish([b"a"]) and None)


def test_publishes_call_no_python(plain: Plain) -> None:
    def run() -> None:
        for _ in range(COUNT):
            plain.packet(plain.publisher, PUB)
        for _ in range(COUNT // 10):
            plain.packet(plain.publisher, MPUB)

    assert python_calls(run) == {}
    assert plain.topic.released == plain.next + 2 * COUNT
    assert len(plain.answers) == COUNT + COUNT // 10 + 1


def test_deliveries_and_finishes_call_no_python(plain: Plain) -> None:
    """A consumer that keeps up: each message is published, delivered and finished on its own."""
    plain.packet(plain.reader, b"RDY 10\n")  # the first delivery makes the scan watch the channel
    plain.packet(plain.reader, b"FIN %b\n" % message_id(NODE_ID, plain.next - 1))
    packets = plain.finishes(plain.next, COUNT)

    def run() -> None:
        for finish in packets:
            plain.packet(plain.publisher, PUB)
            plain.packet(plain.reader, finish)

    assert python_calls(run) == {}
    assert plain.channel.finish_count >= COUNT and not plain.channel.in_flight_count


def test_a_backlog_is_delivered_and_finished_without_python(plain: Plain) -> None:
    """From the tail; further back it is read from the file, in Python, a block at a time."""
    for _ in range(300):
        plain.packet(plain.publisher, MPUB)
    packets = plain.finishes(plain.next - 1, 3001)
    plain.packet(plain.reader, b"RDY 200\n")

    def run() -> None:
        for finish in packets:
            plain.packet(plain.reader, finish)

    assert python_calls(run) == {}
    assert plain.channel.finish_count == 3001
