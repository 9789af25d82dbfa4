"""The delivery window: what happens to a message between the cursor and its finish."""

from __future__ import annotations

import pytest

from penstock.core.block import Block
from penstock.core.deadlines import NEVER_NS
from penstock.core.window import Window
from tests.support.blocks import NODE_ID, block_of, frame, read_frames, read_runs
from tests.unit.core.windows import (
    DONE,
    LIMIT,
    NOT_IN_FLIGHT,
    NOT_OWNER,
    TIMEOUT_NS,
    consumer_of,
    deliver,
    redeliver,
    window_of,
)

# ---- first deliveries


def test_a_new_window_is_empty() -> None:
    window = Window(42)
    assert (window.low, window.cursor, window.depth) == (42, 42, 0)
    assert (window.in_flight_count, window.deferred_count, window.ready_count) == (0, 0, 0)
    assert window.next_deadline_ns == window.next_deferral_ns == NEVER_NS
    assert window.next_ready is None and not window.loaded and not window.changed
    assert window.drain() == window.snapshot() == (42, b"", b"")
    window.check()


def test_frames_are_delivered_as_they_lie_in_the_log() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    given = window.deliver(consumer, 3, 1 << 20, LIMIT, 0)
    assert given == (frame(0) + frame(1) + frame(2), 3)


def test_a_message_is_in_flight_before_its_bytes_are_handed_out() -> None:
    """S0-1: what deliver() returns is already recorded, with owner and deadline."""
    window = window_of(range(3))
    consumer = consumer_of(window)
    window.deliver(consumer, 3, 1 << 20, LIMIT, 1000)
    assert window.in_flight_count == consumer.in_flight_count == consumer.message_count == 3
    assert [window.describe(i) for i in range(3)] == [("in flight", 1, 0)] * 3
    assert window.next_deadline_ns == 1000 + TIMEOUT_NS
    assert window.depth == 0


def test_delivery_stops_at_the_count_the_size_and_the_limit() -> None:
    """S3-1: the count is the consumer's room."""
    window = window_of(range(20))
    consumer = consumer_of(window)
    assert deliver(window, consumer, count=2) == [0, 1]
    size = len(frame(2)) + len(frame(3))
    given = window.deliver(consumer, 10, size, LIMIT, 0)
    assert given is not None and given[1] == 2
    given = window.deliver(consumer, 10, size - 1, 6, 0)
    assert given is not None and given[1] == 1, "4 fits, 4 and 5 do not"
    given = window.deliver(consumer, 10, 1 << 20, 6, 0)
    assert given is not None and given[1] == 1, "6 is not released"
    assert window.deliver(consumer, 10, 1 << 20, 6, 0) is None
    assert window.cursor == 6 and window.loaded
    assert window.depth == 14


def test_a_message_larger_than_the_size_is_delivered_alone() -> None:
    window = window_of(range(3))
    given = window.deliver(consumer_of(window), 10, 1, LIMIT, 0)
    assert given == (frame(0), 1)


def test_gaps_in_the_log_are_stepped_over() -> None:
    """R1: an index difference is never a count."""
    window = window_of([3, 4, 9, 1000, 1001])
    consumer = consumer_of(window)
    assert [deliver(window, consumer) for _ in range(4)] == [[3, 4], [9], [1000, 1001], []]
    assert window.cursor == 1002 and window.depth == 0 and not window.loaded


def test_a_block_is_entered_in_its_middle() -> None:
    window = Window(7)
    window.load(block_of(range(10)))
    assert deliver(window, consumer_of(window)) == [7, 8, 9]


def test_a_block_behind_the_cursor_gives_nothing() -> None:
    window = Window(50)
    window.load(block_of(range(10)))
    assert not window.loaded and window.cursor == 50


def test_small_answers_are_copies_and_large_ones_views() -> None:
    window = Window(0)
    window.load(block_of(range(100), body=bytes(1000)))
    consumer = consumer_of(window)
    small = window.deliver(consumer, 3, 1 << 20, LIMIT, 0)
    large = window.deliver(consumer, 20, 1 << 20, LIMIT, 0)
    assert small is not None and isinstance(small[0], bytes)
    assert large is not None and isinstance(large[0], memoryview)
    assert [sent.index for sent in read_frames(large[0])] == list(range(3, 23))


