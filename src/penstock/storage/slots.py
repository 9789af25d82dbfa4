# Slot files: deferred messages on disk, one append-only file for each interval of due times.
#
#     <start_ms>-<length_ms>-<generation, 8 hex digits>.slot     the records
#     <same>.fired                                               which records are done
#
#     .slot    header, 40 bytes:  magic "PENSTSLT" | crc32c u32 of bytes 12..40 | version u16 = 1
#                                 | flags u16 | start_ms i64 | length_ms i64 | number i64
#              records as in core/slots.pyx
#     .fired   records:  magic "PSF1" | crc32c u32 of the slot's number and of bytes 8..
#                        | run count u32 | zero u32 | runs (first ordinal u32, count u32)
#
# The number of a slot file, `start seconds << 30 | generation`, is what messages fired from it
# carry in their topic's log.  The generation is random:
#
# Rule 1: only the process that created a slot file appends to it, so an ordinal is never used
#         twice, even if a power cut took the file's tail and left the fired messages in their logs.
# Rule 2: a later file for the same interval has another number, so the state of the old one never
#         applies to records of the new one.
# Rule 3: everything needed to find a file is in its name.  There is no list of files to lose;
#         deferred.counts (slot_counts.py) only has the expected sizes.
# Rule 4: .fired is synced before anything depends on it, and unlinked after its .slot is removed
#         and the counts say so.

from __future__ import annotations

import os
import re
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, cast

from penstock.core.schedule import pack_runs
from penstock.core.slots import SlotRecords, scan
from penstock.storage.evidence import keep_evidence, set_aside
from penstock.storage.files import Files
from penstock.storage.records import FoundRecord, checked, find_records, is_checked

VERSION = 1
COUNTED = 1  # a flag: the process that made the file keeps deferred.counts
HEADER_MAGIC = b"PENSTSLT"
HEADER_SIZE = 40
FIRED_MAGIC = b"PSF1"
FIRED_HEADER_SIZE = 16
GENERATION_BITS = 30

# One read of a scan: a few thousand records, which the loop indexes in under a millisecond.
PIECE_SIZE = 512 * 1024

_HEADER = struct.Struct(">HHqqq")
_FIRED = struct.Struct(">II")
_NAME = re.compile(r"(\d{1,16})-(\d{1,12})-([0-9a-f]{8})\.(slot|fired)\Z")


