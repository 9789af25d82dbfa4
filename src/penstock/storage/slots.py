# Slot files: deferred messages on disk, one append-only file for each stretch of due time.
#
#     <start_ms>-<length_ms>-<generation, 8 hex digits>.slot     the records
#     <same>.fired                                               which of them are done
#
#     .slot    header, 40 bytes:  magic "PENSTSLT" | crc32c u32 of bytes 12..40 | version u16 = 1
#                                 | zero u16 | start_ms i64 | length_ms i64 | number i64
#              records as in core/slots.pyx
#     .fired   records:  magic "PSF1" | crc32c u32 of the slot's number and of bytes 8..
#                        | run count u32 | zero u32 | runs (first ordinal u32, count u32)
#
# The number of a slot file, `start seconds << 30 | generation`, is what messages fired from it
# carry in their topic's log.  The generation is random:
#
# Rule 1: only the process that made a slot file appends to it, so an ordinal is never given twice,
#         not even when a power cut took the file's tail and left the fired messages in their logs.
# Rule 2: a file that comes after another one of the same time has another number, so what is known
#         of the old one never hides a record of the new one.
# Rule 3: everything needed to find a file stands in its name.  There is no list of files to lose.
# Rule 4: .fired is synced before anything relies on it, and unlinked after its .slot is gone.

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import google_crc32c

from penstock.core.schedule import pack_runs
from penstock.core.slots import Records, scan

VERSION = 1
HEADER = struct.Struct(">8sIHHqqq")
HEADER_MAGIC = b"PENSTSLT"
FIRED = struct.Struct(">4sIII")
FIRED_MAGIC = b"PSF1"
GENERATION_BITS = 30

# One read of a scan: a few thousand records, under a millisecond of the loop's time to take in.
PIECE_SIZE = 512 * 1024

_NAME = re.compile(r"(\d{1,16})-(\d{1,12})-([0-9a-f]{8})\.(slot|fired)\Z")


class FilesLike(Protocol):
    """What is used of ``storage.files.Files``."""

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


@dataclass(frozen=True, order=True)
class SlotName:
    """Which due times a slot file is for, and which of several such files it is."""

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
    """The name in ``file``, which is that of a .slot or .fired file, or None."""
    match = _NAME.match(file)
    if match is None:
        return None
    start_ms, length_ms, generation = int(match[1]), int(match[2]), int(match[3], 16)
    name = SlotName(start_ms, length_ms, generation)
    good = start_ms % 1000 == 0 and generation < 1 << GENERATION_BITS and 0 < name.number < 1 << 63
    return name if good else None


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def new_generation() -> int:
    return int.from_bytes(os.urandom(4), "big") >> (32 - GENERATION_BITS)


def pack_header(name: SlotName) -> bytes:
    rest = HEADER.pack(b"", 0, VERSION, 0, name.start_ms, name.length_ms, name.number)[12:]
    return b"".join((HEADER_MAGIC, _crc(rest).to_bytes(4, "big"), rest))


def read_version(header: bytes) -> int | None:
    """The version of a slot file by its header, None if that is damaged."""
    if len(header) < HEADER.size or header[:8] != HEADER_MAGIC:
        return None
    if _crc(header[12 : HEADER.size]) != int.from_bytes(header[8:12], "big"):
        return None
    return int.from_bytes(header[12:14], "big")


