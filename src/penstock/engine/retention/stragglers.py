"""Stragglers: the few unfinished messages of an old segment, which must not keep it (R5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from penstock.core.buried import Buried
from penstock.core.window import Window
from penstock.storage.log_reader import locate
from penstock.storage.segment import Segment

# A sealed segment with fewer unfinished messages than both of these is removed, after they are
# copied to a side file.
STRAGGLER_COUNT_MAX = 10_000
STRAGGLER_SHARE_MAX = 0.1
# A search walks all unfinished messages: it runs rarely, and not if there are too many.
UNFINISHED_COUNT_MAX = 200_000


def searchable(windows: list[Window]) -> bool:
    return sum(window.unfinished_count for window in windows) <= UNFINISHED_COUNT_MAX


def tables_of(windows: list[Window]) -> list[Buried]:
    """The tables of buried messages, without empty ones."""
    return [w.buried for w in windows if w.buried is not None and w.buried.count]


def stragglers_of(windows: list[Window], segment: Segment) -> list[int] | None:
    """What some channel has not finished of ``segment``; None if it is too much to be moved.

    Buried messages are part of it: their bytes are kept (R24).
    """
    alive: set[int] = set()
    count_max = _count_max(segment)
    for window in windows:
        found = window.unfinished(segment.first, segment.visible.end, count_max)
        if found is None:
            return None
        alive.update(found)
    for buried in tables_of(windows):
        found = buried.between(segment.first, segment.visible.end, count_max)
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
    alive, tables = sorted(found), tables_of(windows)

    def count(segment: Segment) -> int:
        first, end = segment.first, segment.visible.end
        unfinished_count = bisect_left(alive, end) - bisect_left(alive, first)
        return unfinished_count + sum(buried.count_between(first, end) for buried in tables)

    return [segment for segment in segments if count(segment) <= _count_max(segment)]


def buried_size(windows: list[Window], files: tuple[Segment, ...], end: int) -> int:
    """Bytes of the ``files`` below ``end`` that have too many buried messages to be moved."""
    tables, size, at = tables_of(windows), 0, 0
    while found := [row[0] for buried in tables for row in buried.page(at - 1, 1)]:
        place = locate(files, min(found))
        if place == len(files) or files[place].visible.end > end:
            break
        segment, at = files[place], files[place].visible.end
        count = sum(buried.count_between(segment.first, at) for buried in tables)
        size += segment.file_size if count > _count_max(segment) else 0
    return size


def _count_max(segment: Segment) -> int:
    return min(STRAGGLER_COUNT_MAX, int(segment.visible.count * STRAGGLER_SHARE_MAX))
