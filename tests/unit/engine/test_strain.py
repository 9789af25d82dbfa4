"""R29: while a topic's disk is behind, its appender says so; afterwards it does not."""

from __future__ import annotations

import errno

import pytest

from penstock.engine.topic import Topic
from tests.support.engine import SECOND, Engine

MIB = 1 << 20


def test_a_topic_is_strained_until_its_log_is_synced() -> None:
    engine = Engine()
    topic, _ = engine.broker.create_topic("t")
    engine.settle()
    appender = topic.appender
    # The first write is a thread's.
    topic.publish([b"x"])
    engine.settle()
    assert not appender.strained
    seen: list[bool] = []
    for _ in range(24):
        topic.publish([bytes(MIB)])
        while engine.turns.calls:
            engine.turns.calls.popleft()()
        seen.append(appender.strained)
    assert seen.index(True) in range(14, 18) and all(seen[18:]), seen
    engine.settle()
    assert not appender.strained
    assert topic.message_count == 25


def test_a_topic_is_strained_while_a_segment_is_sealed() -> None:
    engine = Engine(max_bytes_per_file=3 * MIB)
    topic, _ = engine.broker.create_topic("t")
    engine.settle()
    strained = []
    for _ in range(12):
        topic.publish([bytes(MIB)])
        while engine.turns.calls:
            engine.turns.calls.popleft()()
        strained.append(topic.appender.strained)
        engine.settle()
        assert not topic.appender.strained
    assert True in strained and False in strained
    assert topic.message_count == 12


def strained(engine: Engine) -> Topic:
    """A topic whose disk is behind, with a client that floods it and is not read."""
    engine.broker.create_topic("t")
    topic = engine.topic("t")
    engine.settle()
    topic.publish([b"x"])
    engine.settle()
    for _ in range(24):
        topic.publish([bytes(MIB)])
        while engine.turns.calls:
            engine.turns.calls.popleft()()
    assert topic.appender.strained
    return topic


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_topic_that_is_deleted_meanwhile_is_not_synced_for_ever(seed: int) -> None:
    """Clients that flooded it were never read again, and a thread tried as fast as it could."""
    engine = Engine(seed=seed)
    topic = strained(engine)
    assert engine.done(engine.broker.delete_topic("t")) is None
    assert not topic.appender.strained


def test_a_disk_that_fails_is_tried_again_by_the_rounds() -> None:
    """Not at once: syncing, and copying what is not synced, took all the time of a thread."""
    engine = Engine()
    topic = strained(engine)
    faults = engine.files.faults
    faults.add("*.log*", errno.EIO, "sync", "append", "write_new")
    engine.advance(10 * SECOND)
    assert topic.appender.strained
    assert faults.hit_count < 40
    faults.heal()
    engine.advance(5 * SECOND)
    assert not topic.appender.strained
    assert topic.log.extent.unsynced_count == 0


@pytest.mark.parametrize("file_size", [200 * MIB, 40 * MIB], ids=["64 MB", "a full segment"])
def test_publishes_beyond_what_may_wait_for_a_disk_that_fails_are_refused(file_size: int) -> None:
    engine = Engine(max_bytes_per_file=file_size)
    topic = strained(engine)
    faults = engine.files.faults
    faults.add("*.log", errno.EIO, "sync")
    faults.add("*.log.new", errno.EIO, "append")
    tickets = [topic.publish([bytes(MIB)]) for _ in range(1)]
    for _ in range(60):
        while engine.turns.calls:
            engine.turns.calls.popleft()()
        tickets.append(topic.publish([bytes(MIB)]))
    engine.settle()
    assert all(ticket.done for ticket in tickets)
    assert tickets[0].error is None and isinstance(tickets[-1].error, OSError)
    refused = topic.publish([b"x"])
    assert isinstance(engine.done(refused), OSError)
    faults.heal()
    engine.advance(5 * SECOND)
    assert engine.done(topic.publish([b"x"])) is None
    assert topic.message_count == 26 + sum(ticket.error is None for ticket in tickets)
