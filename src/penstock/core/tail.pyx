# A cache of the newest blocks of a topic, so that a consumer that keeps up reads no file.

from libc.stdint cimport int64_t

from penstock.core.block cimport Block

# For all topics.  Beyond this a topic keeps only its newest block, or none.
BROKER_SIZE_MAX = 64 << 20

cdef enum:
    # A consumer that is further behind reads 256 KiB at a time from the page cache, which costs
    # 0.05 us a message of 200 bytes: a larger cache would gain nothing.
    TOPIC_SIZE_MAX = 1 << 20
    # What a block takes besides its data: of one small message more than that.
    BLOCK_SIZE = 200


cdef inline Py_ssize_t size_of(Block block) noexcept:
    return len(block.data) + BLOCK_SIZE


cdef class TailBudget:
    """The memory that the tails of all topics use."""

    def __init__(self, int64_t size_max=BROKER_SIZE_MAX):
        self.size_max = size_max


cdef class Tail:
    """Blocks in log order, contiguous up to the end of the log."""

    def __init__(self, TailBudget budget not None):
        self.budget = budget
        self.blocks = []

    cpdef add(self, Block block):
        cdef Py_ssize_t size = size_of(block)
        self.blocks.append(block)
        self.size += size
        self.budget.size += size
        if self.size > TOPIC_SIZE_MAX:
            self.trim(TOPIC_SIZE_MAX // 2)
        if self.budget.size > self.budget.size_max:
            self.trim(0)

    cpdef Block find(self, int64_t index):
        """The block with ``index`` or the next existing one; None: read it from the log."""
        cdef Py_ssize_t low = 0, high = len(self.blocks), middle
        if not high or index < (<Block>self.blocks[0]).first_index():
            return None
        while low < high:
            middle = (low + high) // 2
            if (<Block>self.blocks[middle]).end_index() <= index:
                low = middle + 1
            else:
                high = middle
        return self.blocks[low] if low < len(self.blocks) else None

    def drop_below(self, int64_t end):
        """Drop the blocks that end at or below ``end``: their messages were removed from the log."""
        cdef Py_ssize_t size = 0
        for block in self.blocks:
            if (<Block>block).end_index() > end:
                break
            size += size_of(block)
        if size:
            self.trim(self.size - size)

    def clear(self):
        self.trim(-1)

    cdef int trim(self, int64_t size_max) except -1:
        # Drop the oldest blocks, many at once so that it costs little per block.
        cdef Py_ssize_t drop = 0, size
        while drop < len(self.blocks) and self.size > size_max:
            size = size_of(self.blocks[drop])
            self.size -= size
            self.budget.size -= size
            drop += 1
        del self.blocks[:drop]
        return 0
