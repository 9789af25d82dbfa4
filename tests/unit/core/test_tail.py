"""The newest blocks of a topic in memory."""

from __future__ import annotations

import sys

from penstock.core.block import Block
from penstock.core.tail import Tail, TailBudget
from tests.support.blocks import block_of


def wide(first: int, size: int) -> Block:
    """A block of one message that takes about ``size`` bytes."""
    return block_of([first], body=bytes(size))


def test_a_block_is_found_by_what_it_holds_or_what_comes_next() -> None:
    tail = Tail(TailBudget())
    assert tail.find(0) is None
    blocks = [block_of(range(10, 15)), block_of(range(15, 16)), block_of(range(100, 110))]
    for block in blocks:
        tail.add(block)
    assert tail.find(9) is None, "it may be in the log"
    places = {10: 0, 14: 0, 15: 1, 16: 2, 99: 2, 100: 2, 109: 2}
    assert {index: blocks.index(found) for index in places if (found := tail.find(index))} == places
    assert tail.find(110) is None
    tail.clear()
    assert tail.find(100) is None


def test_what_was_removed_from_the_log_is_not_found() -> None:
    budget = TailBudget()
    tail = Tail(budget)
    for first in (10, 20, 30):
        tail.add(block_of(range(first, first + 10)))
    size = budget.size
    for end in (5, 19):
        tail.drop_below(end)
        assert tail.find(10) is not None and budget.size == size
    tail.drop_below(25)
    assert tail.find(10) is None and tail.find(19) is None and tail.find(24) is not None
    tail.drop_below(1000)
    assert tail.find(30) is None and budget.size == 0
    tail.drop_below(1000)


def test_a_topic_keeps_its_newest_megabyte() -> None:
    budget = TailBudget()
    tail = Tail(budget)
    for index in range(1000):
        tail.add(wide(index, 10_000))
        assert tail.find(index) is not None
        assert budget.size <= (1 << 20) + 20_000
    assert budget.size > 1 << 18
    assert tail.find(0) is None and tail.find(999 - (1 << 18) // 10_100) is not None


def test_small_blocks_count_with_what_they_take_besides_their_data() -> None:
    """A million messages of a byte, one a block, were 64 MB by their data and 500 MB of memory."""
    budget = TailBudget()
    tail = Tail(budget)
    blocks = [wide(index, 1) for index in range(1000)]
    for block in blocks:
        tail.add(block)
    assert budget.size >= sum(sys.getsizeof(block) + sys.getsizeof(block.data) for block in blocks)
    for index in range(1000, 10_000):
        tail.add(wide(index, 1))
    assert budget.size <= 1 << 20 and tail.find(1000) is None


def test_past_the_budget_of_all_topics_nothing_is_kept() -> None:
    budget = TailBudget(size_max=25_000)
    first, second = Tail(budget), Tail(budget)
    first.add(wide(1, 10_000))
    second.add(wide(1, 10_000))
    assert first.find(1) is not None and second.find(1) is not None
    second.add(wide(2, 10_000))
    assert second.find(2) is None and first.find(1) is not None
    first.clear()
    assert budget.size == 0
