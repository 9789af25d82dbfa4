"""Pull channels: cursors that a reader over HTTP moves (R18)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from penstock.engine.pull.channel import (
    HasReaderError,
    InUseError,
    PullChannel,
    TakeOverError,
    start_of,
)
from penstock.engine.pull.polls import Known
from penstock.engine.topic import Topic
from penstock.storage.journal import encode_progress
from penstock.storage.relocation import Relocation
from tests.crash.lossy import KEEP, LOSE
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

DAY = 24 * HOUR
ONE, TWO, THREE = (digit * 32 for digit in "123")


def pulled(engine: Engine, start: str | int = "earliest", name: str = "q") -> PullChannel:
    assert engine.done(engine.broker.create_topic("t")[1]) is None
    found, ticket, _ = engine.components.pulls.open(
        engine.topic("t"), name, start_of(engine.topic("t"), start)
    )
    assert engine.done(ticket) is None
    return found


def again(engine: Engine, mode: str = KEEP) -> PullChannel:
    """The channel after a crash."""
    engine.crash(mode)
    engine.start()
    channel = engine.topic("t").channels["q"]
    assert isinstance(channel, PullChannel)
    return channel


def fill(engine: Engine, count: int, size: int = 1000) -> None:
    for _ in range(count):
        assert engine.publish("t", b"x" * size) is None


def test_a_channel_starts_where_it_is_told_to() -> None:
    engine = Engine()
    engine.publish("t", b"a", b"b", b"c")
    topic = engine.topic("t")
    assert pulled(engine, "earliest", "first").low == topic.log.first
    assert pulled(engine, "latest", "last").low == topic.end
    assert pulled(engine, topic.end - 1, "one").depth == 1
    assert [topic.channels[name].depth for name in ("first", "last")] == [3, 0]


def test_depth_is_the_exact_number_of_messages_over_gaps_and_restarts() -> None:
    """R18, R1: an index difference is never a count."""
    engine = Engine()
    channel = pulled(engine)
    for round in range(1, 4):
        engine.publish("t", b"a", b"b")
        assert channel.depth == 2 * round
        channel = again(engine)
        assert channel.depth == 2 * round
    topic = engine.topic("t")
    assert topic.end - channel.low > 6
    second = [start for start, _ in topic.log.existing(0, topic.end)][1]
    channel.commit(second + 1)
    assert channel.depth == 3 and channel.finish_count == 3
    channel.commit(topic.end)
    assert channel.depth == 0 and channel.finish_count == 6


def test_a_commit_goes_neither_back_nor_past_the_end() -> None:
    engine = Engine()
    channel = pulled(engine)
    engine.publish("t", b"a", b"b")
    first, end = engine.topic("t").log.first, engine.topic("t").end
    channel.commit(first + 1)
    channel.commit(first)
    assert channel.low == first + 1
    channel.commit(end + 1000)
    assert channel.low == end


@pytest.mark.parametrize("mode", [KEEP, LOSE])
def test_channel_and_low_survive_a_crash(mode: str) -> None:
    """R18, R6: the channel at once, its low within --sync-timeout."""
    engine = Engine()
    channel = pulled(engine)
    engine.publish("t", b"a", b"b", b"c")
    channel.commit(channel.low + 2)
    channel.pause(True)
    engine.advance(3 * SECOND)
    low = channel.low
    channel = again(engine, mode)
    assert (channel.low, channel.depth, channel.paused) == (low, 1, True)
    channel = again(engine, mode)
    assert (channel.low, channel.depth, channel.paused) == (low, 1, True)


def test_a_channel_is_there_after_a_power_cut_right_after_its_ticket() -> None:
    engine = Engine()
    engine.publish("t", b"a")
    low = pulled(engine).low
    assert again(engine, LOSE).low == low


def test_a_compacted_journal_knows_pull_channels() -> None:
    engine = Engine()
    channel = pulled(engine)
    engine.publish("t", b"a", b"b")
    channel.commit(channel.low + 1)
    assert engine.done(engine.topic("t").keeper.rewrite()) is None
    assert again(engine).depth == 1


def test_segments_stay_until_they_are_committed() -> None:
    """R5, R18: also when every other channel has finished them."""
    engine = Engine(max_bytes_per_file=10_000)
    channel = pulled(engine)
    client = Client(engine, "t", "a", 1000)
    fill(engine, 100)
    for message in client.take():
        client.finish(message.index)
    engine.advance(30 * SECOND)
    log = engine.topic("t").log
    assert log.count == 100 and channel.depth == 100
    channel.commit(channel.low + 60)
    engine.advance(3 * SECOND)
    assert 40 <= log.count < 60 and channel.depth == 40
    assert log.first <= channel.low


def test_whole_from_tells_what_was_removed() -> None:
    """R18: also after a restart with nothing left, and never too little."""
    engine = Engine(max_bytes_per_file=10_000)
    channel = pulled(engine)
    topic = engine.topic("t")
    assert topic.whole_from == 0
    fill(engine, 50)
    assert topic.whole_from == 0
    channel.commit(topic.end - 20)
    engine.advance(3 * SECOND)
    whole_from = topic.whole_from
    assert whole_from == topic.log.first <= channel.low
    channel = again(engine)
    topic = engine.topic("t")
    assert topic.whole_from == whole_from <= channel.low
    channel.commit(topic.end)
    engine.advance(5 * SECOND)
    assert topic.log.count == 0 and whole_from < topic.whole_from <= channel.low
    low = channel.low
    channel = again(engine)
    assert engine.topic("t").whole_from <= channel.low == low, (
        "a reader at its low has lost nothing"
    )


def test_what_is_removed_is_journaled_before_it_goes() -> None:
    """R18: a kill between the two must not make a range look whole."""
    engine = Engine(max_bytes_per_file=5_000)
    fill(engine, 20)
    channel = pulled(engine)
    first = engine.topic("t").log.first
    channel.commit(engine.topic("t").end)
    engine.topic("t").write_progress()
    engine.settle()
    removed = [False]

    def seen() -> None:
        topic = engine.topic("t")
        if topic.log.first > first and not removed[0]:
            removed[0] = True
            told = engine.files.read(f"{topic.log.folder}/journal")
            assert b"PJ\x06" in told

    engine.advance(3 * SECOND, seen)
    assert removed[0]


def test_messages_relocated_make_what_is_before_not_whole() -> None:
    """R5, R18."""
    engine = Engine(max_bytes_per_file=20_000)
    client = Client(engine, "t", "a", 1000)
    fill(engine, 100)
    taken = client.take()
    for message in taken[1:]:
        client.finish(message.index)
    engine.advance(30 * SECOND)
    topic = engine.topic("t")
    assert topic.log.segments()[0].side and topic.log.first == taken[0].index
    assert topic.whole_from > taken[0].index


def named(engine: Engine, *bodies: bytes) -> Topic:
    """Topic t, whose channel q an nsqlookupd has named."""
    topic, _ = engine.broker.create_topic("t")
    assert isinstance(topic, Topic)
    topic.await_channels()
    topic.know_channels(["q"])
    engine.settle()
    if bodies:
        engine.publish("t", *bodies)
    return topic


@pytest.mark.parametrize("restarts", [(), (KEEP,), (LOSE, KEEP)])
def test_a_channel_that_only_nsqlookupd_named_becomes_a_pull_channel_and_keeps_its_low(
    restarts: tuple[str, ...],
) -> None:
    """R18: it was made before the query came; that nobody has used it is durable."""
    engine = Engine(sync_every=1)
    named(engine, b"a", b"b", b"c")
    for mode in restarts:
        engine.crash(mode)
        engine.start()
    topic = engine.topic("t")
    assert engine.done(topic.keeper.rewrite()) is None
    channel, ticket, made = engine.components.pulls.open(topic, "q", topic.end)
    assert engine.done(ticket) is None and not made
    assert channel.depth == 3 and topic.channels["q"] is channel
    engine.advance(3 * SECOND)
    assert again(engine, LOSE).depth == 3


def subscribe(engine: Engine) -> None:
    Client(engine, "t", "q", 0).close()


def create(engine: Engine) -> None:
    assert engine.done(engine.topic("t").create_channel("q")[1]) is None


@pytest.mark.parametrize("use", [subscribe, create])
@pytest.mark.parametrize("restart", ["", KEEP, LOSE])
@pytest.mark.parametrize("first_named", [False, True])
def test_a_channel_that_was_used_never_becomes_a_pull_channel(
    use: Callable[[Engine], None], restart: str, first_named: bool
) -> None:
    engine = Engine(sync_every=1)
    if first_named:
        named(engine)
    else:
        engine.broker.create_topic("t")
    use(engine)
    engine.publish("t", b"a", b"b")
    engine.settle()
    if restart:
        engine.crash(restart)
        engine.start()
    topic = engine.topic("t")
    with pytest.raises(InUseError):
        engine.components.pulls.open(topic, "q", topic.end)
    assert not topic.channels["q"].pulled and topic.channels["q"].depth == 2


@pytest.mark.parametrize("lost", ["journal", "folder"])
def test_channels_that_only_nsqd_dat_knows_are_of_the_kind_they_were(lost: str) -> None:
    """A journal that is lost makes no channel of consumers a reader's, nor the other way round."""
    engine = Engine(sync_every=1)
    topic = named(engine)
    engine.done(topic.create_channel("plain")[1])
    engine.done(engine.components.pulls.open(topic, "pulled", topic.end)[1])
    engine.publish("t", b"a")
    folder = topic.log.folder
    engine.crash(KEEP)
    if lost == "journal":
        engine.files.unlink(f"{folder}/journal")
    else:
        engine.files.remove_tree(folder)
    engine.start()
    topic = engine.topic("t")
    assert {name: channel.pulled for name, channel in topic.channels.items()} == {
        "q": False,
        "plain": False,
        "pulled": True,
    }
    with pytest.raises(InUseError):
        engine.components.pulls.open(topic, "plain", topic.end)
    assert engine.components.pulls.open(topic, "q", topic.end)[0].pulled


