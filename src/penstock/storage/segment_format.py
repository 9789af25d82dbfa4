# The format of one file of a topic log: its header and its footer.
#
#     header 64 | batch | batch | ... | tables | trailer 96          tables and trailer once sealed
#
#     header:   0 magic "PENSTLOG" | 8 crc u32 | 12 version u16 | 14 node id u16 | 16 base u64
#               24 previous end u64 | 32 created_ns i64 | 40 instance u64 | 48 origin u64 | 56 zeros
#     tables:   (index u64, offset u64, append_ns i64)... | (gap start u64, end u64)...
#               | (offset u64 of a batch with origins)...
#     trailer:  0 magic "PSFOOTER" | 8 crc u32 | 12 crc u32 of the tables | 16 their offset u64
#               24 first u64 | 32 end u64 | 40 count u64 | 48 first append_ns i64 | 56 last i64
#               64 sparse count u32 | 68 gap count u32 | 72 origin count u32 | 76 moved count u32
#               80 slot min i64 | 88 slot max i64
#
# docs/storage-format.md explains the fields; core/layouts.pxd draws a batch.
#
# Rule 1: a damaged header or trailer costs a full scan, never a message.

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.core.batches import HEADER_SIZE
from penstock.core.crc32c import crc32c
from penstock.core.tables import Tables, Tally
from penstock.record import record
from penstock.storage.records import checked, is_checked

MAGIC = b"PENSTLOG"
VERSION = 1
TRAILER_MAGIC = b"PSFOOTER"
TRAILER_SIZE = 96

_HEADER = struct.Struct(">HHQQqQQ8x")
_TRAILER = struct.Struct(">IQQQQqqIIIIqq")
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
    moved_count: int  # of those, batches of moved messages
    slot_min: int
    slot_max: int

    @property
    def may_have_moved(self) -> bool:
        """Whether messages may have been moved here.

        A version that does not know moves seals with a count of 0, and takes their origins, which
        are negative, for slots.
        """
        return self.moved_count > 0 or self.slot_min < 0

    @property
    def tables_size(self) -> int:
        return (
            self.sparse_count * _SPARSE.size
            + self.gap_count * _GAP.size
            + self.origin_count * _OFFSET.size
        )


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
        tally.moved_count,
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
