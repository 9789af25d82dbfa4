# The index tables of a segment, and its totals.
#
#     sparse   (index, offset, append time) of one batch for each 32 KiB
#     gaps     [start, end) of indexes between its batches that do not exist
#     origins  offsets of the batches of deferred and moved messages
#
# They grow with each batch that is written or scanned, and become the footer when the file is
# sealed (storage/segment_format.py).
#
# Rule 1: no I/O.  A tally belongs to the thread that writes or scans the file.
# Rule 2: a Visible is immutable, because other threads read it.

from array import array
from bisect import bisect_right

cimport cython
from libc.stdint cimport int64_t, uint32_t

from penstock.core.appender cimport Batch
from penstock.core.layouts cimport BATCH_HEADER, FLAG_MOVED, FLAG_ORIGINS, SEGMENT_HEADER

# Bytes between two entries of the sparse index, at least: a lookup reads about as much, and 10 GB
# of log have 8 MB of tables.
STRIDE = 32 * 1024

cdef enum:
    STRIDE_SIZE = 32 * 1024


@cython.freelist(8)
cdef class Visible:
    """The committed part of a segment: bytes, one past the last index, messages."""

    def __init__(self, int64_t size, int64_t end, int64_t count):
        self.size = size
        self.end = end
        self.count = count

    def __repr__(self):
        return f"Visible(size={self.size}, end={self.end}, count={self.count})"


cdef Visible visible_of(int64_t size, int64_t end, int64_t count):
    # Visible(size, end, count) without Python integers.
    cdef Visible visible = Visible.__new__(Visible)
    visible.size = size
    visible.end = end
    visible.count = count
    return visible


cdef class Tables:
    """The index tables of a segment; ascending."""

    def __cinit__(self):
        self.indexes = array("Q")
        self.offsets = array("Q")
        self.times = array("q")
        self.gaps = []
        self.origins = array("Q")

    def before(self, index):
        """(index, offset) of the last indexed batch that starts at or below ``index``."""
        place = max(0, bisect_right(self.indexes, index) - 1)
        return self.indexes[place], self.offsets[place]


cdef class Tally:
    """The totals and tables of a segment so far."""

    def __init__(self, int64_t base):
        self.first = self.end = base
        self.size = SEGMENT_HEADER
        self.slots = set()
        self.tables = Tables()

    cpdef int64_t append(self, Batch batch) except -1:
        """Add a batch that was appended; return the offset after it."""
        self.note(self.size, batch.first, batch.count,
                  self.size + BATCH_HEADER + len(batch.payload), batch.append_ns, batch.origin,
                  batch.flags)
        return self.size

    cpdef note(self, int64_t offset, int64_t first, int64_t count, int64_t end, int64_t append_ns,
               int64_t slot, uint32_t flags):
        """Add the batch in the bytes [offset, end)."""
        cdef Tables tables = self.tables
        if not self.count:
            self.first = first
            self.append_ns_first = append_ns
        elif first > self.end:
            tables.gaps.append((self.end, first))
        if not self.count or offset - self.noted >= STRIDE_SIZE:
            self.noted = offset
            tables.indexes.append(first)
            tables.offsets.append(offset)
            tables.times.append(append_ns)
        if flags & FLAG_ORIGINS:
            tables.origins.append(offset)
            if flags & FLAG_MOVED:
                self.moved_count += 1
            else:
                self.slots.add(slot)
        self.end = first + count
        self.count += count
        self.size = end
        self.append_ns_last = append_ns

    def visible(self):
        return visible_of(self.size, self.end, self.count)
