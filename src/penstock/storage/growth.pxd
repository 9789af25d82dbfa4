from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.runs cimport Runs
from penstock.core.tables cimport Tally, Visible


cdef class Extent:
    cdef readonly int64_t end    # one past the last index written; 0: none
    cdef readonly int64_t count  # messages written
    cdef readonly int64_t size   # bytes written
    cdef int64_t synced_count    # of those messages
    cdef int64_t synced_size     # of those bytes

    cdef int64_t unsynced_messages(self) noexcept
    cdef int64_t unsynced_bytes(self) noexcept


cdef class Growth:
    cdef public str path
    cdef public Tally tally              # the writer's; None once sealed and dropped
    cdef public Visible visible          # committed, the loop's; replaced as a whole
    cdef public Visible synced           # of that, what a sync covered
    cdef public int64_t file_size        # bytes, the footer included
    cdef public int64_t first            # index of the first message, or the base
    cdef public int64_t append_ns_first  # of the first batch
    cdef public bint closed              # takes no more batches
    cdef public bint failed              # a sync failed: it has to be copied

    cpdef wrote(self, Batch batch, Extent extent)
    cpdef bint show(self, Batch batch) except -1


cdef class Written:
    cdef public Growth active  # the segment that is written to; None: none yet
    cdef public Extent extent  # all that was written since the start
    cdef public object events  # deque of what the loop has to take over, in order
    cdef public object _files  # storage.files.Files
    cdef public object _lock   # held while a write runs

    cpdef write(self, Batch batch)


cdef class Shown:
    cdef public int64_t end                # one past the last index committed
    cdef public bint full                  # the last segment is large enough to roll
    cdef public tuple _segments            # ascending; replaced as a whole
    cdef public Runs _runs                 # indexes that exist
    cdef public Written _writer
    cdef public int64_t _segment_size_max  # bytes at which a segment is full

    cpdef commit(self, Batch batch)
