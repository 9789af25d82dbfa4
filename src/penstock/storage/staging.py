# Staging files (R19): rows to be published together, one append-only file a staging.
#
#     <number, 16 hex digits>.staging
#     header, 60 bytes and the query:
#         magic "PENSTSTG" | crc32c u32 of what follows | version u16 = 1 | query size u16
#         | number u64 | batch i64 | partition u32 | attempt, 16 bytes | created_ns i64 | query
#     record, 28 bytes, the topic and the payload:
#         magic "PST1" | crc32c u32 of the number, of bytes 8..28 and of the topic
#         | payload size u32 | payload crc32c u32 | kind u8 | flags u8 (1 = deferred) | part u16
#         | count u32 | topic size u8 | zeros, 3 | topic | payload
#         kind 1: a part, as core/parts.pyx reads it      kind 2: the seal: parts u32, count u64
#
# Rule 1: a seal is acknowledged only after the file and its name are synced.
# Rule 2: at start only the heads of records are read.  Before a seal of an earlier process is
#         acknowledged again, the whole file is read and its checksums are verified.
# Rule 3: everything after bad bytes is ignored.  In a file whose seal was never acknowledged they
#         are torn, and truncated.  In others they are damage, and kept.
# Rule 4: if a part is sent twice, the last one is valid.

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.crc32c import crc32c
from penstock.errors import CorruptError, StorageError
from penstock.record import record
from penstock.storage.evidence import SUFFIX as CORRUPT
from penstock.storage.evidence import keep_evidence
from penstock.storage.files import Files
from penstock.storage.records import checked, is_checked

MAGIC = b"PENSTSTG"
RECORD_MAGIC = b"PST1"
VERSION = 1
PART, SEAL = 1, 2
DEFERRED = 1
NUMBER_MAX = (1 << 47) - 1  # `number << 16 | part` is the origin of a log batch, a positive i64

_HEADER = struct.Struct(">HHQqI16sq")
_RECORD = struct.Struct(">IIBBHIB3x")
_SEAL = struct.Struct(">IQ")
HEADER_SIZE = 12 + _HEADER.size
RECORD_SIZE = 8 + _RECORD.size
SEAL_SIZE = RECORD_SIZE + _SEAL.size
# The damaged part of a file.
HEADER, SEAL_RECORD = "header", "seal"
_NAME = re.compile(r"([0-9a-f]{16})\.staging")
_ASIDE = re.compile(r"([0-9a-f]{16})\.staging\.corrupt")


class Key(NamedTuple):
    """The name that Spark gives to a staging."""

    query: str
    batch: int
    partition: int
    attempt: str  # 32 lower-case hex digits


@record
class PartRecord:
    """A part in its file."""

    part: int
    topic: str
    deferred: bool
    count: int
    size: int
    crc: int
    offset: int  # of the payload

    @property
    def weight(self) -> int:
        return weight_of(self.topic, self.size)


@record
class Seal:
    """The end of a complete staging."""

    part_count: int
    count: int


@dataclass
class FoundStaging:
    """A file as it was found; ``good_size`` is the end of its last good record."""

    number: int
    key: Key
    created_ns: int
    size: int
    good_size: int
    parts: dict[int, PartRecord] = field(default_factory=dict)
    seal: Seal | None = None
    damaged: str = ""  # what is known from the notes and could not be read


def weight_of(topic: str, size: int) -> int:
    """The bytes of a part of ``size`` in its file."""
    return RECORD_SIZE + len(topic) + size


def origin_of(number: int, part: int) -> int:
    """The origin of the log batch that a part becomes."""
    return number << 16 | part


def encode_header(number: int, key: Key, created_ns: int) -> bytes:
    query = key.query.encode()
    fields = _HEADER.pack(
        VERSION,
        len(query),
        number,
        key.batch,
        key.partition,
        bytes.fromhex(key.attempt),
        created_ns,
    )
    return checked(MAGIC, fields + query)


