from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch


cdef class Visible:
    cdef readonly int64_t size
    cdef readonly int64_t end
    cdef readonly int64_t count


cdef class Tables:
    cdef readonly object indexes
    cdef readonly object offsets
    cdef readonly object times
    cdef readonly list gaps
    cdef readonly object origins


cdef class Tally:
    cdef readonly int64_t first
    cdef readonly int64_t end
    cdef readonly int64_t count
    cdef readonly int64_t size
    cdef readonly int64_t append_ns_first
    cdef readonly int64_t append_ns_last
    cdef readonly set slots
    cdef readonly Tables tables
    cdef int64_t noted

    cpdef int64_t append(self, Batch batch) except -1
    cpdef note(self, int64_t offset, int64_t first, int64_t count, int64_t end, int64_t append_ns,
               int64_t slot, int flags)
