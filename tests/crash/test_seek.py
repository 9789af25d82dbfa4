"""Seeks and channels that start in the past, through every crash point (R22, R23)."""

from __future__ import annotations

import errno
import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.ticket import Ticket
from penstock.engine.catalog.seek import Search, open_channel
from penstock.engine.topic import Topic
from penstock.settings.places import parse_place
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed
from tests.support.daemon import Nsqd
from tests.support.engine import SECOND, Client, Engine
from tests.support.faults import WRITES
from tests.support.waits import wait_until

STEPS_MAX = 60


def begun(**options: object) -> tuple[Engine, Topic]:
    """Channel c has finished m0 to m4 and m6; channel keeper has everything."""
    engine = Engine(sync_every=1, sync_timeout_ns=SECOND, **options)
    client = Client(engine, "t", "c", ready_count=10)
    engine.topic("t").create_channel("keeper")
    for number in range(10):
        engine.publish("t", b"m%d" % number)
    for received in client.take():
        if received.body in {b"m0", b"m1", b"m2", b"m3", b"m4", b"m6"}:
            client.finish(received.index)
    client.close()
    engine.advance(3 * SECOND)
    return engine, engine.topic("t")


BEFORE = {b"m5", b"m7", b"m8", b"m9"}


def crashes(
    change: Callable[[Engine, Topic], Ticket], **options: object
) -> Iterator[tuple[Engine, bool]]:
    """A start after a crash at every step of the change, and whether it was answered before."""
    for mode in (KEEP, LOSE, PREFIX, HOLES):
        for step in range(STEPS_MAX):
            engine, topic = begun(**options)
            engine.files.crash_at = engine.files.step_count + step
            ticket = None
            try:
                ticket = change(engine, topic)
                engine.settle()
                engine.files.crash_at = -1
                done = True
            except Crashed:
                done = False
            answered = ticket is not None and ticket.done and ticket.error is None
            engine.crash(mode, seed=step + 1)
            engine.start()
            engine.check()
            yield engine, answered
            if done:
                assert answered
                break
        else:
            raise AssertionError("the change has more steps than the test takes")


def delivered(engine: Engine, channel: str = "c") -> set[bytes]:
    client = Client(engine, "t", channel, ready_count=100)
    engine.settle()
    received = client.take()
    assert len({message.index for message in received}) == len(received)
    for message in received:
        assert client.finish(message.index) == 0
    engine.settle()
    assert client.channel.depth == client.channel.in_flight_count == 0
    return {message.body for message in received}


@pytest.mark.parametrize(
    ("number", "journal"), [(2, "as it is"), (8, "as it is"), (2, "rewritten")]
)
def test_a_crash_in_a_seek_leaves_the_channel_before_or_after_it(number: int, journal: str) -> None:
    """R22: answered is durable."""

    def change(engine: Engine, topic: Topic) -> Ticket:
        if journal == "rewritten":
            topic.keeper.rewrite()
        return topic.rewind(topic.channels["c"], topic.log.first + number)

    after = {b"m%d" % each for each in range(number, 10)}
    for engine, answered in crashes(change):
        found = delivered(engine)
        assert found == after or (found == BEFORE and not answered)
        engine.advance(2 * SECOND)
        engine.crash()
        engine.start()
        assert engine.topic("t").channels["c"].depth == 0
        assert engine.topic("t").channels["keeper"].depth == 10


@pytest.mark.parametrize("number", [6, 8])
def test_a_crash_in_a_seek_of_a_channel_with_buried_messages(number: int) -> None:
    """R22, R24: what is buried below the place stays so, also if that was not journaled before."""

    def change(engine: Engine, topic: Topic) -> Ticket:
        client = Client(engine, "t", "c", ready_count=10)
        engine.settle()
        for received in client.take():
            if received.body in {b"m7", b"m8"}:
                assert client.bury(received.index) == 0
        client.close()
        return topic.rewind(topic.channels["c"], topic.log.first + number)

    after = {b"m%d" % each for each in range(number, 10)}, {b"m7"} if number == 8 else set()
    for engine, answered in crashes(change):
        logged = engine.logged("t")
        table = engine.topic("t").channels["c"].window.buried
        buried = set() if table is None else {logged[index] for index in table.indexes()}
        found = delivered(engine)
        if answered:
            assert (found, buried) == after
        elif found != after[0]:
            assert buried <= {b"m7", b"m8"} and found == BEFORE - buried
        else:
            assert buried <= after[1]


def test_crashes_in_a_row_of_seeks_leave_one_of_them() -> None:
    """R22: the last one that was answered, or a later one."""

    def change(engine: Engine, topic: Topic) -> Ticket:
        channel, first = topic.channels["c"], topic.log.first
        topic.rewind(channel, first + 9)
        channel.pause(True)
        topic.rewind(channel, first)
        channel.pause(False)
        return topic.rewind(channel, first + 3)

    possible = [BEFORE] + [{b"m%d" % each for each in range(start, 10)} for start in (9, 0, 3)]
    for engine, answered in crashes(change):
        channel = engine.topic("t").channels["c"]
        if channel.paused:
            engine.done(channel.pause(False))
        found = delivered(engine)
        assert found in possible and (found == possible[3] or not answered)


