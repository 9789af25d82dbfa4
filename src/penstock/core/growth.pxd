from libc.stdint cimport int64_t

from penstock.core.tables cimport Tally, Visible


cdef class Extent:
    cdef readonly int64_t end
    cdef readonly int64_t count
    cdef readonly int64_t size
    cdef int64_t synced_count
    cdef int64_t synced_size


cdef class Growth:
    cdef public Tally tally
    cdef public Visible visible
    cdef public Visible synced
    cdef public int64_t file_size
    cdef public int64_t first
    cdef public int64_t append_ns_first
    cdef public bint closed
    cdef public bint failed