def decode_header(data: bytes) -> tuple[int, Key, int, int] | None:
    """(number, key, created_ns, header size); None if damaged or of a later version"""
    if version_of(data) != VERSION:
        return None
    _, query_size, number, batch, partition, attempt, created_ns = _HEADER.unpack_from(data, 12)
    end = HEADER_SIZE + query_size
    query = data[HEADER_SIZE:end].decode("utf-8", "replace")
    return number, Key(query, batch, partition, attempt.hex()), created_ns, end


def version_of(data: bytes) -> int | None:
    """The version in a good header; None if it is damaged."""
    if len(data) < HEADER_SIZE:
        return None
    version, query_size = struct.unpack_from(">HH", data, 12)
    return version if is_checked(data, MAGIC, HEADER_SIZE + query_size) else None


def encode_part(
    number: int, part: int, topic: str, deferred: bool, count: int, body: bytes, crc: int
) -> list[bytes]:
    """The pieces of a record; ``crc`` is that of the body."""
    head = _encode_record(number, PART, DEFERRED * deferred, part, count, topic, len(body), crc)
    return [head, body]


def encode_seal(number: int, seal: Seal) -> bytes:
    payload = _SEAL.pack(seal.part_count, seal.count)
    return _encode_record(number, SEAL, 0, 0, 0, "", len(payload), crc32c(payload)) + payload


def _encode_record(
    number: int, kind: int, flags: int, part: int, count: int, topic: str, size: int, crc: int
) -> bytes:
    name = topic.encode()
    fields = _RECORD.pack(size, crc, kind, flags, part, count, len(name)) + name
    return checked(RECORD_MAGIC, fields, number.to_bytes(8, "big"))


@record
class StagingRecord:
    """The head of a record."""

    size: int
    crc: int
    kind: int
    flags: int
    part: int
    count: int
    topic: str
    head_size: int


def decode_record(data: bytes, number: int) -> StagingRecord | None:
    """Decode the head of the record at the start of ``data``; None if damaged or cut."""
    if len(data) < RECORD_SIZE:
        return None
    size, crc, kind, flags, part, count, topic_size = _RECORD.unpack_from(data, 8)
    end = RECORD_SIZE + topic_size
    if not is_checked(data, RECORD_MAGIC, end, number.to_bytes(8, "big")):
        return None
    topic = data[RECORD_SIZE:end].decode("ascii", "replace")
    return StagingRecord(size, crc, kind, flags, part, count, topic, end)


