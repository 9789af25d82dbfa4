# Batches of a topic log, as they lie in a segment file (docs/storage-format.md).
#
#     0 magic "PSB1" | 4 header crc | 8 payload size | 12 payload crc | 16 first index | 24 count
#     28 flags | 30 zero | 32 append_ns | 40 publish_ns | 48 origin | 56 payload
#     payload: frames back to back, and with flag 1 `count` ordinals of 4 bytes after them
#     origin: with flag 1 the slot the messages were deferred in, with flag 2 the staging and part
#
# Rule 1: no I/O, no clock.  The bytes come from a disk: nothing about them is assumed.
# Rule 2: a header with a good checksum is believed, so after a bad payload the walk goes on right
#         behind it.  Only a bad header makes it search for the next magic: bytes inside of a
#         payload are never taken for batches, whatever people publish.
# Rule 3: indexes ascend.  A batch that goes back is not part of this log.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from google_crc32c import value as crc_value

HEADER_SIZE = SEGMENT_HEADER
BATCH_HEADER_SIZE = BATCH_HEADER
FRAME_SIZE_MIN = FRAME_HEADER
INDEX_MAX = 1 << 54
# Flags; a batch has one of them at most.
ORIGINS = HAS_ORIGINS
STAGED = 2

# Why a scan stopped.
END = 0          # at the end of the bytes, after a whole batch
PARTIAL = 1      # the last batch goes on behind the bytes
BAD_HEADER = 2   # no batch starts here
BAD_PAYLOAD = 3  # the header is good; its payload is not

cdef enum:
    # Below this a walk is shorter than it takes to get the interpreter's lock back.
    UNLOCKED_SIZE_MIN = 65536

cdef extern from *:
    """
    /* CRC-32C by the processor's own instruction: three lanes at once, because each step waits
       three cycles for the one before it.  google_crc32c is as fast, but takes a slice of its own
       and the interpreter's lock. */
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>
    #define LANE_SIZE 1024
    static uint32_t lane_shift[4][256];

    static inline uint32_t shift_lane(uint32_t crc) {
        return lane_shift[0][crc & 0xFF] ^ lane_shift[1][crc >> 8 & 0xFF]
             ^ lane_shift[2][crc >> 16 & 0xFF] ^ lane_shift[3][crc >> 24];
    }

    static inline uint64_t load_8(const unsigned char* p) {
        uint64_t value;
        memcpy(&value, p, 8);
        return value;
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc_step(uint32_t start, const unsigned char* p, size_t size) {
        uint64_t crc = start, second, third;
        const unsigned char* end;
        while (size >= 3 * LANE_SIZE) {
            second = third = 0;
            for (end = p + LANE_SIZE; p < end; p += 8) {
                crc = _mm_crc32_u64(crc, load_8(p));
                second = _mm_crc32_u64(second, load_8(p + LANE_SIZE));
                third = _mm_crc32_u64(third, load_8(p + 2 * LANE_SIZE));
            }
            crc = shift_lane(shift_lane((uint32_t)crc) ^ (uint32_t)second) ^ (uint32_t)third;
            p += 2 * LANE_SIZE;
            size -= 3 * LANE_SIZE;
        }
        for (; size >= 8; size -= 8, p += 8)
            crc = _mm_crc32_u64(crc, load_8(p));
        for (; size > 0; size--, p++)
            crc = _mm_crc32_u8((uint32_t)crc, *p);
        return (uint32_t)crc;
    }

    /* The state after a lane of zeros, bit by bit: every other state is a sum of those. */
    static int prepare_crc(const uint32_t* table) {
        int bit, step, byte, value;
        uint32_t crc, bits[32];
        if (!__builtin_cpu_supports("sse4.2"))
            return 0;
        for (bit = 0; bit < 32; bit++) {
            crc = (uint32_t)1 << bit;
            for (step = 0; step < LANE_SIZE; step++)
                crc = crc >> 8 ^ table[crc & 0xFF];
            bits[bit] = crc;
        }
        for (byte = 0; byte < 4; byte++)
            for (value = 0; value < 256; value++)
                for (bit = 0; bit < 8; bit++)
                    if (value >> bit & 1)
                        lane_shift[byte][value] ^= bits[8 * byte + bit];
        return 1;
    }
    #else
    static uint32_t crc_step(uint32_t start, const unsigned char* p, size_t size) { return 0; }
    static int prepare_crc(const uint32_t* table) { return 0; }
    #endif
    """
    uint32_t crc_step(uint32_t start, const unsigned char* p, size_t size) noexcept nogil
    bint prepare_crc(const uint32_t* table) noexcept

