"""R20: what a topic may hold, and what happens to publishes above that."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from penstock.core.scanner import Scanner
from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.bounds import EPISODE_NS
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.engine.pull.channel import PullChannel
from penstock.engine.topic import Topic
from penstock.errors import StagingError, TopicFullError
from penstock.settings.policy import DEFAULT
from tests.support.bodies import several, sized
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine
from tests.support.faults import Faults
from tests.support.scanners import multi
from tests.support.staging import ATTEMPT, Query, plain

LIMITS: dict[str, int] = {
    "message_size_max": 1 << 20,
    "body_size_max": 5 << 20,
    "ready_count_max": 2500,
    "requeue_ms_max": 3_600_000,
    "defer_ms_max": 3_600_000,
    "msg_timeout_max_ns": 15 * MINUTE,
}


def bound(topic: BaseTopic, **keys: Any) -> None:
    topic.apply_policy(dataclasses.replace(topic.policy, **keys))


class Bounded:
    """A topic with channels and a bound."""

    def __init__(self, *channels: str, **keys: Any) -> None:
        self.engine = Engine()
        self.engine.broker.create_topic("t")
        self.topic: Topic = self.engine.topic("t")
        for name in channels:
            self.topic.create_channel(name)
        self.engine.settle()
        bound(self.topic, **keys)

    def pub(self, *bodies: bytes) -> str:
        """The key of the bound that refuses it; empty if it was stored."""
        error = self.engine.done(self.topic.publish(list(bodies)))
        assert error is None or isinstance(error, TopicFullError), error
        return error.key if isinstance(error, TopicFullError) else ""

    def fill(self) -> int:
        """Publish until it is refused; how many were stored."""
        for count in range(1000):
            if self.pub(b"%d" % count):
                return count
        raise AssertionError("never full")

    def consumer(self, channel: str, ready_count: int = 1, msg_timeout_ns: int = MINUTE) -> Client:
        client = Client(self.engine, "t", channel, ready_count, msg_timeout_ns)
        self.engine.settle()
        return client


def test_a_topic_takes_as_many_messages_as_its_fullest_channel_may_have() -> None:
    bounded = Bounded("slow", "fast", max_messages=10)
    fast = bounded.consumer("fast", ready_count=100)
    assert bounded.fill() == 10
    for message in fast.take():
        fast.finish(message.index)
    assert bounded.pub(b"x") == "max_messages"
    assert bounded.topic.appender.refused_count == 2


def test_a_finish_makes_room_for_one_message() -> None:
    bounded = Bounded("c", max_messages=10)
    client = bounded.consumer("c", ready_count=3)
    bounded.fill()
    for _ in range(20):
        assert bounded.pub(b"x") == "max_messages"
        client.finish(client.take()[0].index)
        bounded.engine.settle()
        assert bounded.pub(b"x") == ""


def test_messages_in_flight_deferred_and_requeued_count() -> None:
    bounded = Bounded("c", max_messages=4)
    client = bounded.consumer("c", ready_count=2)
    bounded.fill()
    first, second = client.take()
    client.requeue(first.index)
    client.requeue(second.index, delay_ns=MINUTE)
    assert bounded.pub(b"x") == "max_messages"
    assert bounded.topic.bound.unfinished_count == 4


def test_messages_for_the_first_channel_count() -> None:
    bounded = Bounded(max_messages=5)
    assert bounded.fill() == 5
    channel, _ = bounded.topic.create_channel("c")
    assert bounded.pub(b"x") == "max_messages"
    channel.empty()
    assert bounded.fill() == 5


def test_files_that_buried_messages_keep_count_in_max_bytes() -> None:
    """R24: their bytes are not finished.  A few keep no file, and are not counted."""
    for few in (False, True):
        bounded = Bounded("c", max_bytes=64 * 1024, retain_ns=HOUR)
        client = bounded.consumer("c", ready_count=1000)
        client.channel.apply_policy(dataclasses.replace(DEFAULT, max_attempts=1))
        for number in range(400):
            if bounded.pub(b"%04d" % number + b"x" * 196):
                break
            for message in client.take():
                if few and number % 20:
                    client.finish(message.index)
                else:
                    client.requeue(message.index)
            bounded.engine.advance(10 * MS)
        bounded.engine.advance(MINUTE)
        stats = bounded.topic.policy_stats()
        buried = client.channel.window.buried
        assert buried is not None
        if few:
            assert number == 399 and stats["retained_bytes"] > 64 * 1024
            continue
        assert bounded.pub(b"y") == "max_bytes"
        assert stats["unfinished_bytes"] > 56 * 1024 > stats["retained_bytes"]
        sweep = Sweep(client.channel, Act.DISCARD, Chosen())
        assert bounded.engine.done(sweep.start()) is None
        bounded.engine.advance(SECOND)
        assert bounded.pub(b"y") == ""


def test_buried_messages_do_not_drop_the_others() -> None:
    bounded = Bounded("c", max_bytes=64 * 1024, overflow="drop-oldest")
    client = bounded.consumer("c", ready_count=1000)
    client.channel.apply_policy(dataclasses.replace(DEFAULT, max_attempts=1))
    for _ in range(400):
        assert bounded.pub(b"x" * 200) == ""
        for message in client.take():
            client.requeue(message.index)
    client.ready(0)
    for _ in range(150):
        assert bounded.pub(b"y" * 200) == ""
    bounded.engine.advance(MINUTE)
    assert (client.channel.window.buried_count, client.channel.depth) == (400, 150)
    assert client.channel.dropped_count == 0


def test_messages_of_a_paused_topic_count_with_those_of_its_channels() -> None:
    bounded = Bounded("c", max_messages=6)
    bounded.pub(b"1", b"2")
    bounded.topic.pause(True)
    assert bounded.fill() == 4
    bounded.topic.pause(False)
    assert bounded.pub(b"x") == "max_messages"


def test_messages_of_a_pull_channel_count() -> None:
    bounded = Bounded(max_messages=5)
    pull, _, _ = bounded.engine.components.pulls.open(bounded.topic, "p", bounded.topic.end)
    assert bounded.fill() == 5
    pull.commit(bounded.topic.log.first + 2)
    assert bounded.fill() == 2


def test_messages_of_a_pull_channel_that_begins_in_the_past_count_at_once() -> None:
    bounded = Bounded("c", "keeper", max_messages=10)
    client = bounded.consumer("c", ready_count=100)
    keeper = bounded.consumer("keeper", ready_count=100)
    for _ in range(12):
        assert bounded.pub(b"x") == ""
        for each in (client, keeper):
            each.finish(each.take()[0].index)
    bounded.engine.components.pulls.open(bounded.topic, "p", bounded.topic.log.first + 3)
    assert bounded.fill() == 1


def test_files_that_only_retention_keeps_do_not_count() -> None:
    """R20, R21: also those above a message that nobody finishes."""
    bounded = Bounded("c", max_bytes=64 << 10, retain_ns=HOUR)
    client = bounded.consumer("c", ready_count=1000)
    assert bounded.pub(b"stuck") == ""
    client.take()
    for _ in range(200):
        assert bounded.pub(bytes(1000)) == ""
        for received in client.take():
            if received.body != b"stuck":
                assert client.finish(received.index) == 0
        bounded.engine.advance(SECOND)
    retained = bounded.topic.removal.retained
    assert retained.size > 128 << 10 and bounded.topic.unfinished_size < 32 << 10
    # Another channel goes back: they are unfinished again, at once.
    late, _ = bounded.topic.create_channel("late", start=bounded.topic.log.first)
    assert retained.size == 0 and bounded.topic.unfinished_size > 128 << 10
    assert bounded.pub(bytes(1000)) == "max_bytes"
    consumer = bounded.consumer("late", ready_count=1000)
    bounded.engine.settle()
    assert len(consumer.take()) == 201, "delivered, and not finished"
    assert retained.size == 0 and late.window.cursor == bounded.topic.end
    bounded.engine.done(bounded.topic.delete_channel("late"))
    bounded.engine.advance(10 * SECOND)
    assert bounded.pub(bytes(1000)) == ""


def test_an_ephemeral_channel_refuses_nothing_and_drops_what_is_beyond_the_bound() -> None:
    """R15 stays: a slow nsq_tail does not stop publishers."""
    bounded = Bounded("c", max_messages=5)
    client = bounded.consumer("c", ready_count=100)
    tail = bounded.consumer("tail#ephemeral", ready_count=0)
    for _ in range(20):
        assert bounded.pub(b"x") == ""
        client.finish(client.take()[0].index)
    assert tail.channel.depth == 5


def test_an_ephemeral_topic_drops_what_is_beyond_the_bound() -> None:
    engine = Engine()
    topic, _ = engine.broker.create_topic("t#ephemeral")
    bound(topic, max_messages=5)
    for _ in range(7):
        assert engine.done(topic.publish([b"x"])) is None
    assert topic.depth == 5
    channel, _ = topic.create_channel("c")
    assert channel.depth == 5
    bound(topic, max_messages=0, max_bytes=1000)
    engine.done(topic.publish([b"x" * 2000]))
    assert channel.depth == 5


def test_one_batch_may_pass_the_bound_and_is_stored_whole() -> None:
    bounded = Bounded("c", max_messages=5)
    assert bounded.pub(*[b"x"] * 100) == ""
    assert bounded.pub(b"x") == "max_messages"
    assert bounded.topic.channels["c"].depth == 100
    assert bounded.topic.log.count == 100


def test_publishes_of_one_turn_stop_at_the_bound() -> None:
    bounded = Bounded("c", max_messages=5)
    tickets = [bounded.topic.publish([b"x"]) for _ in range(20)]
    bounded.engine.settle()
    assert sum(ticket.error is None for ticket in tickets) == 5


def test_a_failed_write_takes_no_room() -> None:
    bounded = Bounded("c", max_messages=5)
    bounded.pub(b"1")
    bounded.engine.files.faults = faults = Faults()
    faults.add("*.log", errno.EIO, "append")
    for _ in range(10):
        ticket = bounded.topic.publish([b"x"] * 3)
        assert isinstance(bounded.engine.done(ticket), OSError)
    faults.heal()
    assert bounded.fill() == 4


def test_bytes_are_bounded_and_become_fewer_with_the_files() -> None:
    bounded = Bounded("c", max_bytes=1 << 20)
    client = bounded.consumer("c", ready_count=2500)
    body = bytes(10_000)
    count = 0
    while not (refused := bounded.pub(body)):
        count += 1
    assert refused == "max_bytes"
    assert (1 << 20) <= bounded.topic.log.size < (1 << 20) + 2 * len(body)
    for message in client.take()[: count // 2]:
        client.finish(message.index)
    bounded.engine.advance(5 * SECOND)
    assert bounded.topic.log.size < 700_000
    assert bounded.pub(body) == ""


def test_bytes_of_a_topic_smaller_than_a_segment_become_fewer_too() -> None:
    """Nothing else would roll a small active segment that is full of finished messages."""
    bounded = Bounded("c", max_bytes=40_000)
    client = bounded.consumer("c", ready_count=2500)
    for _ in range(5):
        while not bounded.pub(bytes(1000)):
            pass
        for message in client.take():
            client.finish(message.index)
        bounded.engine.advance(5 * SECOND)
    assert bounded.topic.log.size < 40_000


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("retain_ns", [0, HOUR])
def test_a_large_segment_from_before_the_bound_does_not_keep_a_topic_full(
    retain_ns: int, restart: bool
) -> None:
    """It is sealed without a publish: then its one unfinished message does not keep it."""
    bounded = Bounded("c", retain_ns=retain_ns)
    engine = bounded.engine
    client = bounded.consumer("c", ready_count=2500, msg_timeout_ns=HOUR)
    for _ in range(100):
        assert bounded.pub(bytes(1000)) == ""
    for message in client.take()[1:]:
        client.finish(message.index)
    if restart:
        engine.exit()
        engine.start()
        bounded.topic = engine.topic("t")
    bound(bounded.topic, max_bytes=50_000, retain_ns=retain_ns)
    assert bounded.pub(b"x") == "max_bytes"
    engine.advance(20 * SECOND)
    assert bounded.pub(b"x") == ""


def test_bytes_that_buried_messages_keep_are_bounded_too() -> None:
    """R24: a file full of them stays, so it counts, until they are kicked or discarded."""
    bounded = Bounded("c", max_bytes=1 << 20)
    client = bounded.consumer("c", ready_count=2500)
    count = 0
    while not bounded.pub(bytes(10_000)):
        count += 1
        assert count < 110
        for message in client.take():
            assert client.bury(message.index) == 0
        bounded.engine.advance(SECOND)
    assert client.channel.window.buried_count == count > 90
    bounded.engine.advance(30 * SECOND)
    assert bounded.pub(b"x") == "max_bytes"
    size = bounded.topic.policy_stats()["unfinished_bytes"]
    assert (1 << 20) <= size == bounded.topic.log.size
    client.channel.window.discard(0, 1 << 60, 2000)
    bounded.topic.unburied(client.channel, b"", kicked=False)
    bounded.topic.retire_later()
    bounded.engine.advance(5 * SECOND)
    assert bounded.pub(b"x") == ""


def test_what_retention_alone_keeps_is_not_bounded() -> None:
    """Neither are the finished messages after one that a consumer holds."""
    bounded = Bounded("c", max_bytes=200_000, retain_ns=HOUR)
    client = bounded.consumer("c", ready_count=2500, msg_timeout_ns=HOUR)
    assert bounded.pub(b"held") == ""
    held = client.take()
    for number in range(200):
        assert bounded.pub(bytes(10_000)) == "", number
        for message in client.take():
            client.finish(message.index)
        bounded.engine.advance(SECOND)
    stats = bounded.topic.policy_stats()
    assert stats["unfinished_bytes"] < 200_000 and stats["retained_bytes"] > 1_700_000
    assert stats["unfinished_bytes"] + stats["retained_bytes"] <= bounded.topic.log.size
    assert client.finish(held[0].index) == 0


def test_every_kind_of_publish_is_refused() -> None:
    bounded = Bounded("c", max_messages=1)
    topic, engine = bounded.topic, bounded.engine
    bounded.fill()
    for ticket in (
        topic.publish([b"x"]),
        topic.publish_multi(several(b"x", b"y")),
        topic.publish_lines(b"x\ny\n"),
        topic.defer(b"x", MINUTE),
    ):
        assert isinstance(engine.done(ticket), TopicFullError)
    assert topic.deferred_count == 0


def test_no_bound_and_a_bound_of_zero_refuse_nothing() -> None:
    bounded = Bounded("c", max_messages=3)
    bounded.fill()
    bound(bounded.topic, max_messages=0)
    assert not bounded.topic.appender.bounded
    assert bounded.pub(b"x") == ""
    bound(bounded.topic, max_messages=2)
    assert bounded.pub(b"x") == "max_messages"


class Publisher:
    """A connection's scanner that publishes to the bounded topic, and its replies."""

    def __init__(self, bounded: Bounded) -> None:
        self.replies: list[str] = []
        appenders = {b"t": bounded.topic.appender}
        self.scanner = Scanner(appenders, self._settled, **LIMITS)

    def send(self, data: bytes) -> None:
        self.scanner.feed(data)
        assert self.scanner.next(0, 0) is None
        self.scanner.keep()

    def _settled(self, _: Ticket) -> None:
        while True:
            count, failed = self.scanner.settle()
            self.replies += ["OK"] * count
            if failed is None:
                return
            self.replies += [f"{failed.command} {failed.ticket.error}"] * failed.count


