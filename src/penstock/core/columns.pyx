# Between the broker's bytes and Arrow's columns: log batches in, columns out, and the other way a
# column of bodies in, bodies of MPUB out.
#
#     log batch     header 56 | frames back to back (core/segment, docs/storage-format.md)
#     Arrow         int64 column:   8 bytes a row, native
#                   binary column:  count + 1 offsets of 4 bytes, and the values back to back
#     MPUB body     count u32 | (size u32 | body)...            deferred: (due_ns i64 | size | body)
#
# Rule 1: no I/O, no clock.  What comes from the network is checked before it is believed: batches
#         by their checksums, every frame by its size.
# Rule 2: no Python object a message.  Loops run without the interpreter's lock.
# Rule 3: only the columns that are asked for cost anything.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.core.segment import END as SCAN_END
from penstock.core.segment import scan
from penstock.errors import CorruptError

# Columns to decode, to be added up.
INDEX = 1
TIMESTAMP = 2
ID = 4
BODY = 8

cdef enum:
    WANT_INDEX = 1
    WANT_TIMESTAMP = 2
    WANT_ID = 4
    WANT_BODY = 8
    FRAME_HEAD = 34
    ID_SIZE = 16
    # Offsets of Arrow's binary columns have 31 bits.
    COLUMN_SIZE_MAX = 0x7FFFFFFF
    CAPACITY_MIN = 4096


