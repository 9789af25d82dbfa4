"""Stragglers: the few unfinished messages of an old segment, which must not keep it (R5)."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.buried import Buried
from penstock.core.window import Window
from penstock.storage.segment import Segment
from penstock.storage.topic_log import TopicLog

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


def buried_size(windows: list[Window], log: TopicLog, low: int) -> int:
    """Bytes of files below ``low`` with too many buried messages to be moved: these keep them."""
    tables = tables_of(windows)
    if not tables:
        return 0
    return log.buried_size(low, tables, STRAGGLER_COUNT_MAX, STRAGGLER_SHARE_MAX)


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
    return [segment for segment in segments if stragglers_of(windows, segment) is not None]


def is_removable(windows: list[Window], segment: Segment, *, finished: bool) -> bool:
    """Whether no channel keeps the segment; ``finished``: it is below the low-water mark."""
    alive = stragglers_of(windows, segment)
    return alive is not None and ((finished and not alive) or searchable(windows))


def _count_max(segment: Segment) -> int:
    return min(STRAGGLER_COUNT_MAX, int(segment.visible.count * STRAGGLER_SHARE_MAX))
