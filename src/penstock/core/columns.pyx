# Conversion between the broker's bytes and Arrow's columns: log batches to columns, and a column of
# bodies to MPUB bodies.
#
#     log batch     header 56 | frames back to back (core/layouts.pxd)
#     Arrow         int64 column:   8 bytes a row, native
#                   binary column:  count + 1 offsets of 4 bytes, and the values back to back
#     MPUB body     count u32 | (size u32 | body)...            deferred: (due_ns i64 | size | body)
#
# Rule 1: no I/O, no clock.  Input from the network is verified: batches by their checksums, every
#         frame by its size.
# Rule 2: no Python object a message.  Loops run without the interpreter's lock.
# Rule 3: columns that are not requested cost nothing.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.core.batches cimport header_good, ordinals_size
from penstock.core.bytes cimport load_i64, load_u32, store_u32, store_u64
from penstock.core.crc32c cimport extend_crc
from penstock.core.layouts cimport (
    BATCH_COUNT, BATCH_FIRST, BATCH_HEADER, BATCH_PAYLOAD_CRC, BATCH_SIZE, FRAME_HEADER,
    FRAME_ID, FRAME_TIMESTAMP, FRAME_TYPE, FRAME_TYPE_MESSAGE, ID_SIZE,
)

from penstock.errors import CorruptError

# Columns to decode; flags that can be combined.
INDEX = 1
TIMESTAMP = 2
ID = 4
BODY = 8

cdef enum:
    WANT_INDEX = 1
    WANT_TIMESTAMP = 2
    WANT_ID = 4
    WANT_BODY = 8
    # Offsets of Arrow's binary columns have 31 bits.
    COLUMN_SIZE_MAX = 0x7FFFFFFF
    CAPACITY_MIN = 4096


cdef inline int64_t floor_us(int64_t time_ns) noexcept nogil:
    # Rounds down, also times before 1970: C divides towards zero.
    cdef int64_t time_us = time_ns // 1000
    return time_us - 1 if time_ns % 1000 < 0 else time_us


cdef struct BatchSpan:
    # One batch; ``skip`` messages are left out, the next ``count`` are decoded.
    Py_ssize_t start
    Py_ssize_t payload_end
    const unsigned char* frames
    const unsigned char* frames_end
    uint32_t crc
    int64_t first
    int64_t skip
    int64_t count
    int64_t total


cdef struct Target:
    int64_t* index
    int64_t* timestamp
    int32_t* id_offsets
    unsigned char* id
    int32_t* offsets
    unsigned char* body
    Py_ssize_t row
    Py_ssize_t size


cdef bint read_header(const unsigned char* p, Py_ssize_t offset, Py_ssize_t size, int64_t start,
                      int64_t end, BatchSpan* span) noexcept nogil:
    # Decode a batch's header; return whether there is a whole batch at ``offset``.
    cdef const unsigned char* at = p + offset
    cdef int64_t payload, first, last
    if size - offset < BATCH_HEADER or not header_good(at):
        return False
    payload = load_u32(at + BATCH_SIZE)
    span.start = offset + BATCH_HEADER
    span.payload_end = span.start + payload
    span.crc = load_u32(at + BATCH_PAYLOAD_CRC)
    span.total = load_u32(at + BATCH_COUNT)
    span.frames = p + span.start
    span.frames_end = span.frames + payload - ordinals_size(at)
    if span.payload_end > size or span.frames_end - span.frames < span.total * FRAME_HEADER:
        return False
    first = load_i64(at + BATCH_FIRST)
    last = min(end, first + span.total)
    span.first = max(start, first)
    span.skip = span.first - first
    span.count = max(0, last - span.first)
    return True


cdef bint copy_span(BatchSpan* span, Target* target) noexcept nogil:
    # Copy the requested part of a batch; False if its frames do not match its header.
    cdef const unsigned char* at = span.frames
    cdef int64_t frame, i, stop = span.skip + span.count
    cdef Py_ssize_t row = target.row, size
    for i in range(stop):
        if span.frames_end - at < FRAME_HEADER:
            return False
        frame = 4 + <int64_t>load_u32(at)
        if (frame < FRAME_HEADER or frame > span.frames_end - at
                or load_u32(at + FRAME_TYPE) != FRAME_TYPE_MESSAGE):
            return False
        if i >= span.skip:
            size = <Py_ssize_t>frame - FRAME_HEADER
            if target.index != NULL:
                target.index[row] = span.first - span.skip + i
            if target.timestamp != NULL:
                target.timestamp[row] = floor_us(load_i64(at + FRAME_TIMESTAMP))
            if target.id != NULL:
                memcpy(target.id + row * ID_SIZE, at + FRAME_ID, ID_SIZE)
                target.id_offsets[row + 1] = <int32_t>((row + 1) * ID_SIZE)
            if target.body != NULL:
                memcpy(target.body + target.size, at + FRAME_HEADER, size)
                target.size += size
                target.offsets[row + 1] = <int32_t>target.size
            row += 1
        at += frame
    target.row = row
    return stop < span.total or at == span.frames_end


