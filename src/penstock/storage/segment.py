# One file of a topic log: its header, its footer, and its state in memory.
#
#     header 64 | batch | batch | ... | tables | trailer 96          tables and trailer once sealed
#
#     header:   0 magic "PENSTLOG" | 8 crc u32 | 12 version u16 | 14 node id u16 | 16 base u64
#               24 previous end u64 | 32 created_ns i64 | 40 instance u64 | 48 origin u64 | 56 zeros
#     tables:   (index u64, offset u64, append_ns i64)... | (gap start u64, end u64)...
#               | (offset u64 of a batch with origins)...
#     trailer:  0 magic "PSFOOTER" | 8 crc u32 | 12 crc u32 of the tables | 16 their offset u64
#               24 first u64 | 32 end u64 | 40 count u64 | 48 first append_ns i64 | 56 last i64
#               64 sparse count u32 | 68 gap count u32 | 72 origin count u32 | 76 zeros
#               80 slot min i64 | 88 slot max i64
#
# docs/storage-format.md explains the fields; core/layouts.pxd draws a batch.
#
# Rule 1: a tally belongs to the writer of the file; `visible` belongs to the loop, is replaced as
#         one value, and shrinks only together with a new segment list.
# Rule 2: readers read nothing after `visible`.
# Rule 3: a damaged header or trailer costs a full scan, never a message.

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.batches import HEADER_SIZE
from penstock.core.crc32c import crc32c
from penstock.core.tables import Tables, Tally, Visible
from penstock.record import record
from penstock.storage.growth import Growth
from penstock.storage.records import checked, is_checked

if TYPE_CHECKING:
    from penstock.storage.files import Files

MAGIC = b"PENSTLOG"
VERSION = 1
TRAILER_MAGIC = b"PSFOOTER"
TRAILER_SIZE = 96

_HEADER = struct.Struct(">HHQQqQQ8x")
_TRAILER = struct.Struct(">IQQQQqqIII4xqq")
_SPARSE = struct.Struct(">QQq")
_GAP = struct.Struct(">QQ")
_OFFSET = struct.Struct(">Q")

NO_SLOT_MIN = (1 << 63) - 1
NO_SLOT_MAX = -(1 << 63)


class Header(NamedTuple):
    """The first 64 bytes.  ``origin``, in side files: base of the segment they came from."""

    version: int
    node_id: int
    base: int
    previous_end: int
    created_ns: int
    instance: int
    origin: int


@record
class Trailer:
    """The last 96 bytes of a sealed file."""

    tables_crc: int
    tables_offset: int
    first: int
    end: int
    count: int
    append_ns_first: int
    append_ns_last: int
    sparse_count: int
    gap_count: int
    origin_count: int
    slot_min: int
    slot_max: int

    @property
    def tables_size(self) -> int:
        return (
            self.sparse_count * _SPARSE.size
            + self.gap_count * _GAP.size
            + self.origin_count * _OFFSET.size
        )


class Segment(Growth):
    """A segment or side file of a topic log."""

    __slots__ = (
        "base",
        "generation",
        "node_id",
        "previous_end",
        "sealed",
        "side",
        "slot_max",
        "slot_min",
        "slots",
        "tables",
        "trailer",
    )

    def __init__(self, path: str, base: int, node_id: int, *, side: bool = False) -> None:
        self.path = path
        self.base = base
        self.node_id = node_id
        self.side = side
        self.generation = 0  # of a side file: how many others it replaced, in turn
        self.previous_end = base
        self.first = base
        self.visible = Visible(0, base, 0)
        self.file_size = 0
        self.tables: Tables | None = None
        self.trailer: Trailer | None = None
        self.slots: set[int] | None = None  # None: only the range in the trailer is known
        self.slot_min = NO_SLOT_MIN
        self.slot_max = NO_SLOT_MAX
        self.append_ns_first = 0
        self.sealed = False
        self.closed = False  # nothing more is appended to it
        self.failed = False  # a sync failed: bytes after `synced` may not be on the disk
        self.synced = Visible(0, base, 0)

    @staticmethod
    def from_tally(path: str, base: int, node_id: int, tally: Tally) -> Segment:
        segment = Segment(path, base, node_id)
        segment.tally = tally
        segment.tables = tally.tables
        segment.slots = tally.slots
        segment.first = tally.first
        segment.append_ns_first = tally.append_ns_first
        segment.visible = tally.visible()
        segment.file_size = tally.size
        segment.synced = Visible(0, tally.first, 0)
        return segment

    @staticmethod
    def from_trailer(path: str, base: int, node_id: int, size: int, trailer: Trailer) -> Segment:
        segment = Segment(path, base, node_id)
        segment.trailer = trailer
        segment.first = trailer.first
        segment.append_ns_first = trailer.append_ns_first
        segment.visible = Visible(trailer.tables_offset, trailer.end, trailer.count)
        segment.synced = segment.visible
        segment.file_size = size
        segment.slot_min = trailer.slot_min
        segment.slot_max = trailer.slot_max
        if not trailer.origin_count:
            segment.slots = set()
        segment.sealed = segment.closed = True
        return segment

    @property
    def append_ns_last(self) -> int:
        trailer, tally = self.trailer, self.tally
        if trailer is not None:
            return trailer.append_ns_last
        return tally.append_ns_last if tally is not None else 0

    def holds_slot_of(self, slots: set[int]) -> bool:
        """Whether messages in this file came, or may have come, from one of ``slots``."""
        if self.slots is not None:
            return not slots.isdisjoint(self.slots)
        return any(self.slot_min <= slot <= self.slot_max for slot in slots)

    def runs(self) -> list[tuple[int, int]]:
        """The dense runs of the visible part; the tables are loaded, or there are no gaps."""
        runs = []
        at = self.first
        for start, end in self.tables.gaps if self.tables is not None else ():
            if start >= self.visible.end:
                break
            runs.append((at, start))
            at = end
        if at < self.visible.end:
            runs.append((at, self.visible.end))
        return runs

    def load_tables(self, files: Files, wait: bool) -> Tables | None:
        """The tables, read from the footer if necessary; None if that would wait."""
        tables = self.tables
        if tables is not None:
            return tables
        assert self.trailer is not None
        data = files.pread(self.path, self.trailer.tables_offset, self.trailer.tables_size, wait)
        if data is None or (not wait and len(data) < self.trailer.tables_size):
            return None
        if not tables_good(data, self.trailer):
            # Without its tables a segment can still be scanned from the start.
            tables = Tables()
            tables.indexes.append(self.first)
            tables.offsets.append(HEADER_SIZE)
            tables.times.append(self.append_ns_first)
        else:
            tables = decode_tables(data, self.trailer)
        self.tables = tables
        return tables

    def seal(self, size: int, trailer: Trailer | None) -> None:
        """The footer was written; from now on the tables can be loaded again."""
        self.sealed = self.closed = True
        self.file_size = size
        self.trailer = trailer

    def drop_tables(self) -> None:
        """Free the tables if they can be loaded again."""
        if self.trailer is not None:
            self.tables = self.tally = None


