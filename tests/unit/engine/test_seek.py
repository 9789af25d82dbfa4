"""Seeks, and channels that start in the past, on a broker without sockets, threads and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.engine.catalog.seek import Search, open_channel, search_start
from penstock.engine.ephemeral import EphemeralChannel
from penstock.engine.topic import Topic
from penstock.settings.places import parse_place
from penstock.settings.policy import DEFAULT
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

DONE, NOT_IN_FLIGHT = 0, 1


def bodies(client: Client) -> list[bytes]:
    return [received.body for received in client.take()]


def finish_all(client: Client) -> list[bytes]:
    """Finish what is in flight, and what follows, until nothing does."""
    found = []
    while taken := client.take():
        for received in taken:
            found.append(received.body)
            assert client.finish(received.index) == DONE
        client.engine.settle()
    return found


def begun(ready_count: int = 10, **options: object) -> tuple[Engine, Client, Topic]:
    """A channel that has finished m0 to m4, each published in a second of its own.

    A second channel keeps the messages.
    """
    engine = Engine(**options)
    client = Client(engine, "t", "c", ready_count)
    engine.topic("t").create_channel("keeper")
    for number in range(5):
        engine.advance(SECOND)
        engine.publish("t", b"m%d" % number)
    assert finish_all(client) == [b"m%d" % number for number in range(5)]
    engine.advance(SECOND // 4)
    return engine, client, engine.topic("t")


def seek(engine: Engine, client: Client, to: str, topic: str = "t") -> None:
    found = engine.topic(topic)
    search = Search(found, parse_place(to))
    assert engine.done(search) is None
    assert engine.done(found.rewind(client.channel, search.start().at)) is None


def open_at(engine: Engine, name: str, place: str) -> None:
    topic = engine.topic("t")
    search = search_start(topic, name, parse_place(place))
    engine.settle()
    assert engine.done(open_channel(topic, name, search)[1]) is None


def test_a_seek_to_the_earliest_place_delivers_everything_again() -> None:
    """R22: ids and timestamps are those of the first time, attempts begin at 1."""
    engine, client, topic = begun()
    engine.publish("t", b"m5")
    [first] = client.take()
    seek(engine, client, "earliest")
    again = client.take()
    assert [received.body for received in again] == [b"m%d" % number for number in range(6)]
    assert [received.attempts for received in again] == [1] * 6
    assert again[5].id == first.id
    assert topic.channels["c"].in_flight_count == client.consumer.in_flight_count == 6


@pytest.mark.parametrize(
    ("place", "left"), [("-3s", 3), ("index:%d", 3), ("-0.5s", 1), ("-1h", 5), ("latest", 0)]
)
def test_a_seek_to_a_place_delivers_what_is_after_it(place: str, left: int) -> None:
    """R22"""
    engine, client, topic = begun()
    client.ready(0)
    if "%d" in place:
        place %= topic.end - left
    seek(engine, client, place)
    assert topic.channels["c"].depth == left
    client.ready(10)
    engine.settle()
    assert finish_all(client) == [b"m%d" % number for number in range(5 - left, 5)]
    engine.publish("t", b"new")
    assert finish_all(client) == [b"new"]


def test_a_late_finish_counts_if_the_message_is_in_flight_again() -> None:
    """R22: else it is refused."""
    engine, client, _topic = begun(ready_count=2)
    for number in range(5, 9):
        engine.publish("t", b"m%d" % number)
    before = client.take()
    assert [received.body for received in before] == [b"m5", b"m6"]
    seek(engine, client, f"index:{before[1].index}")
    assert bodies(client) == [b"m6", b"m7"]
    assert client.finish(before[0].index) == NOT_IN_FLIGHT
    assert client.finish(before[1].index) == DONE
    engine.settle()
    assert bodies(client) == [b"m8"]
    engine.check()


def test_a_seek_forward_finishes_what_is_in_flight_requeued_or_deferred() -> None:
    engine, client, topic = begun(ready_count=3)
    for number in range(5, 12):
        engine.publish("t", b"m%d" % number)
    flying, requeued, deferred = client.take()
    client.ready(1)
    client.requeue(requeued.index)
    client.requeue(deferred.index, 2 * SECOND)
    channel = topic.channels["c"]
    assert channel.window.unfinished_count == 3
    client.ready(0)
    seek(engine, client, "latest")
    engine.advance(MINUTE)
    assert channel.depth == channel.in_flight_count == channel.deferred_count == 0
    assert channel.window.low == topic.end
    client.ready(3)
    engine.advance(2 * MINUTE)
    assert bodies(client) == []
    assert client.finish(flying.index) == NOT_IN_FLIGHT


def test_other_channels_do_not_notice_a_seek() -> None:
    engine, client, topic = begun()
    other = Client(engine, "t", "keeper", ready_count=2)
    engine.settle()
    assert bodies(other) == [b"m0", b"m1"]
    seek(engine, client, "earliest")
    assert topic.channels["keeper"].depth == 3
    assert topic.channels["keeper"].in_flight_count == 2


def test_a_seek_keeps_the_pause() -> None:
    engine, client, topic = begun()
    engine.done(topic.channels["c"].pause(True))
    seek(engine, client, "earliest")
    engine.settle()
    assert bodies(client) == [] and topic.channels["c"].depth == 5
    for _ in range(2):
        assert topic.channels["c"].paused
        engine.crash()
        engine.start()
        topic = engine.topic("t")
    assert topic.channels["c"].depth == 5


@pytest.mark.parametrize("clean", [True, False])
def test_a_seek_survives_a_restart(clean: bool) -> None:
    """R22: its record is synced before the answer."""
    engine, client, _topic = begun(sync_every=1)
    seek(engine, client, "-3s")
    assert len(client.take()) == 3
    engine.exit() if clean else engine.crash("lose")
    engine.start()
    assert engine.topic("t").channels["c"].depth == 3
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert finish_all(client) == [b"m2", b"m3", b"m4"]
    engine.advance(SECOND)
    engine.crash()
    engine.start()
    assert engine.topic("t").channels["c"].depth == 0


def test_finishes_after_a_seek_are_remembered_and_those_before_are_not() -> None:
    engine, client, _topic = begun()
    seek(engine, client, "earliest")
    again = client.take()
    for received in again[1:3]:
        client.finish(received.index)
    engine.advance(SECOND)
    engine.crash()
    engine.start()
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert sorted(bodies(client)) == [b"m0", b"m3", b"m4"]


def test_a_paused_topic_keeps_what_it_holds() -> None:
    engine, client, topic = begun()
    engine.done(topic.pause(True))
    engine.publish("t", b"held")
    seek(engine, client, "earliest")
    assert len(bodies(client)) == 5 and topic.channels["c"].depth == 0
    client.ready(0)
    seek(engine, client, "latest")
    engine.publish("t", b"held too")
    client.ready(10)
    engine.done(topic.pause(False))
    engine.settle()
    assert bodies(client) == [b"held too"]
    assert topic.channels["c"].depth == 0
    engine.check()


def test_a_seek_beyond_what_is_released_survives_a_restart() -> None:
    engine, client, topic = begun()
    engine.done(topic.pause(True))
    engine.publish("t", b"held", b"held")
    seek(engine, client, "latest")
    engine.crash()
    engine.start()
    topic = engine.topic("t")
    engine.publish("t", b"held too")
    engine.done(topic.pause(False))
    client = Client(engine, "t", "c", ready_count=10)
    assert topic.channels["c"].depth == 1
    engine.settle()
    assert bodies(client) == [b"held too"]


def test_emptying_a_paused_topic_after_a_seek_beyond_it() -> None:
    engine, client, topic = begun()
    engine.done(topic.pause(True))
    engine.publish("t", b"held")
    seek(engine, client, "latest")
    engine.done(topic.empty())
    engine.publish("t", b"more")
    engine.done(topic.empty())
    engine.publish("t", b"left")
    engine.done(topic.pause(False))
    engine.settle()
    assert bodies(client) == [b"left"]
    assert topic.channels["c"].depth == 0


def test_a_new_channel_starts_at_a_place() -> None:
    """R23"""
    engine, _client, topic = begun(sync_every=1)
    for name, place in (("a", "earliest"), ("b", "-3s"), ("c2", "latest"), ("d", "queued")):
        open_at(engine, name, place)
    depths = {name: channel.depth for name, channel in topic.channels.items()}
    assert depths == {"c": 0, "keeper": 5, "a": 5, "b": 3, "c2": 0, "d": 0}
    engine.crash("lose")
    engine.start()
    found = {name: channel.depth for name, channel in engine.topic("t").channels.items()}
    assert found == depths
    late = Client(engine, "t", "b", ready_count=10)
    engine.settle()
    assert finish_all(late) == [b"m2", b"m3", b"m4"]


def test_the_first_channel_starts_at_a_place_too() -> None:
    """R23: what waits for it is delivered only from there on."""
    for place, left in (("earliest", 3), ("queued", 3), ("latest", 0), ("-1.5s", 1)):
        engine = Engine()
        engine.broker.create_topic("t")
        for number in range(3):
            engine.advance(SECOND)
            engine.publish("t", b"m%d" % number)
        engine.advance(SECOND)
        open_at(engine, "c", place)
        channel = engine.topic("t").channels["c"]
        assert channel.depth == channel.message_count == left, place
        client = Client(engine, "t", "c", ready_count=10)
        engine.settle()
        assert len(finish_all(client)) == left
        engine.publish("t", b"new")
        assert finish_all(client) == [b"new"]


def test_a_channel_that_starts_in_the_past_of_a_paused_topic_gets_no_held_message() -> None:
    """R23"""
    engine, _, topic = begun()
    engine.done(topic.pause(True))
    engine.publish("t", b"held")
    open_at(engine, "late", "earliest")
    client = Client(engine, "t", "late", ready_count=10)
    engine.settle()
    assert len(bodies(client)) == 5
    engine.done(topic.pause(False))
    engine.settle()
    assert bodies(client) == [b"held"]


def test_the_clock_of_old_messages_starts_with_the_channel() -> None:
    """R22, R23: kept over restarts and over a compaction of the journal."""
    engine, client, topic = begun()
    open_at(engine, "late", "earliest")
    engine.advance(SECOND)
    seek(engine, client, "earliest")
    expected = {
        name: (channel.begun_ns, channel.begun_end) for name, channel in topic.channels.items()
    }
    wall_ns = engine.clock.wall_ns()
    assert expected["keeper"] == (0, 0)
    assert expected["late"] == (wall_ns - SECOND, topic.end)
    assert expected["c"] == (wall_ns, topic.end)
    for whole in (False, True):
        if whole:
            engine.done(engine.topic("t").keeper.rewrite())
        engine.crash()
        engine.start()
        found = engine.topic("t").channels
        assert {name: (c.begun_ns, c.begun_end) for name, c in found.items()} == expected


def aged(engine: Engine, count: int = 12) -> Client:
    """Messages of 100 bytes, one a second, in segments of about four."""
    client = Client(engine, "t", "c", ready_count=100)
    for number in range(count):
        engine.advance(SECOND)
        engine.publish("t", b"m%03d" % number + bytes(96))
    return client


def test_a_place_below_which_messages_were_removed_is_not_whole() -> None:
    """R22"""
    engine = Engine(max_bytes_per_file=600)
    client = aged(engine)
    finish_all(client)
    engine.advance(5 * SECOND)
    topic = engine.topic("t")
    assert topic.whole_from
    whole_from = topic.safe_from
    for place, whole in (
        ("earliest", True),
        ("latest", True),
        (f"index:{whole_from}", True),
        (f"index:{whole_from - 1}", False),
        ("-1h", False),
        ("-4s", True),  # everything since then is there: nothing was published
    ):
        search = Search(topic, parse_place(place))
        engine.settle()
        start = search.start()
        assert start.whole == whole, place
        assert start.nearest >= whole_from
    engine.publish("t", b"new")
    engine.crash()
    engine.start()
    topic = engine.topic("t")
    search = Search(topic, parse_place("-1h"))
    engine.settle()
    assert not search.start().whole


@pytest.mark.parametrize("place", ["0", "1", "1970-01-01T00:00:00Z", "-106751d", "index:0"])
def test_every_place_is_whole_in_a_log_of_which_nothing_was_removed(place: str) -> None:
    engine, _client, topic = begun()
    for _ in range(2):
        search = Search(topic, parse_place(place))
        assert engine.done(search) is None
        assert search.start() == (topic.log.first, True, topic.log.first)
        engine.crash()
        engine.start()
        topic = engine.topic("t")


def test_a_partial_seek_delivers_what_is_in_the_log_and_nothing_from_memory() -> None:
    """R22: what is removed would be counted, and the last messages would not be delivered."""
    engine = Engine(max_bytes_per_file=600)
    client = aged(engine, 40)
    for received in client.take():
        if received.body[:4] != b"m002":
            client.finish(received.index)
    engine.advance(10 * SECOND)
    topic = engine.topic("t")
    assert topic.log.first < topic.whole_from and topic.log.count < 20
    engine.publish("t", *[b"new%d" % number for number in range(5)])
    client.take()
    seek(engine, client, f"index:{topic.log.first}")
    assert finish_all(client) == list(engine.logged("t").values())
    assert client.channel.depth == client.channel.in_flight_count == 0


@pytest.mark.parametrize("published_s", [0, 30])
def test_a_start_with_a_slow_clock_does_not_make_a_place_whole(published_s: int) -> None:
    """R22: what was removed before a start may have come any time before it."""
    engine = Engine(max_bytes_per_file=600)
    finish_all(aged(engine))
    engine.advance(5 * SECOND)
    engine.crash()
    engine.clock.step_wall(-1000 * HOUR)
    engine.start()
    engine.advance(10 * SECOND)
    engine.clock.step_wall(1000 * HOUR)
    engine.advance(published_s * SECOND)
    engine.publish("t", b"new")
    client = Client(engine, "t", "c", ready_count=100)
    engine.settle()
    finish_all(client)
    engine.publish("t", b"newer")
    engine.advance(SECOND)
    for place, whole in (("-1h", False), ("-45s", False), ("-5s", True)):
        search = Search(engine.topic("t"), parse_place(place))
        assert engine.done(search) is None
        assert search.start().whole == whole, place


def test_a_channel_begins_at_the_first_whole_place(caplog: pytest.LogCaptureFixture) -> None:
    """R23: SUB and the policy do not fail where the place is gone, and log it."""
    engine = Engine(max_bytes_per_file=600)
    client = aged(engine)
    finish_all(client)
    engine.advance(5 * SECOND)
    engine.publish("t", b"new")
    open_at(engine, "late", "-1h")
    assert "messages from -1h on were removed" in caplog.text
    late = Client(engine, "t", "late", ready_count=100)
    engine.settle()
    assert b"new" in bodies(late)
    assert late.channel.window.low >= engine.topic("t").whole_from


def test_a_seek_while_a_removal_is_journaled_is_judged_as_if_it_were_done() -> None:
    """R22: what is about to go is not promised; what a partial seek goes back to stays."""
    engine = Engine(max_bytes_per_file=600)
    client = aged(engine)
    finish_all(client)
    topic = engine.topic("t")
    before = topic.log.first
    topic.retire()  # journals the removal first
    assert topic.log.first == before < topic.safe_from
    start = Search(topic, parse_place(f"index:{before}")).start()
    assert (start.at, start.whole) == (before, False)
    topic.rewind(client.channel, start.at)
    engine.settle()
    assert topic.log.first == before
    assert len(bodies(client)) == 12


def moving() -> tuple[Engine, Client, int, Callable[[], None]]:
    """A straggler of the log's first segment was just moved, which the loop does not know yet.

    Returns the log's first index before, and the call that tells the loop.
    """
    engine = Engine(max_bytes_per_file=3000)
    client = Client(engine, "t", "c", ready_count=100)
    for number in range(60):
        engine.publish("t", b"m%03d" % number + bytes(96))
    for received in client.take():
        if received.body[:4] != b"m000":
            client.finish(received.index)
    low, turns, works = engine.topic("t").log.first, engine.turns, engine.disk.works
    while not (works and "relocate" in str(works[0][0])):
        if turns.calls:
            turns.calls.popleft()()
        elif works:
            engine.disk.step()
        elif not turns.fire():
            next_ns = turns.next_ns()
            assert next_ns is not None and next_ns < 10 * SECOND
            engine.clock.advance(next_ns - engine.clock.monotonic_ns())
    engine.disk.step()
    return engine, client, low, turns.calls.pop()


def test_a_seek_while_stragglers_are_moved_loses_nothing() -> None:
    """R22: the messages to be kept were looked up before it."""
    engine, client, low, moved = moving()
    topic, turns = engine.topic("t"), engine.turns
    topic.rewind(client.channel, low)
    while turns.calls:  # delivers everything: the cursor has passed the segment again
        turns.calls.popleft()()
    assert len(client.take()) == 60 and client.channel.window.cursor == topic.end
    turns.soon(moved)
    engine.settle()
    assert len(engine.logged("t")) == 60


def test_an_ephemeral_channel_in_the_past_is_no_reason_to_move_stragglers_again() -> None:
    """R23: it keeps nothing."""
    engine, _, low, moved = moving()
    topic = engine.topic("t")
    channel, _ = topic.create_channel("e#ephemeral", start=low)
    topic.rewind(channel, low)
    assert not topic.log.segments()[0].side
    moved()
    assert topic.log.segments()[0].side
    engine.settle()
    assert b"m000" in {body[:4] for body in engine.logged("t").values()}


@pytest.mark.parametrize("restart", ["", "rewritten", "lose"])
def test_buried_messages_from_the_start_on_are_delivered_again(restart: str) -> None:
    """R22: those below stay buried."""
    engine = Engine(sync_every=1)
    client = Client(engine, "t", "c", ready_count=10)
    client.channel.apply_policy(replace(DEFAULT, max_attempts=1))
    engine.publish("t", *[b"m%d" % number for number in range(5)])
    taken = client.take()
    for received in taken:
        client.requeue(received.index)
    engine.settle()
    topic = engine.topic("t")
    assert client.channel.window.buried_count == 5 and client.channel.depth == 0
    seek(engine, client, f"index:{taken[2].index}")
    if restart:
        client.channel.apply_policy(DEFAULT)  # or they would be buried again
        client.close()
        if restart == "rewritten":
            engine.done(topic.keeper.rewrite())
        engine.crash(restart if restart == "lose" else "keep")
        engine.start()
        client = Client(engine, "t", "c", ready_count=10)
        engine.settle()
    assert client.channel.window.buried_count == 2
    again = client.take()
    assert [received.body for received in again] == [b"m2", b"m3", b"m4"]
    assert {received.attempts for received in again} <= {1, 2}
    for received in again:
        assert client.finish(received.index) == DONE
    engine.advance(SECOND)
    engine.check()
    engine.crash()
    engine.start()
    window = engine.topic("t").channels["c"].window
    assert window.buried_count == 2 and window.depth == 0


def test_seeks_in_a_loop_leave_a_bounded_journal() -> None:
    engine, client, topic = begun()
    for round_ in range(200):
        topic.rewind(client.channel, topic.log.first + round_ % 5)
        engine.settle()
        client.take()
    assert topic.keeper.size < 1 << 16
    engine.check()
    engine.crash()
    engine.start()
    assert engine.topic("t").channels["c"].depth == 1


def test_a_deleted_channel_that_was_sought_stays_deleted() -> None:
    engine, client, _topic = begun()
    seek(engine, client, "earliest")
    engine.crash()
    engine.start()
    engine.done(engine.topic("t").delete_channel("c"))
    engine.crash()
    engine.start()
    assert "c" not in engine.topic("t").channels


# Ephemeral channels


def test_an_ephemeral_channel_reads_the_past_and_then_the_present() -> None:
    """R23"""
    engine, _, topic = begun()
    open_at(engine, "e#ephemeral", "-3s")
    channel = topic.channels["e#ephemeral"]
    assert channel.depth == 3
    client = Client(engine, "t", "e#ephemeral", ready_count=2)
    engine.publish("t", b"m5")
    assert channel.depth == 2
    assert finish_all(client) == [b"m2", b"m3", b"m4", b"m5"]
    engine.publish("t", b"m6")
    assert finish_all(client) == [b"m6"]
    assert isinstance(channel, EphemeralChannel) and not channel.behind
    assert channel.depth == channel.in_flight_count == 0
    engine.check()


def test_an_ephemeral_channel_in_the_past_pins_nothing_and_counts_what_goes() -> None:
    """R23: also what it requeues is kept by itself."""
    engine = Engine(max_bytes_per_file=600)
    client = Client(engine, "t", "c", ready_count=100)
    engine.topic("t").create_channel("keeper")
    for number in range(40):
        engine.publish("t", b"m%03d" % number + bytes(96))
    topic = engine.topic("t")
    finish_all(client)
    open_at(engine, "e#ephemeral", "earliest")
    late = Client(engine, "t", "e#ephemeral", ready_count=2)
    engine.settle()
    kept = late.take()
    late.ready(0)
    dropped = engine.components.shared.ephemeral.dropped_count
    keeper = Client(engine, "t", "keeper", ready_count=100)
    engine.settle()
    finish_all(keeper)
    engine.advance(10 * SECOND)
    gone = 40 - topic.log.count
    assert gone > 10
    for received in kept:
        late.requeue(received.index)
    late.ready(100)
    engine.settle()
    seen = finish_all(late)
    lost = engine.components.shared.ephemeral.dropped_count - dropped
    assert seen[:2] != [] and kept[0].body in seen and kept[1].body in seen
    assert len(seen) + lost == 40
    assert late.channel.depth == 0


def test_an_ephemeral_channel_can_be_sought() -> None:
    engine, _, _topic = begun()
    client = Client(engine, "t", "e#ephemeral", ready_count=10)
    engine.publish("t", b"m5")
    assert bodies(client) == [b"m5"]
    seek(engine, client, "earliest")
    assert finish_all(client) == [b"m%d" % number for number in range(6)]
    engine.publish("t", b"m6")
    assert finish_all(client) == [b"m6"]
    seek(engine, client, "latest")
    engine.publish("t", b"m7")
    assert finish_all(client) == [b"m7"]
    assert engine.components.shared.ephemeral.size < 1000


def test_an_ephemeral_channel_that_is_emptied_above_what_is_released_counts_right() -> None:
    engine, _, topic = begun()
    engine.done(topic.pause(True))
    engine.publish("t", b"held")
    open_at(engine, "e#ephemeral", "latest")
    client = Client(engine, "t", "e#ephemeral", ready_count=10)
    engine.done(client.channel.empty())
    engine.publish("t", b"new")
    engine.done(topic.pause(False))
    engine.settle()
    assert finish_all(client) == [b"new"]
    assert client.channel.depth == 0


def test_an_ephemeral_channel_in_the_past_uses_bounded_memory() -> None:
    """R15: it reads on when there is room again."""
    engine = Engine(mem_queue_bytes=1 << 19)
    engine.broker.create_topic("t")[0].create_channel("keeper")
    engine.settle()
    for number in range(60):
        engine.publish("t", b"m%02d" % number + bytes(50_000))
    open_at(engine, "e#ephemeral", "earliest")
    client = Client(engine, "t", "e#ephemeral", ready_count=60)
    memory = engine.components.shared.ephemeral
    engine.settle()
    taken = client.take()
    assert len(taken) < 60 and memory.size < (1 << 20)
    seen = {received.body[:3] for received in taken}
    while taken:
        for received in taken:
            client.finish(received.index)
        engine.settle()
        assert memory.size < (1 << 20)
        taken = client.take()
        seen |= {received.body[:3] for received in taken}
    assert len(seen) == 60


def test_times_are_found_while_the_clock_runs() -> None:
    engine = Engine(max_bytes_per_file=600)
    engine.broker.create_topic("t")[0].create_channel("keeper")
    client = Client(engine, "t", "c", ready_count=100)
    for number in range(50):
        engine.advance(MINUTE)
        engine.publish("t", b"m%03d" % number + bytes(96))
        finish_all(client)
    engine.advance(MS)
    for minutes in range(1, 50):
        seek(engine, client, f"-{minutes}m")
        assert len(finish_all(client)) == minutes
    seek(engine, client, "-1h")
    assert len(finish_all(client)) == 50
