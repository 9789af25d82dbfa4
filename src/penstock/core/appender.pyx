# Builds a topic's next batch: bodies in, frames out, as they are stored and sent
# (core/layouts.pxd).
#
# Everything published to a topic in one turn of the loop becomes one batch with one checksum, one
# write and one ticket.
#
# A topic with a bound (R20) refuses publishes when it is full.  Whether it is takes more than one
# batch to know, so the engine sets limits up to which it need not be asked: ``refuse``.
#
# The cost of a batch is divided by its messages, and many batches have one message: so a batch is a
# C structure as well.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from penstock.core.batches cimport encode_header
from penstock.core.block cimport Block, dense_block
from penstock.core.bytes cimport load_u32, store_u16, store_u32, store_u64
from penstock.core.layouts cimport (
    BATCH_HEADER, FLAG_ORIGINS, FRAME_ATTEMPTS, FRAME_HEADER, FRAME_ID, FRAME_TIMESTAMP, FRAME_TYPE,
    FRAME_TYPE_MESSAGE, ID_INDEX_BITS, ORDINAL_SIZE,
)
from penstock.core.ticket cimport Ticket

cdef extern from "Python.h":
    PyObject* PyBytes_FromStringAndSize(const char* data, Py_ssize_t size) except NULL
    int _PyBytes_Resize(PyObject** string, Py_ssize_t size) except -1

cdef enum:
    CAPACITY_MIN = 4096
    # Below this a sealed batch is copied: cut to size it would leave holes too small for the next
    # batch between those that many topics keep.
    COPY_SIZE_MAX = CAPACITY_MIN // 2
    CAPACITY_FIRST_MAX = 1 << 20    # the most that a new batch allocates at once

INDEX_BITS = ID_INDEX_BITS

# The two hexadecimal digits of each byte value.
cdef unsigned char[512] HEX


cdef void fill_hex() noexcept:
    cdef const unsigned char* digits = b"0123456789abcdef"
    cdef int i
    for i in range(256):
        HEX[2 * i] = digits[i >> 4]
        HEX[2 * i + 1] = digits[i & 15]


fill_hex()


