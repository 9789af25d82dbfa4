"""The broker around topics, deferral and restarts: cases that the model of tests/model met."""

from __future__ import annotations

import contextlib

import pytest

from tests.crash.lossy import KEEP, LOSE, PREFIX, Crashed
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine


def bodies(client: Client) -> list[bytes]:
    return [received.body for received in client.take()]


def engine_with_channel(**options: int) -> Engine:
    engine = Engine(**options)
    Client(engine, "t", "a").close()
    engine.settle()
    return engine


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_deferred_message_fires_though_nothing_else_happens(sync_every: int) -> None:
    """R16, D-18: also when its record was written on another thread."""
    engine = engine_with_channel(sync_every=sync_every)
    client = Client(engine, "t", "a", 1)
    engine.settle()
    assert engine.defer("t", 50 * MS, b"x") is None
    engine.advance(49 * MS)
    assert bodies(client) == []
    engine.advance(MS)
    assert bodies(client) == [b"x"]


@pytest.mark.parametrize("emptied", ["topic", "channel"])
def test_what_is_deferred_after_an_emptying_survives_a_restart(emptied: str) -> None:
    """R17, S2-1, D-12."""
    engine = engine_with_channel()
    topic = engine.topic("t")
    assert engine.defer("t", MINUTE, b"void") is None
    assert engine.done(topic.empty() if emptied == "topic" else topic.channels["a"].empty()) is None
    assert engine.defer("t", MINUTE, b"kept") is None
    engine.advance(SECOND)
    engine.crash(KEEP)
    engine.start()
    assert engine.topic("t").channels["a"].deferred_count == 1
    client = Client(engine, "t", "a", 10)
    engine.advance(MINUTE)
    assert bodies(client) == [b"kept"]


def test_emptying_after_the_clock_was_set_back_and_a_restart_purges() -> None:
    """R4, R17: stamps ascend, whatever the clock shows."""
    engine = engine_with_channel()
    assert engine.defer("t", 2 * HOUR, b"void") is None
    engine.clock.step_wall(-HOUR)
    engine.crash(KEEP)
    engine.start()
    assert engine.done(engine.topic("t").empty()) is None
    assert engine.components.deferred.tallies.total == 0
    client = Client(engine, "t", "a", 10)
    engine.sleep(4 * HOUR)
    engine.advance(SECOND)
    assert bodies(client) == []


