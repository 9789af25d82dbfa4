"""Records of deferred messages: packed, found again, read back."""

from __future__ import annotations

import pytest

from penstock.core.slots import HEADER_SIZE, SlotBatch, parse_record, scan

NUMBER = 1_800_000_000 << 30 | 7


def pack(count: int, number: int = NUMBER, body: bytes = b"hello") -> tuple[bytes, list[int]]:
    batch = SlotBatch(number)
    ends = []
    for ordinal in range(count):
        batch.add(ordinal, b"orders", 42, body, 1000 + ordinal, 5000 - ordinal, ordinal + 1)
        ends.append(batch.size)
    return batch.packed(), ends


def ordinals(data: bytes, number: int = NUMBER) -> list[int]:
    return [row[0] for row in scan(data, 0, len(data), number).rows()]


def test_a_record_is_read_back_as_it_was_accepted() -> None:
    data, _ = pack(1)
    due = parse_record(data, NUMBER, 0)
    assert due is not None
    assert (due.slot, due.ordinal, due.topic, due.instance) == (NUMBER, 0, "orders", 42)
    assert (due.timestamp_ns, due.due_ns, due.stamp, due.body) == (1000, 5000, 1, b"hello")


def test_a_scan_finds_place_size_due_time_instance_and_stamp() -> None:
    data, ends = pack(3)
    size = HEADER_SIZE + len(b"orders") + len(b"hello")
    found = scan(data, 40, 40 + len(data), NUMBER)
    assert found.rows() == [
        (ordinal, 40 + size * ordinal, size, 5000 - ordinal, 42, ordinal + 1)
        for ordinal in range(3)
    ]
    assert found.next_offset == 40 + ends[-1]
    assert (found.corrupt_count, found.torn_size) == (0, 0)


def test_every_cut_leaves_the_whole_records_before_it() -> None:
    """D-15: a torn tail costs only what is torn."""
    data, ends = pack(4)
    for cut in range(len(data) + 1):
        found = scan(data[:cut], 0, cut, NUMBER)
        whole = sum(end <= cut for end in ends)
        assert found.count == whole
        assert found.torn_size == cut - (ends[whole - 1] if whole else 0)
        assert found.corrupt_count == 0
        assert found.next_offset == cut


def test_every_flipped_bit_costs_at_most_its_own_record() -> None:
    """D-15: a damaged record is passed over, the later good ones are kept."""
    data, ends = pack(3)
    starts = [0, *ends[:-1]]
    for at in range(len(data)):
        hit = sum(end <= at for end in ends)
        for bit in (0, 3, 7):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            found = {row[0]: row for row in scan(bytes(broken), 0, len(data), NUMBER).rows()}
            assert set(range(3)) - {hit} <= set(found)
            if hit in found:
                record = bytes(broken[starts[hit] : ends[hit]])
                assert parse_record(record, NUMBER, hit) is None


def test_pieces_of_any_size_give_what_one_piece_gives() -> None:
    data, _ = pack(40, body=b"x" * 100)
    whole = scan(data, 0, len(data), NUMBER).rows()
    for size in (512, 513, 700, 1000, 4096):
        rows, offset = [], 0
        while offset < len(data):
            found = scan(data[offset : offset + size], offset, len(data), NUMBER)
            rows += found.rows()
            assert found.next_offset > offset
            offset = found.next_offset
        assert rows == whole


def test_a_body_larger_than_a_piece_is_stepped_over() -> None:
    data, ends = pack(3, body=b"x" * 5000)
    found = scan(data[:512], 0, len(data), NUMBER)
    assert found.count == 1
    assert found.next_offset == ends[0]


def test_a_body_cannot_pass_for_a_record_of_another_slot() -> None:
    forged, _ = pack(1, number=NUMBER + 1)
    batch = SlotBatch(NUMBER)
    batch.add(0, b"orders", 42, forged, 0, 0, 1)
    broken = bytearray(batch.packed())
    broken[5] ^= 1
    assert ordinals(bytes(broken)) == []


def test_records_of_another_slot_are_not_taken() -> None:
    data, _ = pack(2)
    assert ordinals(data, NUMBER + 1) == []
    assert parse_record(data, NUMBER + 1, 0) is None


def test_a_topic_name_must_fit() -> None:
    batch = SlotBatch(NUMBER)
    for topic in (b"", b"x" * 256):
        with pytest.raises(ValueError):
            batch.add(0, topic, 1, b"", 0, 0, 1)
    assert batch.size == 0 and batch.count == 0


def test_a_settled_batch_is_closed() -> None:
    batch = SlotBatch(NUMBER)
    batch.add(0, b"orders", 1, b"", 0, 0, 1)
    batch.settle(40)
    assert batch.rows()[0][1] == 40
    with pytest.raises(ValueError):
        batch.add(1, b"orders", 1, b"", 0, 0, 2)
    with pytest.raises(ValueError):
        batch.packed()
