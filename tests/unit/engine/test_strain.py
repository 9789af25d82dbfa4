"""R29: while a topic's disk is behind, its appender says so; afterwards it does not."""

from __future__ import annotations

from tests.support.engine import Engine

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
    seen = []
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