class FilesLike(Protocol):
    """The methods of ``storage.files.Files`` that are used here."""

    def append(self, path: str, parts: list[bytes]) -> int: ...
    def pread(self, path: str, offset: int, size: int, wait: bool = ...) -> bytes | None: ...
    def read(self, path: str) -> bytes: ...
    def size(self, path: str) -> int: ...
    def exists(self, path: str) -> bool: ...
    def list(self, folder: str) -> list[str]: ...
    def truncate(self, path: str, size: int) -> None: ...
    def write_new(self, path: str, data: bytes) -> None: ...
    def sync(self, path: str) -> None: ...
    def sync_folder(self, folder: str) -> None: ...
    def make_folder(self, folder: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def is_open(self, path: str) -> bool: ...


@dataclass(frozen=True, order=True)
class SlotName:
    """The interval of due times of a slot file, and its generation."""

    start_ms: int
    length_ms: int
    generation: int

    @property
    def start_ns(self) -> int:
        return self.start_ms * 1_000_000

    @cached_property
    def number(self) -> int:
        return self.start_ms // 1000 << GENERATION_BITS | self.generation

    @cached_property
    def slot_file(self) -> str:
        return f"{self.start_ms}-{self.length_ms}-{self.generation:08x}.slot"

    @cached_property
    def fired_file(self) -> str:
        return f"{self.start_ms}-{self.length_ms}-{self.generation:08x}.fired"


def slot_name(file: str) -> SlotName | None:
    """Parse the name of a .slot or .fired file; None if it is not one."""
    match = _NAME.match(file)
    if match is None:
        return None
    start_ms, length_ms, generation = int(match[1]), int(match[2]), int(match[3], 16)
    name = SlotName(start_ms, length_ms, generation)
    good = start_ms % 1000 == 0 and generation < 1 << GENERATION_BITS and 0 < name.number < 1 << 63
    return name if good else None


def new_generation() -> int:
    return int.from_bytes(os.urandom(4), "big") >> (32 - GENERATION_BITS)


def pack_header(name: SlotName, *, counted: bool = True) -> bytes:
    flags = COUNTED if counted else 0
    fields = _HEADER.pack(VERSION, flags, name.start_ms, name.length_ms, name.number)
    return checked(HEADER_MAGIC, fields)


class SlotHeader(NamedTuple):
    """The fields of a header that are not in the file's name."""

    version: int
    counted: bool


def read_header(header: bytes) -> SlotHeader | None:
    """Decode the header of a slot file; None if it is damaged."""
    if not is_checked(header, HEADER_MAGIC, HEADER_SIZE):
        return None
    version, flags, *_ = _HEADER.unpack_from(header, 12)
    return SlotHeader(version, bool(flags & COUNTED))


def pack_fired(number: int, ordinals: Iterable[int]) -> bytes:
    runs = pack_runs(ordinals)
    fields = _FIRED.pack(len(runs) // 8, 0) + runs
    return checked(FIRED_MAGIC, fields, number.to_bytes(8, "big"))


class FiredRuns(NamedTuple):
    """The contents of a .fired file: runs of (first ordinal, count), and the size of bad bytes.

    ``corrupt_size`` bad bytes are before a good checkpoint: not the result of a power cut.
    """

    runs: list[tuple[int, int]]
    bad_size: int
    corrupt_size: int = 0
    bad_offset: int = -1
    size: int = 0

    @property
    def ordinal_count(self) -> int:
        """Ordinals, duplicates included."""
        return sum(count for _, count in self.runs)


def unpack_fired(number: int, data: bytes) -> FiredRuns:
    """Decode checkpoints; damaged ones are skipped."""
    seed = number.to_bytes(8, "big")

    def checkpoint_at(data: bytes, at: int) -> FoundRecord | None:
        if len(data) - at < FIRED_HEADER_SIZE:
            return None
        count, _ = _FIRED.unpack_from(data, at + 8)
        end = at + FIRED_HEADER_SIZE + 8 * count
        good = is_checked(data, FIRED_MAGIC, end, seed, at)
        return FoundRecord(at, end, payload=data[at + FIRED_HEADER_SIZE : end]) if good else None

    runs: list[tuple[int, int]] = []
    bad: list[FoundRecord] = []
    for found in find_records(data, FIRED_MAGIC, checkpoint_at):
        if found.payload is None:
            bad.append(found)
        else:
            runs.extend(struct.iter_unpack(">II", found.payload))
    bad_size = sum(each.end - each.start for each in bad)
    corrupt_size = sum(each.end - each.start for each in bad if not each.torn)
    return FiredRuns(runs, bad_size, corrupt_size, bad[0].start if bad else -1, len(data))


class SlotStore:
    """The slot files of one folder.  Every method but ``read_now`` may wait for the disk."""

    def __init__(self, files: FilesLike, folder: str, piece_size: int = PIECE_SIZE) -> None:
        assert piece_size >= 512, "a piece must hold any header"
        self.files = files
        self.folder = folder
        self.piece_size = piece_size

    def path(self, file: str) -> str:
        return f"{self.folder}/{file}"

    def list(self, counted: Container[int] = ()) -> list[SlotName]:
        """The slot files, soonest first; removes leftovers of a crash.

        Checkpoints without a slot file are kept if its number is in ``counted``: it is missing.
        """
        if not self.files.exists(self.folder):
            self.files.make_folder(self.folder)
            self.files.sync_folder(os.path.dirname(self.folder))  # noqa: PTH120
        names: dict[str, list[SlotName]] = {"slot": [], "fired": []}
        for file in self.files.list(self.folder):
            name = slot_name(file)
            if name is not None:
                names[file.rpartition(".")[2]].append(name)
            elif file.endswith(".tmp"):
                self.files.unlink(self.path(file))
        for name in set(names["fired"]) - set(names["slot"]):
            if name.number not in counted:
                self.files.unlink(self.path(name.fired_file))
        return sorted(names["slot"])

    def is_missing(self, name: SlotName) -> bool:
        """Whether the folder can be read and has no such slot file."""
        names = self.files.list(self.folder)
        return name.slot_file not in names and self.files.exists(self.folder)

    def size(self, name: SlotName) -> int:
        return self.files.size(self.path(name.slot_file))

    def append(self, name: SlotName, packed: bytes, *, fresh: bool, counted: bool = True) -> int:
        """Append records, all or nothing; if ``fresh``, with the header before them."""
        parts = [pack_header(name, counted=counted), packed] if fresh else [packed]
        return self.files.append(self.path(name.slot_file), parts)

    def is_open(self, name: SlotName) -> bool:
        """Whether an append needs no open(), so that the loop may do it."""
        return self.files.is_open(self.path(name.slot_file))

    def sync(self, name: SlotName, *, fresh: bool) -> None:
        self.files.sync(self.path(name.slot_file))
        if fresh:
            self.sync_names()

    def sync_names(self) -> None:
        """Make the names of files durable."""
        self.files.sync_folder(self.folder)

    def cut(self, name: SlotName, size: int) -> None:
        """Truncate the file to ``size``; remove it if that is 0."""
        if size:
            self.files.truncate(self.path(name.slot_file), size)
        else:
            self.files.unlink(self.path(name.slot_file))

    def rewrite(self, name: SlotName) -> None:
        """Write the whole file again after a failed sync.

        A later sync of the same pages could succeed without having written them.  The copy has the
        same name, number and offsets, so the index of its records stays valid.
        """
        path = self.path(name.slot_file)
        self.files.write_new(path, self.files.read(path))

    def scan(self, name: SlotName, offset: int, end: int) -> SlotRecords:
        """The records in the piece of the file at ``offset``."""
        return self.scan_piece(name, offset, end)[0]

    def scan_piece(self, name: SlotName, offset: int, end: int) -> tuple[SlotRecords, int]:
        """scan(), and the end of the file, which is before ``end`` if it was truncated."""
        path = self.path(name.slot_file)
        size = min(self.piece_size, end - offset)
        data = self.files.pread(path, offset, size, True) or b""
        if len(data) < size:
            end = offset + len(data)
        return scan(data, offset, end, name.number), end

    def scan_all(self, name: SlotName) -> Iterator[SlotRecords]:
        """All pieces of a file, for tests and dumps."""
        offset, end = HEADER_SIZE, self.size(name)
        while offset < end:
            records = self.scan(name, offset, end)
            yield records
            offset = max(records.next_offset, offset + 1)

    def header(self, name: SlotName) -> SlotHeader | None:
        return read_header(self.files.pread(self.path(name.slot_file), 0, HEADER_SIZE, True) or b"")

    def read_now(self, name: SlotName, offset: int, size: int) -> bytes | None:
        """Read bytes if that needs no waiting, otherwise None."""
        data = self.files.pread(self.path(name.slot_file), offset, size, False)
        return data if data is not None and len(data) == size else None

    def read(self, name: SlotName, offset: int, size: int) -> bytes:
        return self.files.pread(self.path(name.slot_file), offset, size, True) or b""

    def read_fired(self, name: SlotName) -> FiredRuns:
        try:
            return unpack_fired(name.number, self.files.read(self.path(name.fired_file)))
        except FileNotFoundError:
            return FiredRuns([], 0)

    def append_fired(self, name: SlotName, ordinals: Iterable[int], *, fresh: bool) -> int:
        """Write and sync a checkpoint of ordinals that are done; return the file's size."""
        path = self.path(name.fired_file)
        size = self.files.append(path, [pack_fired(name.number, ordinals)])
        self.files.sync(path)
        if fresh:
            self.sync_names()
        return size

    def rewrite_fired(self, name: SlotName, runs: Iterable[tuple[int, int]]) -> int:
        """Replace the checkpoints by the good ones in ``runs``; return the file's size."""
        ordinals = (ordinal for start, count in runs for ordinal in range(start, start + count))
        data = pack_fired(name.number, ordinals)
        self.files.write_new(self.path(name.fired_file), data)
        return len(data)

    def keep_evidence(self, file: str, offset: int, end: int) -> str | None:
        """Copy a damaged part of ``file``; return the copy's path, None if that is impossible."""
        return keep_evidence(cast(Files, self.files), self.path(file), offset, end)

    def set_aside(self, file: str) -> str | None:
        """Rename ``file``, if it exists, to ``*.corrupt``."""
        path = self.path(file)
        return set_aside(cast(Files, self.files), path) if self.files.exists(path) else None

    def remove(self, names: Iterable[SlotName], evidence: Container[SlotName] = ()) -> None:
        """Remove slot files whose records are all done; damaged ones are kept as ``*.corrupt``.

        Their checkpoints are kept until the counts record the removal: until then they prove to the
        next start that nothing is missing.
        """
        for name in names:
            if name in evidence:
                self.set_aside(name.slot_file)
            else:
                self.files.unlink(self.path(name.slot_file))
        self.sync_names()

    def remove_fired(self, names: Iterable[SlotName]) -> None:
        """Remove the checkpoints of removed slots."""
        for name in names:
            self.files.unlink(self.path(name.fired_file))
