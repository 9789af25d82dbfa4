from libc.stdint cimport int64_t, uint64_t

cdef enum:
    PAGE_COUNT = 58  # one for 0..63, then one for each power of two from 2^6 to 2^62


cdef class Histogram:
    cdef readonly uint64_t count      # values
    cdef readonly int64_t minimum     # INT64_MAX if there are none
    cdef readonly int64_t maximum     # 0 if there are none
    cdef readonly double sum
    cdef uint64_t* pages[PAGE_COUNT]  # 64 counts each; NULL: all zero

    cdef int put(self, int64_t value) except -1
    cdef uint64_t* page(self, int number) except NULL
    cdef void empty(self) noexcept


cdef class Latency:
    cdef readonly int64_t half_ns  # how long a histogram is filled
    cdef Histogram current         # of the half that runs
    cdef Histogram previous        # of the half before
    cdef int64_t turned_ns         # wall clock, when the current half began

    cdef int record(self, int64_t value_ns, int64_t wall_ns) except -1
    cdef int turn(self, int64_t wall_ns) except -1
