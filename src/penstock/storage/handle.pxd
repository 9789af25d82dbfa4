cimport cython
from libc.stdint cimport int64_t

from penstock.core.pins cimport Pins


cdef class Handle(Pins):
    cdef readonly str path
    cdef readonly int fd
    cdef readonly int64_t size  # bytes of the file; -1: not known
    cdef cython.pymutex lock    # held by one change at a time

    cpdef int64_t append(self, parts, int64_t offset=*) except -1
    cdef int extend(self, int64_t start, int64_t end) except -1
    cdef int64_t end(self) except -1
    cdef int64_t begin(self, int64_t offset) except -1
    cdef int ended(self, int64_t size) except -1
    cdef int cut(self, int64_t size) except -1
    cdef int allocate(self, int64_t size) except -1


cpdef int64_t write_all(int fd, parts, int64_t offset) except -1
