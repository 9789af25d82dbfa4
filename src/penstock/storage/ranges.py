# Ranges of a log as bytes, for readers that decode batches themselves (R18).
#
#     start                        end
#       |   [ batch ][ batch ][ batch ]           whole batches, so the first and the last one may
#     [ batch ]                                   reach over the edges: the reader cuts
#
# Rule 1: the bytes are the file's.  They were verified here all the same, because what is damaged
#         must be left out and noted; nothing is done for each message.
# Rule 2: every call gets further, so a reader that asks from `next` on comes to the end.
#
# A reader that verifies by itself can have a stretch of a file instead, for a third of the CPU: the
# kernel sends it, and it is not read here.  It begins and ends at batches that the sparse index
# knows, so it reaches further over the edges, and nobody has looked into it.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.batches import BATCH_HEADER_SIZE
from penstock.page_cache import Stretch
from penstock.storage.log_reader import Damage, Found, LogReader, locate, missing
from penstock.storage.segment import Segment

if TYPE_CHECKING:
    from penstock.core.batches import ScannedBatch
    from penstock.storage.files import Files


# One read of the file.  Memory of this size is used again by the next one; from 4 MiB on the C
# library gives it back to the kernel, and faulting its pages in anew tripled the cost of a message.
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

    At least one if there is any, and about ``size_max`` bytes.  With ``tables`` the sparse index
    is in memory afterwards, for a stretch of what comes next.
    """
    pieces: list[bytes | memoryview] = []
    index = start
    for segment in segments[locate(segments, start) :]:
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


def stretch(
    files: Files, segments: tuple[Segment, ...], start: int, end: int, size_max: int
) -> tuple[Stretch, int] | None:
    """As read_range, unverified and of one file; None if it takes more than a look at memory."""
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
    return Stretch(fd, offset, stop - offset), min(next, end)


def _cut(
    reader: LogReader, segment: Segment, found: Found, index: int, end: int, size_max: int
) -> tuple[bytes | memoryview, int]:
    """Of what was found the batches in [index, end), and where they end."""
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
