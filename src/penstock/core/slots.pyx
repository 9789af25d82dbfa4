# Records of deferred messages as they lie in a slot file: packed, found again, read back.
#
#     0  magic "PSD1"      4  header crc u32         8  size u32 (whole record)   12 body crc u32
#     16 ordinal u32       20 topic size u8, zeros   24 instance u64            32 timestamp_ns i64
#     40 due_ns i64        48 stamp i64              56 topic name, then the body
#
# Rule 1: the header crc covers the slot's number and bytes 8 to the end of the topic name.  The
#         number is partly random, so no body can be made to look like a record when a damaged file
#         is searched.
# Rule 2: a scan judges headers and steps over bodies; a body is judged when it is read to be fired.
# Rule 3: no I/O and no clock.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

from google_crc32c import value as _crc32c

HEADER_SIZE = 56
RECORD_SIZE_MAX = 0xFFFFFFFF

cdef enum:
    HEADER = 56
    HEADER_MAX = 56 + 255
    TOPIC_CACHE_MAX = 10_000

cdef const char* MAGIC = b"PSD1"
cdef uint32_t[8][256] crc_table
cdef dict topic_cache = {}


cdef void fill_crc_table() noexcept:
    # CRC-32C (Castagnoli), eight bytes a step.  Headers are 60 bytes: a call of google_crc32c would
    # cost twice as much as the sum itself, and needs a bytes object of its own.
    cdef uint32_t crc
    cdef int i, k
    for i in range(256):
        crc = i
        for k in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        crc_table[0][i] = crc
    for i in range(256):
        for k in range(1, 8):
            crc_table[k][i] = (crc_table[k - 1][i] >> 8) ^ crc_table[0][crc_table[k - 1][i] & 255]


fill_crc_table()


cdef uint32_t extend_crc(uint32_t crc, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    crc = ~crc
    while size >= 8:
        crc ^= <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        crc = (
            crc_table[7][crc & 255] ^ crc_table[6][crc >> 8 & 255]
            ^ crc_table[5][crc >> 16 & 255] ^ crc_table[4][crc >> 24]
            ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]]
        )
        p += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ crc_table[0][(crc ^ p[0]) & 255]
        p += 1
        size -= 1
    return ~crc


cdef inline void store_u32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = value >> 16 & 255
    p[2] = value >> 8 & 255
    p[3] = value & 255


cdef inline void store_u64(uint8_t* p, uint64_t value) noexcept nogil:
    store_u32(p, <uint32_t>(value >> 32))
    store_u32(p + 4, <uint32_t>value)


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t load_u64(const uint8_t* p) noexcept nogil:
    return <uint64_t>load_u32(p) << 32 | load_u32(p + 4)


cdef uint32_t header_crc(const uint8_t* p, int64_t number) noexcept nogil:
    cdef uint8_t[8] seed
    store_u64(seed, <uint64_t>number)
    return extend_crc(extend_crc(0, seed, 8), p + 8, HEADER - 8 + p[20])


cdef bint is_header(const uint8_t* p, Py_ssize_t room, int64_t number) noexcept nogil:
    return (
        room >= HEADER
        and memcmp(p, MAGIC, 4) == 0
        and room >= HEADER + p[20]
        and load_u32(p + 8) >= <uint32_t>(HEADER + p[20])
        and load_u32(p + 4) == header_crc(p, number)
    )


cdef str decode_topic(const uint8_t* p):
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>p + HEADER, p[20])
    topic = topic_cache.get(name)
    if topic is None:
        if len(topic_cache) >= TOPIC_CACHE_MAX:
            topic_cache.clear()
        topic = topic_cache[name] = name.decode("utf-8", "replace")
    return topic


cdef class Records:
    """Records found in ``data``, which starts at offset ``base`` of its file."""

    def __cinit__(self):
        self.bad_offset = -1

    def __dealloc__(self):
        free(self.items)

    cdef int reserve(self, Py_ssize_t count) except -1 nogil:
        cdef Py_ssize_t room
        cdef Record* items
        if count > self.room:
            room = max(count, self.room * 2, 16)
            items = <Record*>realloc(self.items, room * sizeof(Record))
            if items == NULL:
                with gil:
                    raise MemoryError
            self.items = items
            self.room = room
        return 0

    cdef str topic_at(self, Py_ssize_t i):
        if self.data is None:
            raise ValueError("the records of a batch have no bytes here")
        return decode_topic(<const uint8_t*>PyBytes_AS_STRING(self.data) + self.items[i].offset)

    def __len__(self):
        return self.count

    def rows(self):
        """(ordinal, offset in the file, size, due_ns, instance, stamp) of each."""
        cdef Py_ssize_t i
        return [
            (
                self.items[i].ordinal, self.base + self.items[i].offset, self.items[i].size,
                self.items[i].due_ns, self.items[i].instance, self.items[i].stamp,
            )
            for i in range(self.count)
        ]


