from libc.stdint cimport int64_t, uint16_t, uint32_t

# Sizes of what is in front of batches, payloads and bodies, and a batch's flag.
cdef enum:
    SEGMENT_HEADER = 64
    BATCH_HEADER = 56
    FRAME_HEADER = 34
    HAS_ORIGINS = 1


cdef uint32_t crc32c(const unsigned char* p, Py_ssize_t size) noexcept nogil
cdef bint header_good(const unsigned char* p) noexcept nogil
cdef bytes encode_header(bytes payload, int64_t first, uint32_t count, int64_t append_ns,
                         int64_t publish_ns, int64_t slot, uint16_t flags)


cdef class ScanResult:
    cdef readonly list batches
    cdef readonly Py_ssize_t stop
    cdef readonly int reason
    cdef readonly Py_ssize_t size
    cdef readonly int64_t first
    cdef readonly int64_t count
