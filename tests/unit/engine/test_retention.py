"""Retention of finished segments: by time, by bytes, with wrong clocks, on idle topics (R21)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engine.retention.wakes import ROLL_COUNT_MAX
from penstock.engine.topic import Topic
from tests.crash.lossy import KEEP, LossyFiles
from tests.support.engine import HOUR, MINUTE, SECOND, Client, Engine
from tests.support.retention import Reader, retaining

DAY = 24 * HOUR


def test_without_a_policy_finished_segments_go_at_once() -> None:
    reader = Reader(max_bytes_per_file=2000)
    reader.work(10)
    reader.engine.advance(3 * SECOND)
    assert reader.topic.log.segment_count <= 1
    assert reader.topic.removal.retained.size == 0


def test_finished_messages_stay_for_their_time_and_not_a_quarter_longer() -> None:
    """R21: each message is readable until `retain` after its publish, and gone at 5/4 of it."""
    reader = Reader(retain_ns=MINUTE, max_bytes_per_file=2000)
    published: dict[int, int] = {}
    for _ in range(150):  # two and a half minutes, one message a second
        reader.work(1)
        now_ns = reader.engine.clock.monotonic_ns()
        published[reader.topic.end - 1] = now_ns
        reader.engine.advance(SECOND)
        reader.check(published, MINUTE)
    assert reader.topic.whole_from == reader.topic.log.first > min(published)


def test_an_idle_topic_is_rolled_and_removed_in_time() -> None:
    """R21: three messages and silence; also the active segment ends."""
    reader = Reader(retain_ns=8 * MINUTE)
    reader.work(3)
    reader.engine.advance(8 * MINUTE - SECOND)
    assert reader.topic.log.count == 3
    assert [record.sealed for record in reader.topic.log.segments()] == [True]
    reader.engine.advance(2 * MINUTE)
    assert reader.topic.log.count == 0 and reader.topic.log.segment_count == 0
    assert reader.topic.whole_from == reader.topic.end
    step_count = reader.engine.files.step_count
    reader.engine.advance(HOUR)
    assert reader.engine.files.step_count - step_count < 50, "an idle topic is left alone"


def test_the_newest_bytes_stay() -> None:
    """R21: `retain_bytes` alone; at least so many, and less than a quarter more."""
    size = 4 << 20
    reader = Reader(retain_bytes=size, files=LossyFiles())
    for _ in range(200):
        reader.work(1, body_size=50_000)
    reader.engine.advance(10 * SECOND)
    retained = reader.topic.removal.retained.size
    assert size <= retained <= size * 5 // 4
    reader.engine.advance(DAY // 24)
    assert reader.topic.removal.retained.size == retained, "bytes do not age"


def test_with_both_what_is_beyond_either_goes() -> None:
    reader = Reader(retain_bytes=1 << 20, retain_ns=2 * MINUTE)
    for _ in range(60):
        reader.work(1, body_size=50_000)
    reader.engine.advance(5 * SECOND)
    assert 1 << 20 <= reader.topic.removal.retained.size < 1 << 21
    reader.engine.advance(3 * MINUTE)
    assert reader.topic.log.count == 0


def test_what_is_unfinished_stays_and_does_not_count() -> None:
    """R21: a second channel that reads nothing keeps everything, whatever the policy."""
    reader = Reader(retain_bytes=1 << 20, retain_ns=MINUTE)
    Client(reader.engine, "t", "slow").close()
    reader.engine.settle()
    for _ in range(60):
        reader.work(1, body_size=50_000)
    reader.engine.advance(5 * MINUTE)
    assert reader.topic.log.count == 60 and reader.topic.removal.retained.size == 0
    reader.engine.done(reader.topic.delete_channel("slow"))
    reader.engine.advance(3 * SECOND)
    assert reader.topic.log.count == 0


def test_what_waits_for_the_first_channel_does_not_age() -> None:
    engine = Engine(max_bytes_per_file=2000)
    topic = retaining(engine, "t", retain_ns=MINUTE)
    for number in range(10):
        assert engine.publish("t", b"%d" % number + bytes(1000)) is None
    engine.advance(10 * MINUTE)
    assert topic.log.count == 10
    client = Client(engine, "t", "c", 100)
    engine.settle()
    assert len(client.take()) == 10


def test_a_straggler_of_a_retained_segment_is_not_moved() -> None:
    """R5, R21: the segment is there anyway; when its time is over, the straggler is moved."""
    reader = Reader(retain_ns=2 * MINUTE, max_bytes_per_file=20_000)
    stuck = reader.work(1, finish=False)[0]
    reader.work(99)
    reader.engine.advance(MINUTE)
    log = reader.topic.log
    assert log.count == 100 and not any(record.side for record in log.segments())
    assert reader.topic.removal.retained.size > 3 * 20_000, "all that only retention keeps"
    reader.engine.advance(2 * MINUTE)
    assert [record.side for record in log.segments()] == [True]
    assert log.count == 1 and log.first == stuck.index < reader.topic.whole_from


@pytest.mark.parametrize("step_ns", [DAY, -DAY, 50 * 365 * DAY, -40 * 365 * DAY])
def test_a_step_of_the_clock_makes_nothing_go_early_or_stay_forever(step_ns: int) -> None:
    """R21: the monotonic clock knows how long a segment has been there."""
    reader = Reader(retain_ns=2 * MINUTE, max_bytes_per_file=2000)
    reader.work(10)
    reader.engine.advance(10 * SECOND)
    reader.engine.clock.step_wall(step_ns)
    reader.engine.advance(100 * SECOND)
    assert reader.topic.log.count == 10
    reader.work(10)
    reader.engine.advance(45 * SECOND)
    assert reader.topic.log.count == 10, "the old ones went, the new ones did not"
    reader.engine.advance(2 * MINUTE)
    assert reader.topic.log.count == 0


@pytest.mark.parametrize("step_ns", [-DAY, 0])
def test_a_restart_neither_forgets_nor_renews_the_age(step_ns: int) -> None:
    """R21: a start with a clock that is slow keeps longer; nothing goes early."""
    reader = Reader(retain_ns=4 * MINUTE, max_bytes_per_file=2000)
    reader.work(10)
    reader.engine.advance(2 * MINUTE)
    reader.restart(step_ns)
    reader.engine.advance(100 * SECOND)
    assert reader.topic.log.count == 10
    reader.engine.advance(MINUTE)
    assert reader.topic.log.count == (0 if not step_ns else 10)
    reader.engine.advance(2 * MINUTE)
    assert reader.topic.log.count == 0


def test_a_boot_with_a_fast_clock_that_is_corrected_soon_loses_nothing() -> None:
    reader = Reader(retain_ns=HOUR, max_bytes_per_file=2000)
    reader.work(10)
    reader.engine.advance(MINUTE)
    reader.restart(DAY)
    reader.engine.advance(30 * SECOND)
    reader.engine.clock.step_wall(-DAY)
    reader.engine.advance(10 * MINUTE)
    assert reader.topic.log.count == 10


def test_a_policy_that_is_unset_lets_go_at_once_and_one_that_shrinks_too() -> None:
    reader = Reader(retain_ns=HOUR, max_bytes_per_file=2000)
    reader.work(10)
    reader.engine.advance(2 * MINUTE)
    assert reader.topic.log.count == 10
    reader.policy(retain_ns=MINUTE)
    reader.engine.advance(20 * SECOND)
    assert reader.topic.log.count == 0
    reader.work(10)
    reader.policy()
    reader.engine.advance(3 * SECOND)
    assert reader.topic.log.segment_count <= 1, "the active one"
    assert not reader.engine.components.retention.retained


def test_a_deleted_topic_is_forgotten() -> None:
    reader = Reader(retain_ns=HOUR)
    retention = reader.engine.components.retention
    for number in range(100):
        retaining(reader.engine, f"x{number}", retain_ns=HOUR)
        assert reader.engine.publish(f"x{number}", b"1") is None
    reader.engine.advance(2 * SECOND)
    for number in range(100):
        reader.engine.done(reader.engine.broker.delete_topic(f"x{number}"))
    reader.engine.advance(2 * SECOND)
    assert [each.topic for each in retention.retained] == [reader.topic]
    assert len(retention._due) <= 70


def test_many_topics_roll_one_after_another() -> None:
    """R21, R9: a thousand idle topics that are due together do not take all disk threads."""
    engine = Engine()
    for number in range(50):
        topic = retaining(engine, f"t{number}", retain_ns=MINUTE)
        Client(engine, topic.name, "c", 0)
        assert engine.publish(topic.name, b"x") is None
    at_once: list[int] = []
    submit = engine.disk.submit

    def watched(work: Any, done: Any) -> None:
        submit(work, done)
        rolls = [each for each, _ in engine.disk.works if "roll" in repr(each)]
        at_once.append(len(rolls))

    engine.disk.submit = watched  # type: ignore[method-assign]
    engine.advance(15 * SECOND)
    assert max(at_once) == ROLL_COUNT_MAX
    logs = [engine.topic(f"t{number}").log for number in range(50)]
    assert all(record.sealed for log in logs for record in log.segments())


def test_a_topic_that_is_written_all_the_time_is_rolled_too() -> None:
    """R21: with a sync under way at every upkeep, the next write rolls."""
    reader = Reader(retain_ns=MINUTE, sync_every=1)
    topic = reader.topic
    for _ in range(40):
        reader.work(1)
        topic.writer.sync()
        reader.engine.advance(SECOND)
    assert topic.log.segment_count > 2


def test_a_whole_log_is_readable_from_whole_from_on() -> None:
    reader = Reader(retain_ns=MINUTE, max_bytes_per_file=2000)
    for _ in range(90):
        reader.work(1)
        reader.engine.advance(SECOND)
    topic: Topic = reader.topic
    found = reader.engine.logged("t")
    assert sorted(found) == list(range(topic.whole_from, topic.end))
    reader.engine.crash(KEEP)
    reader.engine.start()
    assert reader.topic.whole_from == topic.whole_from == reader.topic.log.first
