"""The delivery window: consumers that go, skipping, emptying, and what the journal hears."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.latency import Histogram, Latency
from penstock.core.window import Consumer, Window
from tests.support.blocks import NODE_ID, block_of, frame, read_marks, read_runs, timestamp_of
from tests.unit.core.windows import (
    LIMIT,
    NOT_IN_FLIGHT,
    NOT_OWNER,
    SECOND,
    TIMEOUT_NS,
    consumer_of,
    deliver,
    redeliver,
    window_of,
)

# ---- consumers


def test_room_follows_ready_count_in_flight_and_writability() -> None:
    """S3-1, S3-2"""
    window = window_of(range(10))
    consumer = consumer_of(window, ready_count=3)
    assert consumer.ready and consumer.room == 3
    deliver(window, consumer, count=consumer.room)
    assert not consumer.ready and consumer.room == 0
    window.finish_index(consumer, 0, NODE_ID)
    assert consumer.ready and consumer.room == 1
    consumer.ready_count = 1
    assert not consumer.ready and consumer.room == 0, "lowering RDY recalls nothing"
    consumer.ready_count = 10
    consumer.writable = False
    assert not consumer.ready and consumer.room == 0


def test_a_lost_consumers_messages_return_at_once_the_first_time() -> None:
    """R14"""
    window = window_of(range(5))
    lost, other = consumer_of(window), consumer_of(window)
    deliver(window, lost, count=3)
    deliver(window, other, count=2)
    assert window.leave(lost, True, 0, SECOND) == 3
    assert (window.ready_count, window.in_flight_count, window.requeue_count) == (3, 2, 3)
    assert lost.in_flight_count == 0 and lost.number == -1
    assert [redeliver(window, other) for _ in range(3)] == [(0, 2), (1, 2), (2, 2)]


def test_a_lost_consumers_messages_wait_longer_each_time() -> None:
    """R14: one poison message must not burn the attempts of everything beside it."""
    window = window_of(range(1))
    waits = []
    for attempt in range(1, 9):
        consumer = consumer_of(window, msg_timeout_ns=60 * SECOND)
        if attempt == 1:
            deliver(window, consumer)
        else:
            assert redeliver(window, consumer) == (0, attempt)
        back = window.leave(consumer, True, 1000, SECOND)
        assert back == int(attempt == 1)
        if window.deferred_count:
            waits.append((window.next_deferral_ns - 1000) // SECOND)
            window.fire(window.next_deferral_ns, 1)
    assert waits == [1, 2, 4, 8, 16, 32, 60], "never beyond the consumer's own timeout"


def test_the_wait_of_a_lost_message_does_not_overflow() -> None:
    window = Window(0)
    window.restore(0, 65533, 0)
    consumer = consumer_of(window, msg_timeout_ns=900 * SECOND)
    redeliver(window, consumer)
    window.leave(consumer, True, 0, SECOND)
    assert window.next_deferral_ns == 900 * SECOND


def test_without_requeueing_a_lost_consumers_messages_wait_for_their_deadline() -> None:
    """R14: `--requeue-on-disconnect=false` is NSQ's way; S0-3: a vanished owner is no error."""
    window = window_of(range(3))
    lost, other = consumer_of(window), consumer_of(window)
    deliver(window, lost)
    assert window.leave(lost, False, 0, SECOND) == 0
    assert (window.in_flight_count, window.ready_count, window.requeue_count) == (3, 0, 0)
    assert window.finish_index(other, 0, NODE_ID) == NOT_OWNER
    assert window.finish_index(lost, 0, NODE_ID) == NOT_OWNER
    assert window.expire(TIMEOUT_NS, 10) == set()
    assert (window.timeout_count, window.ready_count) == (3, 3)
    assert lost.in_flight_count == 0
    window.check()


