# Which indexes of a topic exist: ascending dense runs, so that a count is exact (R1: an index
# difference is never one).
#
#     runs    [100, 250)      [4096, 9000)   [9010, 9500)
#     before   0               150            5054           messages in front of each run
#
# Invariants, see check():
#  1. runs are not empty, ascend and do not touch.
#  2. before[i + 1] - before[i] is the length of run i.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Runs:
    """A set of indexes that grows at its end and is cut at its start."""

    __slots__ = ("_before", "_ends", "_starts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = []
        for start, end in runs:
            self.add(start, end)

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._starts)

    @property
    def count(self) -> int:
        """The number of indexes."""
        if not self._starts:
            return 0
        return self._before[-1] - self._before[0] + self._ends[-1] - self._starts[-1]

    @property
    def first(self) -> int | None:
        return self._starts[0] if self._starts else None

    @property
    def end(self) -> int | None:
        return self._ends[-1] if self._ends else None

    def add(self, start: int, end: int) -> None:
        """Add [start, end), which must lie behind everything there."""
        if not self._starts:
            self._starts.append(start)
            self._ends.append(end)
            self._before.append(0)
            return
        assert start >= self._ends[-1], f"{start} lies in front of {self._ends[-1]}"
        if start == self._ends[-1]:
            self._ends[-1] = end
            return
        self._before.append(self._before[-1] + self._ends[-1] - self._starts[-1])
        self._starts.append(start)
        self._ends.append(end)

    def replace(self, start: int, end: int, runs: Iterable[tuple[int, int]] = ()) -> None:
        """Put ``runs`` in the place of whatever exists in [start, end)."""
        kept: list[tuple[int, int]] = []
        low = bisect_right(self._ends, start)
        high = max(low, bisect_left(self._starts, end))
        if low < high and self._starts[low] < start:
            kept.append((self._starts[low], start))
        kept += [(a, b) for a, b in runs if a < b]
        if low < high and self._ends[high - 1] > end:
            kept.append((end, self._ends[high - 1]))
        if low == 0 and not kept:  # the common case, segments that go: O(runs that go)
            del self._starts[:high], self._ends[:high], self._before[:high]
            return
        # One run more on either side, so that neighbours that touch become one.
        if low > 0:
            low -= 1
            kept.insert(0, (self._starts[low], self._ends[low]))
        tail = list(zip(self._starts[high:], self._ends[high:], strict=True))
        del self._starts[low:], self._ends[low:], self._before[low:]
        for a, b in kept:
            self.add(a, b)
        for a, b in tail:
            self.add(a, b)

    def next(self, index: int) -> int | None:
        """The smallest index here at or above ``index``."""
        place = bisect_right(self._ends, index)
        if place == len(self._starts):
            return None
        return max(index, self._starts[place])

    def count_between(self, start: int, end: int) -> int:
        return max(0, self._below(end) - self._below(start)) if end > start else 0

    def between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The dense runs inside [start, end)."""
        place = bisect_right(self._ends, start)
        while place < len(self._starts) and self._starts[place] < end:
            yield max(start, self._starts[place]), min(end, self._ends[place])
            place += 1

    def _below(self, index: int) -> int:
        place = bisect_right(self._starts, index) - 1
        if place < 0:
            return self._before[0] if self._before else 0
        return self._before[place] + min(index, self._ends[place]) - self._starts[place]

    def check(self) -> None:
        for i, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            assert start < end
            if i:
                assert self._ends[i - 1] < start
                length = self._ends[i - 1] - self._starts[i - 1]
                assert self._before[i] - self._before[i - 1] == length