def test_a_failing_disk_does_not_keep_a_consumer_from_a_named_channel() -> None:
    engine = Engine(sync_every=1)
    topic = named(engine, b"a")
    engine.files.fail("append", errno.EIO)
    _, used = topic.create_channel("q")
    engine.settle()
    assert used.done and used.error is None
    assert not engine.files.failures, "the disk did fail"
    assert engine.done(topic.save()) is None
    engine.crash(LOSE)
    engine.start()
    with pytest.raises(InUseError):
        engine.components.pulls.open(engine.topic("t"), "q", 0)


def test_force_turns_a_used_channel_without_consumers() -> None:
    engine = Engine()
    client = Client(engine, "t", "q", 10)
    engine.publish("t", b"a", b"b", b"c", b"d")
    first, second, *_ = client.take()
    client.finish(first.index)
    topic = engine.topic("t")
    with pytest.raises(InUseError):
        engine.components.pulls.open(topic, "q", topic.end, force=True)
    client.close()
    engine.settle()
    channel, ticket, made = engine.components.pulls.open(topic, "q", topic.end, force=True)
    assert engine.done(ticket) is None and not made
    assert (channel.low, channel.depth) == (second.index, 3)
    assert topic.channels["q"] is channel
    engine.advance(3 * SECOND)
    assert again(engine, LOSE).depth == 3


