from libc.stdint cimport int64_t

# A run of frames that lie back to back: indexes first..first+count in bytes start..end.
cdef struct Span:
    int64_t first     # index of the first message
    int64_t count     # messages
    Py_ssize_t start  # offset of the first frame in the data
    Py_ssize_t end    # offset after the last frame
    int64_t append_ns  # of their batch (R4); 0: not known


# Where a frame was found.
cdef struct Place:
    int64_t index
    Py_ssize_t at


cdef class Block:
    cdef readonly bytes data            # piece of a log file, or the payload of a batch
    cdef readonly int node_id           # of all messages in it
    cdef readonly Py_ssize_t span_count
    cdef const unsigned char* bytes_at  # the bytes of ``data``
    cdef Span* spans                    # ascending
    cdef Span single                    # what ``spans`` points to if there is just one
    cdef Place[2] places                # the last ones, see offset_of()

    cpdef bytes frame(self, int64_t index)
    cdef void free_spans(self) noexcept
    cdef int64_t first_index(self) noexcept
    cdef int64_t end_index(self) noexcept
    cdef int64_t message_count(self) noexcept
    cdef Py_ssize_t find(self, int64_t index) noexcept
    cdef Py_ssize_t offset_of(self, Py_ssize_t span, int64_t index) except -1


cdef Block dense_block(bytes data, int64_t first, int64_t count, Py_ssize_t end, int node_id,
                       int64_t append_ns)
