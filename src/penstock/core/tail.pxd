from libc.stdint cimport int64_t

from penstock.core.block cimport Block


cdef class TailBudget:
    cdef readonly int64_t size      # bytes of all tails
    cdef readonly int64_t size_max  # bytes


cdef class Tail:
    cdef TailBudget budget  # shared by all topics
    cdef list blocks        # Block, ascending
    cdef int64_t size       # bytes of them

    cpdef add(self, Block block)
    cpdef Block find(self, int64_t index)
    cdef int trim(self, int64_t size_max) except -1
