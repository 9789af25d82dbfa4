"""Histograms of durations: counts are exact, values within 0.8 %, memory is bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.latency import Histogram, Latency

INT64_MAX = 2**63 - 1
DURATIONS = st.one_of(
    st.integers(0, 200), st.integers(0, 10**10), st.integers(0, INT64_MAX), st.just(10**6)
)
SHARES = st.floats(0.001, 1.0)


def histogram_of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def nearest_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@given(st.lists(DURATIONS, min_size=1, max_size=60), SHARES)
@settings(max_examples=400, deadline=None)
def test_a_quantile_is_within_one_percent_of_the_true_one(values: list[int], share: float) -> None:
    histogram = histogram_of(values)
    true = nearest_rank(values, share)
    assert abs(histogram.quantile(share) - true) <= true / 128
    assert histogram.quantile(1.0) == max(values), "the largest is exact"
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


@given(st.lists(st.lists(DURATIONS, max_size=30), max_size=5), SHARES)
@settings(deadline=None)
def test_merging_is_the_same_as_counting_together(parts: list[list[int]], share: float) -> None:
    merged = Histogram()
    for part in parts:
        merged.merge(histogram_of(part))
    whole = histogram_of([value for part in parts for value in part])
    assert merged.quantile(share) == whole.quantile(share)
    assert (merged.count, merged.minimum, merged.maximum) == (
        whole.count,
        whole.minimum,
        whole.maximum,
    )


@given(st.lists(DURATIONS, max_size=60), st.lists(DURATIONS, min_size=1, max_size=8))
@settings(deadline=None)
def test_counts_up_to_a_limit_are_off_by_no_more_than_a_bucket(
    values: list[int], limits: list[int]
) -> None:
    limits.sort()
    counts = histogram_of(values).counts_up_to(limits)
    for limit, count in zip(limits, counts, strict=True):
        assert sum(value <= limit * 127 // 128 for value in values) <= count
        assert count <= sum(value <= limit + limit // 64 for value in values)
    assert counts == sorted(counts)


@pytest.mark.parametrize("power", range(63))
def test_every_power_of_two_and_its_neighbours_have_their_bucket(power: int) -> None:
    for value in (2**power - 1, 2**power, 2**power + 1):
        one = histogram_of([value])
        assert one.quantile(0.5) == value, "a single value is told as it is"
        two = histogram_of([0, value, INT64_MAX])
        assert abs(two.quantile(0.5) - value) <= value / 128


def test_what_came_before_it_was_published_took_no_time() -> None:
    histogram = histogram_of([-5, -(2**62)])
    assert (histogram.quantile(0.5), histogram.maximum, histogram.count) == (0, 0, 2)


def test_nothing_counted_is_zero() -> None:
    assert Histogram().quantile(0.99) == 0
    assert Histogram().counts_up_to([1, 2]) == [0, 0]


def test_memory_is_bounded_and_given_back() -> None:
    histogram = histogram_of([2**power for power in range(63)] * 10)
    assert histogram.page_count == 58
    histogram.clear()
    assert (histogram.page_count, histogram.count, histogram.quantile(0.5)) == (0, 0, 0)


# The window


def told(latency: Latency, wall_ns: int) -> tuple[int, int]:
    """Count and largest value."""
    total = Histogram()
    latency.merge_into(total, wall_ns)
    return total.count, total.maximum


def test_a_window_forgets_what_is_older_than_it() -> None:
    latency = Latency(100)
    latency.add(7, 1000)
    latency.add(8, 1049)
    assert told(latency, 1049) == (2, 8)
    latency.add(5, 1050)
    assert told(latency, 1099) == (3, 8), "the half before still counts"
    assert told(latency, 1100) == (1, 5)
    assert told(latency, 1150) == (0, 0)


def test_a_window_that_slept_is_empty() -> None:
    latency = Latency(100)
    latency.add(7, 1000)
    assert told(latency, 10_000_000) == (0, 0)
    latency.add(9, 10_000_001)
    assert told(latency, 10_000_001) == (1, 9)


def test_a_clock_that_steps_back_does_not_stop_the_window() -> None:
    latency = Latency(100)
    latency.add(7, 1_000_000)
    latency.add(8, 500)
    assert told(latency, 500) == (2, 8)
    latency.add(9, 560)
    assert told(latency, 620) == (1, 9)
    assert told(latency, 700) == (0, 0)
