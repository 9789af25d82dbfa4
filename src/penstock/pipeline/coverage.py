"""Ranges of messages that a sink covers (R43): which indexes of which logs, and how many messages.

    Log       one instance of a topic on one node, as one channel reads it
    Span      indexes ``start <= index < end`` of a log; ``messages``: how many, None if not counted
    Coverage  spans of many logs; adjacent ones are joined, and none overlap

Logs stay in the order in which they were found: of two instances of a topic the later is the newer.
A span may be empty (``start == end``): the log was found there and nothing of it is read yet.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.spark.offsets import INDEX_MAX, Positions, flat, is_instance

ROW_SIZE = 7


class Log(NamedTuple):
    channel: str
    node: str
    topic: str
    instance: str

    def __str__(self) -> str:
        return f"topic {self.topic} on node {self.node}"


class Span(NamedTuple):
    """A range of one log."""

    log: Log
    start: int
    end: int
    messages: int | None = None

    def row(self) -> list[Any]:
        """As JSON."""
        return [*self.log, self.start, self.end, self.messages]

    @classmethod
    def of_row(cls, row: object) -> Span:
        """The inverse of ``row``; raises ValueError if it is not a range."""
        if not isinstance(row, list) or len(row) != ROW_SIZE:
            raise ValueError(f"{row!r:.80} is not a range")
        channel, node, topic, instance, start, end, messages = row
        texts = all(isinstance(text, str) for text in (channel, node, topic))
        if not texts or not is_instance(instance):
            raise ValueError(f"{row!r:.80} names no log")
        numbers = type(start) is int and type(end) is int and 0 <= start <= end <= INDEX_MAX
        if not numbers or not (messages is None or (type(messages) is int and messages >= 0)):
            raise ValueError(f"{row!r:.80} is not a range of indexes")
        return cls(Log(channel, node, topic, instance), start, end, messages)

    def __str__(self) -> str:
        if self.end >= INDEX_MAX:
            return f"{self.log}: all from index {self.start}"
        if self.start == self.end:
            return f"{self.log}: none, at index {self.start}"
        messages = "" if self.messages is None else f", {self.messages:,} messages"
        return f"{self.log}: indexes {self.start} to {self.end - 1}{messages}"


class Coverage:
    """The covered ranges of all logs."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: dict[Log, list[Span]] = {}
        for span in spans:
            self.add(span)

    def __iter__(self) -> Iterator[Span]:
        for spans in self._spans.values():
            yield from spans

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Coverage) and self._spans == other._spans

    __hash__ = None  # type: ignore[assignment]

    @property
    def logs(self) -> Collection[Log]:
        return self._spans.keys()

    def of(self, log: Log) -> list[Span]:
        return list(self._spans.get(log, ()))

    def end(self, log: Log) -> int | None:
        """The index after the last covered one; None if the log is not known."""
        spans = self._spans.get(log)
        return spans[-1].end if spans else None

    def start(self, log: Log) -> int | None:
        spans = self._spans.get(log)
        return spans[0].start if spans else None

    def ends(self) -> dict[Log, int]:
        return {log: spans[-1].end for log, spans in self._spans.items()}

    def add(self, span: Span) -> None:
        """Cover a range.  If a part of it was covered before, its message count becomes unknown."""
        spans = self._spans.setdefault(span.log, [])
        # Spans that touch it are joined with it.
        first = bisect.bisect_left(spans, span.start, key=lambda each: each.end)
        last = bisect.bisect_right(spans, span.end, key=lambda each: each.start)
        touched = spans[first:last]
        if not touched:
            spans.insert(first, span)
            return
        start = min(span.start, touched[0].start)
        end = max(span.end, touched[-1].end)
        inside = any(each.start <= span.start and span.end <= each.end for each in touched)
        parts = touched if inside else [*touched, span]
        disjoint = sum(each.end - each.start for each in parts) == end - start
        spans[first:last] = [Span(span.log, start, end, _sum(parts) if disjoint else None)]

    def add_all(self, spans: Sequence[Span]) -> None:
        """Cover ranges that come together, in the order of their logs.

        So a new log is older than one of its topic that is known and named with it.
        """
        later = {span.log[:3]: span.log for span in spans if span.log in self._spans}
        for span in spans:
            is_new = span.log not in self._spans
            self.add(span)
            if is_new and span.log[:3] in later:
                self._put_before(span.log, later[span.log[:3]])

    def _put_before(self, log: Log, later: Log) -> None:
        moved = self._spans.pop(log)
        behind = list(itertools.dropwhile(lambda each: each != later, self._spans))
        self._spans[log] = moved
        for each in behind:
            self._spans[each] = self._spans.pop(each)

    def lacking(self, span: Span) -> list[Span]:
        """The parts of a range that are not covered; none for an empty range of a known log."""
        spans = self._spans.get(span.log)
        if spans is None:
            return [span]
        if span.start == span.end:
            return []
        parts, start = [], span.start
        first = bisect.bisect_right(spans, span.start, key=lambda each: each.end)
        for each in spans[first:]:
            if each.start >= span.end:
                break
            if each.start > start:
                parts.append(Span(span.log, start, each.start))
            start = max(start, each.end)
        if start < span.end:
            parts.append(span if start == span.start else Span(span.log, start, span.end))
        return parts

    def gaps(self) -> list[Span]:
        """Uncovered ranges between two covered ones of the same log."""
        return [
            Span(log, one.end, other.start)
            for log, spans in self._spans.items()
            for one, other in itertools.pairwise(spans)
        ]

    def rows(self) -> list[list[Any]]:
        return [span.row() for span in self]


def _sum(spans: Iterable[Span]) -> int | None:
    counts = [span.messages for span in spans]
    return None if None in counts else sum(count for count in counts if count is not None)


def spans_of_rows(rows: object) -> list[Span]:
    """Spans from JSON; raises ValueError."""
    if not isinstance(rows, list):
        raise ValueError(f"{rows!r:.80} is not a list of ranges")
    return [Span.of_row(row) for row in rows]


def spans_between(channel: str, before: Positions, after: Positions) -> list[Span]:
    """What a batch reads from one offset to another, and the logs that are new in it.

    The source reads the same (`NsqStreamReader.partitions`): an instance that was deleted, or that
    is new, has no messages in the batch.
    """
    spans = []
    for node, topic, end in flat(after):
        log = Log(channel, node, topic, end.instance)
        start = before.get(node, {}).get(topic)
        if end.is_deleted:
            continue
        if start is None or start.instance != end.instance:
            spans.append(Span(log, end.index, end.index, 0))
        elif start.index < end.index:
            spans.append(Span(log, start.index, end.index))
    return spans