def test_what_a_plain_channel_finished_further_on_is_read_again() -> None:
    """A finished run must not swallow messages before it once the low touches it."""
    engine = Engine()
    client = Client(engine, "t", "q", 10)
    engine.publish("t", *(b"%d" % i for i in range(6)))
    taken = client.take()
    for message in taken[2:5]:
        client.finish(message.index)
    client.close()
    engine.advance(SECOND)
    channel, ticket, _ = engine.components.pulls.open(engine.topic("t"), "q", 0, force=True)
    assert engine.done(ticket) is None and channel.depth == 6
    channel.commit(taken[2].index)
    engine.advance(SECOND)
    channel = again(engine)
    assert (channel.low, channel.depth) == (taken[2].index, 4)


def test_a_plain_channel_with_messages_in_flight_stays_plain() -> None:
    engine = Engine(requeue_on_disconnect=False)
    client = Client(engine, "t", "q", 1)
    engine.publish("t", b"a")
    client.close()
    engine.settle()
    with pytest.raises(InUseError):
        engine.components.pulls.open(engine.topic("t"), "q", 0, force=True)


def test_pulling_twice_changes_nothing() -> None:
    engine = Engine()
    engine.publish("t", b"a", b"b")
    channel = pulled(engine)
    channel.commit(channel.low + 1)
    found, ticket, made = engine.components.pulls.open(engine.topic("t"), "q", 0)
    assert found is channel and not made and engine.done(ticket) is None and channel.depth == 1