cdef class Columns:
    """Rows as Arrow's buffers; None for a column that was not requested.

    ``index`` and ``timestamp`` (microseconds) are int64, ``id`` and ``body`` have offsets.
    ``stop`` is the offset after the last batch that was decoded, ``next`` the index after it.
    """


def decode(bytes data not None, int64_t start, int64_t end, int wanted, Py_ssize_t offset=0,
           Py_ssize_t size_max=COLUMN_SIZE_MAX):
    """The messages of ``data`` with ``start <= index < end`` as columns.

    ``data`` must be whole log batches; raises CorruptError if it is not, or if a checksum is wrong.
    Decoding starts at byte ``offset`` and stops after about ``size_max`` bytes, but at least one
    batch; ``columns.stop`` is where to resume.  Small steps stay in the CPU's cache.
    """
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = offset, count = 0, body_size = 0, stop
    cdef int64_t next = start
    cdef BatchSpan span
    cdef Target target
    cdef Columns columns
    cdef bint good = True
    if offset < 0 or offset > size or size_max < 0:
        raise ValueError(f"offset {offset} is outside of {size} bytes")
    stop = min(size, offset + size_max)
    with nogil:
        while good and at < stop:
            good = read_header(p, at, size, start, end, &span)
            if good:
                at = span.payload_end
                count += span.count
                next = max(next, span.first - span.skip + span.total)
                if span.count:
                    body_size += span.frames_end - span.frames - span.total * FRAME_HEADER
    if not good:
        raise CorruptError(f"log batches are damaged at byte {at} of {size}")
    columns = allocate(&target, count, body_size, wanted)
    columns.stop = stop = at
    columns.next = next
    at = offset
    with nogil:
        while at < stop:
            read_header(p, at, size, start, end, &span)
            good = not span.count or (checked(p, &span) and copy_span(&span, &target))
            if not good:
                break
            at = span.payload_end
    if not good:
        raise CorruptError(f"log batches are damaged at byte {at} of {size}")
    if columns.body is not None and target.size < body_size:
        # Messages outside of the range were counted too.
        columns.body = columns.body[:target.size]
    return columns


cdef bint checked(const unsigned char* p, BatchSpan* span) noexcept nogil:
    return extend_crc(0, p + span.start, span.payload_end - span.start) == span.crc


cdef Columns allocate(Target* target, Py_ssize_t count, Py_ssize_t body_size, int wanted):
    cdef Columns columns = Columns.__new__(Columns)
    if body_size > COLUMN_SIZE_MAX or count > COLUMN_SIZE_MAX // ID_SIZE:
        raise CorruptError(f"{count} messages of {body_size} bytes do not fit a column")
    target.index = target.timestamp = NULL
    target.id = target.body = NULL
    target.id_offsets = target.offsets = NULL
    target.row = target.size = 0
    columns.count = count
    if wanted & WANT_INDEX:
        columns.index = PyBytes_FromStringAndSize(NULL, count * 8)
        target.index = <int64_t*>PyBytes_AS_STRING(columns.index)
    if wanted & WANT_TIMESTAMP:
        columns.timestamp = PyBytes_FromStringAndSize(NULL, count * 8)
        target.timestamp = <int64_t*>PyBytes_AS_STRING(columns.timestamp)
    if wanted & WANT_ID:
        columns.id_offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        columns.id = PyBytes_FromStringAndSize(NULL, count * ID_SIZE)
        target.id_offsets = <int32_t*>PyBytes_AS_STRING(columns.id_offsets)
        target.id_offsets[0] = 0
        target.id = <unsigned char*>PyBytes_AS_STRING(columns.id)
    if wanted & WANT_BODY:
        columns.body_offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        columns.body = PyBytes_FromStringAndSize(NULL, body_size)
        target.offsets = <int32_t*>PyBytes_AS_STRING(columns.body_offsets)
        target.offsets[0] = 0
        target.body = <unsigned char*>PyBytes_AS_STRING(columns.body)
    return columns


cdef inline int64_t begin_of(Rows* rows, Py_ssize_t row) noexcept nogil:
    return rows.wide[row] if rows.wide != NULL else rows.narrow[row]


cdef inline Py_ssize_t head_of(Rows* rows) noexcept nogil:
    return 12 if rows.due != NULL else 4


cdef Py_ssize_t fitting(Rows* rows, Py_ssize_t row, Py_ssize_t end, Py_ssize_t room, bint begun,
                        Py_ssize_t* size) noexcept nogil:
    # The row after the last whose frame fits into ``room``; adds the bytes they take in the body to
    # ``size``.  Unless ``begun``, the first row always fits.  Returns -1 - row for an invalid row.
    cdef int64_t begin, stop = begin_of(rows, row)
    cdef Py_ssize_t each
    while row < end:
        begin = stop
        stop = begin_of(rows, row + 1)
        if begin < 0 or stop <= begin or stop > rows.value_size:
            return -1 - row
        each = FRAME_HEADER + <Py_ssize_t>(stop - begin)
        if begun and each > room:
            break
        room -= each
        size[0] += each - FRAME_HEADER + head_of(rows)
        begun = True
        row += 1
    return row