def test_a_new_consumer_does_not_inherit_from_one_that_left() -> None:
    window = window_of(range(3))
    lost = consumer_of(window)
    number = lost.number
    deliver(window, lost)
    window.requeue_index(lost, 0, NODE_ID, 0)
    window.requeue_index(lost, 1, NODE_ID, 99)
    window.leave(lost, False, 0, SECOND)
    new = consumer_of(window)
    assert new.number == number
    assert [window.finish_index(new, i, NODE_ID) for i in range(3)] == [1, 1, 2]
    window.check()


def test_a_consumer_may_join_again_after_leaving() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    window.leave(consumer, True, 0, SECOND)
    window.join(consumer)
    assert deliver(window, consumer) == [0, 1, 2]
    window.check()


def test_a_consumer_that_is_not_of_this_window_is_our_own_mistake() -> None:
    window, elsewhere = window_of(range(9)), Window(0)
    first = consumer_of(window)
    deliver(window, first, count=1)
    window.requeue_index(first, 0, NODE_ID, 0)
    for _ in range(3):
        stranger = consumer_of(elsewhere)
    gone = consumer_of(window)
    window.leave(gone, True, 0, 0)
    for consumer in (stranger, gone, Consumer(None, 1)):
        with pytest.raises(AssertionError):
            window.leave(consumer, True, 0, 0)
        with pytest.raises(AssertionError):
            window.deliver(consumer, 1, 1, LIMIT, 0)
        with pytest.raises(AssertionError):
            window.deliver_sampled(consumer, 1, 1, LIMIT, 0)
        with pytest.raises(AssertionError):
            window.redeliver(consumer, frame(0), 0)
    with pytest.raises(AssertionError):
        window.join(first)
    assert window.next_ready == 0
    window.check()


def test_none_is_not_a_consumer() -> None:
    window = window_of(range(3))
    calls = [
        lambda c: window.join(c),
        lambda c: window.leave(c, True, 0, 0),
        lambda c: window.deliver(c, 1, 1, 1, 1),
        lambda c: window.deliver_sampled(c, 1, 1, 1, 1),
        lambda c: window.redeliver(c, frame(0), 0),
        lambda c: window.finish_index(c, 0, 0),
        lambda c: window.requeue_index(c, 0, 0, 0),
        lambda c: window.touch_index(c, 0, 0, 0, 0, 0),
    ]
    for call in calls:
        with pytest.raises((TypeError, AssertionError)):
            call(None)


def test_redelivering_without_a_ready_message_is_our_own_mistake() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    with pytest.raises(AssertionError):
        window.redeliver(consumer, frame(0), 0)
    with pytest.raises(AssertionError):
        window.drop_ready()
    deliver(window, consumer)
    window.requeue_index(consumer, 1, NODE_ID, 0)
    with pytest.raises(AssertionError):
        window.redeliver(consumer, frame(1)[:33], 0)
    assert window.next_ready == 1
    window.check()


# ---- skipping, clearing


def test_skipped_messages_are_finished_without_being_sent() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    window.skip(2, 4, 2)
    window.skip(0, 1, 1)
    window.skip(9, 10, 1)
    assert window.depth == 6
    assert [deliver(window, consumer) for _ in range(3)] == [[1], [4, 5, 6, 7, 8], []]
    assert window.cursor == 10 and window.depth == 0
    assert read_runs(window.drain()[1]) == [(2, 4), (9, 10)]


def test_skipping_beyond_the_block_holds_for_the_next_one() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    window.skip(2, 6, 4)
    assert deliver(window, consumer) == [0, 1]
    assert not window.loaded and window.cursor == 6
    window.load(block_of(range(3, 9)))
    assert deliver(window, consumer) == [6, 7, 8]


def test_skips_that_overlap_or_lie_in_gaps_are_one_skip() -> None:
    window = window_of([*range(5), *range(20, 30)])
    for start, end in ((3, 8), (6, 21), (25, 26), (22, 24), (3, 4)):
        window.skip(start, end, 0)
    consumer = consumer_of(window)
    got = []
    while window.loaded:
        got += deliver(window, consumer)
    assert got == [0, 1, 2, 21, 24, 26, 27, 28, 29]


