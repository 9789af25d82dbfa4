# CRC-32C (Castagnoli), the checksum of everything on disk and of snappy's frames.
#
# The processor has an instruction for it, which takes eight bytes but waits three cycles for the
# one before it: so long inputs are computed in three lanes at once, and the lanes are joined by
# tables.  Three lane lengths: joining costs 5 ns, and bytes outside of lanes take three times as
# long.  Processors without the instruction take eight bytes a step through tables.
#
# Why not google_crc32c: it is as fast, but holds the interpreter's lock and takes a Python object,
# so that each header inside a file would have to be sliced out first.
#
# Rule 1: the instruction is used only if it computes the known sum of "123456789" at import.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>
    #define CRC_TARGET __attribute__((target("sse4.2")))
    #define CRC_SUPPORTED() __builtin_cpu_supports("sse4.2")
    #define CRC_8_BYTES(crc, value) ((uint32_t)_mm_crc32_u64((crc), (value)))
    #define CRC_BYTE(crc, value) _mm_crc32_u8((crc), (value))

    #elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
    #define CRC_TARGET
    #if defined(__APPLE__)
    #define CRC_SUPPORTED() 1
    #else
    #include <sys/auxv.h>
    #define CRC_SUPPORTED() (getauxval(AT_HWCAP) >> 7 & 1)    /* HWCAP_CRC32 */
    #endif
    static inline uint32_t CRC_8_BYTES(uint32_t crc, uint64_t value) {
        __asm__(".arch_extension crc\\n\\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(value));
        return crc;
    }
    static inline uint32_t CRC_BYTE(uint32_t crc, unsigned char value) {
        __asm__(".arch_extension crc\\n\\tcrc32cb %w0, %w0, %w1"
                : "+r"(crc) : "r"((uint32_t)value));
        return crc;
    }
    #endif

    #if defined(CRC_TARGET)
    #define LONG_LANE 5456
    #define MIDDLE_LANE 1024
    #define SHORT_LANE 128
    static uint32_t long_shift[4][256], middle_shift[4][256], short_shift[4][256];

    static inline uint64_t load_native(const unsigned char* p) {
        uint64_t value;
        memcpy(&value, p, 8);
        return value;
    }

    /* The state after a lane of zeros: what joins a lane's sum to the sum of the next one. */
    static inline uint32_t shift_lane(uint32_t table[4][256], uint32_t crc) {
        return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF]
             ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
    }

    CRC_TARGET static inline uint32_t crc_lanes(
            uint32_t crc, const unsigned char* p, size_t lane, uint32_t table[4][256]) {
        uint32_t second = 0, third = 0;
        const unsigned char* end = p + lane;
        for (; p < end; p += 8) {
            crc = CRC_8_BYTES(crc, load_native(p));
            second = CRC_8_BYTES(second, load_native(p + lane));
            third = CRC_8_BYTES(third, load_native(p + 2 * lane));
        }
        return shift_lane(table, shift_lane(table, crc) ^ second) ^ third;
    }

    CRC_TARGET static uint32_t crc_by_hardware(
            uint32_t crc, const unsigned char* p, size_t size) {
        for (; size >= 3 * LONG_LANE; size -= 3 * LONG_LANE, p += 3 * LONG_LANE)
            crc = crc_lanes(crc, p, LONG_LANE, long_shift);
        for (; size >= 3 * MIDDLE_LANE; size -= 3 * MIDDLE_LANE, p += 3 * MIDDLE_LANE)
            crc = crc_lanes(crc, p, MIDDLE_LANE, middle_shift);
        for (; size >= 3 * SHORT_LANE; size -= 3 * SHORT_LANE, p += 3 * SHORT_LANE)
            crc = crc_lanes(crc, p, SHORT_LANE, short_shift);
        for (; size >= 8; size -= 8, p += 8)
            crc = CRC_8_BYTES(crc, load_native(p));
        for (; size > 0; size--, p++)
            crc = CRC_BYTE(crc, *p);
        return crc;
    }

    /* Bit by bit: the shift of every state is a sum of those of its bits. */
    static void fill_shift(uint32_t shift[4][256], int lane, const uint32_t* table) {
        int bit, step, value;
        uint32_t crc;
        for (bit = 0; bit < 32; bit++) {
            crc = (uint32_t)1 << bit;
            for (step = 0; step < lane; step++)
                crc = crc >> 8 ^ table[crc & 0xFF];
            for (value = 0; value < 256; value++)
                if (value >> bit % 8 & 1)
                    shift[bit / 8][value] ^= crc;
        }
    }

    static int prepare_hardware(const uint32_t* table) {
        if (!CRC_SUPPORTED())
            return 0;
        fill_shift(long_shift, LONG_LANE, table);
        fill_shift(middle_shift, MIDDLE_LANE, table);
        fill_shift(short_shift, SHORT_LANE, table);
        return ~crc_by_hardware(~(uint32_t)0, (const unsigned char*)"123456789", 9) == 0xE3069283;
    }
    #else
    static uint32_t crc_by_hardware(uint32_t crc, const unsigned char* p, size_t size) { return 0; }
    static int prepare_hardware(const uint32_t* table) { return 0; }
    #endif
    """
    uint32_t crc_by_hardware(uint32_t crc, const unsigned char* p, size_t size) noexcept nogil
    bint prepare_hardware(const uint32_t* table) noexcept

cdef enum:
    # Below this the sum takes less time than to get the interpreter's lock back.
    UNLOCKED_SIZE_MIN = 65536

cdef uint32_t TABLES[8][256]


cdef void fill_tables() noexcept:
    cdef int i, j
    cdef uint32_t crc
    for i in range(256):
        crc = i
        for j in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        TABLES[0][i] = crc
    for i in range(256):
        for j in range(1, 8):
            TABLES[j][i] = (TABLES[j - 1][i] >> 8) ^ TABLES[0][TABLES[j - 1][i] & 0xFF]


fill_tables()
cdef bint BY_HARDWARE = prepare_hardware(TABLES[0])
HARDWARE = bool(BY_HARDWARE)


cdef uint32_t extend_crc(uint32_t crc, const unsigned char* p, Py_ssize_t size) noexcept nogil:
    return ~(crc_by_hardware(~crc, p, size) if BY_HARDWARE else crc_by_tables(~crc, p, size))


cdef uint32_t crc_by_tables(uint32_t crc, const unsigned char* p, Py_ssize_t size) noexcept nogil:
    cdef uint32_t low, high
    while size >= 8:
        low = crc ^ (p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24)
        high = p[4] | <uint32_t>p[5] << 8 | <uint32_t>p[6] << 16 | <uint32_t>p[7] << 24
        crc = (TABLES[7][low & 0xFF] ^ TABLES[6][low >> 8 & 0xFF] ^ TABLES[5][low >> 16 & 0xFF]
               ^ TABLES[4][low >> 24] ^ TABLES[3][high & 0xFF] ^ TABLES[2][high >> 8 & 0xFF]
               ^ TABLES[1][high >> 16 & 0xFF] ^ TABLES[0][high >> 24])
        p += 8
        size -= 8
    while size > 0:
        crc = crc >> 8 ^ TABLES[0][(crc ^ p[0]) & 0xFF]
        p += 1
        size -= 1
    return crc


def crc32c(data, uint32_t crc=0):
    """The CRC-32C of ``data``, or of bytes with the CRC-32C ``crc`` and ``data`` after them."""
    cdef Py_buffer view
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) < UNLOCKED_SIZE_MIN:
        return extend_crc(crc, <const unsigned char*>PyBytes_AS_STRING(data),
                          PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = extend_crc(crc, <const unsigned char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_by_tables(bytes data not None):
    """``crc32c`` as processors without the instruction compute it; for tests."""
    return ~crc_by_tables(~<uint32_t>0, <const unsigned char*>PyBytes_AS_STRING(data), len(data))
