"""Ranges that are covered, against sets of single indexes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.coverage import (
    Coverage,
    Log,
    Span,
    spans_between,
    spans_of_rows,
)
from penstock.spark.offsets import INDEX_MAX, Position

LOGS = [Log("c", "n", "t", "0" * 16), Log("c", "n", "u", "1" * 16)]
INDEX = st.integers(0, 30)
RANGES = st.tuples(st.sampled_from(LOGS), INDEX, INDEX).map(
    lambda found: (found[0], min(found[1:]), max(found[1:]))
)


def indexes(spans: list[Span]) -> set[tuple[Log, int]]:
    return {(span.log, index) for span in spans for index in range(span.start, span.end)}


@given(st.lists(RANGES, max_size=12), RANGES)
def test_it_covers_what_was_added_and_lacks_the_rest(
    added: list[tuple[Log, int, int]], asked: tuple[Log, int, int]
) -> None:
    coverage = Coverage()
    naive: set[tuple[Log, int]] = set()
    for log, start, end in added:
        fresh = [(log, index) for index in range(start, end) if (log, index) not in naive]
        whole = len(fresh) == end - start
        coverage.add(Span(log, start, end, end - start if whole else None))
        naive |= set(fresh)
    spans = list(coverage)
    assert indexes(spans) == naive
    for log in LOGS:
        own = coverage.of(log)
        # Sorted, apart, and never touching.
        assert all(one.end < other.start for one, other in itertools.pairwise(own))
        assert coverage.end(log) == (own[-1].end if own else None)
        assert {span.log for span in own} <= {log}
        for span in own:
            assert span.messages in (None, span.end - span.start)
    span = Span(*asked)
    lacking = coverage.lacking(span)
    if span.start < span.end:
        assert indexes(lacking) == indexes([span]) - naive
        assert all(part.start < part.end for part in lacking)
    else:
        assert lacking == ([] if coverage.of(span.log) else [span])
    assert indexes(coverage.gaps()).isdisjoint(naive)
    assert Coverage(spans_of_rows(coverage.rows())) == coverage


def test_a_log_that_is_named_before_a_known_one_of_its_topic_is_older() -> None:
    old, (new, other) = LOGS[0]._replace(instance="2" * 16), LOGS
    coverage = Coverage([Span(new, 100, 150, 5), Span(other, 7, 8)])
    coverage.add_all([Span(old, 10, 50, 0), Span(new, 100, 100, 0)])
    assert list(coverage) == [Span(old, 10, 50, 0), Span(new, 100, 150, 5), Span(other, 7, 8)]
    coverage.add_all([Span(old, 50, 60, 0), Span(other, 8, 9)])
    assert list(coverage.logs) == [old, new, other]


def test_counts_are_kept_as_long_as_all_are_known() -> None:
    [log, _] = LOGS
    coverage = Coverage([Span(log, 0, 10, 8), Span(log, 10, 20, 10)])
    assert list(coverage) == [Span(log, 0, 20, 18)]
    coverage.add(Span(log, 20, 20, 0))
    coverage.add(Span(log, 3, 9, 2))
    assert list(coverage) == [Span(log, 0, 20, 18)]
    coverage.add(Span(log, 15, 25, 10))
    assert list(coverage) == [Span(log, 0, 25, None)]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ["c", "n", "t", "0" * 16, 5, 3, None],
        ["c", "n", "t", "0" * 16, -1, 3, None],
        ["c", "n", "t", "0" * 16, 0, INDEX_MAX + 1, None],
        ["c", "n", "t", "0" * 16, 0, 3, -1],
        ["c", "n", "t", "0" * 16, 0, 3, "4"],
        ["c", "n", "t", "instance", 0, 3, None],
        ["c", 7, "t", "0" * 16, 0, 3, None],
    ],
)
def test_a_row_that_is_none_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match=r"is no|names no"):
        Span.of_row(row)


def test_a_batch_reads_what_lies_between_two_offsets() -> None:
    one, other = "0" * 16, "1" * 16
    before = {"n": {"a": Position(one, 5), "b": Position(one, 7), "c": Position(one, 7)}}
    after = {
        "n": {
            "a": Position(one, 9),
            "b": Position(one, 7),
            "c": Position(one, INDEX_MAX),  # deleted
            "d": Position(one, 3),  # found
        },
        "m": {"a": Position(other, 1)},
    }
    assert spans_between("c", before, after) == [
        Span(Log("c", "m", "a", other), 1, 1, 0),
        Span(Log("c", "n", "a", one), 5, 9),
        Span(Log("c", "n", "d", one), 3, 3, 0),
    ]
    made_again = {"n": {"a": Position(other, 2)}}
    assert spans_between("c", before, made_again) == [Span(Log("c", "n", "a", other), 2, 2, 0)]