cdef void pack(Rows* rows, Py_ssize_t row, Py_ssize_t end, unsigned char* to) noexcept nogil:
    cdef int64_t begin, stop = begin_of(rows, row)
    while row < end:
        begin = stop
        stop = begin_of(rows, row + 1)
        if rows.due != NULL:
            store_u64(to, <uint64_t>rows.due[row])
            to += 8
        store_u32(to, <uint32_t>(stop - begin))
        memcpy(to + 4, rows.values + begin, stop - begin)
        to += 4 + (stop - begin)
        row += 1


cdef class Packer:
    """Collects bodies into MPUB bodies of at most ``size_max`` bytes of frames.

    The limit is on frames because a part becomes a batch of the log, where small bodies take much
    more room.  A body over the limit is sent alone: nsqd decides whether to accept it.
    """

    def __cinit__(self, Py_ssize_t size_max, bint deferred):
        if not FRAME_HEADER <= size_max <= COLUMN_SIZE_MAX:
            raise ValueError(f"size_max {size_max} out of range {FRAME_HEADER}-{COLUMN_SIZE_MAX}")
        self.size_max = size_max
        self.deferred = deferred
        self.size = 4

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def add(self, offsets, bint wide, values, Py_ssize_t first, Py_ssize_t count, due_ns=None):
        """Add ``count`` bodies from row ``first`` on; return the full ones as (MPUB body, count).

        ``offsets`` and ``values`` are an Arrow binary column's buffers; ``wide``: offsets have 8
        bytes.  ``due_ns`` has an int64 for each of the rows 0 to ``first + count``.  Raises
        ValueError for an empty body, because NSQ has no empty messages.
        """
        cdef Py_buffer at, of, due
        cdef Rows rows
        cdef list full = []
        cdef Py_ssize_t row = first, end = first + count
        cdef bint late = due_ns is not None
        if first < 0 or count < 0 or late != self.deferred:
            raise ValueError("rows or due times do not fit")
        PyObject_GetBuffer(offsets, &at, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(b"" if values is None else values, &of, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(due_ns if late else b"", &due, PyBUF_SIMPLE)
                try:
                    if at.len < (end + 1) * (8 if wide else 4) or (late and due.len < end * 8):
                        raise ValueError("a column is shorter than its rows")
                    rows.narrow, rows.wide = <const int32_t*>at.buf, NULL
                    if wide:
                        rows.wide = <const int64_t*>at.buf
                    rows.values, rows.value_size = <const unsigned char*>of.buf, of.len
                    rows.due = <const int64_t*>due.buf if late else NULL
                    while row < end:
                        row = self.fill(&rows, row, end)
                        if row < end:
                            full.append(self.take())
                finally:
                    PyBuffer_Release(&due)
            finally:
                PyBuffer_Release(&of)
        finally:
            PyBuffer_Release(&at)
        return full

    cdef Py_ssize_t fill(self, Rows* rows, Py_ssize_t row, Py_ssize_t end) except -1:
        # Append rows until the body is full; return the first that did not fit.
        cdef Py_ssize_t head = 12 if self.deferred else 4
        cdef Py_ssize_t size = 0, stop
        cdef Py_ssize_t room = self.size_max - (self.size - 4) - self.count * (FRAME_HEADER - head)
        with nogil:
            stop = fitting(rows, row, end, room, self.count > 0, &size)
        if stop < 0:
            row = -stop - 1
            if begin_of(rows, row) == begin_of(rows, row + 1):
                raise ValueError(f"row {row}: the body is empty, and NSQ has no empty messages")
            raise ValueError(f"row {row}: its offsets are outside of the column")
        self.reserve(size)
        with nogil:
            pack(rows, row, stop, self.buffer + self.size)
        self.size += size
        self.count += <uint32_t>(stop - row)
        return stop

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t wanted = self.size + size
        cdef void* grown
        if wanted > self.capacity:
            wanted = max(wanted, 2 * self.capacity, CAPACITY_MIN)
            grown = PyMem_Realloc(self.buffer, wanted)
            if grown == NULL:
                raise MemoryError
            self.buffer = <unsigned char*>grown
            self.capacity = wanted
        return 0

    def take(self):
        """Return the open body as (MPUB body, count) and start a new one; the count may be 0."""
        cdef uint32_t count = self.count
        self.reserve(0)
        store_u32(self.buffer, count)
        taken = PyBytes_FromStringAndSize(<char*>self.buffer, self.size)
        self.size = 4
        self.count = 0
        return taken, count
