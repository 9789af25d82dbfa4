from libc.stdint cimport int64_t

from penstock.core.block cimport Block


cdef class TailBudget:
    cdef readonly int64_t size
    cdef readonly int64_t size_max


cdef class Tail:
    cdef TailBudget budget
    cdef list blocks
    cdef int64_t size

    cpdef add(self, Block block)
    cdef int trim(self, int64_t size_max) except -1
