from libc.stdint cimport int32_t, int64_t, uint32_t


cdef class Columns:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t stop
    cdef readonly int64_t next
    cdef readonly bytes index
    cdef readonly bytes timestamp
    cdef readonly bytes id_offsets
    cdef readonly bytes id
    cdef readonly bytes body_offsets
    cdef readonly bytes body


cdef struct Rows:
    # A binary column of Arrow, and when each row is due (NULL: at once).
    const int32_t* narrow
    const int64_t* wide
    const unsigned char* values
    int64_t value_size
    const int64_t* due


cdef class Packer:
    cdef readonly Py_ssize_t size_max
    cdef readonly bint deferred
    cdef readonly uint32_t count
    cdef readonly Py_ssize_t size
    cdef unsigned char* buffer
    cdef Py_ssize_t capacity

    cdef Py_ssize_t fill(self, Rows* rows, Py_ssize_t row, Py_ssize_t end) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
