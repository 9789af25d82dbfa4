"""A journal that is cut, flipped, zeroed or gone is compared with nsqd.dat: no channel is lost.

And kill -9 at any moment of making and deleting them gives the comparison nothing to say.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.engine.pull.channel import PullChannel
from penstock.engine.topic import Topic
from penstock.storage.journal import records, replay
from tests.crash.lossy import KEEP, Crashed
from tests.crash.test_restart import folder_of
from tests.support.daemon import Nsqd
from tests.support.engine import SECOND, Client, Engine
from tests.support.waits import eventually

BODIES = [b"one", b"two", b"three"]
IDENTITY = "1f" * 16


def used() -> Engine:
    """A topic with channels: one with a part finished, a deleted, a paused and a bound one."""
    engine = Engine()
    topic = engine.broker.create_topic("t")[0]
    assert isinstance(topic, Topic)
    for name in ("a", "gone", "b"):
        topic.create_channel(name)
        engine.settle()
    assert engine.publish("t", *BODIES) is None
    client = Client(engine, "t", "a", ready_count=2)
    engine.settle()
    client.finish(client.take()[0].index)
    engine.advance(3 * SECOND)
    assert engine.done(topic.delete_channel("gone")) is None
    assert engine.done(topic.channels["b"].pause(True)) is None
    read, ticket, _ = engine.components.pulls.open(topic, "read", topic.log.first)
    assert engine.done(ticket) is None
    read.bind("2e" * 16, "before")
    assert engine.done(read.take_over(IDENTITY, "2e" * 16)) is None
    read.bind(IDENTITY, "pipeline archive")
    engine.advance(SECOND)
    engine.crash(KEEP)
    return engine


def journal_path(engine: Engine) -> str:
    return f"{engine.topic('t').log.folder}/journal"


def opens_whole(engine: Engine) -> None:
    """Everything that was acknowledged is there, the deleted channel is not."""
    assert set(engine.topic("t").channels) in ({"a", "b", "read"}, {"a", "b", "gone", "read"})
    assert_bound(engine)
    assert engine.topic("t").channels["b"].paused
    assert set(engine.unfinished("t", "a")) >= {b"two", b"three"}
    assert set(engine.unfinished("t", "b")) == set(BODIES)
    assert engine.publish("t", b"new") is None


def assert_bound(engine: Engine) -> None:
    """R45: no other reader comes in because a file was damaged, and its own is not shut out."""
    channel = engine.topic("t").channels["read"]
    assert isinstance(channel, PullChannel)
    assert channel.reader is not None and channel.reader.identity == IDENTITY


CHANGES: dict[str, Callable[[bytearray, int], None]] = {
    "cut": lambda data, at: data.__delitem__(slice(at, None)),
    "zeroed to the end": lambda data, at: data.__setitem__(slice(at, None), bytes(len(data) - at)),
    "flipped": lambda data, at: data.__setitem__(at, data[at] ^ 0x10),
    "cut out": lambda data, at: data.__delitem__(slice(at, at + 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_journal_damaged_at_any_byte_loses_no_channel_and_no_message(change: str) -> None:
    before = used()
    path = journal_path(before)
    good = before.files.read(path)
    edges = [found.start for found in records(good)]
    for at in range(len(good)):
        files = copy.deepcopy(before.files)
        files.edit(path, lambda data, at=at: CHANGES[change](data, at))
        engine = Engine(files)
        opens_whole(engine)
        told = engine.components.damage.records
        if at <= edges[2]:
            assert [(r.kind, r.topic, r.path) for r in told] == [("journal", "t", path)], at
        engine.crash(KEEP)
        engine.start()
        assert engine.components.damage.records == told, "what was mended is not reported again"


@pytest.mark.parametrize("change", ["flipped", "cut"])
def test_an_nsqd_dat_damaged_at_any_byte_loses_no_channel_and_no_message(change: str) -> None:
    before = used()
    path = before.data.metadata
    for at in range(before.files.size(path)):
        files = copy.deepcopy(before.files)
        files.edit(path, lambda data, at=at: CHANGES[change](data, at))
        engine = Engine(files)
        assert set(engine.topic("t").channels) >= {"a", "b", "read"}
        assert_bound(engine)
        assert set(engine.unfinished("t", "a")) == {b"two", b"three"}
        assert set(engine.unfinished("t", "b")) == set(BODIES)
        told = engine.components.damage.records
        assert (
            told if change == "cut" else {r.kind for r in told} <= {"metadata", "topic", "journal"}
        )


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_journal_that_is_gone_is_told(how: str) -> None:
    engine = used()
    path = journal_path(engine)
    if how == "gone":
        engine.files.unlink(path)
    else:
        engine.files.edit(path, bytearray.clear)
    engine.start()
    opens_whole(engine)
    (record,) = engine.components.damage.records
    assert record.kind == "journal" and "missing or empty" in record.text
    assert "a, b, read" in record.text


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_step_of_making_and_deleting_is_no_damage(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A healthy start after kill -9 logs no warning, and restores nothing by itself."""
    step = 0
    finished = False
    while not finished:
        engine = Engine(seed=seed)
        engine.files.crash_at = engine.files.step_count + step
        deleted = False
        try:
            topic = engine.broker.create_topic("t")[0]
            made = topic.create_channel("a")[1]
            topic.create_channel("b")
            assert engine.done(made) is None
            topic.create_channel("c")
            done = topic.delete_channel("b")
            assert engine.done(done) is None
            deleted = True
            topic.keeper.rewrite()
            assert engine.done(topic.delete_channel("a")) is None
            engine.broker.create_topic("u")[0].create_channel("a")
            finished = engine.done(engine.broker.delete_topic("t")) is None
        except Crashed:
            pass
        engine.crash(KEEP)
        with caplog.at_level(logging.WARNING):
            engine.start()
        warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert not warned, (step, warned)
        assert not engine.components.damage.records, step
        if deleted and "t" in engine.broker.topics:
            assert "b" not in engine.topic("t").channels
        step += 1
    assert step > 20


