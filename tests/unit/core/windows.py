"""What the tests of the delivery window share."""

from __future__ import annotations

from penstock.core.window import Consumer, Window
from tests.support.blocks import block_of, frame, read_frames

DONE, NOT_IN_FLIGHT, NOT_OWNER = 0, 1, 2
LIMIT = 1 << 53
TIMEOUT_NS = 60
SECOND = 1_000_000_000


def consumer_of(window: Window, ready_count: int = 2500, **settings: int) -> Consumer:
    consumer = Consumer("client", settings.pop("msg_timeout_ns", TIMEOUT_NS), **settings)
    consumer.ready_count = ready_count
    window.join(consumer)
    return consumer


def window_of(indexes: list[int] | range, cursor: int = 0) -> Window:
    """A window with a block of messages that wait."""
    window = Window(cursor)
    block = block_of(indexes)
    window.queued_count = block.count
    window.load(block)
    return window


def deliver(window: Window, consumer: Consumer, count: int = 100, now_ns: int = 0) -> list[int]:
    given = window.deliver(consumer, count, 1 << 20, LIMIT, now_ns)
    return [] if given is None else [sent.index for sent in read_frames(given[0])]


def redeliver(window: Window, consumer: Consumer, now_ns: int = 0) -> tuple[int, int]:
    index = window.next_ready
    assert index is not None
    [sent] = read_frames(window.redeliver(consumer, frame(index), now_ns))
    return sent.index, sent.attempts
