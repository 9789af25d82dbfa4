"""Every cut and every flipped bit of small files: torn is not corrupt, what is good stays (R3)."""

from __future__ import annotations

import pytest

from penstock.core.batches import HEADER_SIZE
from penstock.storage.journal import (
    encode_channel,
    encode_gone,
    encode_progress,
    encode_synced,
    encode_topic,
    replay,
)
from penstock.storage.recovery import RecoveredTopic, recover_topic
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import LossyFiles
from tests.support.logs import gaps
from tests.unit.storage.build import NODE_ID, append, batch, frame, read_all

FOLDER = "/topics/t~0000000000000001"
LOG = f"{FOLDER}/00000000000000000100.log"
SIZES = [1, 2, 1, 3]


def segment_bytes(sealed: bool) -> tuple[bytes, list[int], dict[int, bytes]]:
    """A segment of four batches, the offsets where they end, and its frames."""
    files = LossyFiles()
    log = TopicLog.create(files, FOLDER, 1, NODE_ID, 100)  # type: ignore[arg-type]
    ends = [HEADER_SIZE]
    for count in SIZES:
        append(log, batch(log.end, count))
        ends.append(files.size(LOG))
    frames = read_all(log)
    if sealed:
        log.synced(log.roll())
    return files.read(LOG), ends, frames


def recover(data: bytes, synced: int = 0, extra: dict[str, bytes] | None = None) -> RecoveredTopic:
    files = LossyFiles()
    files.put(LOG, data)
    files.put(f"{FOLDER}/journal", encode_synced(100, synced) if synced else b"")
    for name, content in (extra or {}).items():
        files.put(f"{FOLDER}/{name}", content)
    found = recover_topic(files, FOLDER, NODE_ID, 0)  # type: ignore[arg-type]
    found.log.check()
    return found


def indexes_below(ends: list[int], cut: int) -> list[int]:
    first, there = 100, []
    for count, end in zip(SIZES, ends[1:], strict=True):
        if end <= cut:
            there += range(first, first + count)
        first += count
    return there


def test_every_cut_of_an_unsealed_segment_keeps_the_whole_batches() -> None:
    data, ends, frames = segment_bytes(sealed=False)
    for cut in range(len(data)):
        found = recover(data[:cut])
        expected = indexes_below(ends, cut)
        assert read_all(found.log) == {index: frames[index] for index in expected}
        assert found.corrupt_count == 0
        assert found.torn_count == (cut > HEADER_SIZE and cut not in ends)
        # The log goes on, and the next start finds old and new.
        append(found.log, batch(500))
        files = found.log._files
        again = recover_topic(files, FOLDER, NODE_ID, 0)
        assert sorted(read_all(again.log)) == [*expected, 500]
        assert (again.torn_count, again.corrupt_count) == (0, 0)


def test_every_cut_of_a_sealed_segment_keeps_the_whole_batches() -> None:
    data, ends, frames = segment_bytes(sealed=True)
    for cut in range(ends[-1], len(data)):
        found = recover(data[:cut])
        assert read_all(found.log) == frames
        assert found.corrupt_count == 0