def test_a_paused_topic_holds_messages_back_from_depth() -> None:
    """R2."""
    engine = Engine()
    channel = pulled(engine)
    topic = engine.topic("t")
    engine.publish("t", b"a")
    engine.done(topic.pause(True))
    engine.publish("t", b"b")
    assert (channel.depth, channel.message_count, topic.depth) == (1, 1, 1)
    engine.done(topic.pause(False))
    assert (channel.depth, channel.message_count, topic.depth) == (2, 2, 0)


def test_emptying_a_channel_finishes_what_was_released() -> None:
    engine = Engine()
    channel = pulled(engine)
    engine.publish("t", b"a", b"b")
    engine.done(channel.empty())
    assert channel.depth == 0
    engine.publish("t", b"c")
    assert channel.depth == 1
    engine.advance(3 * SECOND)
    assert again(engine, LOSE).depth == 1


@pytest.mark.parametrize("behind", [False, True])
def test_emptying_a_topic_takes_what_it_held(behind: bool) -> None:
    """Unless there is something to read before it: a low has no holes behind it."""
    engine = Engine()
    channel = pulled(engine)
    topic = engine.topic("t")
    if behind:
        engine.publish("t", b"a")
    engine.done(topic.pause(True))
    engine.publish("t", b"held")
    engine.done(topic.empty())
    engine.done(topic.pause(False))
    assert channel.depth == (2 if behind else 0)
    assert again(engine).depth == (2 if behind else 0)


def test_deferred_messages_come_to_a_pull_channel_too() -> None:
    """Also those that an emptied plain channel passes over: the log is read as it is (R17)."""
    engine = Engine()
    channel = pulled(engine)
    engine.defer("t", MINUTE, b"later")
    assert channel.deferred_count == 1
    engine.done(channel.empty())
    engine.advance(2 * MINUTE)
    assert (channel.depth, channel.deferred_count) == (1, 0)


def test_a_relocation_under_way_spares_what_a_new_channel_wants() -> None:
    """R5, R18: the segment stays if a pull channel starts in it meanwhile."""
    engine = Engine(max_bytes_per_file=20_000)
    client = Client(engine, "t", "a", 1000)
    fill(engine, 100)
    taken = client.take()
    for message in taken[1:]:
        client.finish(message.index)
    topic = engine.topic("t")
    made = []
    submit = engine.disk.submit

    def submit_slowly(work: Callable[[], Any], done: Callable[..., None]) -> None:
        def work_slowly() -> Any:
            result = work()
            if isinstance(result, Relocation) and not made:
                made.append(engine.components.pulls.open(topic, "q", topic.log.first)[0])
            return result

        submit(work_slowly, done)

    engine.disk.submit = submit_slowly  # type: ignore[method-assign]
    engine.advance(20 * SECOND)
    assert made[0].depth == 100 and topic.whole_from == 0
    assert not any(name.endswith(".side") for name in engine.files.list(topic.log.folder))


# Lapse


def test_a_channel_without_its_reader_lapses() -> None:
    """R18: after a stated time, logged and counted; the log is free then."""
    engine = Engine(max_bytes_per_file=10_000, pull_channel_lapse_ns=DAY)
    pulled(engine)
    Client(engine, "t", "a", 0)
    fill(engine, 30)
    topic = engine.topic("t")
    engine.sleep(DAY - 2 * SECOND)
    assert topic.channels["q"].pull["lapses_in_ms"] <= 2000  # type: ignore[index]
    engine.advance(3 * SECOND)
    assert "q" not in topic.channels
    assert engine.components.pulls.lapse_counts == {"time": 1, "bytes": 0}
    assert engine.components.pulls.channels == set()
    engine.crash(KEEP)
    engine.start()
    assert list(engine.topic("t").channels) == ["a"]


