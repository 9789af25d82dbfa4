from libc.stdint cimport uint32_t

# The CRC-32C of bytes whose beginning has the CRC-32C ``crc``, 0 for none.
cdef uint32_t extend_crc(uint32_t crc, const unsigned char* p, Py_ssize_t size) noexcept nogil
