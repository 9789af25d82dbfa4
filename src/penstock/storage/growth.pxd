from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.runs cimport Runs
from penstock.core.tables cimport Tally, Visible


cdef class Extent:
    cdef readonly int64_t end
    cdef readonly int64_t count
    cdef readonly int64_t size
    cdef int64_t synced_count
    cdef int64_t synced_size

    cdef int64_t unsynced_messages(self) noexcept
    cdef int64_t unsynced_bytes(self) noexcept


cdef class Growth:
    cdef public str path
    cdef public Tally tally
    cdef public Visible visible
    cdef public Visible synced
    cdef public int64_t file_size
    cdef public int64_t first
    cdef public int64_t append_ns_first
    cdef public bint closed
    cdef public bint failed

    cpdef wrote(self, Batch batch, Extent extent)
    cpdef bint show(self, Batch batch) except -1


cdef class Written:
    cdef public Growth active
    cdef public Extent extent
    cdef public object events
    cdef public object _files
    cdef public object _lock

    cpdef write(self, Batch batch)


cdef class Shown:
    cdef public int64_t end
    cdef public bint full
    cdef public tuple _segments
    cdef public Runs _runs
    cdef public Written _writer
    cdef public int64_t _segment_size_max

    cpdef commit(self, Batch batch)