def test_skipping_one_by_one_costs_no_more_than_at_once() -> None:
    """R10: a flood of skipped messages stays one run, in memory and in the snapshot."""
    window = Window(0)
    for index in range(20_000):
        window.skip(index, index + 1, 0)
    assert read_runs(window.snapshot()[1]) == [(0, 20_000)]
    assert read_runs(window.drain()[1]) == [(0, 20_000)]


@pytest.mark.parametrize(("start", "end"), [(4, 6), (6, 6), (7, 6)])
def test_skipping_behind_the_cursor_or_nothing_is_our_own_mistake(start: int, end: int) -> None:
    window = Window(5)
    with pytest.raises(AssertionError):
        window.skip(start, end, 0)


def test_clearing_finishes_queued_in_flight_ready_and_deferred() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    deliver(window, consumer, count=6)
    window.requeue_index(consumer, 0, NODE_ID, 0)
    window.requeue_index(consumer, 1, NODE_ID, 99)
    window.clear(10)
    assert (window.low, window.cursor, window.depth) == (10, 10, 0)
    assert (window.in_flight_count, window.deferred_count, window.unfinished_count) == (0, 0, 0)
    assert consumer.in_flight_count == 0 and window.next_ready is None and not window.loaded
    assert window.finish_index(consumer, 3, NODE_ID) == NOT_IN_FLIGHT
    assert window.drain() == (10, b"", b"")
    window.check()


def test_a_cleared_window_goes_on() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    deliver(window, consumer, count=6)
    window.clear(10)
    window.load(block_of(range(10, 13)))
    assert deliver(window, consumer) == [10, 11, 12]
    window.check()


def test_clearing_never_moves_the_cursor_back() -> None:
    window = window_of(range(10))
    deliver(window, consumer_of(window), count=6)
    window.clear(3)
    assert window.cursor == window.low == 6


def test_skips_beyond_what_is_cleared_stay() -> None:
    """R17: what an earlier empty skipped in a paused topic is not delivered by a later one."""
    window = window_of(range(10))
    window.skip(8, 12, 2)
    window.skip(15, 16, 0)
    window.clear(10)
    assert window.cursor == 12
    window.load(block_of(range(10, 20)))
    consumer = consumer_of(window)
    assert deliver(window, consumer) + deliver(window, consumer) == [12, 13, 14, 16, 17, 18, 19]


def test_dropping_a_ready_message_finishes_it() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    for index in (1, 0):
        window.requeue_index(consumer, index, NODE_ID, 0)
    window.drop_ready()
    assert window.next_ready == 0 and window.describe(1) is None
    window.drop_ready()
    assert window.next_ready is None and window.low == 2
    window.check()


# ---- what the journal hears


def test_drain_tells_each_thing_once() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    deliver(window, consumer)
    for index in (5, 3, 4, 8):
        window.finish_index(consumer, index, NODE_ID)
    window.requeue_index(consumer, 1, NODE_ID, 0)
    window.requeue_index(consumer, 2, NODE_ID, 777)
    assert window.changed
    low, runs, marks = window.drain()
    assert (low, read_runs(runs)) == (0, [(3, 6), (8, 9)])
    assert read_marks(marks) == {1: (1, 0), 2: (1, 777)}
    assert not window.changed
    assert window.drain() == (0, b"", b"")
    window.finish_index(consumer, 0, NODE_ID)
    assert window.drain() == (1, b"", b"")


def test_attempts_are_journaled_by_requeue_timeout_and_disconnect() -> None:
    """R11"""
    window = window_of(range(6))
    consumer = consumer_of(window)
    deliver(window, consumer, count=2, now_ns=0)
    deliver(window, consumer, count=2, now_ns=50)
    window.requeue_index(consumer, 2, NODE_ID, 0)
    window.expire(60, 10)
    window.leave(consumer, True, 0, SECOND)
    assert read_marks(window.drain()[2]) == dict.fromkeys(range(4), (1, 0))


