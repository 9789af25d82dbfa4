"""Patterns: which topics are made with a pull channel, and for how long (R47)."""

from __future__ import annotations

import errno
import time

import pytest

from penstock.engine.pull.channel import PullChannel
from penstock.engine.pull.patterns import (
    PATTERN_COUNT_MAX,
    HasPatternError,
    Pattern,
    TooManyPatternsError,
)
from penstock.engine.pull.polls import Known
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.patterns import PatternRecord
from penstock.wire.ids import INDEX_MAX
from tests.crash.lossy import KEEP, LOSE
from tests.support.engine import MINUTE, SECOND, Client, Engine
from tests.support.faults import WRITES

ONE, TWO = "1" * 32, "2" * 32


def leave(
    engine: Engine, *topics: str, channel: str = "q", identity: str = ONE
) -> Exception | None:
    _, ticket, _ = engine.components.patterns.register(channel, identity, "me", topics, ())
    return engine.done(ticket)


def channel_of(engine: Engine, topic: str) -> PullChannel:
    channel = engine.topic(topic).channels["q"]
    assert isinstance(channel, PullChannel)
    return channel


@pytest.mark.parametrize("mode", [KEEP, LOSE])
@pytest.mark.parametrize("seed", range(8))
def test_the_channel_and_the_topic_are_one_creation(seed: int, mode: str) -> None:
    """R47, R6: a crash at any step leaves both or neither; what was acknowledged is in both."""
    for steps in range(0, 40, 2):
        engine = Engine(seed=seed + 1, sync_every=1)
        assert leave(engine, "t*") is None
        topics = [f"t{number}" for number in range(3)]
        tickets = []
        for name in topics:
            topic, created = engine.broker.create_topic(name)
            tickets.append((created, topic.publish([b"a"])))
        for _ in range(steps):
            if engine.turns.calls:
                engine.turns.calls.popleft()()
            elif engine.disk.works:
                engine.disk.step()
        acked = [
            name
            for name, (created, stored) in zip(topics, tickets, strict=True)
            if created.done and stored.done and not (created.error or stored.error)
        ]
        engine.crash(mode, seed)
        engine.start()
        for name in topics:
            if name in engine.broker.topics:
                channel = channel_of(engine, name)
                there = engine.topic(name).log.count
                assert channel.depth == there, "low is at the first index"
            assert name not in acked or engine.topic(name).log.count == 1


def test_messages_wait_for_the_channels_of_nsqlookupd_and_are_in_all_of_them() -> None:
    engine = Engine()
    assert leave(engine, "*") is None
    engine.components.shared.hooks.query_channels = lambda _topic: True
    assert engine.publish("t", b"a") is None
    topic = engine.topic("t")
    assert channel_of(engine, "t").depth == 0, "held back like everybody's"
    topic.know_channels(["known", "q"])
    engine.settle()
    assert channel_of(engine, "t").depth == topic.channels["known"].depth == 1


def test_two_patterns_make_two_channels() -> None:
    engine = Engine()
    assert leave(engine, "a*") is None
    assert leave(engine, "*b", channel="r", identity=TWO) is None
    for name in ("a", "b", "ab", "c", "ab#ephemeral"):
        assert engine.publish(name, b"x") is None
    made = {name: set(topic.channels) for name, topic in engine.broker.topics.items()}
    assert made == {"a": {"q"}, "b": {"r"}, "ab": {"q", "r"}, "c": set(), "ab#ephemeral": set()}
    assert engine.components.patterns.made_count == 4


def test_a_pattern_lapses_like_a_channel_also_over_restarts() -> None:
    engine = Engine(pull_channel_lapse_ns=10 * SECOND)
    assert leave(engine, "*") is None
    engine.publish("t", b"a")
    engine.advance(9 * SECOND)
    engine.components.patterns.renew("q", TWO)
    engine.crash(LOSE)
    engine.start()
    engine.advance(9 * SECOND)
    assert len(engine.components.patterns) == 1, "a start is a visit"
    channel_of(engine, "t").visit()
    engine.components.patterns.renew("q", ONE)
    engine.advance(9 * SECOND)
    poll = engine.components.polls.wait({"t": Known(None, INDEX_MAX)}, "q", MINUTE, None, ONE)
    engine.advance(20 * SECOND)
    assert len(engine.components.patterns) == 1, "its reader waits"
    engine.components.polls.answer(poll)
    engine.advance(2 * SECOND)
    assert (len(engine.components.patterns), engine.components.patterns.lapse_count) == (0, 1)
    engine.advance(SECOND)
    engine.crash(LOSE)
    engine.start()
    assert len(engine.components.patterns) == 0