def test_visits_and_a_restart_put_the_lapse_off() -> None:
    engine = Engine(pull_channel_lapse_ns=HOUR)
    channel = pulled(engine)
    for visit in (channel.visit, lambda: channel.commit(0), lambda: pulled(engine)):
        engine.sleep(HOUR - MINUTE)
        visit()
    engine.sleep(HOUR - MINUTE)
    assert channel.pull["idle_ms"] == (HOUR - MINUTE) // MS
    channel = again(engine)
    engine.sleep(HOUR - MINUTE)
    assert engine.topic("t").channels["q"] is channel
    engine.advance(2 * MINUTE)
    assert engine.topic("t").channels == {}


def test_zero_never_lapses() -> None:
    engine = Engine(pull_channel_lapse_ns=0)
    channel = pulled(engine)
    engine.sleep(1000 * DAY)
    assert engine.topic("t").channels["q"] is channel
    assert channel.pull["lapses_in_ms"] is None


def test_a_channel_lapses_by_size_when_its_reader_is_gone() -> None:
    """R18."""
    engine = Engine(max_bytes_per_file=10_000, pull_channel_lapse_bytes=50_000)
    channel = pulled(engine)
    fill(engine, 40)
    assert 40_000 < channel.held_size < 50_000
    engine.advance(2 * MINUTE)
    channel.visit()
    fill(engine, 20)
    engine.advance(50 * SECOND)
    assert engine.topic("t").channels["q"] is channel, "its reader is there"
    channel.commit(channel.low + 30)
    assert 30_000 < channel.held_size < 40_000
    engine.advance(2 * MINUTE)
    assert engine.topic("t").channels["q"] is channel, "little enough"
    fill(engine, 30)
    engine.advance(2 * SECOND)
    assert engine.topic("t").channels == {}
    assert engine.components.pulls.lapse_counts == {"time": 0, "bytes": 1}


def test_deleting_topic_or_channel_forgets_it() -> None:
    engine = Engine()
    pulled(engine)
    engine.done(engine.topic("t").delete_channel("q"))
    assert engine.components.pulls.channels == set()
    pulled(engine)
    engine.done(engine.broker.delete_topic("t"))
    assert engine.components.pulls.channels == set()


def test_without_a_journal_nothing_is_called_whole() -> None:
    """R18, R3: what was removed is not known then."""
    engine = Engine()
    channel = pulled(engine)
    engine.publish("t", b"a")
    engine.advance(3 * SECOND)
    path = f"{engine.topic('t').log.folder}/journal"
    engine.crash(KEEP)
    data = bytearray(engine.files.read(path))
    data[20] ^= 0xFF
    data += encode_progress(99, 0)
    engine.files.unlink(path)
    engine.files.append(path, [bytes(data)])
    engine.start()
    assert engine.topic("t").whole_from > channel.low


# Its reader (R45)


def identity_of(channel: PullChannel) -> str | None:
    return None if channel.reader is None else channel.reader.identity


def test_only_the_bound_reader_is_admitted() -> None:
    engine = Engine()
    channel = pulled(engine)
    for identity in (None, ONE, TWO):
        channel.admit(identity)
    channel.bind(ONE, "one")
    channel.admit(ONE)
    for identity in (None, TWO):
        with pytest.raises(HasReaderError, match=f"is read by one .identity {ONE}, since 2027-"):
            channel.admit(identity)
    assert engine.components.pulls.refusal_counts["reader"] == 2


@pytest.mark.parametrize("mode", [KEEP, LOSE])
def test_a_binding_survives_a_crash_and_a_compacted_journal(mode: str) -> None:
    engine = Engine(sync_every=1)
    channel = pulled(engine)
    engine.publish("t", b"a", b"b")
    channel.commit(channel.low + 1)
    channel.bind(ONE, "one")
    engine.advance(200 * MS)
    before = channel.reader
    for _ in range(2):
        channel = again(engine, mode)
        assert channel.reader == before and channel.depth == 1
        assert engine.done(engine.topic("t").keeper.rewrite()) is None
        engine.advance(3 * SECOND)


