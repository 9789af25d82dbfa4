# Records of deferred messages in a slot file: packing, scanning, reading.  core/layouts.pxd draws a
# record.
#
# Rule 1: the header crc covers the slot's number as well.  The number is partly random, so no body
#         can pass for a record when a damaged file is searched.
# Rule 2: a scan verifies headers and skips bodies; a body is verified when it is read to be fired.
# Rule 3: no I/O and no clock.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

from penstock.core.bytes cimport load_i64, load_u32, load_u64, store_u32, store_u64
from penstock.core.crc32c cimport extend_crc
from penstock.core.layouts cimport (
    SLOT_BODY_CRC, SLOT_CRC, SLOT_DUE, SLOT_HEADER, SLOT_INSTANCE, SLOT_ORDINAL, SLOT_SIZE,
    SLOT_STAMP, SLOT_TIMESTAMP, SLOT_TOPIC_SIZE,
)

HEADER_SIZE = SLOT_HEADER
RECORD_SIZE_MAX = 0xFFFFFFFF

cdef enum:
    HEADER_MAX = SLOT_HEADER + 255
    TOPIC_CACHE_MAX = 10_000

cdef const char* MAGIC = b"PSD1"
cdef dict topic_cache = {}


cdef inline uint32_t bytes_crc(bytes data) noexcept:
    return extend_crc(0, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef uint32_t header_crc(const uint8_t* p, int64_t number) noexcept nogil:
    cdef uint8_t[8] seed
    store_u64(seed, <uint64_t>number)
    return extend_crc(
        extend_crc(0, seed, 8), p + SLOT_SIZE, SLOT_HEADER - SLOT_SIZE + p[SLOT_TOPIC_SIZE])


cdef bint is_header(const uint8_t* p, Py_ssize_t room, int64_t number) noexcept nogil:
    return (
        room >= SLOT_HEADER
        and memcmp(p, MAGIC, 4) == 0
        and room >= SLOT_HEADER + p[SLOT_TOPIC_SIZE]
        and load_u32(p + SLOT_SIZE) >= <uint32_t>(SLOT_HEADER + p[SLOT_TOPIC_SIZE])
        and load_u32(p + SLOT_CRC) == header_crc(p, number)
    )


cdef str decode_topic(const uint8_t* p):
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>p + SLOT_HEADER, p[SLOT_TOPIC_SIZE])
    topic = topic_cache.get(name)
    if topic is None:
        if len(topic_cache) >= TOPIC_CACHE_MAX:
            topic_cache.clear()
        topic = topic_cache[name] = name.decode("utf-8", "replace")
    return topic


cdef class SlotRecords:
    """Records found in ``data``, which starts at offset ``base`` of its file."""

    def __cinit__(self):
        self.bad_offset = -1

    def __dealloc__(self):
        free(self.items)

    cdef int reserve(self, Py_ssize_t count) except -1 nogil:
        cdef Py_ssize_t room
        cdef SlotRecord* items
        if count > self.room:
            room = max(count, self.room * 2, 16)
            items = <SlotRecord*>realloc(self.items, room * sizeof(SlotRecord))
            if items == NULL:
                with gil:
                    raise MemoryError
            self.items = items
            self.room = room
        return 0

    cdef str topic_at(self, Py_ssize_t i):
        if self.data is None:
            raise ValueError("a batch keeps no bytes to read a topic from")
        return decode_topic(<const uint8_t*>PyBytes_AS_STRING(self.data) + self.items[i].offset)

    cdef Due unread(self, Py_ssize_t i, int64_t number):
        """The message without its body, of the slot file ``number``."""
        cdef SlotRecord* record = &self.items[i]
        cdef Due due = Due(
            number, record.ordinal, self.topic_at(i), record.instance, 0,
            record.due_ns, record.stamp, None,
        )
        due.offset = self.base + record.offset
        due.size = record.size
        return due

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


