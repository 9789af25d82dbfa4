from libc.stdint cimport int64_t, uint32_t


cdef bint header_good(const unsigned char* p) noexcept nogil
cdef int64_t ordinals_size(const unsigned char* header) noexcept nogil
cdef bytes encode_header(bytes payload, int64_t first, uint32_t count, int64_t append_ns,
                         int64_t publish_ns, int64_t slot, uint32_t flags)


cdef class ScanResult:
    # (first, count, frames start, frames end, append_ns, slot, flags).
    cdef readonly list batches
    cdef readonly Py_ssize_t stop  # offset after the last good batch
    cdef readonly int reason       # END, PARTIAL, BAD_HEADER or BAD_PAYLOAD
    cdef readonly Py_ssize_t size  # bytes of the batch at ``stop``, 0 if its header is bad
    cdef readonly int64_t first    # its first index
    cdef readonly int64_t count    # its messages