def test_refusals_are_in_order_with_other_replies() -> None:
    bounded = Bounded("c", max_messages=2)
    publisher = Publisher(bounded)
    publisher.send(
        b"PUB t\n"
        + sized(b"1")
        + b"PUB t\n"
        + sized(b"2")
        + b"PUB t\n"
        + sized(b"3")
        + b"MPUB t\n"
        + multi(b"4", b"5")
        + b"DPUB t 0\n"
        + sized(b"6")
        + b"DPUB t 250\n"
        + sized(b"7")
    )
    assert publisher.replies == []  # none overtakes those that wait for the write
    bounded.engine.settle()
    full = "topic is full (max_messages)"
    assert publisher.replies == [
        "OK",
        "OK",
        *(f"{c} {full}" for c in ("PUB", "MPUB", "DPUB", "DPUB")),
    ]
    assert publisher.scanner.pub_counts == {"t": 2}


def test_a_refused_publish_leaves_the_connection_usable_when_the_body_comes_byte_by_byte() -> None:
    bounded = Bounded("c", max_messages=1)
    publisher = Publisher(bounded)
    data = b"PUB t\n" + sized(b"first") + b"MPUB t\n" + multi(b"a", b"b") + b"PUB t\n" + sized(b"z")
    for byte in data:
        publisher.send(bytes([byte]))
        bounded.engine.settle()
    assert [reply.split()[0] for reply in publisher.replies] == ["OK", "MPUB", "PUB"]
    assert publisher.scanner.buffered_size == 0


