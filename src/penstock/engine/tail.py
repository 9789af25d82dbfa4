"""The newest blocks of a topic, kept in memory so that a consumer who keeps up reads no file."""

from __future__ import annotations

from bisect import bisect_right

from penstock.core.block import Block

# A consumer further behind than this reads 256 KiB at a time from the page cache, which costs
# 0.05 us a message of 200 bytes: memory beyond it would buy nothing.
TOPIC_SIZE_MAX = 1 << 20
# All topics together.  Past it a topic keeps only its newest block, or none.
BROKER_SIZE_MAX = 64 << 20


class TailBudget:
    """How much memory the tails of all topics use together."""

    def __init__(self, size_max: int = BROKER_SIZE_MAX) -> None:
        self.size = 0
        self.size_max = size_max


class Tail:
    """Blocks in log order, without a gap in what they hold of the log's end."""

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._blocks: list[Block] = []
        self._ends: list[int] = []
        self._size = 0

    def add(self, block: Block) -> None:
        budget, size = self._budget, len(block.data)
        self._blocks.append(block)
        self._ends.append(block.end)
        self._size += size
        budget.size += size
        if self._size > TOPIC_SIZE_MAX:
            self._trim(TOPIC_SIZE_MAX // 2)
        if budget.size > budget.size_max:
            self._trim(0)

    def find(self, index: int) -> Block | None:
        """The block with ``index`` or the next existing one; None: read it from the log."""
        if not self._blocks or index < self._blocks[0].first:
            return None
        place = bisect_right(self._ends, index)
        return self._blocks[place] if place < len(self._blocks) else None

    def clear(self) -> None:
        self._trim(-1)

    def _trim(self, size_max: int) -> None:
        """Drop the oldest blocks, in one go so that it costs little per block."""
        drop = 0
        while drop < len(self._blocks) and self._size > size_max:
            size = len(self._blocks[drop].data)
            self._size -= size
            self._budget.size -= size
            drop += 1
        del self._blocks[:drop]
        del self._ends[:drop]
