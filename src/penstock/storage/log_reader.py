# Reads whole batches from segments, on the loop (without waiting) or on a reader thread.
#
# Rule 1: nothing here changes the log.  Damage is added to a list of the caller.
# Rule 2: the caller reads a snapshot of the segment list.  If a file is missing or damaged and the
#         list has changed meanwhile, the snapshot was stale: retry.  Otherwise it is damage.
# Rule 3: only a bad checksum, a missing file or one that is too short is damage.  A disk error is
#         raised: what cannot be read now may be readable later.
# Rule 4: every iteration advances the offset or asks for more bytes of one batch, so reading a
#         damaged file terminates.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.batches import (
    BAD_HEADER,
    BAD_PAYLOAD,
    BATCH_HEADER_SIZE,
    ScanResult,
    resync,
    scan,
)
from penstock.core.block import Block
from penstock.core.tables import STRIDE, Tables, Visible
from penstock.storage.files import Files
from penstock.storage.segment import Segment

if TYPE_CHECKING:
    from penstock.core.batches import ScannedBatch

# Offsets where sequential readers stopped.  Each entry saves reading up to one stride again, and
# all can be dropped at any time.
HINT_MAX = 256

# Sealed segments whose tables are cached: 64 of them are 3 MB.
TABLES_MAX = 64

RESYNC_SIZE = 1024 * 1024
SEEK_SIZE = 1024 * 1024


class Damage(NamedTuple):
    """Damaged bytes of a segment, and the indexes that are lost with them."""

    path: str
    offset: int
    end: int
    index_start: int
    index_end: int
    message_count: int = 0  # messages lost; set by TopicLog.take_damage()


class Found(NamedTuple):
    """Bytes of a segment from ``offset`` on, and the batches in them."""

    data: bytes
    offset: int
    result: ScanResult