cdef int64_t INDEX_LIMIT = (<int64_t>1) << 54
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
cdef bint HARDWARE = prepare_crc(TABLES[0])


cdef uint32_t crc32c(const unsigned char* p, Py_ssize_t size) noexcept nogil:
    if HARDWARE:
        return ~crc_step(~<uint32_t>0, p, size)
    return crc_by_tables(p, size)


def checksum(bytes data not None, bint hardware=True):
    """The CRC-32C of ``data``, by the processor or by tables; for tests."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    return crc32c(p, len(data)) if hardware else crc_by_tables(p, len(data))


cdef uint32_t crc_by_tables(const unsigned char* p, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = ~<uint32_t>0, low, high
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
    return ~crc


cdef inline uint32_t load_u32(const unsigned char* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int64_t load_i64(const unsigned char* p) noexcept nogil:
    return <int64_t>((<uint64_t>load_u32(p) << 32) | load_u32(p + 4))


cdef inline void store_u32(unsigned char* p, uint32_t value) noexcept:
    p[0] = value >> 24
    p[1] = (value >> 16) & 0xFF
    p[2] = (value >> 8) & 0xFF
    p[3] = value & 0xFF


cdef inline void store_i64(unsigned char* p, int64_t value) noexcept:
    store_u32(p, <uint32_t>(<uint64_t>value >> 32))
    store_u32(p + 4, <uint32_t>(<uint64_t>value & 0xFFFFFFFF))


def encode_batch_header(
    bytes payload not None, int64_t first, uint32_t count, int64_t append_ns, int64_t publish_ns,
    int64_t slot=0, uint16_t flags=0,
):
    """The 56 bytes that go before ``payload``; both checksums are filled in."""
    return encode_header(payload, first, count, append_ns, publish_ns, slot, flags)


cdef uint32_t payload_crc(bytes payload) except? 0:
    # Where ours has no instruction to use, google_crc32c may have one.
    if HARDWARE:
        return crc32c(<const unsigned char*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    return crc_value(payload)


cdef bytes encode_header(bytes payload, int64_t first, uint32_t count, int64_t append_ns,
                         int64_t publish_ns, int64_t slot, uint16_t flags):
    cdef unsigned char header[BATCH_HEADER]
    memset(header, 0, BATCH_HEADER)
    if PyBytes_GET_SIZE(payload) > 0xFFFFFFFF:
        raise ValueError(f"a payload of {len(payload)} bytes does not fit its 32-bit size")
    header[0], header[1], header[2], header[3] = b"P", b"S", b"B", b"1"
    store_u32(header + 8, <uint32_t>PyBytes_GET_SIZE(payload))
    store_u32(header + 12, payload_crc(payload))
    store_i64(header + 16, first)
    store_u32(header + 24, count)
    header[28] = flags >> 8
    header[29] = flags & 0xFF
    store_i64(header + 32, append_ns)
    store_i64(header + 40, publish_ns)
    store_i64(header + 48, slot)
    store_u32(header + 4, crc32c(header + 8, BATCH_HEADER - 8))
    return header[:BATCH_HEADER]


cdef bint header_good(const unsigned char* p) noexcept nogil:
    # Whether the 56 bytes at p are a batch header: magic, checksum, and fields that can be true.
    cdef int64_t first, count, size
    if p[0] != c"P" or p[1] != c"S" or p[2] != c"B" or p[3] != c"1":
        return False
    if load_u32(p + 4) != crc32c(p + 8, BATCH_HEADER - 8):
        return False
    first = load_i64(p + 16)
    count = load_u32(p + 24)
    size = load_u32(p + 8)
    return count >= 1 and size >= count * FRAME_HEADER and 0 <= first <= INDEX_LIMIT - count


cdef bint frames_good(const unsigned char* p, int64_t size, int64_t count) noexcept nogil:
    # Whether ``size`` bytes are exactly ``count`` message frames.
    cdef int64_t at = 0, frame
    while count > 0:
        if size - at < FRAME_HEADER:
            return False
        frame = 4 + <int64_t>load_u32(p + at)
        if frame < FRAME_HEADER or frame > size - at or load_u32(p + at + 4) != 2:
            return False
        at += frame
        count -= 1
    return at == size


cdef bint payload_good(const unsigned char* header) noexcept nogil:
    # Whether what follows a good header is what was written.
    cdef int64_t size = load_u32(header + 8), count = load_u32(header + 24)
    cdef int64_t ordinals = 4 * count if header[29] & 1 else 0
    return crc32c(header + BATCH_HEADER, size) == load_u32(header + 12) and frames_good(
        header + BATCH_HEADER, size - ordinals, count
    )


cdef Py_ssize_t good_until(
    const unsigned char* p, Py_ssize_t offset, Py_ssize_t size, int64_t index_min
) noexcept nogil:
    # The offset behind the last of the batches that are whole and good one after the other.
    cdef Py_ssize_t end
    while size - offset >= BATCH_HEADER:
        if not header_good(p + offset) or load_i64(p + offset + 16) < index_min:
            break
        end = offset + BATCH_HEADER + load_u32(p + offset + 8)
        if end > size or not payload_good(p + offset):
            break
        index_min = load_i64(p + offset + 16) + load_u32(p + offset + 24)
        offset = end
    return offset


cdef class ScanResult:
    """What a walk over batches found.

    ``batches`` holds (first, count, frames start, frames end, append_ns, slot, flags) each.
    ``stop`` is the offset behind the last good batch, ``reason`` why the walk ended there.  If
    the header at ``stop`` is readable, ``size`` is its whole batch's and ``first`` and ``count``
    are its indexes; otherwise all three are 0.
    """

    def spans(self, int64_t index):
        """The batches that end behind ``index``, as a Block takes them."""
        cdef list spans = []
        cdef tuple batch
        for batch in self.batches:
            if <int64_t>batch[0] + <int64_t>batch[1] > index:
                spans.append(batch[:4])
        return spans


def scan(bytes data not None, Py_ssize_t offset, bint verify, int64_t index_min=0):
    """Walk the whole batches of ``data`` from ``offset`` on.

    With ``verify`` payload checksums are compared and frames walked; headers always are.  A batch
    that starts below ``index_min`` or below the batch before it ends the walk as a bad header.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), start, end
    cdef int64_t payload, first, count
    cdef int flags
    cdef Py_ssize_t verified = offset
    cdef ScanResult result = ScanResult.__new__(ScanResult)
    cdef list batches = []
    if offset < 0 or offset > size:
        raise ValueError(f"offset {offset} lies outside of {size} bytes")
    if verify and size - offset >= UNLOCKED_SIZE_MIN:
        # Checksums of a megabyte take as long as fifty requests, which should not wait for them.
        with nogil:
            verified = good_until(p, offset, size, index_min)
    result.batches = batches
    result.reason = END
    while offset < size:
        if size - offset < BATCH_HEADER:
            result.reason = PARTIAL
            break
        if not header_good(p + offset) or load_i64(p + offset + 16) < index_min:
            result.reason = BAD_HEADER
            break
        payload = load_u32(p + offset + 8)
        first = load_i64(p + offset + 16)
        count = load_u32(p + offset + 24)
        flags = p[offset + 28] << 8 | p[offset + 29]
        start = offset + BATCH_HEADER
        end = start + payload
        result.size, result.first, result.count = BATCH_HEADER + payload, first, count
        if end > size:
            result.reason = PARTIAL
            break
        if verify and offset >= verified and not payload_good(p + offset):
            result.reason = BAD_PAYLOAD
            break
        batches.append((first, count, start, end - (4 * count if flags & 1 else 0),
                        load_i64(p + offset + 32), load_i64(p + offset + 48), flags))
        index_min = first + count
        offset = end
        result.size = result.first = result.count = 0
    result.stop = offset
    return result


def resync(bytes data not None, Py_ssize_t offset, int64_t index_min=0):
    """The offset of the next good batch header at or behind ``offset``, or -1.

    ``index_min`` refuses batches that lie in front of what was read already.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t last = PyBytes_GET_SIZE(data) - BATCH_HEADER
    cdef const unsigned char* found
    while 0 <= offset <= last:
        found = <const unsigned char*>memchr(p + offset, c"P", last - offset + 1)
        if found == NULL:
            break
        offset = found - p
        if header_good(found) and load_i64(found + 16) >= index_min:
            return offset
        offset += 1
    return -1
