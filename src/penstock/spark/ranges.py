"""Ranges of logs, split into partitions and limited to a number of messages.

    orders on a   |---------|-----------|          all messages in one line, split into equal parts;
    orders on b             |           |----|     a partition is what is between two cuts,
    clicks on a                              |---| of one log or of several

A Python task costs 10 ms or more, so few messages are one partition, even if in many logs.

Rule 1: indexes have gaps, so the broker counts messages; they are never counted by subtraction.
        A count is requested only if the difference of indexes, an upper bound, does not decide.
Rule 2: the same ranges are split at the same places, as long as their messages exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

# Fewer messages are not worth another Python task: decoding takes 0.1 us each.
ROWS_PER_PARTITION_MIN = 20_000

Count = Callable[["Range", int, int], int]  # messages of a range's log in [start, end)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one log with ``start <= index < end``."""

    node: str
    address: str
    topic: str
    instance: str
    start: int
    end: int
    whole_from: int = 0  # when it was planned
    begin: int = 0  # where the range started before it was split into partitions
    identity: str = ""  # the stream's, for requests on its channel

    @property
    def span(self) -> int:
        """Upper bound of the number of messages."""
        return self.end - self.start


def partitions(
    ranges: Sequence[Range], wanted: int | None, count: Count
) -> list[tuple[Range, ...]]:
    """Split ``ranges`` into ``wanted`` partitions, or by the number of messages."""
    ranges = [each for each in ranges if each.span > 0]
    most = wanted or os.cpu_count() or 1
    least = 1 if wanted else ROWS_PER_PARTITION_MIN
    span = sum(each.span for each in ranges)
    if most == 1 or span <= least:
        return [tuple(ranges)] if ranges else []
    counts = [count(each, each.start, each.end) for each in ranges]
    total = sum(counts)
    parts = max(1, min(most, -(-total // least)))
    return _cut(ranges, counts, [total * k // parts for k in range(1, parts)], count)


def _cut(
    ranges: Sequence[Range], counts: Sequence[int], cuts: list[int], count: Count
) -> list[tuple[Range, ...]]:
    """Split the line of all messages after each number of messages in ``cuts``."""
    found: list[tuple[Range, ...]] = []
    part: list[Range] = []
    passed = 0
    for each, own in zip(ranges, counts, strict=True):
        done, remainder = 0, each
        while cuts and cuts[0] <= passed + own:
            at = index_after(remainder, own - done, cuts[0] - passed - done, count)
            if at > remainder.start:
                part.append(replace(remainder, end=at))
            found.append(tuple(part))
            part = []
            remainder, done = replace(remainder, start=at), cuts.pop(0) - passed
        # A range without messages is read too: the response reports if they were removed.
        if remainder.span and (own > done or remainder.start == each.start):
            part.append(remainder)
        passed += own
    if part:
        found.append(tuple(part))
    return [part for part in found if part]


def index_after(each: Range, total: int, rows: int, count: Count) -> int:
    """The index after the first ``rows`` of the ``total`` messages of a range.

    Without gaps it is arithmetic; with gaps, as restarts leave them, a binary search.
    """
    if rows >= total:
        return each.end
    if rows <= 0:
        return each.start
    # Each index has one message or none, which bounds the result on both sides.
    low, high = each.start + rows, each.end - (total - rows)
    while low < high:
        middle = (low + high) // 2
        if count(each, each.start, middle) < rows:
            low = middle + 1
        else:
            high = middle
    return low


def limited(ranges: Sequence[Range], rows_max: int, count: Count) -> list[Range]:
    """Shorten the ranges so that together they have at most ``rows_max`` messages.

    Each log gets a share in proportion to its messages, so that a backlog of one does not delay
    the others.
    """
    if sum(each.span for each in ranges) <= rows_max:
        return list(ranges)
    counts = [count(each, each.start, each.end) for each in ranges]
    total = sum(counts)
    if total <= rows_max:
        return list(ranges)
    shares = [rows_max * own // total for own in counts]
    # Distribute the rounding remainder, so that every log makes progress.
    left = rows_max - sum(shares)
    for i in sorted(range(len(ranges)), key=lambda i: shares[i]):
        if left and shares[i] < counts[i]:
            shares[i] += 1
            left -= 1
    return [
        replace(each, end=index_after(each, own, share, count))
        for each, own, share in zip(ranges, counts, shares, strict=True)
    ]