cdef inline void store_id(unsigned char* p, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        memcpy(p + 2 * i, &HEX[2 * ((value >> (56 - 8 * i)) & 0xFF)], 2)


cdef void store_frame(unsigned char* p, const unsigned char* body, Py_ssize_t size,
                      int64_t timestamp_ns, uint64_t id) noexcept nogil:
    store_u32(p, <uint32_t>(FRAME_HEADER - 4 + size))
    store_u32(p + FRAME_TYPE, FRAME_TYPE_MESSAGE)
    store_u64(p + FRAME_TIMESTAMP, <uint64_t>timestamp_ns)
    store_u16(p + FRAME_ATTEMPTS, 1)
    store_id(p + FRAME_ID, id)
    memcpy(p + FRAME_HEADER, body, size)


cdef inline Py_ssize_t line_size(const unsigned char* p, const unsigned char* end) noexcept:
    cdef const unsigned char* found = <const unsigned char*>memchr(p, c'\n', end - p)
    return (end if found == NULL else found) - p


@cython.freelist(8)
cdef class Batch:
    """One append to a topic's log: its frames, and the fields of its header."""

    def __init__(self, bytes payload not None, int64_t first, int64_t count, int64_t append_ns,
                 int64_t publish_ns, int64_t origin=0, uint32_t flags=0):
        self.payload = payload
        self.first = first
        self.count = count
        self.append_ns = append_ns
        self.publish_ns = publish_ns
        self.origin = origin
        self.flags = flags

    @property
    def end(self):
        return self.first + self.count

    cpdef Block block(self, int node_id):
        """The messages, for readers."""
        # The frames of deferred and moved messages are followed by ordinals (core/layouts.pxd).
        cdef int64_t tables_size = ORDINAL_SIZE * self.count if self.flags & FLAG_ORIGINS else 0
        return dense_block(
            self.payload, self.first, self.count, len(self.payload) - tables_size, node_id,
            self.append_ns)

    cpdef bytes header(self):
        """The bytes before the payload in a file."""
        return encode_header(self.payload, self.first, <uint32_t>self.count, self.append_ns,
                             self.publish_ns, self.origin, self.flags)


cdef class Appender:
    def __cinit__(self, str topic, int node_id, int64_t first, opened):
        """``opened()`` is called when the first message of a batch arrives."""
        assert 0 <= node_id < 1024
        self.topic = topic
        self.node_id = node_id
        self.first = first
        self.opened = opened
        self.ticket = None
        self.judge = None
        self._held = []

    def __dealloc__(self):
        Py_XDECREF(self.payload)

    @property
    def next_index(self):
        return self.first + self.count

    def add(self, bytes body, int64_t timestamp_ns):
        """Append one message."""
        self.append(body, len(body), timestamp_ns)

    def extend(self, list bodies, int64_t timestamp_ns):
        """Append many messages."""
        cdef bytes body
        for body in bodies:
            self.append(body, len(body), timestamp_ns)

    def extend_multi(self, bytes body not None, int64_t count_max, int64_t size_max,
                     int64_t timestamp_ns):
        """Append the messages of an MPUB body: count i32, then (length i32, bytes) each.

        Raises ValueError("BAD_BODY" or "BAD_MESSAGE") and appends nothing if it is malformed;
        bytes after the last message are ignored, as in nsqd.
        """
        cdef const unsigned char* p = body
        cdef Py_ssize_t at = 4, end = len(body)
        cdef int64_t i, size, count
        if end < 4:
            raise ValueError("BAD_BODY")
        count = <int32_t>load_u32(p)
        if not 1 <= count <= count_max:
            raise ValueError("BAD_BODY")
        for i in range(count):
            if at + 4 > end:
                raise ValueError("BAD_MESSAGE")
            size = <int32_t>load_u32(p + at)
            at += 4
            if not 0 < size <= size_max or at + size > end:
                raise ValueError("BAD_MESSAGE")
            at += size
        self.append_multi(p + 4, at - 4, count, timestamp_ns)

    def extend_lines(self, bytes body not None, int64_t size_max, int64_t timestamp_ns):
        """Append one message for each line that is not empty; return how many.

        Raises ValueError("MSG_TOO_BIG") and appends nothing if a line is too long.
        """
        cdef const unsigned char* p = body
        cdef const unsigned char* end = p + len(body)
        cdef int64_t count = 0
        cdef Py_ssize_t size
        while p < end:
            size = line_size(p, end)
            if size > size_max:
                raise ValueError("MSG_TOO_BIG")
            count += size > 0
            p += size + 1
        p = body
        while p < end:
            size = line_size(p, end)
            if size:
                self.append(p, size, timestamp_ns)
            p += size + 1
        return count

    cpdef Batch seal(self, int64_t append_ns):
        """Close the open batch and return it."""
        cdef Batch batch
        assert self.count
        batch = Batch.__new__(Batch)
        if self.size <= COPY_SIZE_MAX:
            batch.payload = PyBytes_AS_STRING(<object>self.payload)[:self.size]
        else:
            # The batch was built inside a bytes object: cutting it to size copies nothing.
            _PyBytes_Resize(&self.payload, self.size)
            batch.payload = <bytes>self.payload
        Py_XDECREF(self.payload)
        self.payload = NULL
        self.buffer = NULL
        self.capacity = 0
        batch.first = self.first
        batch.count = self.count
        batch.append_ns = append_ns
        batch.publish_ns = self.publish_ns
        batch.body_size = self.body_size
        batch.ticket = self.ticket
        self.expected = min(self.size, CAPACITY_FIRST_MAX)
        self.sealed_size += BATCH_HEADER + self.size
        self.first += self.count
        self.count = self.body_size = self.size = 0
        self.ticket = None
        return batch

    def take(self, int64_t count):
        """Reserve ``count`` indexes for a batch that is built elsewhere; return the first."""
        assert not self.count
        self.first += count
        return self.first - count

    cpdef Ticket refuse(self):
        """What a publish that is refused now owes: a ticket with the error; None if it is not.

        A batch may pass a bound, but once it has, nothing is added to it.
        """
        if not self.bounded or self.below_limits() or not self.judge():
            return None
        self.refused_count += 1
        return self.refusal

    cdef bint below_limits(self) noexcept:
        return (self.first + self.count < self.index_limit
                and self.sealed_size + self.size < self.size_limit)

    cdef int open(self) except -1:
        self.ticket = Ticket()
        try:
            self.opened()
        except BaseException:
            self.ticket = None
            raise
        return 0

    cdef int append(self, const unsigned char* body, Py_ssize_t size,
                    int64_t timestamp_ns) except -1:
        self.begin(timestamp_ns, FRAME_HEADER + size)
        store_frame(self.buffer + self.size, body, size, timestamp_ns, self.next_id())
        self.size += FRAME_HEADER + size
        self.body_size += size
        self.count += 1
        return 0

    cdef int append_multi(self, const unsigned char* p, Py_ssize_t total, int64_t count,
                          int64_t timestamp_ns) except -1:
        # ``p``: ``count`` times (length u32, body), ``total`` bytes, already checked.
        cdef Py_ssize_t body_size = total - 4 * count, size
        cdef unsigned char* to
        cdef uint64_t id
        cdef int64_t i
        self.begin(timestamp_ns, FRAME_HEADER * count + body_size)
        to = self.buffer + self.size
        id = self.next_id()
        for i in range(count):
            size = load_u32(p)
            store_frame(to, p + 4, size, timestamp_ns, id + <uint64_t>i)
            p += 4 + size
            to += FRAME_HEADER + size
        self.size += FRAME_HEADER * count + body_size
        self.body_size += body_size
        self.count += count
        return 0

    cdef uint64_t next_id(self) noexcept:
        return <uint64_t>self.node_id << ID_INDEX_BITS | <uint64_t>(self.first + self.count)

    cdef int begin(self, int64_t timestamp_ns, Py_ssize_t size) except -1:
        # Make sure that a batch is open and has room for ``size`` more bytes.
        if not self.count:
            self.open()
            self.publish_ns = timestamp_ns
        elif timestamp_ns < self.publish_ns:
            self.publish_ns = timestamp_ns
        if self.size + size > self.capacity:
            self.reserve(size)
        return 0

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity
        capacity = max(CAPACITY_MIN, self.expected, self.capacity * 2, self.size + size)
        if self.payload == NULL:
            self.payload = PyBytes_FromStringAndSize(NULL, capacity)
        else:
            # If this fails, the old bytes and the messages of this batch are lost as well.
            self.buffer = NULL
            self.capacity = 0
            try:
                _PyBytes_Resize(&self.payload, capacity)
            except MemoryError:
                self.size = self.count = self.body_size = 0
                raise
        self.buffer = <unsigned char*>PyBytes_AS_STRING(<object>self.payload)
        self.capacity = capacity
        return 0

    cdef int strain(self, bint strained) except -1:
        # Set by the writer, which knows how far the disk is behind.
        cdef list held
        self.strained = strained
        if not strained and self._held:
            held, self._held = self._held, []
            for resume in held:
                resume()
        return 0

    cdef int hold(self, resume) except -1:
        # Call ``resume`` when the disk has caught up.
        self._held.append(resume)
        return 0
