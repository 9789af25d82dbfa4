"""Stragglers: the few unfinished messages of an old segment, which must not keep it (R5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from penstock.core.window import Window
from penstock.storage.segment import Segment

# A sealed segment with fewer unfinished messages than both of these is removed, after they are
# copied to a side file.
STRAGGLER_COUNT_MAX = 10_000
STRAGGLER_SHARE_MAX = 0.1
# A search walks all unfinished messages: it runs rarely, and not if there are too many.
UNFINISHED_COUNT_MAX = 200_000


def searchable(windows: list[Window]) -> bool:
    return sum(window.unfinished_count for window in windows) <= UNFINISHED_COUNT_MAX


def stragglers_of(windows: list[Window], segment: Segment) -> list[int] | None:
    """What some channel has not finished of ``segment``; None if it is too much to be moved."""
    alive: set[int] = set()
    count_max = _count_max(segment)
    for window in windows:
        found = window.unfinished(segment.first, segment.visible.end, count_max)
        if found is None:
            return None
        alive.update(found)
    return sorted(alive) if len(alive) <= count_max else None


def movable(windows: list[Window], segments: Iterable[Segment]) -> list[Segment]:
    """Those of ``segments``, which all cursors have passed, with few unfinished messages."""
    if not searchable(windows):
        return []
    passed = min(window.cursor for window in windows)
    found: set[int] = set()
    for window in windows:
        found.update(window.unfinished(window.low, passed, UNFINISHED_COUNT_MAX) or ())
    alive = sorted(found)
    return [
        segment
        for segment in segments
        if bisect_left(alive, segment.visible.end) - bisect_left(alive, segment.first)
        <= _count_max(segment)
    ]


def _count_max(segment: Segment) -> int:
    return min(STRAGGLER_COUNT_MAX, int(segment.visible.count * STRAGGLER_SHARE_MAX))
