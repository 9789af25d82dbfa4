"""Reads of log ranges: a few at once, in order, their memory bounded (R9, R18)."""

from __future__ import annotations

import errno

import pytest

from penstock.engine.pull import reads
from penstock.engine.pull.pace import Pace
from penstock.engine.pull.reads import AT_ONCE_MAX, Read
from penstock.engine.topic import Topic
from tests.support.engine import SECOND, Engine


def filled(engine: Engine, count: int = 10) -> Topic:
    engine.publish("t", *(b"x" * 100 for _ in range(count)))
    engine.advance(3 * SECOND)
    return engine.topic("t")


def read(engine: Engine, topic: Topic, size_max: int = 1 << 20) -> Read:
    return engine.components.reads.read(topic, topic.log.first, topic.end, size_max)


def test_a_read_finds_its_range_on_a_thread() -> None:
    engine = Engine()
    topic = filled(engine)
    asked = read(engine, topic)
    assert not asked.done and len(engine.disk.works) == 1
    assert engine.done(asked) is None
    assert asked.range.next == topic.end and asked.range.size > 1000
    assert (engine.components.reads.read_count, engine.components.reads.read_size) == (
        1,
        asked.range.size,
    )


def test_a_few_run_at_once_and_the_others_follow() -> None:
    engine = Engine()
    topic = filled(engine)
    asked = [read(engine, topic) for _ in range(3 * AT_ONCE_MAX)]
    assert len(engine.disk.works) == AT_ONCE_MAX
    engine.settle()
    assert all(one.done and one.error is None for one in asked)


def test_a_gap_at_the_end_is_covered() -> None:
    engine = Engine()
    topic = filled(engine)
    end = topic.end
    engine.crash()
    engine.start()
    engine.advance(3 * SECOND)
    topic = engine.topic("t")
    assert topic.end > end
    asked = engine.components.reads.read(topic, topic.log.first, topic.end, 1)
    assert engine.done(asked) is None and asked.range.next == topic.end


def test_answers_that_nobody_takes_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    topic = filled(engine, 100)
    size = read(engine, topic)
    engine.settle()
    engine.components.reads.free(size)
    monkeypatch.setattr(reads, "HELD_SIZE_MAX", 2 * size.range.size)
    asked = [read(engine, topic, size.range.size) for _ in range(5)]
    engine.settle()
    assert [one.done for one in asked] == [True, True, False, False, False]
    for place in range(3):
        engine.components.reads.free(asked[place])
        engine.components.reads.free(asked[place])  # twice is once
        engine.settle()
        assert sum(one.done for one in asked) == place + 3


def test_a_reader_that_takes_nothing_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answers become small, and the last quarter is not for it."""
    engine = Engine()
    for _ in range(200):
        engine.publish("t", b"x" * 1000)
    engine.advance(3 * SECOND)
    topic = engine.topic("t")
    monkeypatch.setattr(reads, "HELD_SIZE_MAX", 100_000)
    monkeypatch.setattr(reads, "SIZE_MIN", 2_000)
    held = engine.components.reads

    def ask(reader: str) -> Read:
        asked = held.read(topic, topic.log.first, topic.end, 40_000, reader=reader)
        engine.settle()
        return asked

    greedy = [ask("greedy") for _ in range(100)]
    taken = [one for one in greedy if one.done]
    assert 10 < len(taken) < 100
    assert sum(one.range.size for one in taken) < 80_000
    assert taken[0].range.size > 10_000 > 5_000 > taken[-1].range.size
    for _ in range(3):
        other = ask("other")
        assert other.done and other.error is None and other.range.size > 1000
    for one in taken:
        held.free(one)
        engine.settle()
    assert sum(one.done for one in greedy) > len(taken)


def test_readers_take_turns() -> None:
    engine = Engine()
    topic = filled(engine)
    order: list[str] = []
    for reader in ["greedy"] * 20 + ["modest"]:
        asked = engine.components.reads.read(topic, topic.log.first, topic.end, 1, reader=reader)
        asked.add(lambda _, reader=reader: order.append(reader))  # type: ignore[misc]
    engine.settle()
    assert order.index("modest") <= AT_ONCE_MAX + 1


def test_of_too_many_reads_the_greedy_reader_s_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "WAITING_MAX", 10)
    engine = Engine()
    topic = filled(engine)

    def ask(reader: str) -> Read:
        return engine.components.reads.read(topic, topic.log.first, topic.end, 1, reader=reader)

    greedy = [ask("greedy") for _ in range(AT_ONCE_MAX + 11)]
    assert isinstance(greedy[-1].error, reads.BusyError) and not greedy[-2].done
    modest = ask("modest")
    assert not modest.done and isinstance(greedy[-2].error, reads.BusyError)
    engine.settle()
    assert modest.error is None and all(one.done for one in greedy)


def test_a_disk_error_is_told() -> None:
    engine = Engine()
    topic = filled(engine)
    engine.files.faults.add("*.log", errno.EIO, "pread")
    asked = read(engine, topic)
    assert isinstance(engine.done(asked), OSError)


def test_reads_wait_for_busy_clients_and_go_on() -> None:
    engine = Engine()
    engine.components.reads._pace = Pace(engine.clock, 0.12)
    topic = filled(engine, 5_000)
    order: list[int] = []
    waits_ns = []
    for number in range(20):
        asked = read(engine, topic)
        asked.add(lambda _, number=number: order.append(number))
        start_ns = engine.clock.monotonic_ns()
        while not asked.done:
            engine.clock.work(SECOND // 1000)
            engine.advance(0)
            assert engine.clock.monotonic_ns() - start_ns < SECOND
        waits_ns.append(engine.clock.monotonic_ns() - start_ns)
        engine.components.reads.free(asked)
    assert order == list(range(20)) and max(waits_ns) > 2 * SECOND // 1000
    engine.advance(SECOND)
    assert engine.done(read(engine, topic)) is None
