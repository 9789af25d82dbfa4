"""Compressed streams, after snappy or deflate was negotiated.

    deflate   raw DEFLATE, no zlib header; one stream per direction, a sync flush after each send
    snappy    the framing format:  kind u8 | size u24 little-endian | ...
                0xff  stream identifier "sNaPpY", first of all; again at any time
                0x00  masked CRC-32C u32 of the unpacked bytes | block of at most 64 KiB, packed
                0x01  masked CRC-32C u32 | block, not packed
                0x80 .. 0xfe  to be skipped;  0x02 .. 0x7f  an error

Rule 1: no I/O.  Where the bytes are split never changes the output.
Rule 2: one call returns at most about ``UNPACKED_SIZE_MAX`` bytes: 64 KiB of deflate can unpack to
        64 MiB.  ``pending``: there is more output without more input.
Rule 3: a peer that sends one byte a packet costs O(n); sizes are checked when declared.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import cramjam

from penstock.core.crc32c import crc32c
from penstock.errors import StreamError

UNPACKED_SIZE_MAX = 256 << 10

Part = bytes | memoryview


class Packing(Protocol):
    """One connection's compression, both directions."""

    name: str
    ended: bool  # the peer has ended its stream

    @property
    def pending(self) -> bool: ...

    @property
    def pending_size(self) -> int:
        """Bytes received and not unpacked."""

    def compress(self, parts: Sequence[Part]) -> bytes:
        """Return the bytes to send for ``parts``; the peer can unpack all of them."""

    def decompress(self, data: bytes) -> bytes:
        """Unpack ``data``, after what is pending.  Raises StreamError."""


def joined(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Deflate:
    """Raw DEFLATE at a level from 1 (fast) to 9 (small)."""

    name = "deflate"

    def __init__(self, level: int) -> None:
        self.ended = False
        self.pending = False
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._unconsumed = b""

    @property
    def pending_size(self) -> int:
        return len(self._unconsumed)

    def compress(self, parts: Sequence[Part]) -> bytes:
        packed = self._deflate.compress(joined(parts))
        return packed + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> bytes:
        inflate = self._inflate
        if self.ended:
            return b""
        try:
            clear = inflate.decompress(self._unconsumed + data, UNPACKED_SIZE_MAX)
        except zlib.error as error:
            raise StreamError(f"deflate: {error}") from None
        self._unconsumed = inflate.unconsumed_tail
        self.ended = inflate.eof
        # Even without input, the end of a match may be pending.
        self.pending = not self.ended and (
            bool(self._unconsumed) or len(clear) >= UNPACKED_SIZE_MAX
        )
        return clear


STREAM_ID = b"\xff\x06\x00\x00sNaPpY"
BLOCK_SIZE_MAX = 65536
# What 64 KiB may grow to when packed, by the format's own formula.
_PACKED_SIZE_MAX = 32 + BLOCK_SIZE_MAX + BLOCK_SIZE_MAX // 6
_HEAD_SIZE, _CRC_SIZE = 4, 4
_PACKED, _UNPACKED, _SKIPPED_FIRST, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_SIZES = {
    _PACKED: (_CRC_SIZE + 1, _CRC_SIZE + _PACKED_SIZE_MAX),
    _UNPACKED: (_CRC_SIZE, _CRC_SIZE + BLOCK_SIZE_MAX),
    _IDENTIFIER: (len(STREAM_ID) - _HEAD_SIZE, len(STREAM_ID) - _HEAD_SIZE),
}


class Snappy:
    """The snappy framing format."""

    name = "snappy"

    def __init__(self) -> None:
        self.ended = False
        self.pending = False
        self._sent = False
        self._identified = False
        self._received = bytearray()
        self._skip_size = 0

    @property
    def pending_size(self) -> int:
        return len(self._received)

    def compress(self, parts: Sequence[Part]) -> bytes:
        data = joined(parts)
        chunks = [] if self._sent else [STREAM_ID]
        self._sent = True
        for at in range(0, len(data), BLOCK_SIZE_MAX):
            block = bytes(data[at : at + BLOCK_SIZE_MAX])
            packed = bytes(cramjam.snappy.compress_raw(block))
            # As in nsqd's library: not packed if it saves less than an eighth.
            if len(packed) < len(block) - len(block) // 8:
                chunks.append(_head(_PACKED, len(packed), block))
                chunks.append(packed)
            else:
                chunks.append(_head(_UNPACKED, len(block), block))
                chunks.append(block)
        return b"".join(chunks)

    def decompress(self, data: bytes) -> bytes:
        received = self._received
        received += data
        out: list[bytes] = []
        at = size = 0
        while size < UNPACKED_SIZE_MAX:
            at += self._skip(len(received) - at)
            if len(received) - at < _HEAD_SIZE:
                break
            kind = received[at]
            chunk_size = int.from_bytes(received[at + 1 : at + _HEAD_SIZE], "little")
            self._check(kind, chunk_size)
            if _SKIPPED_FIRST <= kind < _IDENTIFIER:
                self._skip_size = chunk_size
                at += _HEAD_SIZE
                continue
            end = at + _HEAD_SIZE + chunk_size
            if len(received) < end:
                break
            block = self._take(kind, bytes(received[at + _HEAD_SIZE : end]))
            out.append(block)
            # Empty chunks count too, or a packet full of them would block the loop.
            size += len(block) + 64
            at = end
        self.pending = size >= UNPACKED_SIZE_MAX and len(received) > at
        del received[:at]
        return b"".join(out)

    def _skip(self, available: int) -> int:
        size = min(self._skip_size, available)
        self._skip_size -= size
        return size

    def _check(self, kind: int, size: int) -> None:
        if not self._identified and kind != _IDENTIFIER:
            raise StreamError("snappy: no stream identifier")
        if kind in _SIZES:
            size_min, size_max = _SIZES[kind]
            if not size_min <= size <= size_max:
                raise StreamError(f"snappy: chunk of kind {kind} and size {size}")
        elif kind < _SKIPPED_FIRST:
            raise StreamError(f"snappy: chunk of unknown kind {kind}")

    def _take(self, kind: int, chunk: bytes) -> bytes:
        """The unpacked bytes of one chunk."""
        if kind == _IDENTIFIER:
            if chunk != STREAM_ID[_HEAD_SIZE:]:
                raise StreamError("snappy: wrong stream identifier")
            self._identified = True
            return b""
        block = chunk[_CRC_SIZE:]
        if kind == _PACKED:
            block = _unpack(block)
        if masked_crc(block) != int.from_bytes(chunk[:_CRC_SIZE], "little"):
            raise StreamError("snappy: wrong checksum")
        return block


def masked_crc(block: bytes) -> int:
    crc = crc32c(block)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _head(kind: int, size: int, block: bytes) -> bytes:
    head = bytes((kind,)) + (_CRC_SIZE + size).to_bytes(3, "little")
    return head + masked_crc(block).to_bytes(_CRC_SIZE, "little")


def _unpack(packed: bytes) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(packed) > BLOCK_SIZE_MAX:
            raise StreamError("snappy: block too big")
        return bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as error:
        raise StreamError(f"snappy: {error}") from None
