"""What the broker does on bad days of the disk."""

from __future__ import annotations

import errno

import pytest

from tests.crash.lossy import LossyFiles
from tests.support.engine import SECOND, Client, Engine


def test_a_queue_beyond_the_memory_limit_goes_on_as_before() -> None:
    """S4-2: the limit changes a figure of /stats, nothing else."""
    engine = Engine(mem_queue_size=10)
    client = Client(engine, "t", "c", ready_count=0)
    engine.settle()
    for number in range(25):
        assert engine.publish("t", b"%d" % number) is None
    assert (client.channel.depth, client.channel.backend_depth) == (25, 15)
    client.ready(25)
    engine.settle()
    assert [received.body for received in client.take()] == [b"%d" % n for n in range(25)]


def test_a_failing_disk_refuses_publishes_and_shows_it() -> None:
    """S4-2, R8: the error reaches the producer and /ping; consumers go on."""
    files = LossyFiles()
    engine = Engine(files)
    client = Client(engine, "t", "c", ready_count=10)
    engine.publish("t", b"before")
    files.fail("append", errno.EIO)
    error = engine.publish("t", b"lost")
    assert isinstance(error, OSError)
    assert (
        engine.components.health.problem is not None
        and engine.components.health.text.startswith("NOK - ")
    )
    assert [received.body for received in client.inbox] == [b"before"]
    assert client.finish(client.take()[0].index) == 0


def test_health_returns_when_writing_works_again() -> None:
    """R8: by a probe, though nobody publishes."""
    files = LossyFiles()
    engine = Engine(files)
    engine.publish("t", b"one")
    files.fail("append", errno.EIO)
    assert engine.publish("t", b"two") is not None
    engine.advance(3 * SECOND)
    assert engine.components.health.problem is None
    assert engine.publish("t", b"three") is None
    assert sorted(engine.logged("t").values()) == [b"one", b"three"]


def test_a_full_disk_keeps_room_for_finishing() -> None:
    """R8: the reserve is freed for journals, publishes are refused until it is back."""
    files = LossyFiles(space=400_000)
    engine = Engine(files, max_bytes_per_file=50_000)
    client = Client(engine, "t", "c", ready_count=2500)
    engine.settle()
    sent = 0
    while engine.publish("t", bytes(1000)) is None:
        sent += 1
        assert sent < 1000, "the disk never fills"
    engine.advance(SECOND)
    assert engine.components.health.problem is not None
    assert len(client.inbox) == sent
    for received in client.take():
        assert client.finish(received.index) == 0
    engine.advance(10 * SECOND)
    assert engine.components.health.problem is None
    assert engine.publish("t", b"again") is None


def test_a_power_cut_takes_finishes_of_the_last_sync_timeout_only() -> None:
    """R11: finishes are synced by --sync-timeout, as messages are."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    engine.publish("t", b"old", b"new")
    old, new = client.take()
    client.finish(old.index)
    engine.advance(5 * SECOND)
    client.finish(new.index)
    engine.crash("lose")
    engine.start()
    again = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert [received.body for received in again.take()] == [b"new"]


def test_a_deferred_publish_that_fails_shows_too_until_writing_works() -> None:
    """R8: a slot file that cannot be written or synced is disk trouble as a log is."""
    files = LossyFiles()
    engine = Engine(files)
    assert engine.defer("t", 3600 * SECOND, b"one") is None
    files.fail("append", errno.EIO)
    assert isinstance(engine.defer("t", 3600 * SECOND, b"two"), OSError)
    assert (
        engine.components.health.problem is not None
        and engine.components.health.text.startswith("NOK - ")
    )
    engine.advance(3 * SECOND)
    assert engine.components.health.problem is None
    assert engine.defer("t", 3600 * SECOND, b"three") is None
    files.fail("sync", errno.EIO)
    engine.components.deferred.writer.syncing.sync()
    engine.settle()
    assert engine.components.health.problem is not None
    engine.advance(3 * SECOND)
    assert engine.components.health.problem is None


def test_after_a_failed_sync_segments_may_go_again() -> None:
    """R8: what was moved to a new file is cut off the old one at once, not at the next publish."""
    files = LossyFiles()
    engine = Engine(files)
    for body in (b"synced", b"moved"):
        assert engine.publish("t", body) is None
        if body == b"moved":
            files.fail("sync", errno.EIO)
        engine.topic("t").writer.start_sync()
        engine.settle()
    log = engine.topic("t").log
    assert [record.count for record in log.segments()] == [1, 1]
    assert log.removable(log.segments()[0].base)


def test_a_disk_that_syncs_nothing_is_not_tried_without_end() -> None:
    files = LossyFiles()
    engine = Engine(files)
    assert engine.publish("t", b"one") is None
    for _ in range(1000):
        files.fail("sync", errno.EIO)
    engine.topic("t").writer.start_sync()
    engine.settle()
    assert engine.components.health.problem is not None
    assert len(files.failures) > 990


def test_errors_of_several_topics_by_turns_are_logged_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    for name in "ab":
        assert engine.publish(name, b"before") is None
    for _ in range(2):
        engine.files.faults.add("*.log", errno.ENOSPC, "append")
        for _ in range(10):
            for name in "ab":
                assert engine.publish(name, b"lost") is not None
        assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 2
        caplog.clear()
        engine.files.faults.heal()
        engine.advance(3 * SECOND)
        assert engine.components.health.text == "OK"