def test_a_frame_that_does_not_fit_its_span_is_refused_and_those_before_it_go_out() -> None:
    data = frame(0) + frame(1) + frame(2)[:-1]
    for sample_rate in (0, 99):
        window = Window(0)
        window.queued_count = 3
        window.load(Block(data, [(0, 3, 0, len(data))], NODE_ID))
        consumer = consumer_of(window, sample_rate=sample_rate)
        call = window.deliver_sampled if sample_rate else window.deliver
        assert call(consumer, 10, 1 << 20, LIMIT, 0) == (frame(0) + frame(1), 2)
        with pytest.raises(ValueError, match="frame of index 2 does not fit"):
            call(consumer, 10, 1 << 20, LIMIT, 0)
        assert (window.cursor, window.depth, window.in_flight_count) == (2, 1, 2)
        window.check()


def test_every_damaged_size_is_refused_or_stays_inside_the_block() -> None:
    whole = frame(0) + frame(1) + frame(2)
    for place in range(4):
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            for start in range(3):
                window = Window(start)
                try:
                    window.load(Block(bytes(data), [(0, 3, 0, len(data))], NODE_ID))
                    given = window.deliver(consumer_of(window), 3, 1 << 20, LIMIT, 0)
                except ValueError:
                    given = None
                assert given is None or len(given[0]) <= len(data)
                window.check()


# ---- sampling


def test_a_sampling_consumer_gets_its_rate_and_one_percent_more() -> None:
    """nsqd-tcp 11: kept if a number in 0..99 is <= the rate; the others are gone."""
    for rate, low, high in ((1, 100, 320), (50, 4800, 5400), (99, 10_000, 10_000)):
        window = window_of(range(10_000))
        consumer = consumer_of(window, sample_rate=rate)
        kept = 0
        while given := window.deliver_sampled(consumer, 10_000, 3000, LIMIT, 0):
            kept += given[1]
            assert given[1] == len(read_frames(given[0]))
        assert low <= kept <= high
        assert window.in_flight_count == consumer.message_count == kept
        assert window.depth == 0 and window.cursor == 10_000
        window.check()


def test_what_is_sampled_out_is_finished() -> None:
    window = window_of(range(1000))
    consumer = consumer_of(window, sample_rate=50)
    given = window.deliver_sampled(consumer, 1000, 1000, LIMIT, 0)
    assert given is not None
    kept = {sent.index for sent in read_frames(given[0])}
    low, runs, _ = window.drain()
    finished = {i for start, end in read_runs(runs) for i in range(start, end)}
    assert finished | set(range(low)) == set(range(1000)) - kept


def test_sampling_is_bounded_by_the_count_the_scan_and_the_limit() -> None:
    window = window_of([*range(50), *range(60, 100)])
    consumer = consumer_of(window, sample_rate=99)
    assert window.deliver_sampled(consumer, 3, 50, LIMIT, 0) == (
        frame(0) + frame(1) + frame(2),
        3,
    )
    given = window.deliver_sampled(consumer, 50, 4, LIMIT, 0)
    assert given is not None and given[1] == 4
    given = window.deliver_sampled(consumer, 50, 60, 62, 0)
    assert given is not None and given[1] == 45, "over the gap up to the limit"
    assert window.deliver_sampled(consumer, 50, 60, 62, 0) is None


def test_a_sampling_consumer_may_get_nothing_of_what_was_looked_at() -> None:
    window = window_of(range(100))
    consumer = consumer_of(window, sample_rate=0)
    given = window.deliver_sampled(consumer, 1, 2, LIMIT, 0)
    assert given == (b"", 0) and window.depth == 98


# ---- finish, requeue, touch


def test_a_finished_message_is_gone() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    assert window.finish_index(consumer, 1, NODE_ID) == DONE
    assert window.describe(1) is None
    assert (consumer.in_flight_count, consumer.finish_count, window.in_flight_count) == (2, 1, 2)
    assert window.low == 0
    assert window.finish_index(consumer, 0, NODE_ID) == DONE
    assert window.low == 2, "1 was finished before"


def test_finish_twice_is_refused() -> None:
    """S0-4: a late FIN yields `ID not in flight`."""
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    assert window.finish_index(consumer, 1, NODE_ID) == DONE
    assert window.finish_index(consumer, 1, NODE_ID) == NOT_IN_FLIGHT
    assert consumer.in_flight_count == 2


