from libc.stdint cimport int64_t

cdef struct Run:
    int64_t start
    int64_t end


cdef class RunList:
    cdef Run* runs
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef int add(self, int64_t start, int64_t end) except -1
    cdef int grow(self) except -1
    cdef void merge(self, int64_t low) noexcept
    cdef bytes encode(self)


cdef class Runs:
    cdef list starts
    cdef list ends
    cdef list before

    cpdef add(self, int64_t start, int64_t end)
    cdef _last_length(self)
    cdef _below(self, index)
