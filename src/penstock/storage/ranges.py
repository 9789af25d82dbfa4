# Ranges of a log as bytes, for readers that decode batches themselves (R18).
#
#     start                        end
#       |   [ batch ][ batch ][ batch ]           whole batches, so the first and the last one may
#     [ batch ]                                   extend beyond the range: the reader trims them
#
# Rule 1: the bytes are those of the file, verified, because damaged batches must be left out and
#         reported; there is no work per message.
# Rule 2: every call makes progress, so a reader that continues at `next` reaches the end.
#
# A reader that verifies checksums itself gets a slice of the file instead (`file_slice`), for a
# third of the CPU: the kernel sends it with sendfile, unread.  It starts and ends at batches in the
# sparse index, so it extends further beyond the range, and it is not verified.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.batches import BATCH_HEADER_SIZE
from penstock.page_cache import FileSlice
from penstock.storage.log_reader import Damage, Found, LogReader, locate, missing
from penstock.storage.segment import Segment

if TYPE_CHECKING:
    from penstock.core.batches import ScannedBatch
    from penstock.storage.files import Files


# One read of the file.  malloc reuses memory of this size; from 4 MiB on it is returned to the
# kernel, and page faults tripled the cost of a message.
PIECE_SIZE = 1 << 20


class Range(NamedTuple):
    """Pieces of whole batches, back to back; ``next`` is the first index they do not cover."""

    pieces: list[bytes | memoryview]
    next: int

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def read_range(
    reader: LogReader,
    segments: tuple[Segment, ...],
    start: int,
    end: int,
    size_max: int,
    notes: list[Damage],
    *,
    tables: bool = False,
) -> Range:
    """The batches of ``segments`` with messages in [start, end); waits for the disk.

    At least one if there is any, and about ``size_max`` bytes.  With ``tables`` the sparse index is
    loaded, so that file_slice() can serve the next range.
    """
    pieces: list[bytes | memoryview] = []
    index = start
    for place in range(locate(segments, start), len(segments)):
        segment = segments[place]
        while index < segment.visible.end and size_max > 0:
            if index >= end or segment.first >= end:
                return Range(pieces, end)
            piece_size = min(size_max, PIECE_SIZE)
            try:
                if tables:
                    reader.load_tables(segment)
                found = reader.find(segment, index, piece_size, True, notes)
            except FileNotFoundError:
                notes.append(missing(segment))
                break
            assert found is not None
            piece, index = _cut(reader, segment, found, index, end, piece_size)
            if not piece:
                break
            pieces.append(piece)
            size_max -= len(piece)
        if size_max <= 0:
            return Range(pieces, min(index, end))
    return Range(pieces, end)


def file_slice(
    files: Files, segments: tuple[Segment, ...], start: int, end: int, size_max: int
) -> tuple[FileSlice, int] | None:
    """read_range() of one file, unverified; None if the tables or the bytes are not in memory."""
    place = locate(segments, start)
    if place == len(segments):
        return None
    segment = segments[place]
    tables, visible = segment.tables, segment.visible
    if tables is None or not segment.closed or segment.failed or segment.first >= end:
        return None
    indexes, offsets = tables.indexes, tables.offsets
    low = max(0, bisect_right(indexes, start) - 1)
    offset = offsets[low]
    high = min(bisect_left(offsets, offset + size_max, low + 1), bisect_left(indexes, end, low + 1))
    known = high < len(offsets)
    stop, next = (offsets[high], indexes[high]) if known else (visible.size, visible.end)
    if stop - offset > 2 * size_max or next <= start:
        return None
    fd = files.lend(segment.path, offset, stop - offset)
    if fd is None:
        return None
    return FileSlice(fd, offset, stop - offset), min(next, end)


def _cut(
    reader: LogReader, segment: Segment, found: Found, index: int, end: int, size_max: int
) -> tuple[bytes | memoryview, int]:
    """The batches of ``found`` in [index, end), and the index after them."""
    batches = found.result.batches
    low = bisect_right(batches, index, key=_end_of)
    high = bisect_left(batches, end, key=_first_of)
    if low >= high:
        return b"", index
    start = _start_of(batches[low])
    high = min(high, max(low + 1, bisect_left(batches, start + size_max, low, key=_start_of)))
    stop = found.result.stop if high == len(batches) else _start_of(batches[high])
    reached = _end_of(batches[high - 1])
    reader.stopped(segment, reached, found.offset + stop)
    if start == 0 and stop == len(found.data):
        return found.data, reached
    return memoryview(found.data)[start:stop], reached


def _first_of(batch: ScannedBatch) -> int:
    return batch[0]


def _end_of(batch: ScannedBatch) -> int:
    return batch[0] + batch[1]


def _start_of(batch: ScannedBatch) -> int:
    return batch[2] - BATCH_HEADER_SIZE