def test_a_channel_goes_on_behind_messages_it_passes_over() -> None:
    """R17: a block of which everything is skipped does not stop delivery."""
    engine = engine_with_channel()
    assert engine.defer("t", MS, b"void") is None
    assert engine.done(engine.topic("t").channels["a"].empty()) is None
    engine.advance(MS)
    client = Client(engine, "t", "a", 10)
    engine.settle()
    assert engine.publish("t", b"next") is None
    assert bodies(client) == [b"next"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_paused_topic_holds_beside_what_is_passed_over(restarted: bool) -> None:
    """R2, R17: the held message stays held, and the counts are right."""
    engine = engine_with_channel()
    topic = engine.topic("t")
    assert engine.done(topic.pause(True)) is None
    assert engine.publish("t", b"held") is None
    assert engine.defer("t", MS, b"void") is None
    assert engine.done(topic.channels["a"].empty()) is None
    engine.advance(SECOND)
    if restarted:
        engine.crash(KEEP)
        engine.start()
    topic = engine.topic("t")
    assert (topic.depth, topic.channels["a"].depth) == (2, 0)
    client = Client(engine, "t", "a", 10)
    engine.settle()
    assert bodies(client) == []
    assert engine.done(topic.pause(False)) is None
    assert bodies(client) == [b"held"]
    assert topic.channels["a"].depth == 0


@pytest.mark.parametrize("mode", [LOSE, PREFIX])
def test_what_was_answered_about_topics_survives_a_power_cut(mode: str) -> None:
    """R6: create, delete and pause; the journal is synced before the answer."""
    engine = Engine()
    for name in ("t", "u"):
        assert engine.done(engine.broker.create_topic(name)[1]) is None
        for channel in ("a", "b"):
            assert engine.done(engine.topic(name).create_channel(channel)[1]) is None
    assert engine.done(engine.topic("t").delete_channel("b")) is None
    assert engine.done(engine.topic("t").pause(True)) is None
    assert engine.done(engine.topic("t").channels["a"].pause(True)) is None
    assert engine.done(engine.broker.delete_topic("u")) is None
    engine.crash(mode, 3)
    engine.start()
    assert set(engine.broker.topics) == {"t"}
    topic = engine.topic("t")
    assert set(topic.channels) == {"a"}
    assert topic.paused and topic.channels["a"].paused


@pytest.mark.parametrize("step", range(4))
def test_a_topic_never_holds_what_its_last_channel_had(step: int) -> None:
    """R2: wherever a power cut tears the journal while that channel is deleted."""
    outcomes = set()
    for seed in range(60):
        engine = Engine(sync_every=1)
        engine.done(engine.broker.create_topic("t")[1])
        engine.done(engine.topic("t").create_channel("a")[1])
        assert engine.publish("t", b"x") is None
        engine.files.crash_at = engine.files.step_count + step
        with contextlib.suppress(Crashed):
            engine.topic("t").delete_channel("a")
            engine.settle()
        engine.files.crash_at = -1
        engine.crash(PREFIX, seed)
        engine.start()
        outcomes.add("a" in engine.topic("t").channels)
        assert engine.held("t") == set()
    assert step != 1 or outcomes == {True, False}


@pytest.mark.parametrize("step", range(6))
def test_a_topic_that_is_being_paused_holds_nothing_that_its_channels_had(step: int) -> None:
    """R2: a power cut took the journal's end, which said where it stopped, and left the pause."""
    outcomes = set()
    for seed in range(60):
        engine = Engine(sync_every=1, seed=seed)
        client = Client(engine, "t", "a", 10)
        engine.settle()
        assert engine.publish("t", b"x") is None
        for received in client.take():
            assert client.finish(received.index) == 0
        engine.advance(SECOND)
        engine.files.crash_at = engine.files.step_count + step
        with contextlib.suppress(Crashed):
            engine.topic("t").pause(True)
            engine.settle()
        engine.files.crash_at = -1
        engine.crash(PREFIX, seed)
        engine.start()
        outcomes.add(engine.topic("t").paused)
        assert engine.held("t") == set()
    assert step != 5 or True in outcomes


@pytest.mark.parametrize("step", range(8))
def test_a_channel_that_is_being_created_gets_nothing_that_was_emptied(step: int) -> None:
    """A power cut took the journal's record of it and left nsqd.dat, which lists it."""
    for seed in range(20):
        engine = Engine(sync_every=1, seed=seed)
        engine.done(engine.broker.create_topic("t")[1])
        assert engine.publish("t", b"emptied") is None
        assert engine.done(engine.topic("t").empty()) is None
        engine.files.crash_at = engine.files.step_count + step
        with contextlib.suppress(Crashed):
            engine.topic("t").create_channel("a")
            engine.settle()
        engine.files.crash_at = -1
        engine.crash(PREFIX, seed)
        engine.start()
        if "a" in engine.topic("t").channels:
            assert engine.unfinished("t", "a") == {}


@pytest.mark.parametrize("changes", [(True,), (True, False), (True, False, True)])
def test_nsqd_dat_says_at_last_whether_a_topic_is_paused(changes: tuple[bool, ...]) -> None:
    """However quickly that changed, and whatever else was saved meanwhile."""
    engine = Engine()
    engine.done(engine.broker.create_topic("t")[1])
    for number, paused in enumerate(changes):
        ticket = engine.topic("t").pause(paused)
        engine.topic("t").create_channel(f"c{number}")
    assert engine.done(ticket) is None
    assert engine.topic("t").listed_paused == changes[-1]
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("t").paused == changes[-1]


def test_a_segment_that_a_slot_pins_is_left_in_peace() -> None:
    """R5, R16: all of it is finished, but its origins are still wanted; no work until then."""
    engine = Engine(max_bytes_per_file=300, sync_every=1)
    client = Client(engine, "t", "a", 10)
    engine.settle()
    assert engine.defer("t", MS, b"x") is None
    assert engine.defer("t", 30 * SECOND, b"later, same minute or the next") is None
    engine.advance(300 * MS)
    for received in client.take():
        assert client.finish(received.index) == 0
    assert engine.publish("t", b"y") is None
    before = engine.files.step_count
    engine.advance(10 * SECOND)
    assert engine.files.step_count - before < 100


def test_an_idle_topic_gives_its_last_segments_back() -> None:
    """R5: nothing happens any more, and still the finished segments go."""
    engine = Engine(max_bytes_per_file=2000)
    client = Client(engine, "t", "a", 100)
    engine.settle()
    for _ in range(10):
        assert engine.publish("t", bytes(1000)) is None
    for received in client.take():
        assert client.finish(received.index) == 0
    engine.advance(10 * SECOND)
    assert len(engine.topic("t").log.segments()) <= 1


def test_the_tail_that_a_start_finds_is_synced_in_time() -> None:
    """R3: --sync-timeout also bounds what was written shortly before a kill."""
    engine = engine_with_channel()
    assert engine.publish("t", b"x") is None
    engine.crash(KEEP)
    engine.start()
    assert engine.topic("t").log.extent.unsynced_count == 1
    engine.advance(engine.options.sync_timeout_ns + SECOND)
    assert engine.topic("t").log.extent.unsynced_count == 0


def test_segments_that_were_finished_before_a_kill_go_after_the_start() -> None:
    """R5."""
    engine = Engine(max_bytes_per_file=2000)
    client = Client(engine, "t", "a", 100)
    engine.settle()
    for _ in range(10):
        assert engine.publish("t", bytes(1000)) is None
    for received in client.take():
        assert client.finish(received.index) == 0
    engine.advance(300 * MS)
    engine.crash(KEEP)
    engine.start()
    engine.advance(10 * SECOND)
    assert not engine.topic("t").log.segments()