class StagingStore:
    """The staging files of one folder.  Every method may wait for the disk."""

    def __init__(self, files: Files, folder: str) -> None:
        self.files = files
        self.folder = folder

    def path(self, number: int) -> str:
        return f"{self.folder}/{number:016x}.staging"

    def numbers(self) -> list[int]:
        """The numbers of all stagings; removes leftovers of a crash."""
        found = []
        for name in self.files.list(self.folder):
            match = _NAME.fullmatch(name)
            if match is not None:
                found.append(int(match[1], 16))
            elif name.endswith((".new", ".tmp")):
                self.files.unlink(f"{self.folder}/{name}")
        return found

    def aside(self) -> list[int]:
        """The numbers of damaged ones that were kept."""
        found = (_ASIDE.fullmatch(name) for name in self.files.list(self.folder))
        return [int(match[1], 16) for match in found if match is not None]

    def append(self, number: int, pieces: list[bytes]) -> int:
        """Append bytes, all or nothing; return the size of the file."""
        return self.files.append(self.path(number), pieces)

    def sync(self, number: int) -> None:
        self.files.sync(self.path(number))
        self.files.sync_folder(self.folder)

    def cut(self, number: int, size: int) -> None:
        self.files.truncate(self.path(number), size)

    def read(self, number: int, part: PartRecord) -> bytes:
        """The body of a part; raises CorruptError if it is damaged."""
        path = self.path(number)
        body = self.files.pread(path, part.offset, part.size, True) or b""
        if len(body) != part.size or crc32c(body) != part.crc:
            raise CorruptError(f"{path}: part {part.part} at {part.offset} is damaged")
        return body

    def damaged(self, number: int, parts: Iterable[PartRecord]) -> list[int]:
        """The parts that are damaged."""
        bad = []
        for part in parts:
            try:
                self.read(number, part)
            except CorruptError:
                bad.append(part.part)
        return bad

    def head(self, number: int) -> bytes:
        """The start of a file with the whole header; StorageError if from a later version."""
        path = self.path(number)
        data = self.files.pread(path, 0, HEADER_SIZE + 0xFFFF, True) or b""
        version = version_of(data)
        if version is not None and version > VERSION:
            raise StorageError(f"{path}: written by a later version (format {version})")
        return data

    def is_torn(self, number: int) -> bool:
        """Whether the header is short or zeros, as a power cut leaves it."""
        data = self.head(number)
        return len(data) < HEADER_SIZE or not any(data[:HEADER_SIZE])

    def seal_at_end(self, number: int) -> Seal | None:
        """The seal at the end of a file, whatever is before it."""
        path = self.path(number)
        start = self.files.size(path) - SEAL_SIZE
        data = self.files.pread(path, start, SEAL_SIZE, True) or b"" if start > 0 else b""
        record = decode_record(data, number)
        payload = data[RECORD_SIZE:]
        if record is None or record.kind != SEAL or crc32c(payload) != record.crc:
            return None
        return Seal(*_SEAL.unpack(payload)) if len(payload) == _SEAL.size else None

    def put_aside(self, number: int) -> str:
        """Rename a damaged file to ``*.corrupt``; return the new name."""
        path = self.path(number)
        self.files.rename(path, f"{path}{CORRUPT}")
        self.files.sync_folder(self.folder)
        return f"{number:016x}.staging{CORRUPT}"

    def keep_head(self, found: FoundStaging) -> None:
        """Copy the damaged bytes to a ``*.corrupt`` file."""
        start = 0 if found.damaged == HEADER else found.good_size - SEAL_SIZE
        end = HEADER_SIZE if found.damaged == HEADER else found.good_size
        keep_evidence(self.files, self.path(found.number), start, end)

    def walk(
        self, number: int, key: Key | None = None, seal: Seal | None = None, sealed_size: int = 0
    ) -> FoundStaging | None:
        """The contents of a file, by the heads of its records; None without a good header.

        The ``key`` and ``seal``, if known, replace a damaged header or seal.
        """
        path = self.path(number)
        size = self.files.size(path)
        head = decode_header(self.head(number))
        if head is not None and head[0] == number:
            _, own, created_ns, at = head
            found = FoundStaging(number, own, created_ns, size, at)
        elif key is not None:
            at = HEADER_SIZE + len(key.query)
            found = FoundStaging(number, key, 0, size, at, damaged=HEADER)
        else:
            return None
        self._walk_records(found, path, at)
        if found.seal is None and seal and found.good_size + SEAL_SIZE == sealed_size <= size:
            found.seal, found.good_size, found.damaged = seal, sealed_size, SEAL_RECORD
        return found

    def _walk_records(self, found: FoundStaging, path: str, at: int) -> None:
        number, size = found.number, found.size
        while at < size and found.seal is None:
            data = self.files.pread(path, at, RECORD_SIZE + 255, True) or b""
            record = decode_record(data, number)
            if record is None or at + record.head_size + record.size > size:
                break
            offset = at + record.head_size
            if record.kind == PART:
                found.parts[record.part] = PartRecord(
                    record.part,
                    record.topic,
                    bool(record.flags & DEFERRED),
                    record.count,
                    record.size,
                    record.crc,
                    offset,
                )
            elif record.kind == SEAL:
                payload = self.files.pread(path, offset, record.size, True) or b""
                if record.size != _SEAL.size or crc32c(payload) != record.crc:
                    break
                found.seal = Seal(*_SEAL.unpack(payload))
            at = offset + record.size
            found.good_size = at

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.files.unlink(self.path(number))
