# A block: a piece of a topic log in memory, frames in wire format.
#
#     data:   .. batch header .. | frame | frame | frame | .. batch header .. | frame | frame |
#     spans:                      `------- span 0 ------'                      `---- span 1 --'
#
# Rule 1: spans ascend by index and by position; indexes within a span are dense.
# Rule 2: a block is immutable.  A redelivery copies the frame and patches the attempts in the copy.
# Rule 3: frames come from our own log, checksummed; still, their sizes are checked against the
#         span.

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t

from penstock.core.bytes cimport load_u32


@cython.freelist(8)
cdef class Block:
    def __init__(self, bytes data not None, list spans not None, int node_id):
        cdef Py_ssize_t i
        cdef Py_ssize_t count = len(spans)
        self.free_spans()
        self.data = data
        self.bytes_at = data
        self.node_id = node_id
        self.spans = &self.single
        if count > 1:
            self.spans = <Span*>PyMem_Malloc(count * sizeof(Span))
            if self.spans == NULL:
                raise MemoryError
        for i in range(count):
            first, number, start, end, *append_ns = spans[i]
            if not 0 <= start <= end <= len(data) or number < 1:
                raise ValueError(f"span {spans[i]} is outside of {len(data)} bytes")
            if i and (first < self.spans[i - 1].first + self.spans[i - 1].count
                      or start < self.spans[i - 1].end):
                raise ValueError(f"span {spans[i]} overlaps the one before it")
            self.spans[i] = Span(first, number, start, end, append_ns[0] if append_ns else 0)
        self.span_count = count

    def __dealloc__(self):
        self.free_spans()

    cdef void free_spans(self) noexcept:
        if self.spans != &self.single:
            PyMem_Free(self.spans)
        self.spans = NULL
        self.span_count = 0

    @property
    def first(self):
        """The smallest index in the block."""
        return self.first_index()

    @property
    def end(self):
        """One past the largest index in the block."""
        return self.end_index()

    cdef int64_t first_index(self) noexcept:
        return self.spans[0].first if self.span_count else 0

    cdef int64_t end_index(self) noexcept:
        cdef Py_ssize_t last = self.span_count - 1
        return self.spans[last].first + self.spans[last].count if last >= 0 else 0

    @property
    def count(self):
        return self.message_count()

    cdef int64_t message_count(self) noexcept:
        cdef Py_ssize_t i
        cdef int64_t total = 0
        for i in range(self.span_count):
            total += self.spans[i].count
        return total

    @property
    def size(self):
        """Bytes of all frames."""
        cdef Py_ssize_t i
        cdef int64_t total = 0
        for i in range(self.span_count):
            total += self.spans[i].end - self.spans[i].start
        return total

    def count_within(self, int64_t size_max):
        """How many messages, from the first on, fit into ``size_max`` bytes of frames."""
        cdef Py_ssize_t i, at, size
        cdef int64_t total = 0, count = 0
        for i in range(self.span_count):
            at = self.spans[i].start
            while at + 4 <= self.spans[i].end:
                size = 4 + load_u32(self.bytes_at + at)
                if total + size > size_max:
                    return count
                total += size
                count += 1
                at += size
        return count

    cpdef bytes frame(self, int64_t index):
        """The frame of ``index`` as bytes, or None if the block does not hold it."""
        cdef Py_ssize_t span = self.find(index)
        if span < 0 or self.spans[span].first > index:
            return None
        cdef Py_ssize_t at = self.offset_of(span, index)
        cdef Py_ssize_t end = self.spans[span].end
        if at + 4 > end or at + 4 + load_u32(self.bytes_at + at) > end:
            raise ValueError(f"frame of index {index} does not fit its span")
        return self.data[at:at + 4 + load_u32(self.bytes_at + at)]

    def append_ns(self, int64_t index):
        """When the message was appended; 0 if the block does not have it, or that is not known."""
        cdef Py_ssize_t span = self.find(index)
        return self.spans[span].append_ns if span >= 0 and self.spans[span].first <= index else 0

    def indexes(self, int64_t start, Py_ssize_t count_max):
        """Up to ``count_max`` indexes of the block, from ``start`` on."""
        cdef list found = []
        cdef Py_ssize_t span = self.find(start)
        cdef int64_t index
        while 0 <= span < self.span_count and len(found) < count_max:
            index = max(start, self.spans[span].first)
            while index < self.spans[span].first + self.spans[span].count:
                if len(found) == count_max:
                    break
                found.append(index)
                index += 1
            span += 1
        return found

    def head(self, int64_t count):
        """A block of the first ``count`` messages, with a copy of their bytes.

        Without a copy it would keep all bytes of this block in memory.
        """
        cdef Py_ssize_t i
        cdef list spans = []
        for i in range(self.span_count):
            if count <= 0:
                break
            span = self.spans[i]
            if span.count <= count:
                spans.append((span.first, span.count, span.start, span.end, span.append_ns))
            else:
                end = self.offset_of(i, span.first + count)
                spans.append((span.first, count, span.start, end, span.append_ns))
            count -= span.count
        if not spans:
            return Block(b"", spans, self.node_id)
        begin, end = spans[0][2], spans[len(spans) - 1][3]
        moved = [
            (first, number, at - begin, to - begin, append_ns)
            for first, number, at, to, append_ns in spans]
        return Block(self.data[begin:end], moved, self.node_id)

    cdef Py_ssize_t find(self, int64_t index) noexcept:
        # The span with ``index`` or the first one after it; -1 past the end.
        cdef Py_ssize_t low = 0, high = self.span_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.spans[middle].first + self.spans[middle].count <= index:
                low = middle + 1
            else:
                high = middle
        return low if low < self.span_count else -1

    cdef Py_ssize_t offset_of(self, Py_ssize_t span, int64_t index) except -1:
        # Frames are not indexed: scanning costs 2 ns a frame.  It begins at the span's start, or at
        # a frame that was found before.  Messages that fail again and again are found in order,
        # those with one attempt and those with two by turns: so two places are remembered.
        cdef Py_ssize_t at = self.spans[span].start
        cdef Py_ssize_t end = self.spans[span].end
        cdef int64_t i = self.spans[span].first
        cdef int known = 0 if self.places[0].index <= self.places[1].index else 1
        cdef int place
        for place in range(2):
            if i <= self.places[place].index <= index and self.places[place].at:
                i, at, known = self.places[place].index, self.places[place].at, place
        while i < index:
            if at + 4 > end:
                raise ValueError(f"index {index} is not in the span it should be in")
            at += 4 + load_u32(self.bytes_at + at)
            i += 1
        if at > end:
            raise ValueError(f"frame sizes run past the span before index {index}")
        self.places[known] = Place(index, at)
        return at


cdef Block dense_block(bytes data, int64_t first, int64_t count, Py_ssize_t end, int node_id,
                       int64_t append_ns):
    # A block of one span at the start of ``data``, without the list that __init__ takes.
    cdef Block block = Block.__new__(Block)
    assert 0 <= end <= len(data) and count > 0
    block.data = data
    block.bytes_at = data
    block.node_id = node_id
    block.single = Span(first, count, 0, end, append_ns)
    block.spans = &block.single
    block.span_count = 1
    return block
