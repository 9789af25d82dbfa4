# Batches of a topic log: encoding their headers, scanning a segment file for them, and finding the
# next one after damage.  core/layouts.pxd draws a batch.
#
# Rule 1: no I/O, no clock.  The bytes come from a disk: nothing about them is assumed.
# Rule 2: a header with a good checksum is trusted, so after a bad payload the scan continues right
#         after it.  Only a bad header makes it search for the next magic: bytes inside a payload
#         are never taken for batches, whatever is published.
# Rule 3: indexes ascend.  A batch with a lower index is not part of this log.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from penstock.core.bytes cimport load_i64, load_u16, load_u32, store_u32, store_u64
from penstock.core.crc32c cimport extend_crc
from penstock.core.layouts cimport (
    BATCH_APPEND_NS, BATCH_COUNT, BATCH_CRC, BATCH_FIRST, BATCH_FLAGS, BATCH_HEADER,
    BATCH_ORIGIN, BATCH_PAYLOAD_CRC, BATCH_PUBLISH_NS, BATCH_SIZE, FLAG_MOVED, FLAG_ORIGINS, FLAG_STAGED,
    FRAME_ATTEMPTS, FRAME_HEADER, FRAME_ID, FRAME_TIMESTAMP, FRAME_TYPE, FRAME_TYPE_MESSAGE, ID_INDEX_BITS, ORDINAL_SIZE, SEGMENT_HEADER,
)

HEADER_SIZE = SEGMENT_HEADER
BATCH_HEADER_SIZE = BATCH_HEADER
FRAME_SIZE_MIN = FRAME_HEADER
TIMESTAMP_FIELD = slice(FRAME_TIMESTAMP, FRAME_ATTEMPTS)
ID_FIELD = slice(FRAME_ID, FRAME_HEADER)
INDEX_MAX = <int64_t>1 << ID_INDEX_BITS
# Flags: a batch has none, ORIGINS, STAGED, or ORIGINS and MOVED.  A moved one has 16 bits of its
# source's channel above them.
ORIGINS = FLAG_ORIGINS
STAGED = FLAG_STAGED
MOVED = FLAG_MOVED

# Why a scan stopped.
END = 0          # at the end of the bytes, after a whole batch
PARTIAL = 1      # the last batch continues after the bytes
BAD_HEADER = 2   # no batch starts here
BAD_PAYLOAD = 3  # the header is good, its payload is not

cdef enum:
    # Below this a scan takes less time than to get the interpreter's lock back.
    UNLOCKED_SIZE_MIN = 65536

cdef const char* MAGIC = b"PSB1"
cdef int64_t INDEX_LIMIT = (<int64_t>1) << ID_INDEX_BITS


def encode_batch_header(
    bytes payload not None, int64_t first, uint32_t count, int64_t append_ns, int64_t publish_ns,
    int64_t slot=0, uint32_t flags=0,
):
    """The 56 bytes before ``payload``, with both checksums."""
    return encode_header(payload, first, count, append_ns, publish_ns, slot, flags)


cdef inline uint32_t header_crc(const unsigned char* p) noexcept nogil:
    return extend_crc(0, p + BATCH_SIZE, BATCH_HEADER - BATCH_SIZE)


cdef bytes encode_header(bytes payload, int64_t first, uint32_t count, int64_t append_ns,
                         int64_t publish_ns, int64_t slot, uint32_t flags):
    cdef unsigned char header[BATCH_HEADER]
    if PyBytes_GET_SIZE(payload) > 0xFFFFFFFF:
        raise ValueError(f"a payload of {len(payload)} bytes does not fit its 32-bit size")
    memcpy(header, MAGIC, 4)
    store_u32(header + BATCH_SIZE, <uint32_t>PyBytes_GET_SIZE(payload))
    store_u32(header + BATCH_PAYLOAD_CRC, extend_crc(
        0, <const unsigned char*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload)))
    store_u64(header + BATCH_FIRST, <uint64_t>first)
    store_u32(header + BATCH_COUNT, count)
    store_u32(header + BATCH_FLAGS, flags << 16 | flags >> 16)
    store_u64(header + BATCH_APPEND_NS, <uint64_t>append_ns)
    store_u64(header + BATCH_PUBLISH_NS, <uint64_t>publish_ns)
    store_u64(header + BATCH_ORIGIN, <uint64_t>slot)
    store_u32(header + BATCH_CRC, header_crc(header))
    return header[:BATCH_HEADER]


cdef bint header_good(const unsigned char* p) noexcept nogil:
    # Whether the 56 bytes at p are a batch header: magic, checksum, and plausible fields.
    cdef int64_t first, count, size
    if memcmp(p, MAGIC, 4) != 0 or load_u32(p + BATCH_CRC) != header_crc(p):
        return False
    first = load_i64(p + BATCH_FIRST)
    count = load_u32(p + BATCH_COUNT)
    size = load_u32(p + BATCH_SIZE)
    return count >= 1 and size >= count * FRAME_HEADER and 0 <= first <= INDEX_LIMIT - count