def test_every_flipped_bit_beyond_the_synced_offset_is_torn_and_keeps_later_batches() -> None:
    data, ends, frames = segment_bytes(sealed=False)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = recover(bytes(flipped))
        hit = [i for i, end in enumerate(ends[1:]) if ends[i] <= bit // 8 < end]
        lost = set() if not hit else set(_indexes(hit[0]))
        assert set(read_all(found.log)) == set(frames) - lost, bit
        assert (found.torn_count, found.corrupt_count) == (1, 0)


@pytest.mark.parametrize("sealed", [False, True])
def test_every_flipped_byte_before_the_synced_offset_is_corrupt(sealed: bool) -> None:
    data, ends, frames = segment_bytes(sealed)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        found = recover(bytes(flipped), synced=len(data))
        hit = [i for i, end in enumerate(ends[1:]) if ends[i] <= at < end]
        lost = set() if not hit else set(_indexes(hit[0]))
        there = read_all(found.log)
        damage = found.log.take_damage()
        assert there == {i: f for i, f in frames.items() if i not in lost}, at
        if not sealed or at < HEADER_SIZE or at >= len(data) - 96:
            assert (found.torn_count, found.corrupt_count) == (0, 1)
            assert any(name.endswith(".corrupt") for name in found.log._files.list(FOLDER))
        elif lost:
            # Sealed files are not walked at start: the reader finds it.
            assert len(damage) == 1 and found.log.corrupt_count == 1
        assert found.log.count == len(there)


def _indexes(place: int) -> range:
    first = 100 + sum(SIZES[:place])
    return range(first, first + SIZES[place])


def test_a_body_that_looks_like_a_batch_is_not_taken_for_one() -> None:
    # Somebody publishes a piece of a segment file; its header is torn off by damage in front.
    files = LossyFiles()
    log = TopicLog.create(files, FOLDER, 1, NODE_ID, 100)  # type: ignore[arg-type]
    append(log, batch(100, 1, body=batch(5000).bytes))
    append(log, batch(101))
    data = bytearray(files.read(LOG))
    data[HEADER_SIZE + 56 + 3] ^= 1  # in the payload: the header tells where the next one is
    found = recover(bytes(data))
    assert list(read_all(found.log)) == [101]
    # A batch that was half written: what is there of its body is not searched either.
    whole = bytes(data[: HEADER_SIZE + 56 + 34 + 100])
    assert list(read_all(recover(whole).log)) == []


def journal_bytes() -> tuple[bytes, list[int]]:
    records = [
        encode_topic(100, False, True, 7),
        encode_channel(1, 100, False, 0, "a"),
        encode_channel(2, 100, True, 5, "b"),
        encode_progress(1, 110, [(115, 120), (130, 131)], {112: (3, 0), 113: (1, 99)}),
        encode_progress(2, 105),
        encode_gone(2),
        encode_synced(100, 4096),
    ]
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(record))
    return b"".join(records), ends


def test_every_cut_of_a_journal_is_the_journal_of_its_whole_records() -> None:
    data, ends = journal_bytes()
    for cut in range(len(data) + 1):
        good = max(end for end in ends if end <= cut)
        state = replay(data[:cut])
        assert (state.torn_size, state.corrupt_count) == (cut - good, 0)
        state.torn_size = 0
        assert state == replay(data[:good])


def test_every_flipped_bit_of_a_journal_costs_its_record_and_no_other() -> None:
    data, ends = journal_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        place = next(i for i, end in enumerate(ends[1:]) if bit // 8 < end)
        without = data[: ends[place]] + data[ends[place + 1] :]
        state = replay(bytes(flipped))
        last = place == len(ends) - 2
        assert (state.corrupt_count, state.torn_size > 0) == (not last, last)
        state.corrupt_count = state.torn_size = 0
        assert state == replay(without)


def test_a_torn_journal_is_cut_so_that_the_next_record_is_read() -> None:
    files = LossyFiles()
    data, ends = journal_bytes()
    files.put(f"{FOLDER}/journal", data[:-5])
    found = recover_topic(files, FOLDER, NODE_ID, 0)  # type: ignore[arg-type]
    assert files.size(f"{FOLDER}/journal") == ends[-2]
    assert found.torn_count == 1
    found.journal.write(encode_synced(1, 2))
    assert replay(files.read(f"{FOLDER}/journal")).synced == (1, 2)


def test_a_frame_is_found_behind_a_damaged_table() -> None:
    data, ends, frames = segment_bytes(sealed=True)
    flipped = bytearray(data)
    flipped[ends[-1] + 3] ^= 1
    found = recover(bytes(flipped))
    assert found.log.frame(104, True) == frames[104] == frame(104)


def test_a_hole_that_was_torn_is_not_called_corrupt_once_the_rest_is_synced() -> None:
    data, ends, frames = segment_bytes(sealed=False)
    holed = bytearray(data)
    holed[ends[1] : ends[2]] = bytes(ends[2] - ends[1])
    found = recover(bytes(holed))
    assert (found.torn_count, found.corrupt_count) == (1, 0)
    files = found.log._files
    token = found.log.sync()
    found.log.synced(token)
    files.append(f"{FOLDER}/journal", [encode_synced(token.base or 100, len(data))])
    again = recover_topic(files, FOLDER, NODE_ID, 0)
    assert (again.torn_count, again.corrupt_count) == (0, 0), again.notes
    assert gaps(again.log) == [(101, 103)]
    assert set(read_all(again.log)) == set(frames) - {101, 102}
