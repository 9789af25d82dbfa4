# Big-endian integers at any address: everything on the wire and on disk is big-endian.
#
# Inline, so that the compiler makes each of them one load or store and a byte swap.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t


cdef inline uint16_t load_u16(const unsigned char* p) noexcept nogil:
    return <uint16_t>(<uint16_t>p[0] << 8 | p[1])


cdef inline uint32_t load_u32(const unsigned char* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t load_u64(const unsigned char* p) noexcept nogil:
    return <uint64_t>load_u32(p) << 32 | load_u32(p + 4)


cdef inline int64_t load_i64(const unsigned char* p) noexcept nogil:
    return <int64_t>load_u64(p)


cdef inline void store_u16(unsigned char* p, uint16_t value) noexcept nogil:
    p[0] = <unsigned char>(value >> 8)
    p[1] = <unsigned char>value


cdef inline void store_u32(unsigned char* p, uint32_t value) noexcept nogil:
    p[0] = <unsigned char>(value >> 24)
    p[1] = <unsigned char>(value >> 16)
    p[2] = <unsigned char>(value >> 8)
    p[3] = <unsigned char>value


cdef inline void store_u64(unsigned char* p, uint64_t value) noexcept nogil:
    store_u32(p, <uint32_t>(value >> 32))
    store_u32(p + 4, <uint32_t>value)