OPERATIONS = (
    *("/topic/create", "/topic/delete", "/topic/pause", "/topic/unpause", "/pub", "/pub"),
    *("/channel/create", "/channel/delete", "/channel/pause", "/channel/unpause", "/channel/empty"),
)


def operate(nsqd: Nsqd, number: int, seed: int) -> None:
    """Make, change and delete topics and channels until nsqd is killed."""
    chance = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, 10)
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            operation = chance.choice(OPERATIONS)
            query = f"?topic=t{number}-{chance.randrange(4)}"
            if "channel" in operation:
                query += f"&channel=c{chance.randrange(4)}"
            connection.request("POST", operation + query, bytes(1500))
            connection.getresponse().read()


def test_kills_amid_making_and_deleting_are_followed_by_no_warning(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=20000")
    with nsqd:
        for round in range(4):
            threads = [
                threading.Thread(target=operate, args=(nsqd, number, 10 * round + number))
                for number in range(3)
            ]
            for thread in threads:
                thread.start()
            threads[0].join(0.5 + round / 4)
            nsqd.kill()
            for thread in threads:
                thread.join(15)
            nsqd.start()
            assert not [line for line in nsqd.lines if "WARN" in line or "ERROR" in line]
            assert "damage" not in nsqd.stats()


def test_a_compacted_journal_still_knows_what_nsqd_dat_has_to_forget() -> None:
    engine = Engine()
    topic = engine.broker.create_topic("t")[0]
    topic.create_channel("a")
    engine.settle()
    metadata = engine.files.read(engine.data.metadata)
    topic.delete_channel("a")
    topic.keeper.rewrite()
    engine.settle()
    engine.files.put(engine.data.metadata, metadata)
    engine.crash(KEEP)
    engine.start()
    assert engine.topic("t").channels == {}
    assert engine.done(engine.topic("t").create_channel("a")[1]) is None
    assert engine.done(engine.topic("t").keeper.rewrite()) is None
    engine.crash(KEEP)
    engine.start()
    assert set(engine.topic("t").channels) == {"a"}


@pytest.mark.parametrize("cut", ["110 bytes", "a record's edge", "zeros"])
def test_channels_that_a_cut_journal_has_lost_are_restored_with_a_warning(
    tmp_path: Path, cut: str
) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        for channel in ("a", "b", "c"):
            assert nsqd.post(f"/channel/create?topic=t&channel={channel}").status in (200, 404)
            assert nsqd.post("/topic/create?topic=t").status == 200
            assert nsqd.post(f"/channel/create?topic=t&channel={channel}").status == 200
        assert nsqd.post("/pub?topic=t", b"one").status == 200
        nsqd.kill()
        journal = folder_of(nsqd, "t") / "journal"
        data = journal.read_bytes()
        if cut == "110 bytes":
            journal.write_bytes(data[:110])
        elif cut == "zeros":
            journal.write_bytes(data[:110] + bytes(len(data) - 110))
        else:
            edge = max(found.start for found in records(data) if found.start <= 130)
            journal.write_bytes(data[:edge])
        nsqd.start()
        nsqd.wait_for_log(r"WARN.*topic=t channel=c: lost from the journal")
        nsqd.wait_for_log(r"ERROR.*topic=t: damaged \(journal\): .*journal")
        assert nsqd.get("/ping").status == 200
        assert nsqd.stats()["damage"]["kinds"] == {"journal": 1}
        for channel in ("a", "b", "c"):
            with nsqd.connect() as raw:
                raw.subscribe("t", channel)
                assert raw.receive().body == b"one"
        mended = {"a", "b", "c"}
        assert eventually(lambda: set(replay(journal.read_bytes()).channels) == mended)
        nsqd.kill()
        nsqd.start()
        assert "WARN" not in nsqd.log and "ERROR" not in nsqd.log
        assert len(nsqd.stats()["topics"][0]["channels"]) == 3