def test_a_refused_publish_looks_at_one_channel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Bounded(max_messages=3)
    pulls = bounded.engine.components.pulls
    made = [pulls.open(bounded.topic, f"p{number}", bounded.topic.end)[0] for number in range(20)]
    bounded.fill()
    looks: list[str] = []
    depth = PullChannel.depth.fget
    assert depth is not None

    def counted(channel: PullChannel) -> int:
        looks.append(channel.name)
        return int(depth(channel))

    monkeypatch.setattr(PullChannel, "depth", property(counted))
    for channel in made[:-1]:
        channel.commit(bounded.topic.end)
    bounded.pub(b"x")
    looks.clear()
    for _ in range(10):
        assert bounded.pub(b"x") == "max_messages"
    assert looks == ["p19"] * 10


def test_an_episode_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bounded = Bounded("c", max_messages=2)
    client = bounded.consumer("c", ready_count=10)
    for _ in range(20):
        bounded.fill()
        for message in client.take():
            client.finish(message.index)
        bounded.engine.settle()
    lines = [record.getMessage() for record in caplog.records if "publishes" in record.getMessage()]
    assert lines == ["topic=t: full (max_messages), publishes are refused"]
    bounded.engine.advance(EPISODE_NS + 2 * SECOND)
    lines = [record.getMessage() for record in caplog.records if "any more" in record.getMessage()]
    assert lines == ["topic=t: is not full any more, 20 publishes were refused"]