def test_a_last_attempt_that_a_crash_ends_is_not_counted() -> None:
    """R26: it is in flight when the journal is written, after an earlier one has failed."""
    window = window_of(range(2))
    window.set_policy(2, 0, 10, 0, 0)
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.requeue_index(consumer, 1, NODE_ID, 0)
    redeliver(window, consumer)
    assert window.describe(1) == ("in flight", 2, 0)
    assert read_marks(window.snapshot()[2]) == {0: (1, 0), 1: (1, 0)}
    assert read_marks(window.drain()[2]) == {1: (1, 0)}
    window.requeue_index(consumer, 1, NODE_ID, 0)
    assert window.buried_count == 1


def test_attempts_of_what_is_in_flight_are_journaled_at_exit() -> None:
    """R11: mark_all() is for a clean exit; a message never delivered has nothing to tell."""
    window = Window(0)
    window.restore(0, 0, 0)
    window.restore(1, 7, 0)
    window.load(block_of([2, 3]))
    consumer = consumer_of(window)
    deliver(window, consumer)
    assert read_marks(window.drain()[2]) == {}
    window.mark_all()
    assert read_marks(window.drain()[2]) == {1: (7, 0), 2: (1, 0), 3: (1, 0)}


def test_a_mark_of_a_message_finished_since_is_not_told() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.requeue_index(consumer, 1, NODE_ID, 0)
    redeliver(window, consumer)
    window.finish_index(consumer, 1, NODE_ID)
    assert window.drain() == (0, (1).to_bytes(8, "big") + (2).to_bytes(8, "big"), b"")


def test_a_window_that_does_not_record_keeps_nothing_for_a_journal() -> None:
    """R15: ephemeral channels."""
    window = Window(0, recording=False)
    window.load(block_of(range(10)))
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.finish_index(consumer, 5, NODE_ID)
    window.requeue_index(consumer, 6, NODE_ID, 0)
    assert window.drain() == (0, b"", b"")


def test_a_restored_window_has_attempts_and_due_times() -> None:
    """R11, R17: REQ with a delay survives a restart."""
    window = Window(10)
    window.restore(10, 3, 0)
    window.restore(12, 0, 0)
    window.restore(20, 65535, 5000)
    assert (window.low, window.cursor, window.unfinished_count) == (10, 21, 3)
    assert window.describe(20) == ("deferred", 65535, 5000)
    assert (window.depth, window.deferred_count) == (2, 1)
    consumer = consumer_of(window)
    assert [redeliver(window, consumer) for _ in range(2)] == [(10, 4), (12, 1)]
    window.check()


@pytest.mark.parametrize("index", [9, 10, 12])
def test_restoring_out_of_order_is_our_own_mistake(index: int) -> None:
    window = Window(10)
    window.restore(12, 1, 0)
    with pytest.raises(AssertionError):
        window.restore(index, 1, 0)


def test_advancing_passes_what_is_known_to_be_finished() -> None:
    window = Window(10)
    window.restore(12, 1, 0)
    window.skip(30, 35, 0)
    window.advance(31)
    assert (window.low, window.cursor) == (12, 35)
    with pytest.raises(AssertionError):
        window.advance(34)


def test_unfinished_lists_a_range_or_says_that_it_is_too_much() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    deliver(window, consumer)
    for index in (2, 3, 7):
        window.finish_index(consumer, index, NODE_ID)
    assert window.unfinished(0, 100, 100) == [0, 1, 4, 5, 6, 8, 9]
    assert window.unfinished(1, 6, 3) == [1, 4, 5]
    assert window.unfinished(1, 6, 2) is None
    assert window.unfinished(2, 4, 0) == []


