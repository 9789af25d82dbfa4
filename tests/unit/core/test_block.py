"""Blocks: which messages they hold, where their frames lie, and what they refuse."""

from __future__ import annotations

import random
import time

import pytest

from penstock.core.block import Block
from tests.support.blocks import block_of, frame


def test_a_block_without_spans_holds_nothing() -> None:
    block = Block(b"", [], 1)
    assert (block.first, block.end, block.count, block.span_count) == (0, 0, 0, 0)
    assert block.frame(0) is None
    assert block.head(5).count == 0


def test_a_block_knows_its_first_index_its_end_and_its_count() -> None:
    block = block_of([10, 11, 12, 20, 21, 4096])
    assert (block.first, block.end, block.count, block.span_count) == (10, 4097, 6, 3)


def test_count_is_not_the_difference_of_indexes() -> None:
    """R1: there are gaps."""
    block = block_of([1, 1000])
    assert block.end - block.first != block.count == 2


def test_every_frame_is_found_and_nothing_else_is() -> None:
    indexes = [3, 4, 5, 9, 20, 21]
    block = block_of(indexes)
    for index in range(30):
        expected = frame(index) if index in indexes else None
        assert block.frame(index) == expected


def test_frames_are_found_in_any_order() -> None:
    """Where the last ones were found is remembered."""
    indexes = [*range(10, 40), *range(50, 80)]
    block = block_of(indexes)
    chosen = random.Random(3)
    for _ in range(5000):
        index = chosen.randrange(8, 82)
        assert block.frame(index) == (frame(index) if index in indexes else None)


def test_two_places_that_ascend_by_turns_cost_no_search() -> None:
    """Messages with one failed attempt, and those with two: a search takes 100 us."""
    count = 50_000
    data = frame(0, b"") * count
    block = Block(data, [(0, count, 0, len(data))], 1)
    begun_s = time.process_time()
    for index in range(0, count // 2, 5):
        block.frame(index)
        block.frame(index + count // 2)
    assert time.process_time() - begun_s < 0.2


def test_negative_and_huge_indexes_are_not_found() -> None:
    block = block_of([3, 4])
    assert block.frame(-1) is None
    assert block.frame(2**63 - 1) is None
    assert block.frame(-(2**63)) is None


def test_indexes_are_listed_from_anywhere_up_to_a_count() -> None:
    indexes = [3, 4, 5, 9, 20, 4_000_000_000]
    block = block_of(indexes)
    for start in (-1, 0, 3, 4, 6, 9, 10, 21, 4_000_000_001):
        for count in range(8):
            assert block.indexes(start, count) == [i for i in indexes if i >= start][:count]
    assert Block(b"", [], 1).indexes(0, 5) == []


def test_the_head_of_a_block_is_a_copy_of_its_first_messages() -> None:
    indexes = [3, 4, 5, 9, 20, 21]
    block = block_of(indexes)
    for count in range(-1, 9):
        head = block.head(count)
        kept = indexes[: max(0, count)]
        assert head.count == len(kept)
        assert len(head.data) <= len(block.data)
        if kept == [3, 4]:
            assert len(head.data) == head.size < len(block.data)
        assert [head.frame(i) for i in kept] == [block.frame(i) for i in kept]
        assert [i for i in range(30) if head.frame(i) is not None] == kept
        assert head.end == (kept[-1] + 1 if kept else 0)


def test_how_many_messages_fit_into_a_size() -> None:
    block = block_of([3, 4, 5, 9, 20, 21])
    sizes = [len(block.frame(i) or b"") for i in (3, 4, 5, 9, 20, 21)]
    assert block.size == sum(sizes)
    for count in range(7):
        exactly = sum(sizes[:count])
        assert block.count_within(exactly) == count
        assert block.count_within(exactly - 1) == max(0, count - 1)
    assert block.count_within(1 << 40) == 6
    assert Block(b"", [], 1).count_within(5) == 0 == Block(b"", [], 1).size


@pytest.mark.parametrize(
    "span",
    [(0, 1, -1, 5), (0, 1, 5, 4), (0, 1, 0, 41), (0, 0, 0, 40), (0, -1, 0, 40)],
    ids=["starts before", "ends first", "ends behind", "no messages", "fewer than none"],
)
def test_a_span_outside_of_the_bytes_is_refused(span: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is outside of 40 bytes"):
        Block(bytes(40), [span], 1)


@pytest.mark.parametrize(
    "second",
    [(1, 1, 20, 40), (0, 1, 20, 40), (2, 1, 19, 40)],
    ids=["same index", "index before", "bytes before"],
)
def test_spans_that_do_not_ascend_are_refused(second: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        Block(bytes(40), [(0, 2, 0, 20), second], 1)


def test_a_frame_larger_than_its_span_is_refused() -> None:
    """Block rule 3: the byte behind the span belongs to somebody else."""
    data = frame(7, b"body") + b"the next batch"
    block = Block(data, [(7, 1, 0, 37)], 1)
    with pytest.raises(ValueError, match="frame of index 7 does not fit its span"):
        block.frame(7)


def test_a_span_with_fewer_frames_than_it_says_is_refused() -> None:
    data = frame(7, b"body")
    block = Block(data, [(7, 3, 0, len(data))], 1)
    assert block.frame(7) == data
    with pytest.raises(ValueError, match="does not fit"):
        block.frame(8)
    with pytest.raises(ValueError, match="is not in the span"):
        block.frame(9)


def test_every_cut_of_a_block_gives_the_frame_or_an_error() -> None:
    data = frame(0) + frame(1) + frame(2)
    for end in range(len(data)):
        block = Block(data[:end], [(0, 3, 0, end)], 1)
        for index in range(3):
            try:
                found = block.frame(index)
            except ValueError:
                continue
            assert found == frame(index)


def test_every_damaged_size_gives_a_frame_of_the_span_or_an_error() -> None:
    whole = frame(0) + frame(1) + frame(2)
    for place in range(4):
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            block = Block(bytes(data), [(0, 3, 0, len(data))], 1)
            for index in range(3):
                try:
                    found = block.frame(index)
                except ValueError:
                    continue
                assert found is not None and len(found) <= len(data)


@pytest.mark.parametrize("arguments", [(None, [], 1), (b"", None, 1), (b"", [(1, 2)], 1)])
def test_arguments_of_the_wrong_kind_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Block(*arguments)  # type: ignore[arg-type]