@pytest.mark.parametrize("index", [3, 2, 100, -1, (1 << 54) - 1, 2**63 - 1])
def test_an_index_that_was_not_delivered_is_not_in_flight(index: int) -> None:
    window = window_of(range(5))
    consumer = consumer_of(window)
    assert window.finish_index(consumer, index, NODE_ID) == NOT_IN_FLIGHT, "nothing is there"
    deliver(window, consumer, count=2)
    assert window.finish_index(consumer, index, NODE_ID) == NOT_IN_FLIGHT
    assert window.requeue_index(consumer, index, NODE_ID, 0) == NOT_IN_FLIGHT
    assert window.touch_index(consumer, index, NODE_ID, 0, 1, 1) == NOT_IN_FLIGHT


@pytest.mark.parametrize("node_id", [0, NODE_ID + 1, 1023, -1])
def test_an_id_of_another_node_is_not_in_flight(node_id: int) -> None:
    """All 16 bytes of an id count."""
    window = window_of(range(5))
    consumer = consumer_of(window)
    deliver(window, consumer)
    assert window.finish_index(consumer, 1, node_id) == NOT_IN_FLIGHT
    assert window.requeue_index(consumer, 1, node_id, 0) == NOT_IN_FLIGHT
    assert window.touch_index(consumer, 1, node_id, 0, 1, 1) == NOT_IN_FLIGHT
    window.requeue_index(consumer, 1, NODE_ID, 0)
    redeliver(window, consumer)
    assert window.finish_index(consumer, 1, node_id) == NOT_IN_FLIGHT
    assert window.finish_index(consumer, 1, NODE_ID) == DONE


@pytest.mark.parametrize("node_id", [0, 1, 511, 1023])
def test_a_redelivery_reads_the_node_id_out_of_the_frame(node_id: int) -> None:
    window = Window(0)
    window.restore(3, 4, 0)
    consumer = consumer_of(window)
    window.redeliver(consumer, frame(3, node_id=node_id), 0)
    assert window.finish_index(consumer, 3, node_id ^ 1) == NOT_IN_FLIGHT
    assert window.finish_index(consumer, 3, node_id) == DONE


def test_another_clients_message_is_refused() -> None:
    window = window_of(range(4))
    mine, other = consumer_of(window), consumer_of(window)
    deliver(window, mine, count=2)
    deliver(window, other, count=2)
    assert window.finish_index(other, 0, NODE_ID) == NOT_OWNER
    assert window.requeue_index(other, 0, NODE_ID, 0) == NOT_OWNER
    assert window.touch_index(other, 0, NODE_ID, 0, 1, 1) == NOT_OWNER
    assert (mine.in_flight_count, other.in_flight_count) == (2, 2)
    assert window.next_deadline_ns == TIMEOUT_NS
    window.check()


def test_requeue_now_makes_a_message_ready_in_order_of_requeueing() -> None:
    """S4-7: attempts grow by one per delivery; the id and the timestamp stay."""
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    for index in (2, 0, 1):
        assert window.requeue_index(consumer, index, NODE_ID, 0) == DONE
    assert (window.ready_count, window.depth, window.in_flight_count) == (3, 3, 0)
    assert window.requeue_count == consumer.requeue_count == 3
    assert window.finish_index(consumer, 0, NODE_ID) == NOT_IN_FLIGHT
    assert [redeliver(window, consumer) for _ in range(3)] == [(2, 2), (0, 2), (1, 2)]
    assert window.next_ready is None and consumer.in_flight_count == 3


def test_a_redelivery_is_the_same_frame_with_the_attempts_it_now_has() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.requeue_index(consumer, 1, NODE_ID, 0)
    original = frame(1)
    assert window.redeliver(consumer, original, 0) == frame(1, attempts=2)
    assert original == frame(1), "the log is immutable: only the copy was patched"


def test_attempts_stay_at_65535() -> None:
    """R11, at its border."""
    window = Window(0)
    window.restore(7, 65533, 0)
    consumer = consumer_of(window)
    seen = []
    for _ in range(4):
        seen.append(redeliver(window, consumer))
        window.requeue_index(consumer, 7, NODE_ID, 0)
    assert seen == [(7, 65534), (7, 65535), (7, 65535), (7, 65535)]


