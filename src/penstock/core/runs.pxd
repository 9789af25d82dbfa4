from libc.stdint cimport int64_t

cdef struct Run:
    int64_t start
    int64_t end  # one past the last


cdef class RunList:
    cdef Run* runs            # in the order they came; sorted by merge()
    cdef Py_ssize_t size      # runs
    cdef Py_ssize_t capacity  # runs that there is room for

    cdef int add(self, int64_t start, int64_t end) except -1
    cdef int grow(self) except -1
    cdef void merge(self, int64_t low) noexcept
    cdef bytes encode(self)


cdef class Runs:
    cdef list starts  # of each run, ascending
    cdef list ends    # one past the last index of each run
    cdef list before  # indexes before each run, plus what was cut off at the start

    cpdef add(self, int64_t start, int64_t end)
    cdef _last_length(self)
    cdef _below(self, index)
