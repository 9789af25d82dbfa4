"""Records in files: how they are framed and checksummed, and how they are found again.

    Framing   magic | kind u8 | zero u8 | payload size u32 | crc u32 of kind .. size and the payload
              | payload
              in the journal ("PJ"), the ledger and the staging notes (both "PL")
    checked   magic | crc u32 of a seed and the content | content
              headers of files, a segment's trailer, entries of deferred.counts, checkpoints of
              .fired, heads of staged parts

Integers are big-endian, a crc is a CRC-32C.  A seed is not stored: without it, nobody can put a
valid record into a body.  Batches of a log and records of slot files are handled by compiled code
(core/batches.pyx, core/slots.pyx).

Rule 1 (R3): bad bytes before a good record are corrupt: no crash leaves that.  Those at the end are
             torn.
Rule 2: after bad bytes the next good record is searched for by its magic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.core.crc32c import crc32c

_FRAME = struct.Struct(">BBII")
_CRC_SIZE = 4


class FoundRecord(NamedTuple):
    """A record in [start, end) of a file or, without a payload, bad bytes."""

    start: int
    end: int
    kind: int = 0
    payload: bytes | None = None
    torn: bool = False  # bad bytes that no good record follows


class Framing(NamedTuple):
    """The records of one kind of file; a larger size than ``payload_size_max`` is bad."""

    magic: bytes
    payload_size_max: int

    @property
    def head_size(self) -> int:
        return len(self.magic) + _FRAME.size

    def encode(self, kind: int, payload: bytes) -> bytes:
        assert len(payload) <= self.payload_size_max
        head = _FRAME.pack(kind, 0, len(payload), 0)[:-_CRC_SIZE]
        crc = crc32c(payload, crc32c(head)).to_bytes(_CRC_SIZE, "big")
        return b"".join((self.magic, head, crc, payload))

    def record_at(self, data: bytes, at: int) -> FoundRecord | None:
        """The record that starts at ``at``, None if it is bad or cut."""
        start = at + len(self.magic)
        if not data.startswith(self.magic, at) or start + _FRAME.size > len(data):
            return None
        kind, _, size, crc = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + size
        if size > self.payload_size_max or end > len(data):
            return None
        payload = data[end - size : end]
        head = data[start : start + _FRAME.size - _CRC_SIZE]
        good = crc32c(payload, crc32c(head)) == crc
        return FoundRecord(at, end, kind, payload) if good else None

    def records(self, data: bytes) -> Iterator[FoundRecord]:
        return find_records(data, self.magic, self.record_at)


def find_records(
    data: bytes, magic: bytes, record_at: Callable[[bytes, int], FoundRecord | None]
) -> Iterator[FoundRecord]:
    """All of ``data`` as good records and the bad bytes between them, in order."""
    at, bad_at = 0, -1
    while 0 <= at < len(data):
        found = record_at(data, at)
        if found is None:
            bad_at = at if bad_at < 0 else bad_at
            at = data.find(magic, at + 1)
            continue
        if bad_at >= 0:
            yield FoundRecord(bad_at, at)
            bad_at = -1
        yield found
        at = found.end
    if bad_at >= 0:
        yield FoundRecord(bad_at, len(data), torn=True)


def checked(magic: bytes, content: bytes, seed: bytes = b"") -> bytes:
    """``magic``, the crc of ``seed`` and ``content``, and ``content``."""
    crc = crc32c(content, crc32c(seed))
    return b"".join((magic, crc.to_bytes(_CRC_SIZE, "big"), content))


def is_checked(data: bytes, magic: bytes, end: int, seed: bytes = b"", at: int = 0) -> bool:
    """Whether ``data`` has at [at, end) what ``checked`` gives for ``magic`` and ``seed``."""
    content_at = at + len(magic) + _CRC_SIZE
    if not data.startswith(magic, at) or not content_at <= end <= len(data):
        return False
    crc = int.from_bytes(data[content_at - _CRC_SIZE : content_at], "big")
    return crc32c(data[content_at:end], crc32c(seed)) == crc
