"""The parts of the load generator that need no server."""

from __future__ import annotations

import os
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.load_workers import Board, Histogram, Task
from penstock.cli.measurement import Flow, Report, split, spread
from penstock.cli.usage import Usage, open_file_count, usage


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 100))
def test_a_percentile_is_never_flattered_and_at_most_two_percent_off(
    values: list[int], percent: float
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    rank = max(1, -(-len(values) * percent // 100))
    exact = sorted(values)[int(rank) - 1]
    assert exact <= histogram.percentile(percent) <= exact * 1.02 + 1


def test_any_number_of_samples_takes_bounded_memory() -> None:
    histogram = Histogram()
    for value in range(0, 10**7, 997):
        histogram.add(value)
    assert histogram.count == len(range(0, 10**7, 997))
    assert len(histogram.buckets) < 128 * 24


def test_histograms_add_up() -> None:
    one, two = Histogram(), Histogram()
    one.add(5)
    two.add(5)
    two.add(100_000)
    one.merge(Histogram(two.buckets.items()))
    assert one.count == 3
    assert one.percentile(50) == 5


def test_a_time_before_the_start_counts_as_none() -> None:
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.percentile(100) == 0


def test_without_samples_a_percentile_is_zero() -> None:
    assert Histogram().percentile(99) == 0


def test_subscribers_are_complete_when_they_have_what_is_expected_together() -> None:
    board = Board(array("q", [0] * Board.cell_count(3)), subscribers=(1, 2))
    board.expect(-1)
    board.write(0, 100, 0, 0, 0)
    assert not board.complete
    board.expect(10)
    assert not board.complete
    board.write(1, 4, 0, 0, 0)
    board.write(2, 6, 0, 0, 0)
    assert board.complete


@given(st.integers(0, 10**9), st.integers(1, 50))
def test_parts_differ_by_one_at_most_and_add_up(total: int, parts: int) -> None:
    shares = split(total, parts)
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


TASK = Task("pub", "127.0.0.1", 4150, "t", "c", connections=5, messages=7, rate=100.0)


def test_a_task_is_spread_over_processes_without_changing_its_sum() -> None:
    tasks = spread(TASK, 3)
    assert [task.connections for task in tasks] == [2, 2, 1]
    assert sum(task.messages for task in tasks) == 7
    assert sum(task.rate for task in tasks) == pytest.approx(100.0)


def test_no_process_is_left_without_a_connection_or_a_message() -> None:
    assert len(spread(TASK, 100)) == 5
    assert [task.messages for task in spread(Task("pub", "h", 1, "t", "c", 9, messages=1), 4)] == [
        1
    ]


def test_cpu_is_counted_for_each_message_once() -> None:
    report = Report(published=Flow(100), consumed=Flow(50))
    assert report.cpu_us_per_message == 0
    report.before, report.after = Usage(1000, 0, 0), Usage(2000, 0, 0)
    assert report.cpu_us_per_message == 10


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ProcessLookupError, match="no process with id 4194305"):
        usage(4194305)


def test_our_own_usage_is_plausible() -> None:
    before = usage(os.getpid())
    sum(range(3_000_000))
    after = usage(os.getpid())
    assert after.cpu_us >= before.cpu_us > 0
    assert after.rss_size > 2**20
    assert open_file_count(os.getpid()) >= 3
