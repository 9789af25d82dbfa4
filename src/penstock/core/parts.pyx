# Parts of a staging (R19): many messages in one body, checked on arrival and turned into frames
# when it is published.  Deferred ones become records of slot files: see SlotBatch.add_rows.
#
#     plain:     count u32 | (size u32, body) ...                the body of MPUB, without its size
#     deferred:  count u32 | (due_ns i64, size u32, body) ...
#
# Rule 1: no I/O, no clock.  Long loops run without the interpreter's lock, on a disk thread.
# Rule 2: `measure` validates bytes from a peer.  The other functions get what it has accepted and
#         what was stored under a checksum, and still never read past the end.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from penstock.core.appender cimport store_frame
from penstock.core.bytes cimport load_i64, load_u32
from penstock.core.layouts cimport FRAME_HEADER, ID_INDEX_BITS


def measure(bytes body not None, bint deferred, int64_t size_max, int64_t due_max_ns=0):
    """The number of messages, and of bytes in their bodies.

    Raises ValueError with BAD_BODY, BAD_MESSAGE, MSG_TOO_BIG, or INVALID_DEFER for a due time below
    0 or after ``due_max_ns``.  Unlike with MPUB, bytes after the last message are an error: the
    writer has miscounted its rows.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(body)
    cdef Py_ssize_t at = 4, end = PyBytes_GET_SIZE(body), head = 12 if deferred else 4
    cdef int64_t size, total = 0, i, count
    if end < 4:
        raise ValueError("BAD_BODY")
    count = load_u32(p)
    if count < 1 or count > end // (head + 1):
        raise ValueError("BAD_BODY")
    for i in range(count):
        if end - at < head:
            raise ValueError("BAD_MESSAGE")
        if deferred and not 0 <= load_i64(p + at) <= due_max_ns:
            raise ValueError("INVALID_DEFER")
        size = load_u32(p + at + head - 4)
        at += head
        if size > size_max:
            raise ValueError("MSG_TOO_BIG")
        if size < 1 or size > end - at:
            raise ValueError("BAD_MESSAGE")
        at += size
        total += size
    if at != end:
        raise ValueError("BAD_BODY")
    return count, total


def frames(bytes body not None, int node_id, int64_t first, int64_t timestamp_ns):
    """The frames of a plain part whose first message gets the index ``first``."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(body)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(body)
    cdef int64_t count = load_u32(p) if end >= 4 else 0
    # Each message has a size of 4 bytes here, and a whole header in its frame.
    cdef Py_ssize_t room = end - 4 + count * (FRAME_HEADER - 4)
    if count < 1 or count > end // 5:
        raise ValueError("BAD_BODY")
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, room)
    cdef unsigned char* out = <unsigned char*>PyBytes_AS_STRING(payload)
    cdef uint64_t id = <uint64_t>node_id << ID_INDEX_BITS | <uint64_t>first
    cdef bint good
    with nogil:
        good = build(p + 4, p + end, out, count, id, timestamp_ns)
    if not good:
        raise ValueError("BAD_MESSAGE")
    return payload


cdef bint build(const unsigned char* p, const unsigned char* end, unsigned char* out,
                int64_t count, uint64_t id, int64_t timestamp_ns) noexcept nogil:
    cdef int64_t i
    cdef Py_ssize_t size
    for i in range(count):
        if end - p < 4:
            return False
        size = load_u32(p)
        p += 4
        if size > end - p:
            return False
        store_frame(out, p, size, timestamp_ns, id + <uint64_t>i)
        out += FRAME_HEADER + size
        p += size
    return p == end