def test_requeue_with_a_delay_defers_until_its_wall_time() -> None:
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer)
    window.requeue_index(consumer, 0, NODE_ID, 5000)
    window.requeue_index(consumer, 1, NODE_ID, 4000)
    assert (window.deferred_count, window.depth, window.in_flight_count) == (2, 0, 1)
    assert window.describe(0) == ("deferred", 1, 5000)
    assert window.next_deferral_ns == 4000
    assert window.finish_index(consumer, 0, NODE_ID) == NOT_IN_FLIGHT
    assert window.fire(3999, 100) == 0, "never early"
    assert window.fire(4000, 100) == 1
    assert window.next_ready == 1 and window.describe(1) == ("ready", 1, 0)
    assert window.fire(NEVER_NS, 100) == 1
    assert window.fire(NEVER_NS, 100) == 0
    assert redeliver(window, consumer) == (1, 2)


def test_firing_is_bounded() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    deliver(window, consumer)
    for index in range(10):
        window.requeue_index(consumer, index, NODE_ID, 10 + index)
    assert [window.fire(1000, count) for count in (0, 3, -1, 100)] == [0, 3, 0, 7]
    assert [redeliver(window, consumer)[0] for _ in range(10)] == list(range(10))


def test_touch_moves_the_deadline_but_not_past_the_maximum() -> None:
    """seeds 6: min(now + msg_timeout, delivery time + max_msg_timeout)."""
    window = window_of(range(1))
    consumer = consumer_of(window)
    deliver(window, consumer, now_ns=100)
    assert window.next_deadline_ns == 160
    assert window.touch_index(consumer, 0, NODE_ID, 150, 60, 900) == DONE
    assert window.next_deadline_ns == 210
    assert window.touch_index(consumer, 0, NODE_ID, 950, 60, 900) == DONE
    assert window.next_deadline_ns == 1000
    assert window.expire(999, 10) == set()
    assert window.expire(1000, 10) == {consumer}


def test_touch_may_bring_a_deadline_nearer() -> None:
    window = window_of(range(2))
    consumer = consumer_of(window)
    deliver(window, consumer, now_ns=100)
    window.touch_index(consumer, 1, NODE_ID, 110, 5, 900)
    window.expire(120, 10)
    assert window.next_ready == 1


# ---- time


def test_what_was_not_answered_in_time_is_ready_again() -> None:
    """S0-2, S0-3: timeout_count and the owner's in_flight_count change."""
    window = window_of(range(3))
    consumer = consumer_of(window)
    deliver(window, consumer, count=2, now_ns=0)
    deliver(window, consumer, count=1, now_ns=10)
    assert window.expire(59, 100) == set()
    assert window.expire(60, 100) == {consumer}
    assert (consumer.in_flight_count, window.timeout_count, window.ready_count) == (1, 2, 2)
    assert window.finish_index(consumer, 0, NODE_ID) == NOT_IN_FLIGHT
    assert sorted(redeliver(window, consumer) for _ in range(2)) == [(0, 2), (1, 2)]


def test_all_that_expired_is_handled_in_one_call() -> None:
    """S0-6"""
    window = window_of(range(5000))
    consumer = consumer_of(window)
    deliver(window, consumer, count=5000)
    window.expire(TIMEOUT_NS, 10_000)
    assert window.in_flight_count == consumer.in_flight_count == 0
    assert window.ready_count == window.timeout_count == 5000
    window.check()


def test_expiring_is_bounded_and_goes_on_soonest_first() -> None:
    window = window_of(range(10))
    consumer = consumer_of(window)
    for now_ns in range(10):
        deliver(window, consumer, count=1, now_ns=now_ns)
    for count in (0, 4, -1, 100):
        window.expire(1000, count)
    assert [redeliver(window, consumer)[0] for _ in range(10)] == list(range(10))


def test_expiring_returns_each_owner_once() -> None:
    window = window_of(range(10))
    first, second = consumer_of(window), consumer_of(window)
    deliver(window, first, count=5)
    deliver(window, second, count=5)
    assert window.expire(TIMEOUT_NS, 100) == {first, second}


def test_nothing_expires_or_fires_in_an_empty_window_at_the_end_of_time() -> None:
    window = Window(0)
    assert window.expire(NEVER_NS, 10) == set()
    assert window.fire(NEVER_NS, 10) == 0


def test_late_finish_after_the_next_delivery_belongs_to_the_new_owner() -> None:
    """nsqd-tcp 10: `client does not own message` when another client has it already."""
    window = window_of(range(1))
    late, new = consumer_of(window), consumer_of(window)
    deliver(window, late)
    window.expire(TIMEOUT_NS, 10)
    redeliver(window, new, now_ns=100)
    assert window.finish_index(late, 0, NODE_ID) == NOT_OWNER
    assert window.finish_index(new, 0, NODE_ID) == DONE