def pack_fired(number: int, ordinals: Iterable[int]) -> bytes:
    runs = pack_runs(ordinals)
    rest = FIRED.pack(b"", 0, len(runs) // 8, 0)[8:] + runs
    crc = _crc(number.to_bytes(8, "big") + rest)
    return b"".join((FIRED_MAGIC, crc.to_bytes(4, "big"), rest))


class FiredRuns(NamedTuple):
    """What a .fired file says: (first ordinal, count) runs, and the bytes that say nothing."""

    runs: list[tuple[int, int]]
    bad_size: int


def unpack_fired(number: int, data: bytes) -> FiredRuns:
    """Read checkpoints; damaged ones are stepped over to the next good one."""
    runs: list[tuple[int, int]] = []
    seed = number.to_bytes(8, "big")
    at = bad_size = 0
    while at < len(data):
        end = _fired_end(seed, data, at)
        if end is None:
            next_at = data.find(FIRED_MAGIC, at + 1)
            next_at = len(data) if next_at < 0 else next_at
            bad_size += next_at - at
            at = next_at
            continue
        runs.extend(struct.iter_unpack(">II", data[at + FIRED.size : end]))
        at = end
    return FiredRuns(runs, bad_size)


def _fired_end(seed: bytes, data: bytes, at: int) -> int | None:
    if len(data) - at < FIRED.size or data[at : at + 4] != FIRED_MAGIC:
        return None
    _, crc, count, _ = FIRED.unpack_from(data, at)
    end: int = at + FIRED.size + 8 * count
    return end if end <= len(data) and _crc(seed + data[at + 8 : end]) == crc else None


class SlotStore:
    """The slot files of one folder.  Every method may wait for the disk, but ``read_now``."""

    def __init__(self, files: FilesLike, folder: str, piece_size: int = PIECE_SIZE) -> None:
        assert piece_size >= 512, "a piece must hold any header"
        self.files = files
        self.folder = folder
        self.piece_size = piece_size

    def path(self, file: str) -> str:
        return f"{self.folder}/{file}"

    def list(self) -> list[SlotName]:
        """The slot files there are, soonest first; clears away what a crash left half done."""
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
            self.files.unlink(self.path(name.fired_file))
        return sorted(names["slot"])

    def size(self, name: SlotName) -> int:
        return self.files.size(self.path(name.slot_file))

    def append(self, name: SlotName, packed: bytes, *, fresh: bool) -> int:
        """Add records, whole or not at all; the first time with the header before them."""
        parts = [pack_header(name), packed] if fresh else [packed]
        return self.files.append(self.path(name.slot_file), parts)

    def sync(self, name: SlotName, *, fresh: bool) -> None:
        self.files.sync(self.path(name.slot_file))
        if fresh:
            self.files.sync_folder(self.folder)

    def cut(self, name: SlotName, size: int) -> None:
        """Take back what was appended after ``size``; a file that never held more goes."""
        if size:
            self.files.truncate(self.path(name.slot_file), size)
        else:
            self.files.unlink(self.path(name.slot_file))

    def rewrite(self, name: SlotName) -> None:
        """Write the whole file again, after a sync of it failed.

        A later sync of the same pages would succeed without having written them.  The copy has the
        same name, number and offsets, so nothing that is known of the records changes.
        """
        path = self.path(name.slot_file)
        self.files.write_new(path, self.files.read(path))

    def scan(self, name: SlotName, offset: int, end: int) -> Records:
        """The records found in the piece of the file at ``offset``."""
        path = self.path(name.slot_file)
        size = min(self.piece_size, end - offset)
        data = self.files.pread(path, offset, size, True) or b""
        if len(data) < size:
            end = offset + len(data)
        return scan(data, offset, end, name.number)

    def scan_all(self, name: SlotName) -> Iterator[Records]:
        """All pieces of a file, for tests and dumps."""
        offset, end = HEADER.size, self.size(name)
        while offset < end:
            records = self.scan(name, offset, end)
            yield records
            offset = max(records.next_offset, offset + 1)

    def version(self, name: SlotName) -> int | None:
        return read_version(
            self.files.pread(self.path(name.slot_file), 0, HEADER.size, True) or b""
        )

    def read_now(self, name: SlotName, offset: int, size: int) -> bytes | None:
        """Bytes if they can be had without waiting, else None."""
        data = self.files.pread(self.path(name.slot_file), offset, size, False)
        return data if data is not None and len(data) == size else None

    def read(self, name: SlotName, offset: int, size: int) -> bytes:
        return self.files.pread(self.path(name.slot_file), offset, size, True) or b""

    def read_fired(self, name: SlotName) -> FiredRuns:
        path = self.path(name.fired_file)
        if not self.files.exists(path):
            return FiredRuns([], 0)
        return unpack_fired(name.number, self.files.read(path))

    def append_fired(self, name: SlotName, ordinals: Iterable[int], *, fresh: bool) -> None:
        """Write and sync a checkpoint: these ordinals are never fired again."""
        path = self.path(name.fired_file)
        self.files.append(path, [pack_fired(name.number, ordinals)])
        self.files.sync(path)
        if fresh:
            self.files.sync_folder(self.folder)

    def remove(self, names: Iterable[SlotName], evidence: Iterable[SlotName] = ()) -> None:
        """Remove slot files whose records are all done; damaged ones stay as ``*.corrupt``."""
        kept = set(evidence)
        names = list(names)
        for name in names:
            path = self.path(name.slot_file)
            if name in kept:
                self.files.rename(path, f"{path}.corrupt")
            else:
                self.files.unlink(path)
        self.files.sync_folder(self.folder)
        for name in names:
            self.files.unlink(self.path(name.fired_file))
