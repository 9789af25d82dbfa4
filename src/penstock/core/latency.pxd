from libc.stdint cimport int64_t, uint64_t

cdef enum:
    PAGE_COUNT = 58     # one for 0..63, then one for each power of two from 2^6 to 2^62


cdef class Histogram:
    cdef readonly uint64_t count
    cdef readonly int64_t minimum
    cdef readonly int64_t maximum
    cdef readonly double sum
    cdef uint64_t* pages[PAGE_COUNT]

    cdef int put(self, int64_t value) except -1
    cdef uint64_t* page(self, int number) except NULL
    cdef void empty(self) noexcept


cdef class Latency:
    cdef readonly int64_t half_ns
    cdef Histogram current
    cdef Histogram previous
    cdef int64_t turned_ns

    cdef int record(self, int64_t value_ns, int64_t wall_ns) except -1
    cdef int turn(self, int64_t wall_ns) except -1
