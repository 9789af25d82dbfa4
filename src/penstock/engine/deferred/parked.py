"""Deferred messages that are due and wait for room in their topic (R20).

They were taken from the schedule and count as being fired.  Their bodies were read and are dropped
again: a place of 40 bytes each is kept, first in, first out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.core.slots import Due

# Places kept for all topics together: 40 MB.
PARKED_COUNT_MAX = 1_000_000
FIELD_COUNT = 5


class ParkedPlace(NamedTuple):
    """Where a message is."""

    slot: int
    ordinal: int
    offset: int
    size: int
    due_ns: int


class _Line:
    """The places of one topic."""

    def __init__(self) -> None:
        self._fields = array("q")
        self._head = 0

    def __len__(self) -> int:
        return len(self._fields) // FIELD_COUNT - self._head

    def add(self, due: Due) -> None:
        self._fields.extend((due.slot, due.ordinal, due.offset, due.size, due.due_ns))

    def take(self, count: int) -> Iterator[ParkedPlace]:
        for _ in range(min(count, len(self))):
            at = self._head * FIELD_COUNT
            self._head += 1
            yield ParkedPlace(*self._fields[at : at + FIELD_COUNT])
        if self._head * 2 * FIELD_COUNT > len(self._fields):
            del self._fields[: self._head * FIELD_COUNT]
            self._head = 0


class Parked:
    """The places of all topics, by their instances."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        # Given back and not fired yet, at most: they still wait for their room.
        self._returned: dict[int, int] = {}
        self.count = 0

    def add(self, dues: Iterable[Due]) -> list[Due]:
        """Keep the places of ``dues``; returns those that there is no room for."""
        beyond = []
        for due in dues:
            if self.count >= PARKED_COUNT_MAX:
                beyond.append(due)
                continue
            self._lines.setdefault(due.instance, _Line()).add(due)
            self.count += 1
        return beyond

    def take(self, instance: int, count: int) -> list[ParkedPlace]:
        """Return the first ``count`` of a topic."""
        line = self._lines.get(instance)
        if line is None:
            return []
        taken = list(line.take(count))
        self.count -= len(taken)
        self._returned[instance] = self._returned.get(instance, 0) + len(taken)
        if not len(line):
            del self._lines[instance]
        return taken

    def went(self, instance: int, count: int) -> None:
        """Messages of the topic were fired, or parked again, or are void."""
        left = self._returned.get(instance, 0) - count
        if left > 0:
            self._returned[instance] = left
        else:
            self._returned.pop(instance, None)

    def waiting(self, instance: int) -> int:
        """Messages of the topic that wait for room."""
        return len(self._lines.get(instance, ())) + self._returned.get(instance, 0)
