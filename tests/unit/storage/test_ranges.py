"""Ranges of a log as bytes, for readers that decode batches themselves (R18)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.batches import scan
from penstock.core.tables import STRIDE
from penstock.storage import ranges
from penstock.storage.files import Files
from penstock.storage.topic_log import TopicLog
from tests.support.page_cache import must_forget, needs_cachestat
from tests.unit.storage.build import NODE_ID, append, append_many, batch


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TopicLog]:
    files = Files()
    yield TopicLog.create(files, f"{tmp_path}/t", 1, NODE_ID, 100, 20_000)
    files.close()


def rolled(log: TopicLog, count: int, per_batch: int = 2) -> None:
    for _ in range(count):
        if log.needs_roll():
            log.synced(log.roll())
        append_many(log, 1, per_batch)


def batches(pieces: list[bytes | memoryview]) -> list[tuple[int, int]]:
    """(first, count) of what a reader finds; every piece holds whole batches."""
    found = []
    for piece in pieces:
        result = scan(bytes(piece), 0, True)
        assert result.stop == len(piece)
        found += [(first, count) for first, count, *_ in result.batches]
    return found


def indexes(log: TopicLog, start: int, end: int, size_max: int = 1 << 20) -> list[int]:
    """All a reader gets of [start, end), asking from ``next`` on."""
    found: list[int] = []
    at = start
    while at < end:
        pieces, reached = log.read_range(at, end, size_max)
        assert reached > at, "every call gets further"
        for first, count in batches(pieces):
            found += [i for i in range(first, first + count) if at <= i < end]
        at = reached
    assert at == end
    return found


def stretched(log: TopicLog, start: int, end: int, size_max: int) -> tuple[list[int], int]:
    """As indexes(), of file slices where there are any; and how many there were."""
    found: list[int] = []
    count, at = 0, start
    while at < end:
        file_slice = log.file_slice(at, end, size_max)
        if file_slice is None:
            pieces, reached = log.read_range(at, end, size_max, True)
        else:
            part, reached = file_slice
            assert part.size <= 2 * size_max
            pieces = [os.pread(part.fd, part.size, part.offset)]
            part.close()
            part.close()  # twice is once
            count += 1
        assert reached > at, "every call gets further"
        for first, length in batches(pieces):
            found += [i for i in range(first, first + length) if at <= i < reached]
        at = reached
    assert at == end
    return found, count


def test_the_bytes_are_those_of_the_file(log: TopicLog) -> None:
    made = [batch(100, 2), batch(102, 3), batch(105, 1)]
    for one in made:
        append(log, one)
    pieces, reached = log.read_range(100, 106, 1 << 20)
    assert (b"".join(pieces), reached) == (b"".join(one.bytes for one in made), 106)
    # A range inside of batches gets them whole.
    pieces, reached = log.read_range(103, 104, 1 << 20)
    assert (b"".join(pieces), reached) == (made[1].bytes, 104)


def test_a_range_over_many_segments_is_read_in_steps_of_any_size(log: TopicLog) -> None:
    rolled(log, 1000)
    assert log.segment_count > 3
    for size_max in (1, 300, 5000, 1 << 20):
        assert indexes(log, log.first, log.end, size_max) == list(range(100, 2100))
    rng = random.Random(5)
    for _ in range(50):
        start, end = sorted(rng.sample(range(90, 2100), 2))
        wanted = [i for i in range(start, end) if i >= 100]
        assert indexes(log, start, end, rng.choice([1, 700, 1 << 16])) == wanted


def test_the_size_is_kept_but_for_one_batch(log: TopicLog) -> None:
    append_many(log, 200, 10)
    one = len(batch(100, 10).bytes)
    for size_max in (1, one, one + 1, 10 * one - 1, 10 * one):
        size = log.read_range(100, log.end, size_max).size
        assert size_max <= size < size_max + one


def test_long_ranges_come_in_pieces(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "PIECE_SIZE", 4000)
    rolled(log, 500)
    found = log.read_range(100, log.end, 30_000)
    assert len(found.pieces) > 5 and all(len(piece) < 4200 for piece in found.pieces)
    assert indexes(log, 100, log.end, 30_000) == list(range(100, 1100))


def test_gaps_and_what_was_removed_are_covered(log: TopicLog) -> None:
    append_many(log, 3)
    log.abandon(150)
    append(log, batch(150, 2))
    pieces, reached = log.read_range(100, 152, 1 << 20)
    assert batches(pieces) == [(100, 1), (101, 1), (102, 1), (150, 2)] and reached == 152
    # Only a gap: nothing to send, and the reader is told that it is through.
    assert log.read_range(103, 150, 1 << 20) == ([], 150)
    assert log.read_range(152, 900, 1 << 20) == ([], 900)
    log.synced(log.roll())
    append(log, batch(200))
    for path in log.retire(152):
        log._files.unlink(path)
    assert indexes(log, 100, 201) == [200]


def test_a_message_that_was_relocated_is_found_at_its_index(log: TopicLog) -> None:
    rolled(log, 200)
    base = log.segments()[0].base
    for path in log.relocated(log.relocate(base, [103, 107])):
        log._files.unlink(path)
    end = log.segments()[1].first
    assert indexes(log, 100, end) == [103, 107]
    assert indexes(log, 104, end) == [107]


def test_damage_is_left_out_and_noted(log: TopicLog) -> None:
    append_many(log, 20, 2)
    path = log.segments()[0].path
    one = len(batch(100, 2).bytes)
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"\xff", 64 + 5 * one + 60)
    os.close(fd)
    assert indexes(log, 100, 140) == [i for i in range(100, 140) if i not in (110, 111)]
    (damage,) = log.take_damage()
    assert (damage.index_start, damage.index_end) == (110, 112)
    assert indexes(log, 110, 112) == []


def test_a_file_that_vanished_is_noted_and_does_not_stop_the_reader(log: TopicLog) -> None:
    rolled(log, 300)
    second = log.segments()[1]
    log._files.unlink(second.path)
    wanted = [i for i in range(100, 700) if not second.first <= i < second.end]
    assert indexes(log, 100, 700) == wanted
    assert log.take_damage() != []


# File slices


@needs_cachestat
def test_stretches_hold_what_a_verified_read_does(log: TopicLog) -> None:
    rolled(log, 1000, 20)
    rng = random.Random(7)
    assert stretched(log, 100, log.end, 15_000)[1] > 30
    for _ in range(50):
        start, end = sorted(rng.sample(range(90, log.end), 2))
        wanted = [i for i in range(start, end) if i >= 100]
        assert stretched(log, start, end, rng.choice([1, 15_000, 1 << 20]))[0] == wanted


@needs_cachestat
def test_stretches_end_where_the_sparse_index_knows_a_batch(tmp_path: Path) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 100, 400_000)
    rolled(log, 3000, 20)
    assert log.segment_count > 3
    for size_max in (STRIDE, 100_000, 1 << 20):
        found, count = stretched(log, 100, log.end, size_max)
        assert found == list(range(100, log.end)) and count > 3


@needs_cachestat
def test_there_is_no_stretch_of_what_is_still_written(log: TopicLog) -> None:
    append_many(log, 5)
    assert log.file_slice(100, 105, 1 << 20) is None
    log.synced(log.roll())
    file_slice = log.file_slice(100, 105, 1 << 20)
    assert file_slice is not None and file_slice[1] == 105
    file_slice[0].close()
    assert log.file_slice(105, 105, 1 << 20) is None and log.file_slice(900, 950, 1) is None


@needs_cachestat
def test_there_is_no_stretch_of_what_is_not_in_memory(log: TopicLog) -> None:
    rolled(log, 300)
    segment = log.segments()[0]
    must_forget(segment.path)
    assert log.file_slice(100, segment.end, 1 << 20) is None
    assert indexes(log, 100, segment.end) == list(range(100, segment.end))
    file_slice = log.file_slice(100, segment.end, 1 << 20)
    assert file_slice is not None
    file_slice[0].close()


@needs_cachestat
def test_a_stretch_can_be_read_after_its_file_is_gone(log: TopicLog) -> None:
    rolled(log, 300)
    segment = log.segments()[0]
    file_slice = log.file_slice(100, segment.end, 1 << 20)
    assert file_slice is not None
    for path in log.retire(segment.end):
        log._files.unlink(path)
    part = file_slice[0]
    assert batches([os.pread(part.fd, part.size, part.offset)])[0] == (100, 2)
    part.close()


@needs_cachestat
def test_gaps_behind_a_stretch_are_no_trouble(log: TopicLog) -> None:
    append_many(log, 3)
    log.synced(log.roll())
    log.abandon(150)
    append(log, batch(150, 2))
    log.synced(log.roll())
    assert stretched(log, 100, 152, 1 << 20) == ([100, 101, 102, 150, 151], 2)
    assert log.file_slice(103, 150, 1 << 20) is None