cdef bint frames_good(const unsigned char* p, int64_t size, int64_t count) noexcept nogil:
    # Whether ``size`` bytes are exactly ``count`` message frames.
    cdef int64_t at = 0, frame
    while count > 0:
        if size - at < FRAME_HEADER:
            return False
        frame = 4 + <int64_t>load_u32(p + at)
        if (frame < FRAME_HEADER or frame > size - at
                or load_u32(p + at + FRAME_TYPE) != FRAME_TYPE_MESSAGE):
            return False
        at += frame
        count -= 1
    return at == size


cdef int64_t ordinals_size(const unsigned char* header) noexcept nogil:
    # How many bytes of the payload come after its frames.
    if load_u16(header + BATCH_FLAGS) & FLAG_ORIGINS:
        return ORDINAL_SIZE * <int64_t>load_u32(header + BATCH_COUNT)
    return 0


cdef bint payload_good(const unsigned char* header) noexcept nogil:
    # Whether the payload after a good header is intact.
    cdef const unsigned char* payload = header + BATCH_HEADER
    cdef int64_t size = load_u32(header + BATCH_SIZE), count = load_u32(header + BATCH_COUNT)
    return (extend_crc(0, payload, size) == load_u32(header + BATCH_PAYLOAD_CRC)
            and frames_good(payload, size - ordinals_size(header), count))


cdef Py_ssize_t good_until(
    const unsigned char* p, Py_ssize_t offset, Py_ssize_t size, int64_t index_min
) noexcept nogil:
    # The offset after the last batch of the run of good ones that starts at ``offset``.
    cdef Py_ssize_t end
    while size - offset >= BATCH_HEADER:
        if not header_good(p + offset) or load_i64(p + offset + BATCH_FIRST) < index_min:
            break
        end = offset + BATCH_HEADER + load_u32(p + offset + BATCH_SIZE)
        if end > size or not payload_good(p + offset):
            break
        index_min = load_i64(p + offset + BATCH_FIRST) + load_u32(p + offset + BATCH_COUNT)
        offset = end
    return offset


cdef class ScanResult:
    """The batches that a scan found, where it stopped and why.

    If the header at ``stop`` is good, ``size``, ``first`` and ``count`` are those of its batch;
    otherwise they are 0.
    """

    def spans(self, int64_t index):
        """The batches that end after ``index``, as spans of a Block."""
        cdef list spans = []
        cdef tuple batch
        for batch in self.batches:
            if <int64_t>batch[0] + <int64_t>batch[1] > index:
                spans.append(batch[:5])
        return spans


def scan(bytes data not None, Py_ssize_t offset, bint verify, int64_t index_min=0):
    """Find the whole batches of ``data`` from ``offset`` on.

    Headers are always verified, payload checksums and frames with ``verify``.  A batch that starts
    below ``index_min``, or below the end of the batch before it, counts as a bad header.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), start, end
    cdef int64_t payload, first, count
    cdef uint32_t flags
    cdef const unsigned char* header
    cdef Py_ssize_t verified = offset
    cdef ScanResult result = ScanResult.__new__(ScanResult)
    cdef list batches = []
    if offset < 0 or offset > size:
        raise ValueError(f"offset {offset} is outside of {size} bytes")
    if verify and size - offset >= UNLOCKED_SIZE_MIN:
        # Checksums of a megabyte take as long as fifty requests, which must not wait for them.
        with nogil:
            verified = good_until(p, offset, size, index_min)
    result.batches = batches
    result.reason = END
    while offset < size:
        if size - offset < BATCH_HEADER:
            result.reason = PARTIAL
            break
        if not header_good(p + offset) or load_i64(p + offset + BATCH_FIRST) < index_min:
            result.reason = BAD_HEADER
            break
        header = p + offset
        payload = load_u32(header + BATCH_SIZE)
        first = load_i64(header + BATCH_FIRST)
        count = load_u32(header + BATCH_COUNT)
        start = offset + BATCH_HEADER
        end = start + payload
        result.size, result.first, result.count = BATCH_HEADER + payload, first, count
        if end > size:
            result.reason = PARTIAL
            break
        if verify and offset >= verified and not payload_good(header):
            result.reason = BAD_PAYLOAD
            break
        flags = load_u32(header + BATCH_FLAGS)
        batches.append((first, count, start, end - ordinals_size(header),
                        load_i64(header + BATCH_APPEND_NS), load_i64(header + BATCH_ORIGIN),
                        flags << 16 | flags >> 16))
        index_min = first + count
        offset = end
        result.size = result.first = result.count = 0
    result.stop = offset
    return result


def resync(bytes data not None, Py_ssize_t offset, int64_t index_min=0):
    """The offset of the next good batch header at or after ``offset``, or -1.

    ``index_min`` rejects batches from before what was read already.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t last = PyBytes_GET_SIZE(data) - BATCH_HEADER
    cdef const unsigned char* found
    while 0 <= offset <= last:
        found = <const unsigned char*>memchr(p + offset, MAGIC[0], last - offset + 1)
        if found == NULL:
            break
        offset = found - p
        if header_good(found) and load_i64(found + BATCH_FIRST) >= index_min:
            return offset
        offset += 1
    return -1
