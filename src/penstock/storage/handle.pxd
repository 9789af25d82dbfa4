from libc.stdint cimport int64_t

from penstock.core.pins cimport Pins


cdef class Handle(Pins):
    cdef readonly str path
    cdef readonly int fd
    cdef readonly object lock  # held by one append at a time
    cdef public int64_t size   # bytes of the file; -1: not known

    cpdef int64_t end(self) except -1