def test_without_a_lapse_patterns_stay() -> None:
    engine = Engine(pull_channel_lapse_ns=0)
    assert leave(engine, "*") is None
    engine.advance(MINUTE)
    (shown,) = engine.components.patterns.stats
    assert shown["lapses_in_ms"] is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_pattern_that_cannot_be_written_is_not_answered_for_and_tried_again(code: int) -> None:
    engine = Engine()
    engine.files.faults.add("*patterns.json*", code, *WRITES)
    assert isinstance(leave(engine, "*"), OSError)
    assert isinstance(leave(engine, "*"), OSError), "a renewal is told the same"
    assert (
        engine.components.health.problem is not None
        and "patterns.json" in engine.components.health.text
    )
    engine.files.faults.heal()
    engine.advance(3 * SECOND)
    assert engine.components.health.problem is None
    assert leave(engine, "*") is None
    engine.crash(LOSE)
    engine.start()
    assert len(engine.components.patterns) == 1
    assert engine.components.damage.records == []


def test_renewing_writes_nothing_and_a_change_does() -> None:
    engine = Engine()
    assert leave(engine, "*") is None
    engine.files.faults.add("*patterns.json*", errno.EIO, *WRITES)
    for _ in range(3):
        assert leave(engine, "*") is None
    assert engine.files.faults.hit_count == 0
    assert leave(engine, "a*") is not None


def test_a_crash_at_any_write_is_no_damage() -> None:
    """The first pattern, a change, and a deletion: what was answered is there, and no report."""
    for steps in range(30):
        engine = Engine(seed=steps + 1)
        answered: list[list[str]] = []
        asked = [["a"], ["a", "b"], ["b"]]
        for topics in asked:
            _, ticket, _ = engine.components.patterns.register("q", ONE, None, tuple(topics), ())
            for _ in range(steps):
                if engine.turns.calls:
                    engine.turns.calls.popleft()()
                elif engine.disk.works:
                    engine.disk.step()
            if ticket.done:
                answered.append(topics)
        engine.crash(LOSE)
        engine.start()
        found = [each["topics"] for each in engine.components.patterns.stats]
        kept = asked[asked.index(answered[-1]) :] if answered else [*asked, []]
        assert (found[0] if found else []) in kept
        assert engine.components.damage.records == []


def test_patterns_are_bounded_and_belong_to_their_readers() -> None:
    engine = Engine()
    for number in range(PATTERN_COUNT_MAX):
        assert leave(engine, "*", channel=f"c{number}") is None
    with pytest.raises(TooManyPatternsError, match="64 patterns are kept: c0, c1, c10, "):
        leave(engine, "*", channel="more")
    with pytest.raises(HasPatternError, match=r"channel c1 is read by me \(identity 1111"):
        leave(engine, "*", channel="c1", identity=TWO)
    assert leave(engine, "a", channel="c1") is None
    assert engine.done(engine.components.patterns.delete("c2")) is None
    assert leave(engine, "*", channel="more", identity=TWO) is None


def test_the_worst_patterns_match_fast() -> None:
    """64 patterns of 64 globs that almost match: names are short, and nothing goes back and forth.

    A backtracking match of one of them would take longer than the universe is old.
    """
    globs = tuple("*a" * 31 + f"{number:02d}" for number in range(64))
    reader = ChannelReader(ONE, "", 0)
    known = [Pattern(PatternRecord(f"c{n}", reader, globs), 0) for n in range(64)]
    start_s = time.process_time()
    assert not any(pattern.matches("a" * 64) for pattern in known)
    assert time.process_time() - start_s < 1.0


def test_thousands_of_topics_are_made_about_as_fast_with_64_patterns() -> None:
    def made_in(engine: Engine) -> float:
        start_s = time.process_time()
        for number in range(2000):
            engine.broker.create_topic(f"orders.{number}.new")
        return time.process_time() - start_s

    plain = Engine()
    without_s = made_in(plain)
    engine = Engine()
    for number in range(PATTERN_COUNT_MAX):
        assert leave(engine, f"billing.{number}.*", "x?", channel=f"c{number}") is None
    assert made_in(engine) < 3 * without_s + 0.2


def test_a_consumer_that_comes_later_begins_where_its_channel_is_made() -> None:
    """A topic with a pattern's channel has a channel: nothing is kept for the next one."""
    engine = Engine()
    assert leave(engine, "*") is None
    engine.publish("t", b"before")
    client = Client(engine, "t", "late", ready_count=10)
    engine.publish("t", b"after")
    engine.settle()
    assert [received.body for received in client.take()] == [b"after"]
    assert channel_of(engine, "t").depth == 2
