"""Deleting a topic on a disk that fails, and cut at every step."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed
from tests.support.engine import MINUTE, SECOND, Client, Engine


def used() -> Engine:
    engine = Engine()
    engine.broker.create_topic("t")[0].create_channel("c")
    engine.settle()
    assert engine.publish("t", b"one", b"two") is None
    return engine


def listed(engine: Engine) -> list[str]:
    topics = json.loads(engine.files.read(engine.data.metadata))["topics"] or []
    return [topic["name"] for topic in topics]


@pytest.mark.parametrize("action", ["rename", "sync_folder"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC])
def test_a_delete_that_fails_leaves_the_topic_as_it_was(
    action: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = used()
    client = Client(engine, "t", "c", ready_count=1)
    assert engine.defer("t", MINUTE, b"deferred") is None
    topic = engine.topic("t")
    engine.files.fail(action, code)
    with caplog.at_level(logging.ERROR):
        error = engine.done(engine.broker.delete_topic("t"))
    assert isinstance(error, OSError) and error.errno == code
    assert sum("topic=t: not deleted" in r.getMessage() for r in caplog.records) == 1
    assert engine.topic("t") is topic and not client.closed
    assert engine.publish("t", b"three") is None
    client.ready(10)
    engine.settle()
    assert [received.body for received in client.take()] == [b"one", b"two", b"three"]
    engine.advance(SECOND)
    engine.crash(KEEP)
    engine.start()
    assert not engine.components.damage.records
    assert engine.topic("t").instance == topic.instance and listed(engine) == ["t"]
    client = Client(engine, "t", "c", ready_count=10)
    engine.advance(2 * MINUTE)
    assert {received.body for received in client.take()} >= {b"one", b"three", b"deferred"}
    assert engine.done(engine.broker.delete_topic("t")) is None
    assert "t" not in engine.broker.topics and listed(engine) == []


def test_publishes_are_refused_while_a_topic_is_being_deleted() -> None:
    """As in nsqd: they must not make the topic anew before it is gone."""
    engine = used()
    topic = engine.topic("t")
    ticket = engine.broker.delete_topic("t")
    for refused in (topic.publish([b"x"]), topic.defer(b"x", SECOND)):
        assert refused.done and str(refused.error) == "exiting"
    assert engine.broker.delete_topic("t") is ticket, "two deletes at once are one"
    assert engine.done(ticket) is None and "t" not in engine.broker.topics
    assert engine.publish("t", b"new") is None
    assert list(engine.logged("t").values()) == [b"new"]


def test_a_topic_that_is_still_being_made_can_be_deleted() -> None:
    engine = Engine()
    engine.broker.create_topic("t")
    assert engine.done(engine.broker.delete_topic("t")) is None
    assert "t" not in engine.broker.topics and engine.data.topic_folders() == []
    engine.files.fail("make_folder", errno.EIO)
    engine.broker.create_topic("u")
    assert engine.done(engine.broker.delete_topic("u")) is None
    assert "u" not in engine.broker.topics and engine.components.health.problem is not None


def test_a_delete_works_though_nsqd_dat_cannot_be_written() -> None:
    """Without inodes no new file can be made; its own files give some back."""
    engine = used()
    engine.files.fail("append", errno.ENOSPC)
    assert engine.done(engine.broker.delete_topic("t")) is None
    assert engine.data.topic_folders() == []
    assert [folder.topic for folder in engine.data.deleted_topics()] == ["t"]
    engine.crash(KEEP)
    engine.start()
    assert "t" not in engine.broker.topics and listed(engine) == []
    assert engine.data.deleted_topics() == []
    assert not engine.components.damage.records


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX, HOLES])
def test_a_delete_cut_at_any_step_is_done_or_not(mode: str) -> None:
    """It comes back whole or not at all, never empty."""
    for step in range(40):
        engine = used()
        engine.exit()
        engine.start()
        instance = engine.topic("t").instance
        engine.files.crash_at = engine.files.step_count + step
        answered = False
        try:
            answered = engine.done(engine.broker.delete_topic("t")) is None
            engine.advance(2 * SECOND)
        except Crashed:
            pass
        engine.crash(mode, step)
        engine.start()
        assert not engine.components.damage.records, (step, engine.components.damage.records)
        if "t" in engine.broker.topics:
            assert not answered and engine.topic("t").instance == instance, step
            assert list(engine.logged("t").values()) == [b"one", b"two"]
            assert set(engine.topic("t").channels) == {"c"}
        engine.settle()
        assert engine.data.deleted_topics() == []


def again(engine: Engine) -> int:
    """Delete and make t as earlier versions did when the rename failed: two folders are left."""
    topic = engine.topic("t")
    engine.broker._drop(topic)
    engine.broker.create_topic("t")[0].create_channel("c")
    engine.settle()
    return topic.instance


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_of_two_folders_the_newer_instance_wins_and_keeps_its_deferred_messages(
    published: bool, finished: bool
) -> None:
    engine = used()
    if finished:
        client = Client(engine, "t", "c", ready_count=10)
        engine.settle()
        for received in client.take():
            client.finish(received.index)
        engine.advance(SECOND)
        client.close()
    old = again(engine)
    new = engine.topic("t").instance
    if published:
        assert engine.publish("t", b"new") is None
    for body in (b"a", b"b", b"c"):
        assert engine.defer("t", MINUTE, body) is None
    engine.crash(KEEP)
    engine.start()
    assert engine.topic("t").instance == new != old
    (record,) = engine.components.damage.records
    assert record.kind == "topic" and record.topic == "t" and "two folders" in record.text
    assert engine.files.exists(f"{engine.data.topic_folder('t', old)}.old")
    client = Client(engine, "t", "c", ready_count=10)
    engine.advance(2 * MINUTE)
    expected = {b"a", b"b", b"c"} | ({b"new"} if published else set())
    assert {received.body for received in client.take()} == expected
    engine.crash(KEEP)
    engine.start()
    assert engine.topic("t").instance == new and len(engine.components.damage.records) == 1
