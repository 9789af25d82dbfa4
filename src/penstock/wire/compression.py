"""Compressed streams: what a client and nsqd send after snappy or deflate was negotiated.

    deflate   raw DEFLATE, no zlib header; one stream a direction, a sync flush after each send
    snappy    the framing format:  kind u8 | size u24 little-endian | ...
                0xff  stream identifier "sNaPpY", first of all; again at any time
                0x00  masked CRC-32C u32 of what comes out | block of at most 64 KiB, packed
                0x01  masked CRC-32C u32 | the same unpacked
                0x80 .. 0xfe  to be skipped;  0x02 .. 0x7f  an error

Rule 1: no I/O.  Where the bytes are split never changes what comes out.
Rule 2: one call gives at most about ``UNPACKED_SIZE_MAX`` bytes, whatever came in: 64 KiB of
        deflate can hold 64 MiB.  ``pending`` tells that there is more to get without more input.
Rule 3: a peer that sends one byte a packet costs O(n); sizes are judged when declared.
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
        """Return what ``data``, and what was left before it, unpacks to.  Raises StreamError."""


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
        self._rest = b""

    @property
    def pending_size(self) -> int:
        return len(self._rest)

    def compress(self, parts: Sequence[Part]) -> bytes:
        packed = self._deflate.compress(joined(parts))
        return packed + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> bytes:
        inflate = self._inflate
        if self.ended:
            return b""
        try:
            clear = inflate.decompress(self._rest + data, UNPACKED_SIZE_MAX)
        except zlib.error as error:
            raise StreamError(f"deflate: {error}") from None
        self._rest = inflate.unconsumed_tail
        self.ended = inflate.eof
        # With the last input gone, the end of a match may still wait for room.
        self.pending = not self.ended and (bool(self._rest) or len(clear) >= UNPACKED_SIZE_MAX)
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
            # As in nsqd's library: not worth the reader's time below an eighth.
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
            self._judge(kind, chunk_size)
            if _SKIPPED_FIRST <= kind < _IDENTIFIER:
                self._skip_size = chunk_size
                at += _HEAD_SIZE
                continue
            end = at + _HEAD_SIZE + chunk_size
            if len(received) < end:
                break
            block = self._take(kind, bytes(received[at + _HEAD_SIZE : end]))
            out.append(block)
            # A chunk of nothing counts too, or a packet full of them would hold the loop.
            size += len(block) + 64
            at = end
        self.pending = size >= UNPACKED_SIZE_MAX and len(received) > at
        del received[:at]
        return b"".join(out)

    def _skip(self, available: int) -> int:
        size = min(self._skip_size, available)
        self._skip_size -= size
        return size

    def _judge(self, kind: int, size: int) -> None:
        if not self._identified and kind != _IDENTIFIER:
            raise StreamError("snappy: no stream identifier")
        if kind in _SIZES:
            size_min, size_max = _SIZES[kind]
            if not size_min <= size <= size_max:
                raise StreamError(f"snappy: chunk of kind {kind} and size {size}")
        elif kind < _SKIPPED_FIRST:
            raise StreamError(f"snappy: chunk of unknown kind {kind}")

    def _take(self, kind: int, chunk: bytes) -> bytes:
        """What one chunk holds."""
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
