# deferred.counts: the synced size of every slot file, to detect truncated or missing files.
#
# A slot file that was truncated at a record boundary, or removed, looks like one that a power cut
# took before it was synced.  So what is synced is recorded here, next to the folder of the slots:
#
#     header, 80 bytes:   magic "PENSTCNT" | crc32c u32 of bytes 12..80 | version u16 = 1 | zero u16
#                         | count of entries that the file was made with u32 | zeros
#     entries, 80 bytes:  magic "PSC1" | crc32c u32 of bytes 8..80 | kind u8 | zeros
#                         | entries before this one that are synced u32 | start_ms i64
#                         | length_ms i64 | generation u32 | count u32 | ordinal_end u32
#                         | fired_count u32 | size i64 | whole_size i64 | bad_size i64
#                         | fired_size i64
#
# Rule 1: of several entries for a slot the last one is valid.  Kind 2: the slot was removed.
# Rule 2: an entry is written after the sync of what it states.  So after a power cut it may state
#         too little, but never too much.
# Rule 3: the file is written whole (temporary file, sync, rename), then appended to.  If entries
#         that it was written with are missing, or entries that a later one states as synced, that
#         is damage.

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, cast

from penstock.errors import CorruptError, StorageError
from penstock.storage.evidence import keep_evidence
from penstock.storage.files import Files
from penstock.storage.records import checked, is_checked
from penstock.storage.slots import FilesLike, SlotName

VERSION = 1
HEADER_MAGIC = b"PENSTCNT"
ENTRY_MAGIC = b"PSC1"
ENTRY_SIZE = 80
_HEADER = struct.Struct(">HHI60x")
_ENTRY = struct.Struct(">B3xIqqIIIIqqqq")
KIND_SLOT, KIND_GONE = 1, 2
ORDINAL_END = (1 << 32) - 1

assert 12 + _HEADER.size == 8 + _ENTRY.size == ENTRY_SIZE


class SlotCount(NamedTuple):
    """The synced part of one slot file and its checkpoints."""

    name: SlotName
    size: int = 0  # of the .slot file
    whole_size: int = 0  # synced up to here by its process: bodies must be good
    record_count: int = 0  # records below ``size``, or done
    ordinal_end: int = 0  # their ordinals are below this
    bad_size: int = 0  # bytes below ``size`` that are not records
    fired_size: int = 0  # of the .fired file
    fired_count: int = 0  # ordinals in it

    def agrees(self, other: SlotCount) -> bool:
        """Whether both are equal, except for ``ordinal_end``."""
        return self == other._replace(ordinal_end=self.ordinal_end)


class Loaded(NamedTuple):
    """The contents of the file; ``damage`` is a text for people, "" if there is none."""

    counts: dict[int, SlotCount]
    entry_count: int
    neat: bool  # exactly one good entry for each slot
    damage: str


def pack_counts_header(entry_count: int) -> bytes:
    return checked(HEADER_MAGIC, _HEADER.pack(VERSION, 0, entry_count))


def pack_entry(count: SlotCount, synced_count: int, kind: int = KIND_SLOT) -> bytes:
    name = count.name
    fields = _ENTRY.pack(
        kind,
        synced_count,
        name.start_ms,
        name.length_ms,
        name.generation,
        count.record_count,
        count.ordinal_end,
        count.fired_count,
        count.size,
        count.whole_size,
        count.bad_size,
        count.fired_size,
    )
    return checked(ENTRY_MAGIC, fields)


def unpack_counts(data: bytes, path: str) -> Loaded:
    """Decode the file; raises StorageError if a later version wrote it."""
    made_count = _made_count(data, path)
    counts: dict[int, SlotCount] = {}
    synced_count = made_count or 0
    bad: list[int] = []
    whole_count = max(0, len(data) // ENTRY_SIZE - 1)
    for place in range(whole_count):
        at = (place + 1) * ENTRY_SIZE
        if is_checked(data, ENTRY_MAGIC, at + ENTRY_SIZE, at=at):
            synced_count = max(synced_count, _take_entry(data, at, counts))
        else:
            bad.append(place)
    lost = sum(place < synced_count for place in bad) + max(0, synced_count - whole_count)
    damage = []
    if made_count is None:
        damage.append("the header is damaged")
    if lost:
        damage.append(f"{lost} of {synced_count} entries are damaged or missing")
    neat = not damage and whole_count == len(counts) and len(data) % ENTRY_SIZE == 0
    return Loaded(counts, whole_count, neat, " and ".join(damage))


def _made_count(data: bytes, path: str) -> int | None:
    """The count in the header, None if the header is damaged."""
    if not is_checked(data, HEADER_MAGIC, ENTRY_SIZE):
        return None
    version, _, count = _HEADER.unpack_from(data, 12)
    if version > VERSION:
        raise StorageError(f"{path}: written by a later version (format {version})")
    return int(count)


def _take_entry(data: bytes, at: int, counts: dict[int, SlotCount]) -> int:
    """Put the entry at ``at`` into ``counts``; returns how many entries before it are synced."""
    (
        kind,
        synced_count,
        start_ms,
        length_ms,
        generation,
        count,
        ordinal_end,
        fired_count,
        size,
        whole_size,
        bad_size,
        fired_size,
    ) = _ENTRY.unpack_from(data, at + 8)
    name = SlotName(start_ms, length_ms, generation)
    if kind == KIND_GONE:
        counts.pop(name.number, None)
    elif kind == KIND_SLOT:
        counts[name.number] = SlotCount(
            name, size, whole_size, count, ordinal_end, bad_size, fired_size, fired_count
        )
    return int(synced_count)


class CountsFile:
    """The file of counts.  Every method may wait for the disk."""

    def __init__(self, files: FilesLike, path: str) -> None:
        self.files = files
        self.path = path

    def load(self) -> Loaded | None:
        """Read the file; None if it is missing."""
        try:
            data = self.files.read(self.path)
        except FileNotFoundError:
            return None
        loaded = unpack_counts(data, self.path)
        if loaded.damage:
            kept = keep_evidence(cast(Files, self.files), self.path, 0, len(data))
            copied = f", copied to {kept}" if kept else ""
            loaded = loaded._replace(damage=loaded.damage + copied)
        return loaded

    def write_whole(self, counts: Iterable[SlotCount]) -> None:
        """Replace the file, durably."""
        counts = list(counts)
        entries = [pack_entry(count, len(counts)) for count in counts]
        data = b"".join((pack_counts_header(len(entries)), *entries))
        self.files.write_new(self.path, data)

    def append(self, entries: Iterable[bytes], end: int) -> None:
        """Append packed entries, durably; the file then has ``end`` entries.

        Raises CorruptError if it has not: it was truncated or removed meanwhile.
        """
        size = self.files.append(self.path, [b"".join(entries)])
        if size != (end + 1) * ENTRY_SIZE:
            raise CorruptError(f"{self.path}: {size} bytes where {end} entries should end")
        self.files.sync(self.path)