def slow_clock(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a quarter of a millisecond."""
    real = engine.clock.monotonic_ns

    def passing() -> int:
        engine.clock.advance(MS // 4)
        return real()

    monkeypatch.setattr(engine.components.shared.episodes, "_clock", Ticking(passing))
    monkeypatch.setattr(engine.components.shared.expiry, "_clock", Ticking(passing))


class Ticking:
    def __init__(self, passing: Callable[[], int]) -> None:
        self.monotonic_ns = passing
        self.wall_ns = passing


def test_the_topics_of_a_node_are_checked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of topics may have a bound and a lifetime: no turn checks all of them."""
    engine = Engine()
    for number in range(60):
        topic, _ = engine.broker.create_topic(f"t{number}")
        engine.settle()
        bound(topic, max_bytes=1 << 30, msg_ttl_ns=HOUR)
    slow_clock(engine, monkeypatch)
    shared = engine.components.shared
    for run, waiting in (
        (shared.episodes.run, lambda: len(shared.episodes._unchecked)),
        (shared.expiry.run, lambda: len(shared.expiry._waiting)),
    ):
        run()
        left = [waiting()]
        while engine.turns.calls:
            engine.turns.calls.popleft()()
            left.append(waiting())
        assert left[-1] == 0 and max(a - b for a, b in pairwise(left)) <= 8


def test_the_default_policy_has_no_bound() -> None:
    bounded = Bounded("c")
    assert bounded.topic.policy == DEFAULT
    assert not bounded.topic.appender.bounded


def test_a_channel_that_is_sought_back_counts_with_what_it_has_again() -> None:
    """R22: its publishers wait for it."""
    bounded = Bounded("c", max_messages=10, retain_ns=HOUR)
    client = bounded.consumer("c", ready_count=1)
    for number in range(30):
        assert bounded.pub(b"%d" % number) == ""
        client.finish(client.take()[0].index)
        bounded.engine.settle()
    assert (
        bounded.engine.done(bounded.topic.rewind(client.channel, bounded.topic.log.first)) is None
    )
    assert bounded.pub(b"x") == "max_messages"
    for _ in range(21):
        assert bounded.pub(b"x") == "max_messages"
        client.finish(client.take()[0].index)
        bounded.engine.settle()
    assert bounded.pub(b"x") == ""


# ---- drop-oldest


def test_drop_oldest_accepts_everything_and_keeps_the_newest() -> None:
    bounded = Bounded("c", max_messages=80, overflow="drop-oldest")
    for number in range(500):
        assert bounded.pub(b"%d" % number) == ""
    channel = bounded.topic.channels["c"]
    assert 70 <= channel.depth <= 80
    assert channel.depth + channel.dropped_count == 500
    bounded.engine.advance(3 * SECOND)
    assert bounded.topic.log.count == channel.depth
    assert bounded.topic.whole_from == bounded.topic.log.first
    client = bounded.consumer("c", ready_count=2500)
    bodies = [message.body for message in client.take()]
    assert bodies == [b"%d" % number for number in range(500 - len(bodies), 500)]
    bounded.engine.check()


def test_no_more_than_an_eighth_is_dropped_at_once() -> None:
    bounded = Bounded("c", max_messages=80, overflow="drop-oldest")
    channel = bounded.topic.channels["c"]
    dropped = 0
    for _ in range(300):
        bounded.pub(b"x")
        assert channel.dropped_count - dropped in (0, 10)
        assert channel.dropped_count == dropped or channel.depth == 71
        dropped = channel.dropped_count


def test_a_topic_that_is_consumed_drops_nothing() -> None:
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    client = bounded.consumer("c", ready_count=10)
    for _ in range(200):
        bounded.pub(b"x")
        for message in client.take():
            client.finish(message.index)
    assert client.channel.dropped_count == 0
    assert client.channel.finish_count == 200


def test_dropped_messages_in_flight_are_not_finished_twice_and_counts_are_right() -> None:
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    client = bounded.consumer("c", ready_count=5)
    for number in range(16):
        bounded.pub(b"%d" % number)
    held = client.take()
    assert len(held) == 5
    client.requeue(held[4].index, delay_ns=MINUTE)
    for number in range(16, 40):
        bounded.pub(b"%d" % number)
    bounded.engine.settle()
    assert [client.finish(message.index) for message in held] == [1] * 5  # not in flight
    assert client.consumer.in_flight_count == 5 == client.channel.in_flight_count
    assert client.channel.depth + 5 <= 16
    bounded.engine.check()


def test_all_channels_move_past_what_is_dropped() -> None:
    bounded = Bounded("slow", "fast", max_messages=16, overflow="drop-oldest")
    fast = bounded.consumer("fast", ready_count=100)
    pulls = bounded.engine.components.pulls
    pull, _, _ = pulls.open(bounded.topic, "p", bounded.topic.end)
    for number in range(100):
        bounded.pub(b"%d" % number)
        for message in fast.take()[1:] if number % 10 else fast.take():
            fast.finish(message.index)
    low = bounded.topic.low()
    assert bounded.topic.channels["slow"].depth <= 16
    assert pull.low == low and pull.depth <= 16 and pull.dropped_count > 0
    bounded.engine.advance(3 * SECOND)
    assert bounded.topic.whole_from == low == pull.whole_from
    assert fast.channel.finish_count + fast.channel.dropped_count <= 100
    bounded.engine.check()


def test_messages_for_the_first_channel_are_dropped_too() -> None:
    bounded = Bounded(max_messages=16, overflow="drop-oldest")
    for number in range(100):
        bounded.pub(b"%d" % number)
    assert bounded.topic.depth <= 16
    assert bounded.topic.depth + bounded.topic.dropped_count == 100
    client = bounded.consumer("c", ready_count=100)
    assert client.take()[-1].body == b"99"
    bounded.engine.check()


def test_a_paused_topic_drops_what_it_holds() -> None:
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    for number in range(8):
        bounded.pub(b"%d" % number)
    bounded.topic.pause(True)
    for number in range(8, 100):
        bounded.pub(b"%d" % number)
    channel = bounded.topic.channels["c"]
    assert channel.depth + bounded.topic.depth <= 16
    bounded.topic.pause(False)
    bounded.engine.settle()
    assert channel.depth <= 16 and channel.depth + channel.dropped_count == 100
    client = bounded.consumer("c", ready_count=100)
    bodies = [message.body for message in client.take()]
    assert bodies == [b"%d" % number for number in range(100 - len(bodies), 100)]
    bounded.engine.check()


@pytest.mark.parametrize("retain_ns", [0, HOUR])
@pytest.mark.parametrize("held_count", [0, 8])
def test_an_ephemeral_channel_gets_nothing_that_a_paused_topic_dropped(
    held_count: int, retain_ns: int
) -> None:
    """R23: one that begins at or above what the topic has released."""
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest", retain_ns=retain_ns)
    topic = bounded.topic
    topic.pause(True)
    for _ in range(held_count):
        bounded.pub(b"before")
    topic.create_channel("e#ephemeral", start=topic.end)
    client = bounded.consumer("e#ephemeral", ready_count=100)
    for number in range(60):
        bounded.pub(b"%d" % number)
    topic.pause(False)
    bounded.engine.settle()
    taken = client.take()
    count = len(taken)
    assert 8 <= count <= 16
    assert [message.body for message in taken] == [b"%d" % n for n in range(60 - count, 60)]
    for message in taken:
        client.finish(message.index)
    assert client.channel.depth == 0
    bounded.pub(b"new")
    assert [message.body for message in client.take()] == [b"new"]


def test_bytes_are_dropped_by_files() -> None:
    bounded = Bounded("c", max_bytes=1 << 20, overflow="drop-oldest")
    for _ in range(400):
        assert bounded.pub(bytes(10_000)) == ""
        assert bounded.topic.unfinished_size <= (1 << 20)
    bounded.engine.advance(3 * SECOND)
    assert (7 << 17) - 20_000 < bounded.topic.log.size <= (1 << 20) + (1 << 17)
    bounded.engine.check()


def test_what_was_dropped_stays_dropped_after_a_restart() -> None:
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    for number in range(100):
        bounded.pub(b"%d" % number)
    bounded.engine.advance(3 * SECOND)
    depth = bounded.topic.channels["c"].depth
    bounded.engine.exit()
    bounded.engine.start()
    client = Client(bounded.engine, "t", "c", ready_count=100)
    bounded.engine.settle()
    assert [m.body for m in client.take()] == [b"%d" % n for n in range(100 - depth, 100)]


def test_a_start_with_a_lower_bound_drops_on_all_channels() -> None:
    """Also of what a paused topic holds back, which no channel may get for that."""
    bounded = Bounded("c")
    engine = bounded.engine
    bounded.topic.pause(True)
    for number in range(40):
        bounded.pub(b"%d" % number)
    # As with another policy file.
    bounded.topic.own_policy = {"max_messages": "16", "overflow": "drop-oldest"}
    assert engine.done(bounded.topic.save_policy(None)) is None
    bounded.topic.log.bound_segments(1 << 60, 2)
    for number in range(40, 60):
        bounded.pub(b"%d" % number)
    engine.exit()
    engine.start()
    topic = engine.topic("t")
    channel = topic.channels["c"]
    client = Client(engine, "t", "c", ready_count=100)
    engine.advance(2 * SECOND)
    assert client.take() == [] and topic.depth <= 16
    assert channel.dropped_count + topic.depth == 60 and topic.dropped_count == 0
    assert engine.done(topic.pause(False)) is None
    engine.settle()
    left = 60 - channel.dropped_count
    assert [message.body for message in client.take()] == [b"%d" % n for n in range(60 - left, 60)]
    engine.check()


def test_a_bound_that_is_lowered_drops_at_once() -> None:
    bounded = Bounded("c", max_messages=800, overflow="drop-oldest")
    for number in range(800):
        bounded.pub(b"%d" % number)
    bound(bounded.topic, max_messages=300)
    assert 200 <= bounded.topic.channels["c"].depth <= 300


def test_one_batch_larger_than_the_bound_stays_until_the_next_one() -> None:
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    bounded.pub(*[b"x"] * 100)
    assert bounded.topic.channels["c"].depth == 100
    bounded.pub(b"last")
    assert bounded.topic.channels["c"].depth == 1


def test_a_drop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    for _ in range(100):
        bounded.pub(b"x")
    bounded.engine.advance(EPISODE_NS + 2 * SECOND)
    dropped = bounded.topic.channels["c"].dropped_count
    lines = [record.getMessage() for record in caplog.records if "full" in record.getMessage()]
    assert lines == [
        "topic=t: full (max_messages), the oldest messages are dropped",
        f"topic=t: is not full any more, {dropped} messages were dropped",
    ]


# ---- deferred messages that fall due


def test_deferred_messages_that_fall_due_wait_for_room_and_go_first() -> None:
    bounded = Bounded("c", max_messages=3)
    topic, engine = bounded.topic, bounded.engine
    for number in range(10):
        assert engine.done(topic.defer(b"late%d" % number, MINUTE + number)) is None
    assert bounded.fill() == 3
    engine.advance(2 * MINUTE)
    assert topic.policy_stats()["waiting_count"] == 10 == topic.deferred_count
    client = bounded.consumer("c", ready_count=1)
    came: list[bytes] = []
    while len(came) < 13:
        (message,) = client.take()
        came.append(message.body)
        client.finish(message.index)
        engine.settle()
        if len(came) < 10:
            assert bounded.pub(b"x") == "max_messages"  # those that wait come first
        assert topic.bound.unfinished_count <= max(3, 13 - len(came))
    assert came[3:] == [b"late%d" % number for number in range(10)]
    assert topic.policy_stats()["waiting_count"] == 0 == topic.deferred_count
    assert bounded.pub(b"x") == ""
    engine.check()


def test_messages_that_wait_for_room_survive_a_restart() -> None:
    bounded = Bounded("c", max_messages=2)
    topic, engine = bounded.topic, bounded.engine
    engine.done(topic.defer(b"late", MINUTE))
    bounded.fill()
    engine.advance(2 * MINUTE)
    assert topic.policy_stats()["waiting_count"] == 1
    engine.exit()
    engine.start()
    client = Client(engine, "t", "c", ready_count=10)
    engine.advance(3 * SECOND)
    assert sorted(message.body for message in client.take()) == [b"0", b"1", b"late"]


def test_they_go_when_the_bound_goes_and_are_void_when_the_topic_is_emptied() -> None:
    for act in ("unbound", "empty", "delete"):
        bounded = Bounded("c", max_messages=2)
        topic, engine = bounded.topic, bounded.engine
        for _ in range(3):
            engine.done(topic.defer(b"late", MINUTE))
        bounded.fill()
        engine.advance(2 * MINUTE)
        if act == "unbound":
            bound(topic, max_messages=0)
        elif act == "empty":
            topic.empty()
        else:
            engine.broker.delete_topic("t")
        engine.advance(3 * SECOND)
        depth = topic.channels["c"].depth if topic.channels else 2
        assert depth == (5 if act == "unbound" else 2)
        assert topic.policy_stats()["waiting_count"] == 0
        assert len(engine.components.deferred._schedule) == 0
        engine.advance(2 * HOUR)
        assert not engine.components.deferred.table.files  # all of them are done


def test_many_that_wait_follow_each_other_without_a_pause() -> None:
    bounded = Bounded("c", max_messages=2)
    topic, engine = bounded.topic, bounded.engine
    for _ in range(20_000):
        topic.defer(b"late", MINUTE)
    engine.settle()
    bounded.fill()
    engine.advance(2 * MINUTE)
    assert topic.policy_stats()["waiting_count"] == 20_000
    bound(topic, max_messages=0)
    engine.advance(SECOND)
    assert topic.channels["c"].depth == 20_002
    assert topic.policy_stats()["waiting_count"] == 0


def test_other_topics_are_not_held_up_and_nothing_spins() -> None:
    bounded = Bounded("c", max_messages=2)
    engine = bounded.engine
    for _ in range(600):
        bounded.topic.defer(b"late", MINUTE)
    engine.settle()
    bounded.fill()
    other = Client(engine, "other", "c", ready_count=10)
    engine.defer("other", MINUTE + SECOND, b"on time")
    engine.advance(MINUTE + 2 * SECOND)
    assert [message.body for message in other.take()] == [b"on time"]
    read: list[str] = []
    store = engine.components.deferred.table.store
    real = store.read_now
    store.read_now = lambda name, *rest: (read.append(name), real(name, *rest))[1]
    engine.advance(5 * MINUTE)
    assert not read


# ---- staged rows


def test_staged_rows_are_refused_at_the_bound_and_a_decided_batch_waits() -> None:
    """R19: what was decided is published completely, and once."""
    bounded = Bounded("c", max_messages=3)
    engine, topic = bounded.engine, bounded.topic
    query = Query(engine)
    key = query.key()
    query.stage(key, "t", [b"s0", b"s1"], [b"s2"], [b"s3"])
    bounded.fill()
    with pytest.raises(StagingError, match=r"TOPIC_FULL: t: topic is full \(max_messages\)"):
        query.put(query.key(1), 0, "t", plain(b"x"))
    ticket, _ = engine.components.staging.publish("q", 0, [(0, ATTEMPT)])
    engine.advance(20 * SECOND)
    assert not ticket.done and topic.channels["c"].depth == 3
    client = bounded.consumer("c", ready_count=1)
    came: list[bytes] = []
    while len(came) < 7:
        (message,) = client.take()
        came.append(message.body)
        client.finish(message.index)
        engine.advance(SECOND)
        assert client.channel.depth + client.channel.in_flight_count <= 4
    assert ticket.done and ticket.error is None
    assert came[3:] == [b"s0", b"s1", b"s2", b"s3"]
    engine.check()


def test_a_decided_batch_that_waits_ends_with_its_topic() -> None:
    bounded = Bounded("c", max_messages=1)
    query = Query(bounded.engine)
    query.stage(query.key(), "t", [b"s"])
    bounded.fill()
    ticket, _ = bounded.engine.components.staging.publish("q", 0, [(0, ATTEMPT)])
    bounded.engine.advance(SECOND)
    bounded.engine.broker.delete_topic("t")
    bounded.engine.advance(20 * SECOND)
    assert ticket.done and ticket.error is None
    assert bounded.engine.components.staging.void_count == 1


def test_what_is_dropped_below_a_channel_that_was_sent_beyond_it_does_not_count() -> None:
    """R20, R22: the topic is paused, and the channel gets none of what it holds."""
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    bounded.topic.pause(True)
    assert not any(bounded.pub(b"x") for _ in range(16))
    channel = bounded.topic.channels["c"]
    bounded.topic.rewind(channel, bounded.topic.end)
    assert not any(bounded.pub(b"x") for _ in range(4))
    assert bounded.topic.dropped_count == 0 and bounded.topic.log.count < 20
    bounded.topic.pause(False)
    assert channel.depth == 4


def test_what_is_dropped_where_messages_were_skipped_twice_counts_once() -> None:
    """R17, R20: by emptying the channel, before a deferred message fired, and then the topic."""
    bounded = Bounded("c", max_messages=16, overflow="drop-oldest")
    engine, channel = bounded.engine, bounded.topic.channels["c"]
    assert engine.defer("t", SECOND, b"void") is None
    engine.done(channel.empty())
    assert not any(bounded.pub(b"x") for _ in range(3))
    bounded.topic.pause(True)
    engine.advance(2 * SECOND)
    assert not any(bounded.pub(b"x") for _ in range(3))
    engine.done(bounded.topic.empty())
    bounded.topic.pause(False)
    assert channel.depth == 3
    assert not any(bounded.pub(b"x") for _ in range(16))
    count = bounded.topic.log.count_between(channel.window.cursor, bounded.topic.end)
    assert channel.depth == count <= 16
