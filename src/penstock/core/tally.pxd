from libc.stdint cimport int64_t, uint64_t


cdef class InstanceTally:
    cdef readonly int64_t void_before  # messages with a lower stamp are void
    cdef readonly int64_t count        # pending messages
    cdef int64_t newest                # highest stamp counted
    cdef int64_t floor                 # nothing with a lower stamp is pending
    cdef list cuts                     # stamps, ascending
    cdef list hours                    # an epoch each, one more than cuts: hour -> count

    cdef int change(self, int64_t due_ns, int64_t stamp, int64_t step) except -1


cdef class Tallies:
    cdef object void_before      # instance -> stamp; asked once an instance
    cdef dict tallies            # instance -> InstanceTally
    cdef readonly int64_t total  # pending messages of all
    cdef Py_ssize_t sweep_at     # instances at which empty ones are dropped
    cdef uint64_t last_instance  # of ``last``
    cdef InstanceTally last      # found last: most calls come for the same one

    cdef InstanceTally tally(self, uint64_t instance)
    cdef int sweep(self) except -1
    cdef int change(self, uint64_t instance, int64_t due_ns, int64_t stamp, int64_t step) except -1
