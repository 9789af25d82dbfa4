# The output of one client: replies and frames that the socket has not taken yet, in order.
#
#     pieces:   | buffer: 10 bytes | a block: 64 KiB | buffer: 350 bytes |
#               `- replies, small frames               `- copied
#
# Small pieces are copied into one buffer; a large one keeps a reference to its bytes object, and is
# sent from there.
#
# Rule 1: no I/O.  The caller sends what fill() returns, and reports it with sent().
# Rule 2: an empty output uses little memory: most clients of a broker are idle.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.string cimport memcpy, memmove

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # Below this, copying is cheaper than another piece, and than keeping a whole block.
    COPY_SIZE_MAX = 8192
    CAPACITY_MIN = 256
    PIECE_COUNT_MIN = 4
    # What an empty output keeps.
    KEPT_SIZE_MAX = 16384
    KEPT_COUNT_MAX = 64
    # Sent bytes at the start of the buffer before the others are moved there.
    MOVED_SIZE_MIN = 65536


cdef class Output:
    """Bytes for one client."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.head, self.count):
            Py_XDECREF(self.pieces[i].owner)
        PyMem_Free(self.pieces)
        PyMem_Free(self.buffer)

    def write(self, data):
        """Add bytes, or a view of a bytes object."""
        cdef const unsigned char[::1] view
        if type(data) is bytes:
            self.add_bytes(data, 0, len(data))
            return
        view = data
        owner = data.obj
        if type(owner) is bytes and len(view) > COPY_SIZE_MAX:
            self.add_bytes(owner, &view[0] - <const unsigned char*>PyBytes_AS_STRING(owner),
                           len(view))
        elif len(view):
            self.add(&view[0], len(view))

    def take(self, Py_ssize_t size_max=PY_SSIZE_T_MAX):
        """Remove the first ``size_max`` bytes, or all, and return them."""
        cdef iovec[KEPT_COUNT_MAX] vectors
        cdef list parts = []
        cdef int i, count
        cdef Py_ssize_t size, taken
        while self.size and size_max > 0:
            count = self.fill(vectors, KEPT_COUNT_MAX)
            taken = 0
            for i in range(count):
                size = min(<Py_ssize_t>vectors[i].iov_len, size_max)
                parts.append(PyBytes_FromStringAndSize(<const char*>vectors[i].iov_base, size))
                taken += size
                size_max -= size
            self.sent(taken)
        return b"".join(parts)

    def clear(self):
        """Discard all bytes."""
        self.sent(self.size)

    cdef int add(self, const void* data, Py_ssize_t size) except -1:
        # Copy bytes to the end.
        cdef Piece* piece
        if self.buffer_size + size > self.buffer_capacity:
            self.reserve(size)
        if self.head < self.count and self.pieces[self.count - 1].owner == NULL:
            piece = &self.pieces[self.count - 1]
        else:
            piece = self.append_piece()
            piece.owner = NULL
            piece.start = self.buffer_size
            piece.size = 0
        memcpy(self.buffer + self.buffer_size, data, size)
        self.buffer_size += size
        piece.size += size
        self.size += size
        return 0

    cdef int add_bytes(self, bytes data, Py_ssize_t start, Py_ssize_t size) except -1:
        # Add a part of a bytes object, which is copied only if it is small.
        cdef Piece* piece
        if size <= COPY_SIZE_MAX:
            return self.add(PyBytes_AS_STRING(data) + start, size)
        piece = self.append_piece()
        Py_INCREF(data)
        piece.owner = <PyObject*>data
        piece.start = start
        piece.size = size
        self.size += size
        return 0

    cdef int fill(self, iovec* vectors, int count_max) noexcept:
        # The next bytes to send; returns how many vectors were set.
        cdef Py_ssize_t i = self.head
        cdef int count = 0
        cdef Piece* piece
        while i < self.count and count < count_max:
            piece = &self.pieces[i]
            if piece.owner == NULL:
                vectors[count].iov_base = self.buffer + piece.start
            else:
                vectors[count].iov_base = PyBytes_AS_STRING(<object>piece.owner) + piece.start
            vectors[count].iov_len = <size_t>piece.size
            count += 1
            i += 1
        return count

    cdef int sent(self, Py_ssize_t size) except -1:
        # The first ``size`` bytes are sent.
        cdef Piece* piece
        self.size -= size
        while size:
            piece = &self.pieces[self.head]
            if size < piece.size:
                piece.start += size
                piece.size -= size
                break
            size -= piece.size
            self.head += 1
            Py_XDECREF(piece.owner)
        if self.size:
            return self.compact()
        self.head = self.count = self.buffer_size = 0
        if self.buffer_capacity > KEPT_SIZE_MAX:
            PyMem_Free(self.buffer)
            self.buffer = NULL
            self.buffer_capacity = 0
        if self.capacity > KEPT_COUNT_MAX:
            PyMem_Free(self.pieces)
            self.pieces = NULL
            self.capacity = 0
        return 0

    cdef int compact(self) except -1:
        # An output that never gets empty must not grow: move what is left to the start.
        cdef Py_ssize_t i, start = self.buffer_size
        if self.head >= KEPT_COUNT_MAX and 2 * self.head >= self.count:
            memmove(self.pieces, self.pieces + self.head, (self.count - self.head) * sizeof(Piece))
            self.count -= self.head
            self.head = 0
        for i in range(self.head, self.count):
            if self.pieces[i].owner == NULL:
                start = self.pieces[i].start
                break
        if start >= MOVED_SIZE_MIN and 2 * start >= self.buffer_size:
            memmove(self.buffer, self.buffer + start, self.buffer_size - start)
            self.buffer_size -= start
            for i in range(self.head, self.count):
                if self.pieces[i].owner == NULL:
                    self.pieces[i].start -= start
        return 0

    cdef Piece* append_piece(self) except NULL:
        cdef Py_ssize_t capacity
        cdef Piece* pieces
        if self.count == self.capacity:
            capacity = max(<Py_ssize_t>PIECE_COUNT_MIN, 2 * self.capacity)
            pieces = <Piece*>PyMem_Realloc(self.pieces, capacity * sizeof(Piece))
            if pieces == NULL:
                raise MemoryError
            self.pieces = pieces
            self.capacity = capacity
        self.count += 1
        return &self.pieces[self.count - 1]

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = max(<Py_ssize_t>CAPACITY_MIN, 2 * self.buffer_capacity,
                                       self.buffer_size + size)
        cdef unsigned char* buffer = <unsigned char*>PyMem_Realloc(self.buffer, capacity)
        if buffer == NULL:
            raise MemoryError
        self.buffer = buffer
        self.buffer_capacity = capacity
        return 0