class LogReader:
    """Reads the segments of one log; caches tables and positions."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._hints: dict[tuple[str, int], int] = {}
        self._loaded: deque[Segment] = deque()

    def read(
        self, segment: Segment, index: int, size_max: int, wait: bool, notes: list[Damage]
    ) -> Block | None:
        """Batches of ``segment``, from the one with ``index``, or the next one, on.

        An empty block if there are no more, None if it would have to wait.  Damage is added to
        ``notes``.
        """
        found = self.find(segment, index, size_max, wait, notes)
        if found is None:
            return None
        spans = found.result.spans(index)
        block = Block(found.data, spans, segment.node_id)
        if spans:
            self.stopped(segment, block.end, found.offset + found.result.stop)
        return block

    def stopped(self, segment: Segment, index: int, offset: int) -> None:
        """Remember for the next read that the batch with ``index`` is at ``offset``."""
        if len(self._hints) >= HINT_MAX:
            self._hints.clear()
        self._hints[segment.path, index] = offset

    def find(
        self, segment: Segment, index: int, size_max: int, wait: bool, notes: list[Damage]
    ) -> Found | None:
        """The bytes with ``index`` or the next batch, scanned and verified.

        The result has no batches if the segment ends before.  None if it would have to wait.
        """
        visible = segment.visible
        place = self._start(segment, index, wait)
        if place is None:
            return None
        expected, offset = place
        bad: tuple[int, int] | None = None
        want = size_max + STRIDE
        while offset < visible.size:
            size = min(want, visible.size - offset)
            data = self._pread(segment.path, offset, size, wait)
            if data is None:
                return None
            result = scan(data, 0, True, expected)
            if bad is not None and result.batches:
                notes.append(_damage(segment, bad, offset, result.batches[0][0]))
                bad = None
            if result.batches:
                last = result.batches[-1]
                expected = last[0] + last[1]
                if expected > index:
                    return Found(data, offset, result)
            if result.reason in (BAD_HEADER, BAD_PAYLOAD):
                bad = bad or (offset + result.stop, expected)
                after = self._skip(segment.path, visible, offset, result, expected, wait)
                if after is None:
                    return None
                if result.reason == BAD_PAYLOAD:
                    expected = result.first + result.count
                    notes.append(_damage(segment, bad, after, expected))
                    bad = None
                offset = after
            elif result.stop:
                offset += result.stop
                want = size_max + STRIDE
            elif len(data) < size and not wait:
                return None  # only some of the bytes were in the page cache
            elif len(data) < size or size == visible.size - offset:
                bad = bad or (offset, expected)  # the file was truncated, or a size is wrong
                break
            else:
                want = max(result.size, want + STRIDE)
        if bad is not None:
            notes.append(_damage(segment, bad, visible.size, visible.end))
        return Found(b"", visible.size, scan(b"", 0, False))

    def _batches(
        self, segment: Segment, index: int, notes: list[Damage]
    ) -> Iterator[tuple[bytes, ScannedBatch]]:
        """All batches that end after ``index``, with the bytes they are in; waits."""
        while index < segment.visible.end:
            found = self.find(segment, index, SEEK_SIZE, True, notes)
            if found is None or not found.result.batches:
                return
            for batch in found.result.batches:
                if batch[0] + batch[1] > index:
                    yield found.data, batch
            index = found.result.batches[-1][0] + found.result.batches[-1][1]

    def seek(self, segment: Segment, append_ns: int, notes: list[Damage]) -> int | None:
        """The first index of ``segment`` appended at or after ``append_ns``; waits."""
        tables = self._tables(segment, True)
        assert tables is not None
        place = max(0, bisect_left(tables.times, append_ns) - 1)
        for _data, batch in self._batches(segment, tables.indexes[place], notes):
            if batch[4] >= append_ns:
                return batch[0]
        return None

    def keeps_tables(self, segment: Segment) -> None:
        """Bound the cached tables: the first loaded are dropped first."""
        self._loaded.append(segment)
        while len(self._loaded) > TABLES_MAX:
            self._loaded.popleft().drop_tables()

    def load_tables(self, segment: Segment) -> None:
        """Load the tables of ``segment``; waits."""
        self._tables(segment, True)

    def _tables(self, segment: Segment, wait: bool) -> Tables | None:
        tables = segment.tables
        if tables is None:
            try:
                tables = segment.load_tables(self._files, wait)
            except OSError:
                if wait:
                    raise
                return None  # a thread retries it
            if tables is not None:
                self.keeps_tables(segment)
        return tables

    def _start(self, segment: Segment, index: int, wait: bool) -> tuple[int, int] | None:
        hint = self._hints.pop((segment.path, index), None)
        if hint is not None and hint < segment.visible.size:
            return index, hint
        tables = self._tables(segment, wait)
        return None if tables is None else tables.before(index)

    def _pread(self, path: str, offset: int, size: int, wait: bool) -> bytes | None:
        if wait:
            return self._files.pread(path, offset, size, True) or b""
        try:
            return self._files.pread(path, offset, size, False)
        except OSError:
            return None  # a thread retries it

    def _skip(
        self,
        path: str,
        visible: Visible,
        offset: int,
        result: ScanResult,
        index_min: int,
        wait: bool,
    ) -> int | None:
        # Where to resume after bad bytes: after the bad payload, or at the next good header.
        if result.reason == BAD_PAYLOAD:
            return offset + result.stop + result.size
        offset += result.stop + 1
        while offset + BATCH_HEADER_SIZE <= visible.size:
            size = min(RESYNC_SIZE, visible.size - offset)
            data = self._pread(path, offset, size, wait)
            if data is None or (not wait and len(data) < size):
                return None
            found = resync(data, 0, index_min)
            if found >= 0:
                return offset + found
            offset += max(1, size - BATCH_HEADER_SIZE + 1)
        return visible.size


def missing(segment: Segment) -> Damage:
    """The damage of a missing file: all its messages."""
    return _damage(segment, (0, segment.first), segment.visible.size, segment.visible.end)


def _damage(segment: Segment, bad: tuple[int, int], end: int, index_end: int) -> Damage:
    offset, index = bad
    return Damage(segment.path, offset, end, index, max(index, index_end))


def locate(segments: tuple[Segment, ...], index: int) -> int:
    """The place of the segment with ``index``, or of the next one."""
    return bisect_right(segments, index, key=_end_of)


def _end_of(segment: Segment) -> int:
    return segment.visible.end