def test_snapshot_is_the_whole_window_and_takes_nothing_away() -> None:
    window = window_of([*range(5), *range(10, 20)])
    consumer = consumer_of(window)
    while deliver(window, consumer):
        pass
    for index in (1, 3, 10, 11, 19):
        window.finish_index(consumer, index, NODE_ID)
    window.requeue_index(consumer, 2, NODE_ID, 55)
    window.skip(30, 40, 0)
    low, runs, marks = window.snapshot()
    assert low == 0
    assert read_runs(runs) == [(1, 2), (3, 4), (5, 12), (19, 20), (30, 40)]
    assert read_marks(marks) == dict.fromkeys((0, 4, *range(12, 19)), (1, 0)) | {2: (1, 55)}
    assert window.snapshot() == (low, runs, marks)


# ---- latencies


def test_latencies_are_measured_only_while_asked_for() -> None:
    window = window_of(range(5))
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.finish_index(consumer, 0, NODE_ID, timestamp_of(0) + 50)
    assert window.latency is None
    window.latency = Latency(1 << 62)
    window.finish_index(consumer, 1, NODE_ID, timestamp_of(1) + 70)
    window.requeue_index(consumer, 2, NODE_ID, 0)
    window.finish_index(consumer, 3, NODE_ID, timestamp_of(3) + 80)
    window.finish_index(consumer, 3, NODE_ID, timestamp_of(3) + 90)
    total = Histogram()
    window.latency.merge_into(total, timestamp_of(3) + 80)
    assert (total.count, total.minimum, total.maximum) == (2, 70, 80), "one for each finish"
    assert window.finish_count == 3


# ---- what has expired


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=40),
    st.integers(0, 40),
    st.integers(1, 7),
)
def test_a_pass_finds_each_old_message_once_whatever_its_slices(
    messages: list[tuple[int, bool, bool]], end: int, slice_count: int
) -> None:
    """Of both lists; not the kicked ones.  The others stay, in an order that is turned."""
    window = Window(0)
    window.set_policy(3, 0, 100)  # a message with two attempts is delivered alone
    for index, (attempts, kicked, deferred) in enumerate(messages):
        due_ns = SECOND if deferred else 0
        window.restore(index, attempts, ~due_ns if kicked else due_ns)
    waiting = {i for i, (_, _, deferred) in enumerate(messages) if not deferred}
    old = {i for i in waiting if i < end and not messages[i][1]}
    left, found = window.ready_count, []
    while left:
        left, one = window.find_old(end, left, max(0, left - slice_count))
        if one:
            assert window.next_ready is not None
            found.append(window.next_ready)
            window.drop_ready()
        window.check()
    assert sorted(found) == sorted(old)
    assert window.ready_count == len(waiting - old)
    assert all(
        window.was_kicked(i) == kicked for i, (_, kicked, _) in enumerate(messages) if i not in old
    )


def test_that_a_message_was_kicked_is_in_its_mark() -> None:
    window = Window(0)
    window.restore(0, 2, ~5)
    window.restore(1, 2, 5)
    assert read_marks(window.snapshot()[2]) == {0: (2, ~5), 1: (2, 5)}
    assert (window.was_kicked(0), window.was_kicked(1), window.was_kicked(2)) == (
        True,
        False,
        False,
    )
    assert window.fire(5, 10) == 2
    assert read_marks(window.snapshot()[2]) == {0: (2, ~0), 1: (2, 0)}


@given(
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 20), st.integers(0, 10)), max_size=30),
    st.data(),
)
def test_searches_for_unfinished_ones_in_any_order_find_what_is_left(
    searches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    window = window_of(range(40))
    consumer = consumer_of(window)
    deliver(window, consumer, count=40)
    left = list(range(40))
    for start, size, count_max in searches:
        found = [index for index in left if start <= index < start + size]
        expected = found if len(found) <= count_max else None
        assert window.unfinished(start, start + size, count_max) == expected
        if left:
            index = data.draw(st.sampled_from(left))
            left.remove(index)
            assert window.finish_index(consumer, index, NODE_ID) == 0
