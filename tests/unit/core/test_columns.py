"""Log batches as Arrow's columns, and columns as bodies of MPUB."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches import encode_batch_header
from penstock.core.columns import BODY, ID, INDEX, TIMESTAMP, Columns, Packer, decode
from penstock.errors import CorruptError
from tests.unit.storage.build import batch, frame

ALL = INDEX | TIMESTAMP | ID | BODY


def longs(data: bytes | None) -> list[int]:
    assert data is not None
    return [value for (value,) in struct.iter_unpack("=q", data)]


def bodies(columns: Columns) -> list[bytes]:
    assert columns.body is not None and columns.body_offsets is not None
    at = [value for (value,) in struct.iter_unpack("=i", columns.body_offsets)]
    return [columns.body[start:end] for start, end in itertools.pairwise(at)]


def batch_of(first: int, sent: list[tuple[int, bytes]]) -> bytes:
    """A batch of (timestamp, body)."""
    frames = [frame(first + i, body, stamp) for i, (stamp, body) in enumerate(sent)]
    payload = b"".join(frames)
    return encode_batch_header(payload, first, len(sent), 1000, 5) + payload


def test_every_column_of_a_message_is_decoded() -> None:
    data = batch_of(10, [(1_999, b"one"), (2_000, b""), (-1, b"three")]) + batch(20, 1).bytes
    columns = decode(data, 0, 1 << 54, ALL)
    assert columns.count == 4
    assert longs(columns.index) == [10, 11, 12, 20]
    assert longs(columns.timestamp) == [1, 2, -1, 0]
    assert columns.id == b"".join(b"%016x" % (7 << 54 | i) for i in (10, 11, 12, 20))
    assert columns.id_offsets == struct.pack("=5i", 0, 16, 32, 48, 64)
    assert bodies(columns) == [b"one", b"", b"three", b"body"]


def test_columns_not_asked_for_are_not_made() -> None:
    data = batch(10, 3).bytes
    for wanted in range(16):
        columns = decode(data, 0, 100, wanted)
        made = {
            INDEX: columns.index,
            TIMESTAMP: columns.timestamp,
            ID: columns.id,
            BODY: columns.body,
        }
        assert columns.count == 3
        assert {flag for flag, column in made.items() if column is not None} == {
            flag for flag in made if wanted & flag
        }
        assert (columns.body_offsets is None) == (columns.body is None)
        assert (columns.id_offsets is None) == (columns.id is None)


def test_rows_are_cut_to_the_range_at_every_place() -> None:
    data = batch(10, 3).bytes + batch(15, 2).bytes + batch(17, 1).bytes
    all_indexes = [10, 11, 12, 15, 16, 17]
    for start in range(8, 20):
        for end in range(8, 20):
            wanted = [index for index in all_indexes if start <= index < end]
            columns = decode(data, start, end, ALL)
            assert longs(columns.index) == wanted
            assert bodies(columns) == [b"body"] * len(wanted)


def test_ordinals_of_deferred_messages_are_no_rows() -> None:
    data = batch(10, 2, slot=99, ordinals=[5, 6]).bytes + batch(12, 1).bytes
    assert longs(decode(data, 0, 100, INDEX).index) == [10, 11, 12]


def test_batches_are_decoded_in_steps_of_about_a_size() -> None:
    batches = [batch(10 + 3 * i, 3).bytes for i in range(5)]
    data, size = b"".join(batches), len(batches[0])
    for size_max in range(3 * size):
        found, offset, steps = [], 0, 0
        while offset < len(data):
            columns = decode(data, 11, 24, ALL, offset, max(1, size_max))
            assert columns.stop - offset < max(1, size_max) + size
            found += longs(columns.index)
            offset, steps = columns.stop, steps + 1
        assert found == list(range(11, 24))
        assert steps == -(-5 // max(1, -(-size_max // size)))
    for offset, size_max in ((-1, 5), (len(data) + 1, 5), (0, -1)):
        with pytest.raises(ValueError, match="is outside"):
            decode(data, 0, 100, ALL, offset, size_max)
    assert decode(data, 0, 100, ALL, len(data)).count == 0


def test_no_bytes_are_no_rows() -> None:
    columns = decode(b"", 0, 100, ALL)
    assert (columns.count, columns.index, bodies(columns)) == (0, b"", [])


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = batch(10, 2).bytes
    for at in range(len(data)):
        with pytest.raises(CorruptError):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 0, 100, ALL)
        if at:
            with pytest.raises(CorruptError, match="damaged at byte 0"):
                decode(data[:at], 0, 100, ALL)


def column(rows: list[bytes], *, wide: bool = False) -> tuple[bytes, bytes]:
    """(offsets, values) as Arrow has them."""
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    return struct.pack(f"={len(ends)}{'q' if wide else 'i'}", *ends), b"".join(rows)


def unpacked(part: tuple[bytes, int], *, deferred: bool = False) -> list[tuple[int, bytes]]:
    """(due_ns, body) of each message; every byte must belong to one."""
    data, told = part
    (count,) = struct.unpack_from(">I", data)
    at, found = 4, []
    for _ in range(count):
        due_ns = 0
        if deferred:
            (due_ns,) = struct.unpack_from(">q", data, at)
            at += 8
        (size,) = struct.unpack_from(">I", data, at)
        found.append((due_ns, data[at + 4 : at + 4 + size]))
        at += 4 + size
    assert at == len(data) and count == told
    return found


@given(
    rows=st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    size_max=st.integers(34, 300),
    wide=st.booleans(),
    deferred=st.booleans(),
    cut=st.integers(0, 30),
)
def test_packing_keeps_all_bodies_in_order(
    rows: list[bytes], size_max: int, wide: bool, deferred: bool, cut: int
) -> None:
    packer = Packer(size_max, deferred)
    offsets, values = column(rows, wide=wide)
    due = struct.pack(f"={len(rows)}q", *(i - 3 for i in range(len(rows)))) if deferred else None
    cut = min(cut, len(rows))
    parts = packer.add(offsets, wide, values, 0, cut, due)
    parts += packer.add(offsets, wide, values, cut, len(rows) - cut, due)
    parts.append(packer.take())
    found = [one for part in parts for one in unpacked(part, deferred=deferred)]
    assert found == [(i - 3 if deferred else 0, row) for i, row in enumerate(rows)]
    for part in parts:
        frames = sum(34 + len(body) for _, body in unpacked(part, deferred=deferred))
        assert part[1] <= 1 or frames <= size_max
    for part, following in itertools.pairwise(parts[:-1]):
        (_, body), *_ = unpacked(following, deferred=deferred)
        frames = sum(34 + len(body) for _, body in unpacked(part, deferred=deferred))
        assert frames + 34 + len(body) > size_max, "a part that could have been fuller"
    assert packer.take() == (b"\0\0\0\0", 0)


def test_an_empty_body_is_refused_with_its_row() -> None:
    offsets, values = column([b"a", b"", b"c"])
    with pytest.raises(ValueError, match="row 1: the body is empty"):
        Packer(100, False).add(offsets, False, values, 0, 3)


def test_columns_that_lie_about_themselves_are_refused() -> None:
    offsets, values = column([b"aa", b"bb"])
    with pytest.raises(ValueError, match="row 1: its offsets are outside"):
        Packer(100, False).add(offsets, False, values[:3], 0, 2)
    with pytest.raises(ValueError, match="row 0: its offsets are outside"):
        Packer(100, False).add(struct.pack("=2i", 2, 1), False, values, 0, 1)
    with pytest.raises(ValueError, match="shorter than its rows"):
        Packer(100, False).add(offsets, False, values, 0, 3)
    with pytest.raises(ValueError, match="shorter than its rows"):
        Packer(100, True).add(offsets, False, values, 0, 2, b"12345678")
    with pytest.raises(ValueError, match="do not fit"):
        Packer(100, True).add(offsets, False, values, 0, 2)
    with pytest.raises(ValueError, match="do not fit"):
        Packer(100, False).add(offsets, False, values, -1, 2)
    with pytest.raises(ValueError, match="out of range"):
        Packer(15, False)
