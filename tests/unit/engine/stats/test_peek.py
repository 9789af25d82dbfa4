"""Looking at a channel's messages: all that is unfinished, in its order, and nothing changes."""

from __future__ import annotations

import random

import pytest

from penstock.engine.channel import REDELIVERY_SIZE
from penstock.engine.stats.peek import COUNT_MAX, Peeked, peek
from tests.support.engine import HOUR, SECOND, Client, Engine


def look(
    engine: Engine, topic: str, channel: str, count: int = 100, size_max: int = 1000
) -> list[Peeked]:
    found: list[Peeked] = []

    def done(peeked: list[Peeked] | None, error: Exception | None) -> None:
        assert error is None and peeked is not None
        found.extend(peeked)

    peek(engine.broker.topics[topic].channels[channel], count, size_max, engine.disk, done)
    engine.settle()
    return found


def made(engine: Engine, topic: str, channel: str) -> None:
    engine.broker.create_topic(topic)[0].create_channel(channel)
    engine.settle()


@pytest.mark.parametrize("names", [("t", "c"), ("t", "c#ephemeral"), ("t#ephemeral", "c")])
def test_every_state_is_told_in_the_order_of_the_log(names: tuple[str, str]) -> None:
    engine = Engine()
    made(engine, *names)
    client = Client(engine, *names, ready_count=4)
    engine.publish(names[0], b"a", b"b", b"c", b"d", b"e")
    first, second, third, _ = client.take()
    client.requeue(first.index, 3 * SECOND)
    client.finish(third.index)
    client.requeue(second.index)
    engine.settle()
    again = client.take()
    assert [received.body for received in again] == [b"e", b"b"]
    client.ready(0)
    client.requeue(again[1].index)
    engine.settle()
    engine.publish(names[0], b"f")
    found = look(engine, *names)
    assert [(p.body, p.state, p.attempts) for p in found] == [
        (b"a", "deferred", 1),
        (b"b", "queued", 2),
        (b"d", "in_flight", 1),
        (b"e", "in_flight", 1),
        (b"f", "queued", 0),
    ]
    assert found[0].due_ns == engine.clock.wall_ns() + 3 * SECOND
    assert {p.due_ns for p in found[1:]} == {0}
    assert found[0].id.encode() == first.id
    assert look(engine, *names) == found, "looking changes nothing"
    engine.advance(3 * SECOND)
    first_again = look(engine, *names)[0]
    assert (first_again.state, first_again.due_ns) == ("queued", 0)


def test_nothing_is_consumed_counted_or_sent() -> None:
    engine = Engine()
    made(engine, "t", "c")
    engine.publish("t", *(b"%d" % n for n in range(10)))
    channel = engine.topic("t").channels["c"]
    before = (channel.depth, channel.message_count, channel.window.snapshot())
    assert len(look(engine, "t", "c")) == 10
    assert (channel.depth, channel.message_count, channel.window.snapshot()) == before
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert [received.attempts for received in client.take()] == [1] * 10


def test_the_count_and_the_size_are_bounded() -> None:
    engine = Engine()
    made(engine, "t", "c")
    engine.publish("t", b"x" * 5000, *(b"%d" % n for n in range(150)))
    found = look(engine, "t", "c", count=3, size_max=10)
    assert [(p.size, p.body) for p in found] == [(5000, b"x" * 10), (1, b"0"), (1, b"1")]
    assert len(look(engine, "t", "c", count=1_000_000)) == COUNT_MAX


def test_what_a_channel_skips_is_not_shown() -> None:
    engine = Engine()
    made(engine, "t", "c")
    engine.publish("t", *(b"%d" % n for n in range(6)))
    channel = engine.topic("t").channels["c"]
    first = min(engine.logged("t"))
    for index in (first, first + 2, first + 3):
        channel.skip(index)
    assert [p.body for p in look(engine, "t", "c")] == [b"1", b"4", b"5"]
    assert [p.body for p in look(engine, "t", "c", count=2)] == [b"1", b"4"]


def test_a_paused_topic_and_an_emptied_channel_show_what_they_have() -> None:
    engine = Engine()
    made(engine, "t", "c")
    engine.publish("t", b"a")
    engine.broker.topics["t"].pause(True)
    engine.settle()
    engine.publish("t", b"held")
    assert [p.body for p in look(engine, "t", "c")] == [b"a"]
    engine.topic("t").channels["c"].empty()
    engine.settle()
    assert look(engine, "t", "c") == []


def test_gaps_of_a_restart_cost_nothing_and_stragglers_are_found() -> None:
    """R1: an index is no count; the hole of a restart is millions wide."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=3)
    engine.publish("t", b"a", b"b", b"c")
    kept = client.take()[1]
    for received in (kept.index - 1, kept.index + 1):
        client.finish(received)
    engine.exit()
    engine.clock.advance(HOUR)
    engine.start()
    engine.publish("t", b"d")
    assert [(p.body, p.attempts) for p in look(engine, "t", "c")] == [(b"b", 1), (b"d", 0)]


def test_any_channel_shows_what_the_naive_look_finds() -> None:
    """Random traffic, with messages larger than one read."""
    chance = random.Random(3)
    engine = Engine(seed=3)
    client = Client(engine, "t", "c", ready_count=20)
    for step in range(60):
        size = chance.choice([1, 100, REDELIVERY_SIZE])
        engine.publish("t", *(b"%d.%d " % (step, n) + b"x" * size for n in range(3)))
        for received in client.take():
            action = chance.random()
            if action < 0.4:
                client.finish(received.index)
            elif action < 0.7:
                client.requeue(received.index, chance.choice([0, SECOND, HOUR]))
        engine.settle()
        expected = engine.unfinished("t", "c")
        found = look(engine, "t", "c", size_max=1 << 20)
        names = {"in flight": "in_flight", "ready": "queued", "queued": "queued"}
        assert [(p.body, p.state, p.attempts) for p in found] == [
            (body, names.get(is_.state, is_.state), is_.attempts)
            for body, is_ in sorted(expected.items(), key=lambda item: item[1].index)
        ][:COUNT_MAX]
