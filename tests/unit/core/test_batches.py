"""Batches: encoded, walked, and found again behind damage."""

from __future__ import annotations

import struct
import time

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches import (
    BAD_HEADER,
    BAD_PAYLOAD,
    BATCH_HEADER_SIZE,
    END,
    ORIGINS,
    PARTIAL,
    encode_batch_header,
    resync,
    scan,
)
from penstock.core.block import Block
from tests.unit.storage.build import batch, frame


def two() -> bytes:
    return batch(10, 2).bytes + batch(12, 1, body=b"x" * 1000).bytes


def test_damage_in_many_bytes_is_found_where_it_is() -> None:
    """They are verified without the interpreter's lock first, which must not change the result."""
    whole = [batch(10 + n, 1, body=bytes(20_000)).bytes for n in range(6)]
    data = bytearray(b"".join(whole))
    assert len(scan(bytes(data), 0, True).batches) == 6
    data[len(whole[0]) * 4 + 300] ^= 1
    result = scan(bytes(data), 0, True)
    assert (len(result.batches), result.stop, result.reason) == (4, len(whole[0]) * 4, BAD_PAYLOAD)
    assert (result.first, result.count) == (14, 1)


def test_a_header_has_the_documented_layout() -> None:
    payload = frame(10) + frame(11)
    header = encode_batch_header(payload, 10, 2, 111, 222, 333, ORIGINS)
    assert len(header) == BATCH_HEADER_SIZE == 56
    fields = struct.unpack(">4sIIIQIHHqqq", header)
    assert fields[0] == b"PSB1"
    assert fields[1] == crc32c(header[8:])
    assert fields[2:] == (len(payload), crc32c(payload), 10, 2, ORIGINS, 0, 111, 222, 333)


def test_a_scan_gives_whole_batches() -> None:
    data = two()
    found = scan(data, 0, True)
    assert (found.reason, found.stop) == (END, len(data))
    assert [b[:2] for b in found.batches] == [(10, 2), (12, 1)]
    first = found.batches[0]
    assert data[first[2] : first[3]] == frame(10) + frame(11)
    assert first[4:] == (1000, 0, 0)


def test_a_scan_leaves_the_ordinals_out_of_the_frames() -> None:
    made = batch(10, 2, slot=99, ordinals=[5, 6])
    found = scan(made.bytes, 0, True)
    _, _, start, end, _, slot, flags = found.batches[0]
    assert made.bytes[start:end] == frame(10) + frame(11)
    assert made.bytes[end:] == struct.pack(">2I", 5, 6)
    assert (slot, flags) == (99, ORIGINS)


def test_spans_make_a_block_from_the_batch_that_holds_an_index() -> None:
    data = two()
    block = Block(data, scan(data, 0, True).spans(11), 7)
    assert (block.first, block.end, block.frame(12)) == (10, 13, frame(12, b"x" * 1000))
    assert scan(data, 0, True).spans(12) == [scan(data, 0, True).batches[1][:5]]
    assert scan(data, 0, True).spans(13) == []


def test_every_cut_leaves_the_whole_batches_and_says_partial() -> None:
    data = two()
    first_size = len(batch(10, 2).bytes)
    for cut in range(1, len(data)):
        found = scan(data[:cut], 0, True)
        assert len(found.batches) == (cut >= first_size)
        assert found.reason == (END if cut == first_size else PARTIAL)
        assert found.stop == (first_size if cut >= first_size else 0)
        if cut - found.stop >= BATCH_HEADER_SIZE:
            assert found.size == (first_size if not found.stop else len(data) - first_size)


def test_every_flipped_bit_is_noticed() -> None:
    size = len(batch(10, 2).bytes)
    for bit in range(size * 8):
        data = bytearray(two())
        data[bit // 8] ^= 1 << bit % 8
        found = scan(bytes(data), 0, True)
        assert found.batches == [] and found.stop == 0
        if bit // 8 < BATCH_HEADER_SIZE:
            assert (found.reason, found.size) == (BAD_HEADER, 0)
        else:
            assert (found.reason, found.first, found.count) == (BAD_PAYLOAD, 10, 2)
            assert found.size == size


def test_frames_that_do_not_add_up_are_a_bad_payload() -> None:
    wrong_count = frame(10) + frame(11)
    wrong_type = frame(10)[:4] + b"\0\0\0\1" + frame(10)[8:]
    too_long = struct.pack(">I", 999) + frame(10)[4:]
    too_short = struct.pack(">I", 29) + frame(10)[4:]
    for payload, count in [(wrong_count, 1), (wrong_type, 1), (too_long, 1), (too_short, 1)]:
        data = encode_batch_header(payload, 10, count, 0, 0) + payload
        assert scan(data, 0, True).reason == BAD_PAYLOAD
        assert scan(data, 0, False).reason == END


@pytest.mark.parametrize(
    ("first", "count"), [(10, 0), (1 << 54, 1), ((1 << 54) - 1, 2), (-1, 1), (10, 100)]
)
def test_a_header_that_cannot_be_true_is_bad(first: int, count: int) -> None:
    payload = frame(10) + frame(11)
    data = encode_batch_header(payload, first, count, 0, 0) + payload
    assert scan(data, 0, True).reason == BAD_HEADER


def test_indexes_never_go_back() -> None:
    data = batch(10, 2).bytes + batch(11, 1).bytes
    assert scan(data, 0, True).reason == BAD_HEADER
    assert scan(batch(10).bytes, 0, True, index_min=11).reason == BAD_HEADER
    assert scan(batch(10).bytes + batch(50).bytes, 0, True).reason == END


def test_resync_finds_the_next_header() -> None:
    good = batch(20).bytes
    assert resync(b"PSB1 and PPPSB1" + good, 0) == 15
    assert resync(good, 1) == -1
    assert resync(good[:56], 0) == 0  # the header is there; what follows is the scan's business
    assert resync(good[:55], 0) == -1
    assert resync(b"junk" + good, 0, index_min=21) == -1
    assert resync(b"", 0) == -1


def test_an_offset_outside_is_refused() -> None:
    with pytest.raises(ValueError):
        scan(b"abc", 4, True)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_end_a_scan(data: bytes, verify: bool) -> None:
    found = scan(data, 0, verify)
    assert found.stop == 0 and found.batches == []
    assert resync(data, 0) == -1


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 500))
def test_where_the_bytes_are_split_does_not_change_the_batches(counts: list[int], at: int) -> None:
    parts, first = [], 100
    for count in counts:
        parts.append(batch(first, count).bytes)
        first += count + 1
    data = b"".join(parts)
    head = scan(data[:at], 0, True)
    rest = scan(data[head.stop :], 0, True)
    together = [b[:2] for b in head.batches + rest.batches]
    assert together == [b[:2] for b in scan(data, 0, True).batches]


def test_a_hundred_thousand_batches_scan_in_a_moment() -> None:
    data = b"".join(batch(i).bytes for i in range(20000))
    started = time.perf_counter()
    assert len(scan(data, 0, True).batches) == 20000
    assert time.perf_counter() - started < 0.2  # 8 ms on a slow machine