cdef class Batch(Records):
    """Records on their way into the slot file ``number``."""

    def __init__(self, int64_t number):
        self.number = number

    def __dealloc__(self):
        free(self.buffer)

    def add(
        self, uint32_t ordinal, bytes topic, uint64_t instance, bytes body,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp,
    ):
        """Pack one more record; the size of the batch is bounded by the caller."""
        if topic is None or body is None:
            raise ValueError("a record has a topic and a body")
        self.pack(ordinal, topic, instance, body, timestamp_ns, due_ns, stamp)

    def add_rows(
        self, bytes part not None, Py_ssize_t at, int64_t count_max, uint32_t ordinal,
        bytes topic not None, uint64_t instance, int64_t timestamp_ns, int64_t stamp,
        int64_t start_ns, int64_t end_ns,
    ):
        """Pack rows of a deferred part (core/parts.pyx) from ``at`` on, while they are due in time.

        That is in [start_ns, end_ns); a row due before ``timestamp_ns`` is due then.  Ordinals and
        stamps count up.  Returns how many were packed, and where the next row is.
        """
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(part)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(part), size
        cdef int64_t due_ns, done = 0
        while done < count_max and at < end:
            if end - at < 12 or load_u32(p + at + 8) > end - at - 12:
                raise ValueError("BAD_MESSAGE")
            due_ns = max(<int64_t>load_u64(p + at), timestamp_ns)
            if not start_ns <= due_ns < end_ns:
                break
            size = load_u32(p + at + 8)
            self.pack(
                <uint32_t>(ordinal + done), topic, instance, part[at + 12:at + 12 + size],
                timestamp_ns, due_ns, stamp + done,
            )
            done += 1
            at += 12 + size
        return done, at

    cdef int pack(
        self, uint32_t ordinal, bytes topic, uint64_t instance, bytes body,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp,
    ) except -1:
        if self.size and self.buffer == NULL:
            raise ValueError("a settled batch takes no more records")
        cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic)
        cdef Py_ssize_t size = HEADER + topic_size + PyBytes_GET_SIZE(body)
        if not 1 <= topic_size <= 255 or size > <int64_t>0xFFFFFFFF:
            raise ValueError(f"topic of {topic_size} bytes, record of {size} bytes")
        cdef uint32_t body_crc = _crc32c(body)
        self.grow(size)
        self.reserve(self.count + 1)
        cdef uint8_t* p = self.buffer + self.size
        memcpy(p, MAGIC, 4)
        store_u32(p + 8, <uint32_t>size)
        store_u32(p + 12, body_crc)
        store_u32(p + 16, ordinal)
        store_u32(p + 20, <uint32_t>topic_size << 24)
        store_u64(p + 24, instance)
        store_u64(p + 32, <uint64_t>timestamp_ns)
        store_u64(p + 40, <uint64_t>due_ns)
        store_u64(p + 48, <uint64_t>stamp)
        memcpy(p + HEADER, PyBytes_AS_STRING(topic), topic_size)
        memcpy(p + HEADER + topic_size, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        store_u32(p + 4, header_crc(p, self.number))
        self.items[self.count] = Record(due_ns, self.size, instance, stamp, ordinal, <uint32_t>size)
        self.count += 1
        self.size += size
        return 0

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room
        cdef uint8_t* buffer
        if self.size + size > self.buffer_room:
            room = max(self.size + size, self.buffer_room * 2, 4096)
            buffer = <uint8_t*>realloc(self.buffer, room)
            if buffer == NULL:
                raise MemoryError
            self.buffer = buffer
            self.buffer_room = room
        return 0

    def packed(self):
        """The bytes to append."""
        if self.size and self.buffer == NULL:
            raise ValueError("the batch is settled")
        return PyBytes_FromStringAndSize(<char*>self.buffer, self.size)

    def settle(self, int64_t base):
        """The bytes now lie at offset ``base`` of the file."""
        self.base = base
        free(self.buffer)
        self.buffer = NULL
        self.buffer_room = 0


def scan(bytes data not None, int64_t base, int64_t end, int64_t number):
    """Find the records of slot ``number`` in ``data``, which starts at offset ``base`` of its file.

    ``end`` is where the file ends.  ``next_offset`` of the result is where to read on: a header cut
    by the end of ``data`` is left to the next call, a body is stepped over.  Damage is searched
    through for the next good header; what no good record follows is torn, not corrupt.
    """
    cdef Records found = Records()
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    found.base = base
    found.data = data
    with nogil:
        scan_into(found, start, size, end, number)
    return found


cdef int scan_into(
    Records found, const uint8_t* start, Py_ssize_t size, int64_t end, int64_t number
) except -1 nogil:
    cdef Py_ssize_t at = 0, bad_at = -1
    cdef bint last = found.base + size >= end
    cdef uint32_t record_size
    cdef const uint8_t* p
    while at < size:
        p = start + at
        if not last and size - at < HEADER_MAX:
            break
        if is_header(p, size - at, number) and found.base + at + load_u32(p + 8) <= end:
            if bad_at >= 0:
                found.corrupt_count += 1
                found.corrupt_size += at - bad_at
                found.bad_end = found.base + at
                bad_at = -1
            record_size = load_u32(p + 8)
            found.reserve(found.count + 1)
            found.items[found.count] = Record(
                <int64_t>load_u64(p + 40), at, load_u64(p + 24), <int64_t>load_u64(p + 48),
                load_u32(p + 16), record_size,
            )
            found.count += 1
            at += record_size
            found.good_end = found.base + at
            continue
        if bad_at < 0:
            bad_at = at
            if found.bad_offset < 0:
                found.bad_offset = found.base + at
        p = <const uint8_t*>memchr(p + 1, MAGIC[0], size - at - 1)
        at = size if p == NULL else p - start
    found.next_offset = found.base + at
    if bad_at >= 0:
        if last:
            found.torn_size = end - found.base - bad_at
            found.next_offset = end
        else:
            found.corrupt_count += 1
            found.corrupt_size += min(at, size) - bad_at
        found.bad_end = found.base + min(at, size)
    return 0


@cython.freelist(256)
cdef class Due:
    """One deferred message whose time has come, or which is held in memory until then (slot 0)."""

    def __init__(
        self, int64_t slot, uint32_t ordinal, str topic, uint64_t instance,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp, bytes body,
    ):
        self.slot = slot
        self.ordinal = ordinal
        self.topic = topic
        self.instance = instance
        self.timestamp_ns = timestamp_ns
        self.due_ns = due_ns
        self.stamp = stamp
        self.body = body

    def __lt__(self, Due other):
        if self.due_ns != other.due_ns:
            return self.due_ns < other.due_ns
        return self.stamp < other.stamp

    def __repr__(self):
        return (
            f"Due(slot={self.slot}, ordinal={self.ordinal}, topic={self.topic!r}, "
            f"due_ns={self.due_ns}, stamp={self.stamp}, body of {len(self.body)})"
        )


cdef Due parse(const uint8_t* p, Py_ssize_t room, int64_t number, uint32_t ordinal, int64_t offset):
    # The message at ``p``; without a body if that is damaged, None if even the header is.
    cdef Due due
    cdef uint32_t size
    cdef bytes body
    if not is_header(p, room, number) or load_u32(p + 16) != ordinal:
        return None
    size = load_u32(p + 8)
    if size > room:
        return None
    body = PyBytes_FromStringAndSize(<const char*>p + HEADER + p[20], size - HEADER - p[20])
    if <uint32_t>_crc32c(body) != load_u32(p + 12):
        body = None
    due = Due.__new__(Due)
    due.slot = number
    due.ordinal = ordinal
    due.topic = decode_topic(p)
    due.instance = load_u64(p + 24)
    due.timestamp_ns = <int64_t>load_u64(p + 32)
    due.due_ns = <int64_t>load_u64(p + 40)
    due.stamp = <int64_t>load_u64(p + 48)
    due.body = body
    due.offset = offset
    due.size = size
    return due


def parse_record(bytes data not None, int64_t number, uint32_t ordinal):
    """The message whose record ``data`` is, or None if it is damaged; for tests and dumps."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Due due = parse(p, PyBytes_GET_SIZE(data), number, ordinal, 0)
    return None if due is None or due.body is None else due