cdef class SlotBatch(SlotRecords):
    """Records to be appended to the slot file ``number``."""

    def __init__(self, int64_t number):
        self.number = number

    def __dealloc__(self):
        free(self.buffer)

    def add(
        self, uint32_t ordinal, bytes topic, uint64_t instance, bytes body,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp,
    ):
        """Pack a record; the caller bounds the size of the batch."""
        if topic is None or body is None:
            raise ValueError("a record has a topic and a body")
        self.pack(ordinal, topic, instance, body, timestamp_ns, due_ns, stamp)

    def add_rows(
        self, bytes part not None, Py_ssize_t at, int64_t count_max, uint32_t ordinal,
        bytes topic not None, uint64_t instance, int64_t timestamp_ns, int64_t stamp,
        int64_t start_ns, int64_t end_ns,
    ):
        """Pack rows of a deferred part (core/parts.pyx) from ``at`` on while due in this slot.

        That is, in [start_ns, end_ns); a due time before ``timestamp_ns`` counts as that.  Ordinals
        and stamps increase by one.  Returns how many were packed, and the offset of the next row.
        """
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(part)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(part), size
        cdef int64_t due_ns, done = 0
        while done < count_max and at < end:
            if end - at < 12 or load_u32(p + at + 8) > end - at - 12:
                raise ValueError("BAD_MESSAGE")
            due_ns = max(load_i64(p + at), timestamp_ns)
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
        cdef Py_ssize_t size = SLOT_HEADER + topic_size + PyBytes_GET_SIZE(body)
        if not 1 <= topic_size <= 255 or size > <int64_t>0xFFFFFFFF:
            raise ValueError(f"topic of {topic_size} bytes, record of {size} bytes")
        self.grow(size)
        self.reserve(self.count + 1)
        cdef uint8_t* p = self.buffer + self.size
        memcpy(p, MAGIC, 4)
        store_u32(p + SLOT_SIZE, <uint32_t>size)
        store_u32(p + SLOT_BODY_CRC, bytes_crc(body))
        store_u32(p + SLOT_ORDINAL, ordinal)
        store_u32(p + SLOT_TOPIC_SIZE, <uint32_t>topic_size << 24)
        store_u64(p + SLOT_INSTANCE, instance)
        store_u64(p + SLOT_TIMESTAMP, <uint64_t>timestamp_ns)
        store_u64(p + SLOT_DUE, <uint64_t>due_ns)
        store_u64(p + SLOT_STAMP, <uint64_t>stamp)
        memcpy(p + SLOT_HEADER, PyBytes_AS_STRING(topic), topic_size)
        memcpy(p + SLOT_HEADER + topic_size, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        store_u32(p + SLOT_CRC, header_crc(p, self.number))
        self.items[self.count] = SlotRecord(
            due_ns, self.size, instance, stamp, ordinal, <uint32_t>size)
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
        """The batch was written at offset ``base`` of the file; its bytes are freed."""
        self.base = base
        free(self.buffer)
        self.buffer = NULL
        self.buffer_room = 0


def scan(bytes data not None, int64_t base, int64_t end, int64_t number):
    """Find the records of slot ``number`` in ``data``, which starts at offset ``base`` of its file.

    ``end`` is the size of the file.  ``next_offset`` of the result is where to resume: a header cut
    by the end of ``data`` is left to the next call, a body is skipped.  After bad bytes the next
    good header is searched for; bad bytes at the end of the file are torn, not corrupt.
    """
    cdef SlotRecords found = SlotRecords()
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    found.base = base
    found.data = data
    with nogil:
        scan_into(found, start, size, end, number)
    return found


cdef int scan_into(
    SlotRecords found, const uint8_t* start, Py_ssize_t size, int64_t end, int64_t number
) except -1 nogil:
    cdef Py_ssize_t at = 0, bad_at = -1
    cdef bint last = found.base + size >= end
    cdef uint32_t record_size
    cdef const uint8_t* p
    while at < size:
        p = start + at
        if not last and size - at < HEADER_MAX:
            break
        if is_header(p, size - at, number) and found.base + at + load_u32(p + SLOT_SIZE) <= end:
            if bad_at >= 0:
                found.corrupt_count += 1
                found.corrupt_size += at - bad_at
                found.bad_end = found.base + at
                bad_at = -1
            record_size = load_u32(p + SLOT_SIZE)
            found.reserve(found.count + 1)
            found.items[found.count] = SlotRecord(
                load_i64(p + SLOT_DUE), at, load_u64(p + SLOT_INSTANCE), load_i64(p + SLOT_STAMP),
                load_u32(p + SLOT_ORDINAL), record_size,
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
    """A deferred message that is due, or that is held in memory until then (slot 0)."""

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
            f"due_ns={self.due_ns}, stamp={self.stamp}, body of {len(self.body or b'')})"
        )


cdef Due parse(const uint8_t* p, Py_ssize_t room, int64_t number, uint32_t ordinal, int64_t offset):
    # The message at ``p``; without a body if that is damaged, None if the header is.
    cdef Due due
    cdef uint32_t size
    cdef Py_ssize_t body_at = SLOT_HEADER + p[SLOT_TOPIC_SIZE] if room >= SLOT_HEADER else 0
    cdef bytes body
    if not is_header(p, room, number) or load_u32(p + SLOT_ORDINAL) != ordinal:
        return None
    size = load_u32(p + SLOT_SIZE)
    if size > room:
        return None
    body = PyBytes_FromStringAndSize(<const char*>p + body_at, size - body_at)
    if bytes_crc(body) != load_u32(p + SLOT_BODY_CRC):
        body = None
    due = Due.__new__(Due)
    due.slot = number
    due.ordinal = ordinal
    due.topic = decode_topic(p)
    due.instance = load_u64(p + SLOT_INSTANCE)
    due.timestamp_ns = load_i64(p + SLOT_TIMESTAMP)
    due.due_ns = load_i64(p + SLOT_DUE)
    due.stamp = load_i64(p + SLOT_STAMP)
    due.body = body
    due.offset = offset
    due.size = size
    return due


def parse_record(bytes data not None, int64_t number, uint32_t ordinal):
    """Decode the record ``data``; None if it is damaged; for tests and dumps."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Due due = parse(p, PyBytes_GET_SIZE(data), number, ordinal, 0)
    return None if due is None or due.body is None else due
