from libc.stdint cimport int64_t, uint64_t


cdef class InstanceTally:
    cdef readonly int64_t void_before
    cdef readonly int64_t count
    cdef int64_t newest
    cdef int64_t floor
    cdef list cuts
    cdef list hours

    cdef int change(self, int64_t due_ns, int64_t stamp, int64_t step) except -1


cdef class Tallies:
    cdef object void_before
    cdef dict tallies
    cdef readonly int64_t total
    cdef Py_ssize_t sweep_at
    cdef uint64_t last_instance
    cdef InstanceTally last

    cdef InstanceTally tally(self, uint64_t instance)
    cdef int sweep(self) except -1
    cdef int change(self, uint64_t instance, int64_t due_ns, int64_t stamp, int64_t step) except -1