def test_a_crash_while_a_channel_is_created_in_the_past() -> None:
    """R23: it is not there, or it has everything."""

    def change(engine: Engine, topic: Topic) -> Ticket:
        search = Search(topic, parse_place("earliest"))
        return open_channel(topic, "late", search)[1]

    everything = {b"m%d" % each for each in range(10)}
    for engine, answered in crashes(change):
        there = "late" in engine.topic("t").channels
        assert there or not answered
        if there:
            assert delivered(engine, "late") == everything
        assert delivered(engine) == BEFORE


@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_a_crash_in_a_seek_beside_a_removal_takes_nothing_it_promised(turns: int) -> None:
    """R22, R5: segments are being removed, or their stragglers moved, meanwhile."""
    for step in range(0, STEPS_MAX, 3):
        engine = Engine(sync_every=1, sync_timeout_ns=SECOND, max_bytes_per_file=700)
        client = Client(engine, "t", "c", ready_count=100)
        for number in range(24):
            engine.publish("t", b"m%02d" % number + bytes(80))
        for received in client.take():
            if received.body[:3] != b"m01":
                client.finish(received.index)
        client.close()
        engine.clock.advance(SECOND)
        for _ in range(turns):
            _turn(engine)
        topic = engine.topic("t")
        channel = topic.channels["c"]
        engine.files.crash_at = engine.files.step_count + step
        promised: set[bytes] = set()
        ticket = None
        try:
            ticket = topic.rewind(channel, topic.log.first)
            promised = {body[:3] for body in engine.logged("t").values()}
            engine.settle()
            engine.files.crash_at = -1
        except Crashed:
            pass
        answered = ticket is not None and ticket.done and ticket.error is None
        engine.crash(KEEP if step % 2 else LOSE)
        engine.start()
        engine.check()
        if answered:
            # A power cut may bring back a file that was being removed.
            assert {body[:3] for body in delivered(engine)} >= promised
        else:
            assert b"m01" in {body[:3] for body in delivered(engine)}


def _turn(engine: Engine) -> None:
    if engine.turns.calls:
        engine.turns.calls.popleft()()
    elif engine.disk.works:
        engine.disk.step()
    else:
        engine.turns.fire()


def test_a_seek_that_the_disk_refuses_is_not_answered_and_the_journal_says_it_later() -> None:
    engine, topic = begun()
    engine.files.faults.add("*/journal*", errno.EIO, *WRITES)
    ticket = topic.rewind(topic.channels["c"], topic.log.first)
    assert isinstance(engine.done(ticket), OSError)
    engine.files.faults.heal()
    engine.advance(20 * SECOND)
    engine.crash(LOSE)
    engine.start()
    assert delivered(engine) == {b"m%d" % each for each in range(10)}


def test_a_read_error_while_a_time_is_searched_fails_the_search() -> None:
    engine, topic = begun()
    engine.files.faults.add("*.log", errno.EIO, "pread")
    search = Search(topic, parse_place("-1h"))
    error = engine.done(search)
    engine.files.faults.heal()
    assert isinstance(error, OSError)
    search = Search(topic, parse_place("-1h"))
    assert engine.done(search) is None and search.start().at == topic.log.first


def test_kill_9_among_seeks(tmp_path: Path) -> None:
    """R22: the last answered one holds, or the one that was not answered."""
    with Nsqd(tmp_path, "--sync-every=1") as nsqd:
        nsqd.post("/topic/create?topic=t")
        for channel in ("c", "keeper"):
            nsqd.post(f"/channel/create?topic=t&channel={channel}")
        nsqd.post("/mpub?topic=t", b"\n".join(b"%d" % number for number in range(50)))
        first = nsqd.get("/log?topic=t").json["first"]
        for round_ in range(3):
            answered = [nsqd.channel("t", "c")["depth"]]
            asked: list[int] = []
            thread = threading.Thread(
                target=_seek_on, args=(nsqd, first, round_, answered, asked), daemon=True
            )
            thread.start()
            wait_until(lambda: len(answered) > 30, 20)  # noqa: B023
            nsqd.kill()
            thread.join(20)
            assert not thread.is_alive()
            nsqd.start()
            assert nsqd.channel("t", "c")["depth"] in {answered[-1], asked[-1]}
            assert "ERROR" not in nsqd.log


def _seek_on(nsqd: Nsqd, first: int, number: int, answered: list[int], asked: list[int]) -> None:
    """Seek until nsqd is gone."""
    while True:
        number = (number * 7 + 3) % 50
        asked.append(50 - number)
        target = f"/channel/seek?topic=t&channel=c&to=index:{first + number}"
        try:
            answered.append(nsqd.post(target).json["messages"])
        except (OSError, http.client.HTTPException):
            return


def test_a_channel_begins_and_goes_back_over_clean_restarts(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=keeper")
        nsqd.post("/mpub?topic=t", b"a\nb\nc")
        nsqd.post("/channel/create?topic=t&channel=c&start=earliest")
        nsqd.restart()
        assert nsqd.channel("t", "c")["depth"] == 3
        nsqd.post("/channel/pause?topic=t&channel=c")
        nsqd.post("/channel/seek?topic=t&channel=c&to=latest")
        nsqd.restart()
        channel = nsqd.channel("t", "c")
        assert (channel["depth"], channel["paused"]) == (0, True)
