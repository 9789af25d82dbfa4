"""The deadline queue: soonest first, movable, bounded per call."""

from __future__ import annotations

import pytest

from penstock.core.deadlines import NEVER_NS, DeadlineQueue


def queue_of(*deadlines: int) -> DeadlineQueue:
    queue = DeadlineQueue()
    for item, deadline_ns in enumerate(deadlines):
        queue.set(item, deadline_ns)
    return queue


def test_an_empty_queue_is_never_due() -> None:
    queue = DeadlineQueue()
    assert len(queue) == 0
    assert queue.next_ns == NEVER_NS
    assert queue.expire(NEVER_NS, 10) == []
    assert 0 not in queue
    queue.check()


def test_the_soonest_comes_first() -> None:
    queue = queue_of(30, 10, 20)
    assert queue.next_ns == 10
    assert queue.expire(30, 10) == [1, 2, 0]
    assert len(queue) == 0 and queue.next_ns == NEVER_NS


def test_a_deadline_is_due_at_its_time_and_not_a_nanosecond_before() -> None:
    """seeds 6: expired = priority <= now."""
    queue = queue_of(100)
    assert queue.expire(99, 1) == []
    assert queue.expire(100, 1) == [0]


def test_everything_due_is_handled_in_one_call() -> None:
    """S0-6"""
    queue = queue_of(*range(1000, 0, -1))
    assert queue.expire(1000, 5000) == list(range(999, -1, -1))


def test_one_call_is_bounded_and_the_next_goes_on() -> None:
    queue = queue_of(5, 4, 3, 2, 1)
    assert queue.expire(10, 2) == [4, 3]
    assert queue.expire(10, 0) == []
    assert queue.expire(10, -1) == []
    assert queue.expire(10, 2) == [2, 1]
    assert queue.expire(10, 2) == [0]


def test_setting_again_moves_an_item_both_ways() -> None:
    queue = queue_of(10, 20, 30)
    queue.set(2, 5)
    assert queue.next_ns == 5 and len(queue) == 3
    queue.set(2, 25)
    queue.set(0, 40)
    queue.check()
    assert queue.expire(50, 10) == [1, 2, 0]


def test_a_removed_item_does_not_expire() -> None:
    queue = queue_of(10, 20, 30)
    queue.remove(0)
    queue.remove(2)
    assert 0 not in queue and 1 in queue
    queue.check()
    assert queue.expire(50, 10) == [1]


def test_removing_what_is_absent_does_nothing() -> None:
    queue = queue_of(10)
    for item in (1, 15, 16, 100_000, -1, -(2**31), 2**31 - 1):
        queue.remove(item)
        assert item not in queue
    assert len(queue) == 1
    queue.check()


def test_every_place_of_a_full_heap_can_be_removed() -> None:
    for gone in range(85):  # four full levels of a heap with four children
        queue = queue_of(*((i * 37) % 85 for i in range(85)))
        queue.remove(gone)
        queue.check()
        order = queue.expire(100, 100)
        assert order == sorted((i for i in range(85) if i != gone), key=lambda i: (i * 37) % 85)


def test_items_far_apart_are_kept() -> None:
    queue = DeadlineQueue()
    queue.set(100_000, 2)
    queue.set(3, 1)
    queue.check()
    assert queue.expire(2, 5) == [3, 100_000]


def test_deadlines_at_the_ends_of_time_are_kept() -> None:
    queue = queue_of(NEVER_NS, -(2**63), 0)
    assert queue.next_ns == -(2**63)
    assert queue.expire(0, 5) == [1, 2]
    assert queue.expire(NEVER_NS - 1, 5) == []
    assert queue.expire(NEVER_NS, 5) == [0]


def test_a_negative_item_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        DeadlineQueue().set(-1, 0)


def test_numbers_that_do_not_fit_are_refused() -> None:
    queue = queue_of(1)
    with pytest.raises(OverflowError):
        queue.set(2**31, 0)
    with pytest.raises(OverflowError):
        queue.set(0, 2**63)
    assert queue.expire(1, 1) == [0]
