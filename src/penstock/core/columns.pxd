from libc.stdint cimport int32_t, int64_t, uint32_t


cdef class Columns:
    cdef readonly Py_ssize_t count    # rows
    cdef readonly Py_ssize_t stop     # offset after the last decoded batch
    cdef readonly int64_t next        # index after the last message of that batch
    cdef readonly bytes index         # int64 each; None if not requested, as the others
    cdef readonly bytes timestamp     # int64 each, microseconds
    cdef readonly bytes id_offsets    # int32, count + 1
    cdef readonly bytes id            # 16 bytes each
    cdef readonly bytes body_offsets  # int32, count + 1
    cdef readonly bytes body          # bodies back to back


cdef struct Rows:
    # A binary column of Arrow, and when each row is due (NULL: at once).
    const int32_t* narrow        # offsets of a binary column, or
    const int64_t* wide          # those of a large binary column; NULL: narrow
    const unsigned char* values  # bodies back to back
    int64_t value_size           # bytes of ``values``
    const int64_t* due           # due time of each row, ns; NULL: published at once


cdef class Packer:
    cdef readonly Py_ssize_t size_max  # bytes of frames that one MPUB body may become
    cdef readonly bint deferred        # rows have due times
    cdef readonly uint32_t count       # messages in the open body
    cdef readonly Py_ssize_t size      # bytes of the open body, its count included
    cdef unsigned char* buffer         # the open body
    cdef Py_ssize_t capacity           # bytes of ``buffer``

    cdef Py_ssize_t fill(self, Rows* rows, Py_ssize_t row, Py_ssize_t end) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
