from libc.stdint cimport int64_t


cdef class Arrivals:
    cdef public dict channels
    cdef public bint paused
    cdef public bint awaiting_channels
    cdef public int64_t released
    cdef public int64_t message_count
    cdef public int64_t message_bytes
    cdef public int64_t held_count
