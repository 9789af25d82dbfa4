from libc.stdint cimport int64_t

from penstock.core.block cimport Block
from penstock.core.tail cimport Tail


cdef class Arrivals:
    cdef public Tail tail
    cdef public dict channels
    cdef public bint paused
    cdef public bint awaiting_channels
    cdef public int64_t shown_end
    cdef public int64_t released
    cdef public int64_t message_count
    cdef public int64_t message_bytes
    cdef public int64_t held_count

    cpdef count_in(self, Block block, int64_t body_size)