def test_a_take_over_is_there_after_a_power_cut_right_after_its_ticket() -> None:
    engine = Engine()
    channel = pulled(engine)
    channel.bind(ONE, "one")
    assert engine.done(channel.take_over(TWO, ONE)) is None
    channel = again(engine, LOSE)
    assert identity_of(channel) == TWO
    with pytest.raises(TakeOverError):
        channel.take_over(THREE, ONE)
    assert engine.done(channel.take_over(TWO, ONE)) is None
    assert identity_of(channel) == TWO


def test_a_take_over_that_could_not_be_written_is_written_when_it_is_repeated() -> None:
    engine = Engine()
    channel = pulled(engine)
    channel.bind(ONE, "one")
    engine.advance(3 * SECOND)
    engine.files.fail("append", errno.EIO)
    assert engine.done(channel.take_over(TWO, ONE)) is not None
    assert not engine.files.failures, "the disk did fail"
    assert engine.done(channel.take_over(TWO, ONE)) is None
    assert identity_of(again(engine, LOSE)) == TWO


def test_a_channel_without_a_reader_is_not_taken_over() -> None:
    engine = Engine()
    channel = pulled(engine)
    with pytest.raises(TakeOverError, match="not bound to a reader"):
        channel.take_over(TWO, ONE)
    assert channel.reader is None


@pytest.mark.parametrize("lost", ["journal", "folder"])
def test_a_binding_that_only_nsqd_dat_knows_stays(lost: str) -> None:
    engine = Engine(sync_every=1)
    channel = pulled(engine)
    engine.publish("t", b"a")
    channel.bind(ONE, "one")
    engine.advance(3 * SECOND)
    folder, before = engine.topic("t").log.folder, channel.reader
    engine.crash(KEEP)
    if lost == "journal":
        engine.files.unlink(f"{folder}/journal")
    else:
        engine.files.remove_tree(folder)
    engine.start()
    engine.settle()
    for _ in range(2):
        channel = again(engine)
        assert channel.reader == before


def test_a_channel_made_anew_has_no_reader() -> None:
    engine = Engine()
    channel = pulled(engine)
    channel.bind(ONE, "one")
    assert engine.done(engine.topic("t").delete_channel("q")) is None
    assert pulled(engine).reader is None
    assert again(engine, LOSE).reader is None


def test_polls_of_others_end_when_the_reader_changes() -> None:
    engine = Engine()
    channel = pulled(engine)
    known = {"t": Known(None, engine.topic("t").end)}

    def poll(identity: str | None) -> Callable[[], bool]:
        asked = engine.components.polls.wait(known, "q", 30 * SECOND, None, identity)
        return lambda: asked.ticket.done

    one, two, none = (poll(identity) for identity in (ONE, TWO, None))
    engine.advance(SECOND)
    assert (one(), two(), none()) == (False, False, False)
    channel.bind(ONE, "one")
    engine.advance(MS)
    assert (one(), two(), none()) == (False, True, True)
    channel.bind(ONE, "another name")
    engine.advance(SECOND)
    assert not one()
    channel.take_over(TWO, ONE)
    engine.advance(MS)
    assert one()


def test_what_was_removed_before_a_channel_was_made_again_stays_known() -> None:
    """R46: until its reader is past it; also over crashes and compaction."""
    engine = Engine(max_bytes_per_file=300)
    channel = pulled(engine)
    start = channel.low
    fill(engine, 5)
    channel.commit(engine.topic("t").end - 1)
    engine.advance(10 * SECOND)
    whole_from = engine.topic("t").whole_from
    assert start < whole_from == channel.whole_from
    engine.done(engine.topic("t").delete_channel("q"))
    channel, ticket, _ = engine.components.pulls.open(engine.topic("t"), "q", start, resumes=True)
    assert engine.done(ticket) is None
    assert channel.low == start and channel.whole_from == whole_from
    for mode in (LOSE, KEEP):
        channel = again(engine, mode)
        assert channel.whole_from == whole_from
        assert engine.done(engine.topic("t").keeper.rewrite()) is None
    channel.commit(whole_from)
    assert not channel.partial
    # Who begins there for the first time misses nothing.
    fresh, _, _ = engine.components.pulls.open(engine.topic("t"), "fresh", start)
    assert fresh.whole_from == start
