from libc.stdint cimport int64_t


cdef class Clock:
    cpdef int64_t wall_ns(self) except? -1
    cpdef int64_t monotonic_ns(self) except? -1
    cpdef int64_t thread_wanted_ns(self) except? -1
