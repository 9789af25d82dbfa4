"""A policy change through every crash point and error: what was answered stays, as a whole."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.core.ticket import Ticket
from penstock.storage import journal
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.daemon import Nsqd
from tests.support.engine import SECOND, Engine
from tests.support.faults import FaultyNsqd

MODES = [KEEP, LOSE, PREFIX, HOLES]

# What is set, one change after the other: of the topic, or of the channel.
CHANGES: list[tuple[bool, dict[str, Any]]] = [
    (False, {"retain": "1h", "max_messages": 10}),
    (True, {"max_attempts": 3, "on_max_attempts": "drop"}),
    (False, {"retain": "2h", "max_messages": None}),
    (True, {"max_attempts": 4}),
    (True, {"max_attempts": None, "on_max_attempts": None}),
    (False, {"retain": None, "max_bytes": "1GB"}),
]


def state(engine: Engine) -> tuple[dict[str, Any], dict[str, Any]]:
    topic = engine.broker.topics.get("t")
    if topic is None or "c" not in topic.channels:
        return {}, {}
    return topic.own_policy, topic.channels["c"].own_policy


def states() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What is set before the first change, and after each."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})]
    for of_channel, changes in CHANGES:
        both = [dict(each) for each in found[-1]]
        for key, value in changes.items():
            if value is None:
                both[of_channel].pop(key, None)
            else:
                both[of_channel][key] = str(value)
        found.append((both[0], both[1]))
    return found


class Writer:
    """Makes the changes; ``answered`` is how many were answered without an error."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answered = self.begun = 0

    def run(self) -> None:
        engine, policies = self.engine, self.engine.components.policies
        topic, created = engine.broker.create_topic("t")
        channel, made = topic.create_channel("c")
        assert engine.done(created) is None and engine.done(made) is None
        for of_channel, changes in CHANGES[self.answered :]:
            self.begun += 1
            engine.publish("t", b"message")
            done: Ticket = (
                policies.set_channel(channel, changes)
                if of_channel
                else policies.set_topic(topic, changes)
            )
            assert engine.done(done) is None
            self.answered += 1
            if self.answered == 3:
                assert engine.done(engine.topic("t").keeper.rewrite()) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_any_step_keeps_what_was_answered(mode: str) -> None:
    expected = states()
    at = 0
    while True:
        files = LossyFiles()
        engine = Engine(files)
        writer = Writer(engine)
        files.crash_at = files.step_count + at
        try:
            writer.run()
        except Crashed:
            pass
        else:
            break
        engine.crash(mode, seed=at + 1)
        engine.start()
        # The change that was not answered is there completely, or not at all.
        assert state(engine) in expected[writer.answered : writer.begun + 1], at
        engine.check()
        for what in engine.broker.topics.values():
            shown = engine.components.policies.topic_shown(what)
            assert (shown["retain"]["origin"] == "set") == ("retain" in what.own_policy)
        at += 1
    assert at > 10
    assert state(engine) == expected[-1]


@pytest.mark.parametrize("action", ["append", "sync"])
def test_an_error_is_answered_and_the_change_is_written_later(action: str) -> None:
    engine = Engine()
    topic, created = engine.broker.create_topic("t")
    assert engine.done(created) is None
    engine.files.fail(action, errno.EIO)
    failed = engine.done(engine.components.policies.set_topic(topic, {"retain": "1h"}))
    assert isinstance(failed, OSError)
    # The next write is a whole snapshot.
    assert engine.done(topic.pause(True)) is None
    engine.advance(SECOND)
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("t").own_policy == {"retain": "1h"}


def test_every_flipped_bit_and_cut_of_the_record_is_harmless() -> None:
    whole = journal.encode_topic(1, 0, False, 0) + journal.encode_channel(1, 0, False, 0, "c")
    policy = journal.encode_policy(1, {"max_attempts": "5"})
    end = journal.encode_progress(1, 7)

    def replayed(record: bytes) -> tuple[dict[str, Any], int, int]:
        found = journal.replay(whole + record + end)
        return found.channels["c"].policy, found.channels["c"].low, found.corrupt_count

    assert replayed(policy) == ({"max_attempts": "5"}, 7, 0)
    for place in range(len(policy)):
        for bit in range(8):
            flipped = bytearray(policy)
            flipped[place] ^= 1 << bit
            assert replayed(bytes(flipped)) == ({}, 7, 1)
    for size in range(1, len(policy)):
        cut = journal.replay(whole + policy[:size])
        assert (cut.channels["c"].policy, cut.torn_size) == ({}, size)


def put(nsqd: Nsqd, place: str, changes: dict[str, Any]) -> int:
    return nsqd.http("PUT", f"/policy?{place}", json.dumps(changes).encode()).status


def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path / "nsqd") as nsqd:
        nsqd.post("/topic/create?topic=t")
        assert put(nsqd, "topic=t", {"retain": "1h"}) == 200
        nsqd.fault("*/journal*", errno.ENOSPC, "append")
        assert put(nsqd, "topic=t", {"retain": "2h"}) == 503
        nsqd.heal()
        assert put(nsqd, "topic=t", {"max_messages": 5}) == 200
        nsqd.kill()
        nsqd.start()
        policy = nsqd.get("/policy?topic=t").json["policy"]
        assert policy["retain"]["value"] == "2h" and policy["max_messages"]["value"] == 5


def test_kills_among_changes_keep_the_last_answered_one(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        for life in range(3):
            last = 0
            for number in range(1, 20):
                value = 100 * life + number
                assert put(nsqd, "topic=t&channel=c", {"max_attempts": value}) == 200
                last = value
            nsqd.kill()
            nsqd.start()
            shown = nsqd.get("/policy?topic=t&channel=c").json["policy"]["max_attempts"]
            assert shown == {"value": last, "origin": "set"}
