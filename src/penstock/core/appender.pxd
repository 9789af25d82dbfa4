from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from penstock.core.block cimport Block
from penstock.core.ticket cimport Ticket


cdef void store_frame(unsigned char* p, const unsigned char* body, Py_ssize_t size,
                      int64_t timestamp_ns, uint64_t id) noexcept nogil


cdef class Batch:
    cdef public bytes payload
    cdef readonly int64_t first
    cdef readonly int64_t count
    cdef readonly int64_t append_ns
    cdef readonly int64_t publish_ns
    cdef public int64_t body_size
    cdef public int64_t origin
    cdef public int flags
    cdef public Ticket ticket
    cdef public object dues
    cdef public object part
    cdef public object segment
    cdef public int64_t segment_size

    cpdef bytes header(self)
    cpdef Block block(self, int node_id)


cdef class Appender:
    cdef readonly int node_id
    cdef readonly int64_t first
    cdef readonly int64_t count
    cdef readonly int64_t publish_ns
    cdef readonly int64_t body_size
    cdef readonly Py_ssize_t size
    cdef public bint closed
    cdef readonly Ticket ticket
    cdef public object opened
    cdef readonly str topic
    cdef PyObject* payload
    cdef unsigned char* buffer
    cdef Py_ssize_t expected
    cdef Py_ssize_t capacity

    cpdef Batch seal(self, int64_t append_ns)
    cdef int append(self, const unsigned char* body, Py_ssize_t size,
                    int64_t timestamp_ns) except -1
    cdef int append_multi(self, const unsigned char* p, Py_ssize_t total, int64_t count,
                          int64_t timestamp_ns) except -1
    cdef uint64_t next_id(self) noexcept
    cdef int begin(self, int64_t timestamp_ns, Py_ssize_t size) except -1
    cdef int open(self) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
