from libc.stdint cimport int64_t, uint16_t, uint32_t


cdef bint header_good(const unsigned char* p) noexcept nogil
cdef int64_t ordinals_size(const unsigned char* header) noexcept nogil
cdef bytes encode_header(bytes payload, int64_t first, uint32_t count, int64_t append_ns,
                         int64_t publish_ns, int64_t slot, uint16_t flags)


cdef class ScanResult:
    cdef readonly list batches
    cdef readonly Py_ssize_t stop
    cdef readonly int reason
    cdef readonly Py_ssize_t size
    cdef readonly int64_t first
    cdef readonly int64_t count
