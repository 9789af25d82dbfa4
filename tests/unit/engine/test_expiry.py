"""R20: messages older than ``msg_ttl`` are not delivered, and do not wait either."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Act, take_some
from penstock.engine.topic import Topic
from tests.support.engine import HOUR, MINUTE, SECOND, Client, Engine


def lifetime(what: BaseTopic | Channel, **keys: Any) -> None:
    what.apply_policy(dataclasses.replace(what.policy, **keys))


class Mortal:
    """A topic with a channel whose messages live for a minute."""

    def __init__(self, *, ttl_ns: int = MINUTE, **options: Any) -> None:
        self.engine = Engine(**options)
        self.engine.broker.create_topic("t")
        self.topic: Topic = self.engine.topic("t")
        self.channel, _ = self.topic.create_channel("c")
        self.engine.settle()
        lifetime(self.channel, msg_ttl_ns=ttl_ns)

    def pub(self, *bodies: bytes) -> None:
        assert self.engine.done(self.topic.publish(list(bodies))) is None

    def consumer(self, channel: str = "c", ready_count: int = 100, **more: Any) -> Client:
        client = Client(self.engine, "t", channel, ready_count=ready_count, **more)
        self.engine.settle()
        return client

    def bodies(self, client: Client) -> list[bytes]:
        self.engine.settle()
        return [message.body for message in client.take()]


def jump(engine: Engine, duration_ns: int) -> None:
    """Time passes, and no timer has fired yet: only a delivery can see it."""
    engine.clock.advance(duration_ns)


def test_a_message_is_delivered_until_it_is_older_than_its_lifetime() -> None:
    mortal = Mortal()
    mortal.pub(b"old")
    jump(mortal.engine, 30 * SECOND)
    mortal.pub(b"young")
    jump(mortal.engine, 30 * SECOND + 1_000_000)
    assert mortal.bodies(Client(mortal.engine, "t", "c", ready_count=10)) == [b"young"]
    assert mortal.channel.expired_count == 1
    mortal.engine.check()


def test_without_a_lifetime_nothing_expires() -> None:
    mortal = Mortal(ttl_ns=0)
    mortal.pub(b"old")
    mortal.engine.advance(HOUR)
    assert mortal.bodies(mortal.consumer()) == [b"old"]


def test_the_depth_falls_without_a_consumer_and_the_files_go() -> None:
    mortal = Mortal(max_bytes_per_file=1 << 20)
    for _ in range(100):
        mortal.pub(bytes(50_000))
    mortal.engine.advance(30 * SECOND)
    mortal.pub(b"young")
    assert mortal.channel.depth == 101
    mortal.engine.advance(35 * SECOND)
    assert mortal.channel.depth == 1
    assert mortal.channel.expired_count == 100
    assert mortal.topic.log.size < 2 << 20
    mortal.engine.check()


def test_it_runs_on_while_the_channel_or_the_topic_is_paused() -> None:
    mortal = Mortal()
    client = mortal.consumer(ready_count=10)
    mortal.channel.pause(True)
    mortal.pub(b"1")
    mortal.topic.pause(True)
    mortal.pub(b"2")
    mortal.engine.advance(2 * MINUTE)
    assert mortal.channel.depth == 0
    mortal.topic.pause(False)
    mortal.channel.pause(False)
    assert mortal.bodies(client) == []
    assert mortal.channel.expired_count == 2


def test_messages_in_flight_are_left_alone_until_they_come_back() -> None:
    mortal = Mortal()
    client = mortal.consumer(ready_count=3, msg_timeout_ns=10 * MINUTE)
    mortal.pub(b"1", b"2", b"3")
    first, second, _third = client.take()
    mortal.engine.advance(2 * MINUTE)
    assert client.finish(first.index) == 0
    client.requeue(second.index)
    assert mortal.bodies(client) == []
    assert mortal.channel.in_flight_count == 1
    mortal.engine.advance(10 * MINUTE)  # the third one times out
    assert mortal.bodies(client) == []
    assert mortal.channel.expired_count == 2
    assert mortal.channel.depth == mortal.channel.in_flight_count == 0
    mortal.engine.check()


def test_requeued_messages_expire_without_a_consumer() -> None:
    mortal = Mortal()
    client = mortal.consumer(ready_count=10)
    mortal.pub(b"1", b"2", b"3")
    client.finish(client.take()[1].index)
    client.close()
    assert mortal.channel.depth == 2
    mortal.engine.advance(2 * MINUTE)
    assert mortal.channel.depth == 0 and mortal.channel.expired_count == 2
    assert mortal.channel.window.low == mortal.topic.end
    mortal.engine.check()


def waiting_again(mortal: Mortal, count: int) -> None:
    """``count`` messages that were delivered once, on a channel without a consumer."""
    client = mortal.consumer(ready_count=count)
    mortal.pub(*[b"x"] * count)
    mortal.engine.settle()
    for message in client.take():
        client.requeue(message.index)
        client.ready(0)
    client.close()
    assert mortal.channel.window.ready_count == count == mortal.channel.depth


def test_young_messages_that_wait_again_do_not_hold_the_loop() -> None:
    """Whether one of many is too old is found once a second, not again and again."""
    mortal = Mortal(ttl_ns=HOUR)
    lifetime(mortal.topic, retain_ns=10 * HOUR)
    mortal.pub(b"old")
    client = mortal.consumer(ready_count=1)
    client.finish(client.take()[0].index)
    client.close()
    mortal.engine.advance(2 * HOUR)
    waiting_again(mortal, 50_000)
    mortal.engine.advance(3 * SECOND)
    assert mortal.channel.depth == 50_000 and mortal.channel.expired_count == 0


@pytest.mark.parametrize("keys", [{}, {"max_attempts": 2}])
def test_all_of_many_requeued_messages_that_are_too_old_expire(keys: dict[str, Any]) -> None:
    """With the last attempt ahead, which is delivered alone, as well."""
    mortal = Mortal()
    lifetime(mortal.channel, **keys)
    client = mortal.consumer(ready_count=7500, msg_timeout_ns=15 * SECOND)
    for _ in range(3):
        mortal.pub(*[b"old"] * 2500)
        mortal.engine.advance(5 * SECOND)
    client.ready(0)
    mortal.engine.advance(15 * SECOND)
    client.close()
    assert mortal.channel.window.lone_count == (7500 if keys else 0)
    mortal.engine.advance(37 * SECOND)
    window = mortal.channel.window
    assert (window.ready_count, window.low) == (2500, mortal.topic.end - 2500)
    mortal.engine.check()
    mortal.engine.advance(MINUTE)
    assert mortal.channel.depth == 0 and mortal.channel.expired_count == 7500


def test_thousands_that_wait_and_are_young_are_examined_once_a_second() -> None:
    """Beside an old one: the loop became never idle, and their order was lost."""
    mortal = Mortal()
    client = mortal.consumer(ready_count=5000)
    mortal.pub(b"old")
    client.requeue(client.take()[0].index, delay_ns=HOUR)
    mortal.engine.advance(2 * MINUTE)
    mortal.pub(*[b"%d" % i for i in range(5000)])
    client.ready(0)
    for message in client.take():
        client.requeue(message.index)
    mortal.engine.advance(30 * SECOND)
    assert mortal.channel.depth == 5000 and mortal.channel.expired_count == 0
    client.ready(100)
    assert mortal.bodies(client) == [b"%d" % i for i in range(100)]
    mortal.engine.advance(40 * SECOND)
    assert mortal.channel.depth == 0 and mortal.channel.expired_count == 4900
    mortal.engine.check()


def test_a_message_requeued_with_a_delay_expires_when_it_is_due() -> None:
    mortal = Mortal()
    client = mortal.consumer(ready_count=10)
    mortal.pub(b"1")
    client.requeue(client.take()[0].index, delay_ns=5 * MINUTE)
    mortal.engine.advance(6 * MINUTE)
    assert mortal.bodies(client) == [] and mortal.channel.expired_count == 1


def test_a_deferred_message_lives_from_when_it_fired() -> None:
    mortal = Mortal()
    mortal.topic.defer(b"later", HOUR)
    mortal.engine.advance(HOUR + 30 * SECOND)
    client = mortal.consumer()
    assert mortal.bodies(client) == [b"later"]


@pytest.mark.parametrize("seed", [0, 3])
def test_old_messages_read_from_disk_expire_too(seed: int) -> None:
    """Redelivered ones, whose batch is not in memory any more, included."""
    mortal = Mortal(seed=seed)
    client = mortal.consumer(ready_count=2500)
    for _ in range(60):
        mortal.pub(*[bytes(4000)] * 20)
    assert len(client.take()) == 1200
    client.close()
    mortal.topic.feed.tail.clear()
    jump(mortal.engine, 2 * MINUTE)
    assert mortal.bodies(Client(mortal.engine, "t", "c", ready_count=2500)) == []
    assert mortal.channel.expired_count == 1200


def test_an_ephemeral_channel_delivers_nothing_too_old() -> None:
    mortal = Mortal()
    client = mortal.consumer("e#ephemeral", ready_count=2, msg_timeout_ns=HOUR)
    lifetime(client.channel, msg_ttl_ns=MINUTE)
    mortal.pub(b"1", b"2", b"3", b"4")
    first, _second = client.take()
    jump(mortal.engine, 2 * MINUTE)
    client.requeue(first.index)
    client.ready(10)
    assert mortal.bodies(client) == []
    assert client.channel.expired_count == 3  # one is in flight


def test_messages_without_a_channel_expire_by_the_lifetime_of_the_topic() -> None:
    engine = Engine()
    engine.broker.create_topic("t")
    topic = engine.topic("t")
    engine.settle()
    lifetime(topic, msg_ttl_ns=MINUTE)
    engine.done(topic.publish([b"1", b"2"]))
    engine.advance(50 * SECOND)
    engine.done(topic.publish([b"3"]))
    assert topic.depth == 3
    engine.advance(20 * SECOND)
    assert topic.depth == 1 and topic.expired_count == 2
    engine.exit()
    engine.start()
    assert engine.topic("t").depth == 1


@pytest.mark.parametrize("action", ["bury", "topic"])
def test_messages_without_a_channel_are_dropped_only_if_the_policy_says_so(action: str) -> None:
    """There is no channel to bury them in yet: they wait for one."""
    engine = Engine()
    engine.broker.create_topic("t")
    topic = engine.topic("t")
    engine.settle()
    place = engine.components.policies
    assert engine.done(place.set_topic(topic, {"msg_ttl": "1m", "on_expired": action})) is None
    engine.done(topic.publish([b"1", b"2"]))
    engine.advance(2 * MINUTE)
    assert topic.depth == 2 and topic.expired_count == 0
    client = Client(engine, "t", "c", ready_count=10)
    engine.advance(2 * SECOND)
    assert client.take() == [] and client.channel.expired_count == 2
    if action == "bury":
        assert client.channel.window.buried_count == 2
    else:
        assert sorted(engine.logged("t.c.dead").values()) == [b"1", b"2"]


def test_a_clock_set_back_loses_nothing_and_one_set_ahead_expires_early() -> None:
    """R4: append times never decrease, so messages after a step back live longer."""
    mortal = Mortal()
    mortal.pub(b"before")
    mortal.engine.clock.step_wall(-HOUR)
    mortal.pub(b"after")
    mortal.engine.advance(30 * MINUTE)
    assert mortal.channel.depth == 2
    mortal.engine.clock.step_wall(2 * HOUR)
    mortal.engine.advance(2 * SECOND)
    assert mortal.channel.depth == 0 and mortal.channel.expired_count == 2


def test_what_expired_stays_away_after_a_restart() -> None:
    mortal = Mortal()
    mortal.pub(b"old")
    mortal.engine.advance(2 * MINUTE)
    mortal.pub(b"new")
    mortal.engine.exit()
    mortal.engine.start()
    client = Client(mortal.engine, "t", "c", ready_count=10)
    assert mortal.bodies(client) == [b"new"]


def test_the_lifetime_of_a_deleted_topic_costs_nothing() -> None:
    mortal = Mortal()
    mortal.pub(b"old")
    mortal.engine.done(mortal.engine.broker.delete_topic("t"))
    mortal.engine.advance(2 * MINUTE)
    assert not mortal.engine.components.shared.expiry._topics


def test_expired_messages_are_buried_if_the_policy_says_so() -> None:
    mortal = Mortal()
    lifetime(mortal.channel, on_expired="bury")
    client = mortal.consumer(ready_count=2)
    mortal.pub(b"1", b"2", b"3")
    first, _second = client.take()
    client.close()
    mortal.pub(b"4")
    mortal.engine.advance(2 * MINUTE)
    window = mortal.channel.window
    assert (mortal.channel.depth, window.buried_count, mortal.channel.expired_count) == (0, 4, 4)
    assert window.low == mortal.topic.end
    assert window.buried_total["expired"] == 4
    mortal.engine.check()
    mortal.engine.exit()
    mortal.engine.start()
    assert mortal.engine.topic("t").channels["c"].window.buried_count == 4
    assert first.index in mortal.engine.topic("t").channels["c"].window.buried.indexes()


def test_a_delivery_buries_what_has_expired_and_goes_on() -> None:
    mortal = Mortal()
    lifetime(mortal.channel, on_expired="bury")
    mortal.pub(*[b"old"] * 5000)
    jump(mortal.engine, 2 * MINUTE)
    mortal.pub(b"young")
    client = Client(mortal.engine, "t", "c", ready_count=10)
    mortal.engine.advance(3 * SECOND)
    assert mortal.bodies(client) == [b"young"]
    assert mortal.channel.window.buried_count == 5000
    mortal.engine.check()


def test_without_room_to_bury_it_an_expired_message_waits() -> None:
    mortal = Mortal()
    lifetime(mortal.channel, on_expired="bury", max_buried=2)
    mortal.channel.window.movable = False
    mortal.pub(b"1", b"2", b"3")
    mortal.engine.advance(2 * MINUTE)
    client = mortal.consumer()
    assert mortal.bodies(client) == []
    assert (mortal.channel.depth, mortal.channel.window.buried_count) == (1, 2)
    lifetime(mortal.channel, max_buried=3)
    mortal.engine.advance(2 * SECOND)
    assert (mortal.channel.depth, mortal.channel.window.buried_count) == (0, 3)
    mortal.engine.check()


def test_what_was_buried_before_its_first_delivery_is_kicked_like_the_others() -> None:
    """Also if there was no room for the message behind it."""
    mortal = Mortal()
    lifetime(mortal.channel, on_expired="bury", max_buried=2)
    mortal.channel.window.movable = False
    mortal.pub(b"1", b"2", b"3")
    mortal.engine.advance(2 * MINUTE)
    assert take_some(mortal.channel, Act.KICK, 0, 10)[0] == 2
    mortal.engine.advance(5 * SECOND)
    client = mortal.consumer()
    assert mortal.bodies(client) == [b"1", b"2"]
    assert (mortal.channel.depth, mortal.channel.window.buried_count) == (0, 1)
    mortal.engine.check()


@pytest.mark.parametrize("keys", [{"on_expired": "topic"}, {"on_expired": "bury", "max_buried": 1}])
def test_expired_messages_are_moved_to_the_dead_topic(keys: dict[str, Any]) -> None:
    """By the policy, or because too many are buried."""
    mortal = Mortal()
    lifetime(mortal.channel, **keys)
    mortal.pub(b"1", b"2", b"3")
    mortal.engine.advance(2 * MINUTE)
    left = mortal.channel.window.buried_count
    assert left == keys.get("max_buried", 0)
    moved = set(mortal.engine.logged("t.c.dead").values())
    assert len(moved) == 3 - left and moved <= {b"1", b"2", b"3"}
    mortal.engine.check()


def test_a_replay_does_not_expire_at_once() -> None:
    """The age of what was in the log counts from the seek."""
    mortal = Mortal(ttl_ns=0)
    lifetime(mortal.topic, retain_ns=HOUR)
    mortal.pub(b"1")
    client = mortal.consumer()
    client.finish(client.take()[0].index)
    mortal.engine.advance(2 * MINUTE)
    lifetime(mortal.channel, msg_ttl_ns=MINUTE)
    client.ready(0)
    mortal.engine.done(mortal.topic.rewind(mortal.channel, mortal.topic.log.first))
    mortal.engine.advance(50 * SECOND)
    assert mortal.channel.depth == 1
    mortal.engine.advance(20 * SECOND)
    assert mortal.channel.depth == 0 and mortal.channel.expired_count == 1


@pytest.mark.parametrize("restart", ["", "exit", "crash", "rewrite"])
@pytest.mark.parametrize("ready_count", [0, 10])
def test_a_kicked_message_does_not_expire_again(restart: str, ready_count: int) -> None:
    """Somebody wants it although it is old: it would be buried again, or dropped, at once."""
    mortal = Mortal()
    engine = mortal.engine
    place = engine.components.policies
    assert engine.done(place.set_channel(mortal.channel, {"msg_ttl": "1m"})) is None
    client = mortal.consumer(ready_count=2)
    mortal.pub(b"1", b"2")
    for message in client.take():
        client.bury(message.index)
    client.close()
    engine.advance(HOUR)
    channel = mortal.channel
    consumer = Client(engine, "t", "c", ready_count=ready_count)
    count, _ = take_some(channel, Act.KICK, 0, 10)
    assert count == 2
    engine.advance(5 * SECOND)
    assert channel.depth + channel.in_flight_count == 2 and channel.expired_count == 0
    if restart:
        consumer.close()
        if restart == "rewrite":
            assert engine.done(mortal.topic.keeper.rewrite()) is None
            restart = "crash"
        getattr(engine, restart)()
        engine.start()
        consumer = Client(engine, "t", "c", ready_count=0)
        engine.advance(5 * SECOND)
        channel = engine.topic("t").channels["c"]
    consumer.ready(10)
    assert mortal.bodies(consumer) == [b"1", b"2"]
    consumer.requeue(channel.window.low)
    assert mortal.bodies(consumer) == [b"1"]
    assert channel.expired_count == 0
    engine.check()