cdef inline uint32_t load_u32(const unsigned char* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int64_t load_i64(const unsigned char* p) noexcept nogil:
    return <int64_t>((<uint64_t>load_u32(p) << 32) | load_u32(p + 4))


cdef inline void store_u32(unsigned char* p, uint32_t value) noexcept nogil:
    p[0] = <unsigned char>(value >> 24)
    p[1] = <unsigned char>(value >> 16)
    p[2] = <unsigned char>(value >> 8)
    p[3] = <unsigned char>value


cdef inline int64_t floor_us(int64_t time_ns) noexcept nogil:
    # C divides towards zero, and times before 1970 are not wrong.
    cdef int64_t time_us = time_ns // 1000
    return time_us - 1 if time_ns % 1000 < 0 else time_us


cdef struct Span:
    # Frames of one batch that are wanted, and the index of the first.
    const unsigned char* at
    int64_t first
    Py_ssize_t count


cdef struct Target:
    int64_t* index
    int64_t* timestamp
    int32_t* id_offsets
    unsigned char* id
    int32_t* offsets
    unsigned char* body
    Py_ssize_t row
    Py_ssize_t size


cdef const unsigned char* skip(const unsigned char* at, int64_t count) noexcept nogil:
    while count > 0:
        at += 4 + load_u32(at)
        count -= 1
    return at


cdef Py_ssize_t measure(Span* span) noexcept nogil:
    # The size of all bodies of a span.
    cdef const unsigned char* after = skip(span.at, span.count)
    return after - span.at - span.count * FRAME_HEAD


cdef void copy_span(Span* span, Target* target) noexcept nogil:
    cdef const unsigned char* at = span.at
    cdef Py_ssize_t row = target.row, i, size
    for i in range(span.count):
        size = <Py_ssize_t>load_u32(at) + 4 - FRAME_HEAD
        if target.index != NULL:
            target.index[row] = span.first + i
        if target.timestamp != NULL:
            target.timestamp[row] = floor_us(load_i64(at + 8))
        if target.id != NULL:
            memcpy(target.id + row * ID_SIZE, at + 18, ID_SIZE)
            target.id_offsets[row + 1] = <int32_t>((row + 1) * ID_SIZE)
        if target.body != NULL:
            memcpy(target.body + target.size, at + FRAME_HEAD, size)
            target.size += size
            target.offsets[row + 1] = <int32_t>target.size
        at += FRAME_HEAD + size
        row += 1
    target.row = row


cdef class Columns:
    """Rows as Arrow's buffers; None for a column that was not asked for.

    ``index`` and ``timestamp`` (microseconds) are int64, ``id`` and ``body`` go with offsets.
    """


def decode(bytes data not None, int64_t start, int64_t end, int wanted):
    """The messages of ``data`` with ``start <= index < end`` as columns.

    ``data`` are whole log batches; anything else, or a checksum that is wrong, is a CorruptError.
    """
    cdef object found = scan(data, 0, True)
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t total = 0, body_size = 0, span_count = 0, i
    cdef int64_t first, last
    cdef Span* spans = NULL
    cdef Target target
    cdef Columns columns
    if found.reason != SCAN_END:
        raise CorruptError(f"log batches are damaged at byte {found.stop} of {len(data)}")
    spans = <Span*>PyMem_Realloc(NULL, max(1, len(found.batches)) * sizeof(Span))
    if spans == NULL:
        raise MemoryError
    try:
        for batch in found.batches:
            first = max(start, <int64_t>batch[0])
            last = min(end, <int64_t>batch[0] + <int64_t>batch[1])
            if last > first:
                spans[span_count].first = first
                spans[span_count].count = last - first
                spans[span_count].at = skip(p + <Py_ssize_t>batch[2], first - <int64_t>batch[0])
                span_count += 1
                total += last - first
        if wanted & WANT_BODY:
            with nogil:
                for i in range(span_count):
                    body_size += measure(&spans[i])
        columns = allocate(&target, total, body_size, wanted)
        with nogil:
            for i in range(span_count):
                copy_span(&spans[i], &target)
        return columns
    finally:
        PyMem_Free(spans)


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
    # The row behind the last whose frame fits into ``room``, and in ``size`` what they take here;
    # at least one fits unless ``begun``.  A row that cannot be sent gives -1 - row.
    cdef int64_t begin, stop = begin_of(rows, row)
    cdef Py_ssize_t each
    while row < end:
        begin = stop
        stop = begin_of(rows, row + 1)
        if begin < 0 or stop <= begin or stop > rows.value_size:
            return -1 - row
        each = FRAME_HEAD + <Py_ssize_t>(stop - begin)
        if begun and each > room:
            break
        room -= each
        size[0] += each - FRAME_HEAD + head_of(rows)
        begun = True
        row += 1
    return row


cdef void pack(Rows* rows, Py_ssize_t row, Py_ssize_t end, unsigned char* to) noexcept nogil:
    cdef int64_t begin, stop = begin_of(rows, row)
    while row < end:
        begin = stop
        stop = begin_of(rows, row + 1)
        if rows.due != NULL:
            store_u32(to, <uint32_t>(<uint64_t>rows.due[row] >> 32))
            store_u32(to + 4, <uint32_t>rows.due[row])
            to += 8
        store_u32(to, <uint32_t>(stop - begin))
        memcpy(to + 4, rows.values + begin, stop - begin)
        to += 4 + (stop - begin)
        row += 1


cdef class Packer:
    """Gathers bodies into MPUB bodies of at most ``size_max`` bytes of frames.

    Frames, because a part becomes a batch of the log: small bodies are much larger there.  A body
    that alone is too large makes one of its own: nsqd knows what it accepts, and says so.
    """

    def __cinit__(self, Py_ssize_t size_max, bint deferred):
        if not FRAME_HEAD <= size_max <= COLUMN_SIZE_MAX:
            raise ValueError(f"size_max {size_max} out of range {FRAME_HEAD}-{COLUMN_SIZE_MAX}")
        self.size_max = size_max
        self.deferred = deferred
        self.size = 4

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def add(self, offsets, bint wide, values, Py_ssize_t first, Py_ssize_t count, due_ns=None):
        """Take ``count`` bodies from row ``first`` on; return those (MPUB body, count) now full.

        ``offsets`` and ``values`` are an Arrow binary column's buffers, ``wide`` says that the
        offsets have 8 bytes.  ``due_ns`` has an int64 for each of the rows 0 to ``first + count``.
        An empty body is a ValueError, because NSQ has no such messages.
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
        cdef Py_ssize_t room = self.size_max - (self.size - 4) - self.count * (FRAME_HEAD - head)
        with nogil:
            stop = fitting(rows, row, end, room, self.count > 0, &size)
        if stop < 0:
            row = -stop - 1
            if begin_of(rows, row) == begin_of(rows, row + 1):
                raise ValueError(f"row {row}: the body is empty, and NSQ has no empty messages")
            raise ValueError(f"row {row}: its offsets lie outside of the column")
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
        """The bodies so far as (MPUB body, count), and begin anew; the count may be 0."""
        cdef uint32_t count = self.count
        self.reserve(0)
        store_u32(self.buffer, count)
        taken = PyBytes_FromStringAndSize(<char*>self.buffer, self.size)
        self.size = 4
        self.count = 0
        return taken, count
