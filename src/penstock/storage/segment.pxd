from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.tables cimport Tables, Tally, Visible


cdef class Extent:
    cdef readonly int64_t end    # one past the last index written; 0: none
    cdef readonly int64_t count  # messages written
    cdef readonly int64_t size   # bytes written
    cdef int64_t synced_count    # of those messages
    cdef int64_t synced_size     # of those bytes

    cdef int64_t unsynced_messages(self) noexcept
    cdef int64_t unsynced_bytes(self) noexcept


cdef class Segment:
    cdef readonly str path
    cdef readonly int64_t base           # in its name
    cdef public int node_id              # of all messages in it
    cdef public bint side                # a side file
    cdef public int64_t generation       # of a side file: how many others it replaced, in turn
    cdef public int64_t previous_end     # where the file before it ended
    cdef public Tally tally              # the writer's; None once sealed and dropped
    cdef public Visible visible          # committed, the loop's; replaced as a whole
    cdef public Visible synced           # of that, what a sync covered
    cdef public int64_t file_size        # bytes, the footer included
    cdef public int64_t first            # index of the first message, or the base
    cdef public int64_t append_ns_first  # of the first batch
    cdef public Tables tables            # None: not loaded
    cdef public object trailer           # Trailer of a sealed file, or None
    cdef public set slots                # None: only the range in the trailer is known
    cdef public int64_t slot_min
    cdef public int64_t slot_max
    cdef public int64_t seen_ns          # monotonic time when retention last saw it change; 0: not yet
    cdef public int64_t seen_end         # where it ended then
    cdef public int64_t age_ns           # and how old it was
    cdef public bint sealed
    cdef public bint closed              # takes no more batches
    cdef public bint failed              # a sync failed: bytes after `synced` may be lost

    cpdef wrote(self, Batch batch, Extent extent)
    cpdef bint show(self, Batch batch) except -1
