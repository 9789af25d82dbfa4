"""What a topic gives its channels: how far they may read, and counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.appender import Batch
from penstock.core.tail import TailBudget
from penstock.core.window import Window
from penstock.engine.feed import Feed
from tests.support.blocks import NODE_ID, block_of, frame

FIRST = 100


class FakeChannel:
    """Counts how often it is woken, and what arrives."""

    def __init__(self, *, plain: bool = True, ready: bool = True) -> None:
        self.plain = plain
        self.ready = [SimpleNamespace()] if ready else []
        self.window = Window(FIRST)
        self.woken_count = 0
        self.arrived: list[Any] = []

    def wake(self) -> None:
        self.woken_count += 1

    def arrive(self, block: Any) -> None:
        self.arrived.append(block)


def batch(first: int, count: int) -> Batch:
    payload = b"".join(frame(first + i) for i in range(count))
    made = Batch(payload, first, count, 1, 1)
    made.body_size = 7 * count
    return made


@pytest.fixture
def feed() -> Feed:
    return Feed(TailBudget(), FIRST)


def ends(feed: Feed) -> tuple[int, int, int]:
    return feed.released - FIRST, feed.shown_end - FIRST, feed.held_count


def test_a_batch_is_counted_for_each_channel_and_wakes_the_ready_ones(feed: Feed) -> None:
    ready, idle, other = FakeChannel(), FakeChannel(ready=False), FakeChannel(plain=False)
    feed.channels.update(ready=ready, idle=idle, other=other)
    feed.show(batch(FIRST, 3), NODE_ID)
    assert ends(feed) == (3, 3, 0)
    assert (feed.message_count, feed.message_bytes) == (3, 21)
    assert (ready.woken_count, idle.woken_count, other.woken_count) == (1, 0, 0)
    assert ready.window.queued_count == idle.window.queued_count == 3
    assert other.window.queued_count == 0 and [block.count for block in other.arrived] == [3]
    found = feed.tail.find(FIRST + 2)
    assert found is not None and found.end == FIRST + 3


@pytest.mark.parametrize("why", ["paused", "awaiting", "no channels"])
def test_a_frozen_topic_holds_its_messages_back(feed: Feed, why: str) -> None:
    channel = FakeChannel()
    if why != "no channels":
        feed.channels["c"] = channel
    feed.pause(why == "paused")
    feed.await_channels(why == "awaiting")
    assert feed.frozen
    feed.show(batch(FIRST, 4), NODE_ID)
    assert ends(feed) == (0, 4, 4) and feed.message_count == 4
    assert not channel.woken_count and not channel.window.queued_count
    feed.release()
    assert ends(feed) == (4, 4, 0)


def test_what_an_ephemeral_topic_drops_is_counted_but_not_held(feed: Feed) -> None:
    feed.hold(block_of(range(FIRST, FIRST + 5)), 50, 2)
    assert ends(feed) == (0, 5, 2)
    assert (feed.message_count, feed.message_bytes) == (5, 50)
    feed.drop_held()
    assert ends(feed) == (0, 5, 0)


def test_a_start_restores_what_was_held_back(feed: Feed) -> None:
    feed.restore(FIRST - 20)
    feed.restore_held(15)
    assert ends(feed) == (-20, 0, 15)