def encode_header(
    node_id: int, base: int, previous_end: int, created_ns: int, instance: int, origin: int = 0
) -> bytes:
    fields = _HEADER.pack(VERSION, node_id, base, previous_end, created_ns, instance, origin)
    return checked(MAGIC, fields)


def decode_header(data: bytes) -> Header | None:
    """Decode a header; None if it is damaged."""
    if not is_checked(data, MAGIC, HEADER_SIZE):
        return None
    return Header(*_HEADER.unpack_from(data, 12))


def decode_trailer(data: bytes, file_size: int) -> Trailer | None:
    """Decode the last 96 bytes of a file; None if it is not sealed, or damaged."""
    if len(data) != TRAILER_SIZE or not is_checked(data, TRAILER_MAGIC, TRAILER_SIZE):
        return None
    trailer = Trailer(*_TRAILER.unpack_from(data, 12))
    if trailer.tables_offset + trailer.tables_size + TRAILER_SIZE != file_size:
        return None
    return trailer


def encode_tables(tables: Tables) -> bytes:
    sparse = zip(tables.indexes, tables.offsets, tables.times, strict=True)
    parts = [_SPARSE.pack(*entry) for entry in sparse]
    parts += [_GAP.pack(*gap) for gap in tables.gaps]
    parts += [_OFFSET.pack(offset) for offset in tables.origins]
    return b"".join(parts)


def decode_tables(data: bytes, trailer: Trailer) -> Tables:
    tables = Tables()
    gaps_at = trailer.sparse_count * _SPARSE.size
    origins_at = gaps_at + trailer.gap_count * _GAP.size
    for index, offset, append_ns in _SPARSE.iter_unpack(data[:gaps_at]):
        tables.indexes.append(index)
        tables.offsets.append(offset)
        tables.times.append(append_ns)
    tables.gaps.extend(_GAP.iter_unpack(data[gaps_at:origins_at]))
    tables.origins.extend(entry[0] for entry in _OFFSET.iter_unpack(data[origins_at:]))
    return tables


def footer(tally: Tally) -> bytes:
    """The footer of a segment whose batches end at the tally's size."""
    tables = encode_tables(tally.tables)
    trailer = _TRAILER.pack(
        crc32c(tables),
        tally.size,
        tally.first,
        tally.end,
        tally.count,
        tally.append_ns_first,
        tally.append_ns_last,
        len(tally.tables.indexes),
        len(tally.tables.gaps),
        len(tally.tables.origins),
        min(tally.slots, default=NO_SLOT_MIN),
        max(tally.slots, default=NO_SLOT_MAX),
    )
    return tables + checked(TRAILER_MAGIC, trailer)


def tables_good(data: bytes, trailer: Trailer) -> bool:
    return len(data) == trailer.tables_size and crc32c(data) == trailer.tables_crc


def segment_path(folder: str, base: int) -> str:
    return f"{folder}/{base:020d}.log"


def side_path(folder: str, base: int, generation: int) -> str:
    return f"{folder}/{base:020d}-{generation}.side" if generation else f"{folder}/{base:020d}.side"
