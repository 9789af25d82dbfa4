"""Compressed streams: captured bytes, every split, bombs, and what is not a stream."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StreamError
from penstock.wire.compression import (
    BLOCK_SIZE_MAX,
    STREAM_ID,
    UNPACKED_SIZE_MAX,
    Deflate,
    Packing,
    Snappy,
    masked_crc,
)

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
MAKES: dict[str, Callable[[], Packing]] = {"deflate": lambda: Deflate(6), "snappy": Snappy}
both = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)

# As sent by nsqd 1.3.0.
SNAPPY_OK = bytes.fromhex("ff060000734e61507059 01 0e0000 26982bcf") + OK
DEFLATE_OK = bytes.fromhex("62606060636060 60f0f7060000 00ffff")
DEFLATE_EMPTY_FLUSH = bytes.fromhex("000000ffff")


def unpacked(packing: Packing, *pieces: bytes) -> bytes:
    """Everything that comes out, as a connection would get it."""
    out = []
    for piece in pieces:
        out.append(packing.decompress(piece))
        while packing.pending:
            out.append(packing.decompress(b""))
    return b"".join(out)


def test_snappy_sends_what_nsqd_sends() -> None:
    assert Snappy().compress([OK]) == SNAPPY_OK


def test_captured_streams_are_read() -> None:
    assert unpacked(Snappy(), SNAPPY_OK) == OK
    assert unpacked(Deflate(6), DEFLATE_OK + DEFLATE_EMPTY_FLUSH) == OK


def test_deflate_is_raw_and_ends_each_send_with_a_sync_flush() -> None:
    packing = Deflate(6)
    reader = zlib.decompressobj(-15)
    for text in (b"one", b"two", b"three"):
        sent = packing.compress([text])
        assert sent.endswith(b"\x00\x00\xff\xff")
        assert reader.decompress(sent) == text


def test_a_higher_level_packs_better() -> None:
    text = b"".join(b"%d squared is %d; " % (n, n * n) for n in range(3000))
    assert len(Deflate(9).compress([text])) < len(Deflate(1).compress([text]))


@both
@settings(deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=300) | st.just(b"repeat " * 60), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
)
def test_where_the_bytes_are_split_does_not_matter(
    make: Callable[[], Packing], bodies: list[bytes], cuts: list[int]
) -> None:
    sender = make()
    wire = b"".join(sender.compress([body, memoryview(body)]) for body in bodies)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[a:b] for a, b in itertools.pairwise(edges)]
    assert unpacked(make(), *pieces) == b"".join(body * 2 for body in bodies)


@both
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 300_000])
def test_sizes_around_a_block(make: Callable[[], Packing], size: int) -> None:
    for body in (random.Random(size).randbytes(size), b"x" * size):
        wire = make().compress([body])
        assert unpacked(make(), wire) == body
        assert unpacked(make(), *(bytes([byte]) for byte in wire[:2000]), wire[2000:]) == body


@both
def test_a_bomb_comes_out_in_bounded_pieces(make: Callable[[], Packing]) -> None:
    size = 20 << 20
    wire = make().compress([b"\0" * size])
    packing = make()
    piece = packing.decompress(wire)
    total = len(piece)
    while packing.pending:
        piece = packing.decompress(b"")
        assert len(piece) <= UNPACKED_SIZE_MAX + BLOCK_SIZE_MAX
        total += len(piece)
    assert total == size


def test_a_flood_of_empty_snappy_chunks_is_bounded_too() -> None:
    packing = Snappy()
    assert packing.decompress(STREAM_ID * 100_000) == b""
    assert packing.pending
    assert unpacked(packing, b"", SNAPPY_OK) == OK


def chunk(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(3, "little") + content


def crc_of(block: bytes) -> bytes:
    return masked_crc(block).to_bytes(4, "little")


def test_chunks_to_skip_are_skipped_without_being_kept() -> None:
    packing = Snappy()
    assert packing.decompress(STREAM_ID + b"\x80\xff\xff\xff") == b""
    for _ in range(0xFFFFFF // 65535):
        assert packing.decompress(b"?" * 65535) == b""
    assert unpacked(packing, b"?" * (0xFFFFFF % 65535), SNAPPY_OK) == OK


@pytest.mark.parametrize(
    "wire",
    [
        b"\x01\x0e\x00\x00" + crc_of(OK) + OK,
        b"\xff\x06\x00\x00SnApPy",
        b"\xff\x05\x00\x00sNaPp",
        STREAM_ID + chunk(0x02, b"x"),
        STREAM_ID + chunk(0x7F, b"x"),
        STREAM_ID + chunk(0x01, b"abc"),
        STREAM_ID + chunk(0x01, b"\x00\x00\x00\x00" + OK),
        STREAM_ID + b"\x01\x05\x00\x01",
        STREAM_ID + b"\x00\x00\x00\x02",
        STREAM_ID + chunk(0x00, b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff\x0f"),
        STREAM_ID + chunk(0x00, b"\x00\x00\x00\x00" + b"\x05nonsense"),
        STREAM_ID + chunk(0x00, b"\x00\x00\x00\x00" + b"\xff" * 12),
    ],
)
def test_what_is_no_snappy_stream_is_refused(wire: bytes) -> None:
    with pytest.raises(StreamError, match="snappy: "):
        unpacked(Snappy(), wire)


def test_what_is_no_deflate_stream_is_refused() -> None:
    with pytest.raises(StreamError, match="deflate: "):
        unpacked(Deflate(6), b"\xff\xff\xff\xff")


def test_a_deflate_stream_may_end() -> None:
    packing = Deflate(6)
    writer = zlib.compressobj(6, zlib.DEFLATED, -15)
    assert packing.decompress(writer.compress(b"last") + writer.flush()) == b"last"
    assert packing.ended and not packing.pending
    assert packing.decompress(b"more") == b""


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_a_flipped_bit_is_an_error_or_still_waited_for(body: bytes, at: int) -> None:
    wire = bytearray(Snappy().compress([body + b"tail"]))
    at %= len(wire) * 8
    wire[at // 8] ^= 1 << at % 8
    try:
        assert unpacked(Snappy(), bytes(wire)) == b""
    except StreamError:
        return


@both
@given(pieces=st.lists(st.binary(max_size=100), max_size=8), begins=st.booleans())
def test_noise_is_an_error_or_nothing(
    make: Callable[[], Packing], pieces: list[bytes], begins: bool
) -> None:
    """Nothing but a StreamError, whatever a peer sends."""
    packing = make()
    try:
        unpacked(packing, make().compress([b"x"]) if begins else b"", *pieces)
    except StreamError:
        return
