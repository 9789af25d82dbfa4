"""Ranges with gaps, cut into partitions and to a number of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import ranges as module
from penstock.spark.ranges import Range, index_after, limited, partitions

HOLE = 1 << 40


class Logs:
    """Which indexes each topic has; counts what is asked."""

    def __init__(self, **indexes: list[int]) -> None:
        self.indexes = indexes
        self.asked_count = 0

    def count(self, each: Range, start: int, end: int) -> int:
        self.asked_count += 1
        return len([i for i in self.indexes[each.topic] if start <= i < end])

    def range(self, topic: str, start: int, end: int) -> Range:
        return Range("n", "h:1", topic, "i", start, end)

    def read(self, part: tuple[Range, ...] | list[Range]) -> list[tuple[str, int]]:
        return [
            (each.topic, i)
            for each in part
            for i in self.indexes[each.topic]
            if each.start <= i < each.end
        ]


# Dense runs with holes between them, as restarts leave them.
runs = st.lists(st.tuples(st.integers(1, 10), st.sampled_from([0, 1, 5, HOLE])), max_size=4)


def indexes_of(found: list[tuple[int, int]]) -> list[int]:
    indexes, at = [], 100
    for count, hole in found:
        indexes += range(at, at + count)
        at += count + hole
    return indexes


@given(runs, runs, st.integers(1, 8))
def test_partitions_have_every_message_once_and_in_order(
    first: list[tuple[int, int]], second: list[tuple[int, int]], wanted: int
) -> None:
    logs = Logs(a=indexes_of(first), b=indexes_of(second))
    ends = {topic: (indexes[-1] + 3 if indexes else 100) for topic, indexes in logs.indexes.items()}
    ranges = [logs.range(topic, 100, ends[topic]) for topic in "ab"]
    parts = partitions(ranges, wanted, logs.count)
    found = [row for part in parts for row in logs.read(part)]
    assert found == logs.read(ranges)
    total = len(found)
    if total:
        sizes = [len(logs.read(part)) for part in parts]
        assert len(parts) == min(wanted, total) and max(sizes) - min(sizes) <= 1
    assert partitions(ranges, wanted, logs.count) == parts


@given(runs, runs, st.integers(1, 50))
def test_a_limit_holds_and_every_batch_gets_on(
    first: list[tuple[int, int]], second: list[tuple[int, int]], rows_max: int
) -> None:
    logs = Logs(a=indexes_of(first), b=indexes_of(second))
    ends = {
        topic: (indexes[-1] + HOLE if indexes else 100) for topic, indexes in logs.indexes.items()
    }
    ranges = [logs.range(topic, 100, ends[topic]) for topic in "ab"]
    read: list[tuple[str, int]] = []
    for _ in range(200):
        now = limited(ranges, rows_max, logs.count)
        rows = logs.read(now)
        assert len(rows) <= rows_max
        read += rows
        ranges = [replace(each, start=cut.end) for each, cut in zip(ranges, now, strict=True)]
        if not any(each.span for each in ranges):
            break
        assert rows, "a batch without messages must come to the end"
    assert sorted(read) == sorted((t, i) for t, indexes in logs.indexes.items() for i in indexes)


def test_a_backlog_does_not_hold_the_others_back() -> None:
    logs = Logs(a=list(range(1000)), b=list(range(10)))
    now = limited([logs.range("a", 0, 1000), logs.range("b", 0, 10)], 101, logs.count)
    assert [each.span for each in now] == [100, 1]


def test_few_messages_are_one_partition_and_nobody_is_asked() -> None:
    logs = Logs(a=list(range(100)), b=[5])
    ranges = [logs.range("a", 0, 100), logs.range("b", 0, 10), logs.range("b", 10, 10)]
    assert partitions(ranges, None, logs.count) == [tuple(ranges[:2])]
    assert logs.asked_count == 0
    assert partitions([], None, logs.count) == []


def test_many_messages_are_a_partition_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "cpu_count", lambda: 3)
    logs = Logs(a=list(range(70_000)))
    parts = partitions([logs.range("a", 0, 70_000)], None, logs.count)
    assert [part[0].span for part in parts] == [23_333, 23_333, 23_334]
    parts = partitions([logs.range("a", 0, 30_000)], None, logs.count)
    assert [part[0].span for part in parts] == [15_000, 15_000]


def test_a_hole_is_no_work() -> None:
    """A restart leaves a gap of millions of millions of indexes."""
    logs = Logs(a=[*range(10), *range(HOLE, HOLE + 10)])
    parts = partitions([logs.range("a", 0, HOLE + 10)], None, logs.count)
    assert len(parts) == 1
    each = logs.range("a", 0, HOLE + 10)
    logs.asked_count = 0
    assert index_after(each, 20, 15, logs.count) == HOLE + 5
    assert logs.asked_count <= 45
    logs.asked_count = 0
    assert index_after(logs.range("a", 0, 10), 10, 4, logs.count) == 4
    assert logs.asked_count == 0, "without gaps it is arithmetic"
