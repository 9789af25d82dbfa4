from cpython.object cimport PyObject

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len


# Bytes that go out one after the other.
cdef struct Piece:
    PyObject* owner   # keeps them in memory; NULL: they are in the buffer
    Py_ssize_t start  # offset in the owner's bytes or in the buffer
    Py_ssize_t size   # bytes


cdef class Output:
    cdef readonly Py_ssize_t size        # bytes that are not sent
    cdef unsigned char* buffer           # copies of small pieces
    cdef Py_ssize_t buffer_size          # bytes of it in use
    cdef Py_ssize_t buffer_capacity      # bytes
    cdef Piece* pieces                   # in the order they go out, from ``head`` on
    cdef Py_ssize_t head                 # the first that is not sent
    cdef Py_ssize_t count                # pieces in use, those before ``head`` included
    cdef Py_ssize_t capacity             # pieces that there is room for

    cdef int add(self, const void* data, Py_ssize_t size) except -1
    cdef int add_bytes(self, bytes data, Py_ssize_t start, Py_ssize_t size) except -1
    cdef int fill(self, iovec* vectors, int count_max) noexcept
    cdef int sent(self, Py_ssize_t size) except -1
    cdef Piece* append_piece(self) except NULL
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int compact(self) except -1
