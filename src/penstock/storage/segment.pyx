# One file of a topic log in memory: what is written, committed and synced of it.
#
#     written     the writer, on any thread: the tally
#     committed   the loop: `visible`
#     synced      whoever synced it
#
# A committed batch can be read from the log, but consumers and HTTP readers stop at the feed's
# `shown_end`, which the engine moves after the commit (docs/ARCHITECTURE.md, "The ends of a log").
#
# Rule 1: a tally belongs to the writer of the file; `visible` belongs to the loop, is replaced as
#         one value, and shrinks only together with a new segment list.
# Rule 2: readers read nothing after `visible`.
# Rule 3: compiled code holds the interpreter's lock throughout, so code that calls no Python is
#         atomic to other threads.

from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.layouts cimport BATCH_HEADER, SEGMENT_HEADER
from penstock.core.tables cimport Tables, Tally, Visible, visible_of

from penstock.storage.segment_format import NO_SLOT_MAX, NO_SLOT_MIN, decode_tables, tables_good


cdef class Extent:
    """Messages and bytes written since a log was opened, and how many of them are synced."""

    def __init__(self, int64_t end):
        self.end = end

    def found(self, int64_t count, int64_t size):
        """Add what the start found and does not know to be synced."""
        self.count += count
        self.size += size

    def reached(self, int64_t count, int64_t size):
        """A sync has finished that covers everything up to these ``count`` and ``size``."""
        self.synced_count = max(self.synced_count, count)
        self.synced_size = max(self.synced_size, size)

    @property
    def unsynced_count(self):
        return self.unsynced_messages()

    @property
    def unsynced_size(self):
        return self.unsynced_bytes()

    cdef int64_t unsynced_messages(self) noexcept:
        return self.count - self.synced_count

    cdef int64_t unsynced_bytes(self) noexcept:
        return self.size - self.synced_size


cdef class Segment:
    """A segment or side file of a topic log."""

    def __init__(self, str path not None, int64_t base, int node_id, *, bint side=False):
        self.path = path
        self.base = base
        self.node_id = node_id
        self.side = side
        self.previous_end = base
        self.first = base
        self.visible = Visible(0, base, 0)
        self.synced = Visible(0, base, 0)
        self.slot_min = NO_SLOT_MIN
        self.slot_max = NO_SLOT_MAX

    @staticmethod
    def from_tally(str path not None, int64_t base, int node_id, Tally tally not None):
        cdef Segment segment = Segment(path, base, node_id)
        segment.tally = tally
        segment.tables = tally.tables
        segment.slots = tally.slots
        segment.first = tally.first
        segment.append_ns_first = tally.append_ns_first
        segment.visible = tally.visible()
        segment.file_size = tally.size
        segment.synced = Visible(0, tally.first, 0)
        return segment

    @staticmethod
    def from_trailer(str path not None, int64_t base, int node_id, int64_t size, trailer):
        cdef Segment segment = Segment(path, base, node_id)
        segment.trailer = trailer
        segment.first = trailer.first
        segment.append_ns_first = trailer.append_ns_first
        segment.visible = Visible(trailer.tables_offset, trailer.end, trailer.count)
        segment.synced = segment.visible
        segment.file_size = size
        segment.slot_min = trailer.slot_min
        segment.slot_max = trailer.slot_max
        if not trailer.origin_count:
            segment.slots = set()
        segment.sealed = segment.closed = True
        return segment

    @property
    def append_ns_last(self):
        if self.trailer is not None:
            return self.trailer.append_ns_last
        return self.tally.append_ns_last if self.tally is not None else 0

    # ---- growing

    cpdef wrote(self, Batch batch, Extent extent):
        """Record that the batch was appended to the file."""
        assert self.tally is not None
        batch.segment = self
        batch.segment_size = self.tally.append(batch)
        extent.end = batch.first + batch.count
        extent.count += batch.count
        extent.size += BATCH_HEADER + len(batch.payload)

    cpdef bint show(self, Batch batch) except -1:
        """Commit the oldest written batch, which is this one; return whether it is the first."""
        cdef int64_t count = self.visible.count
        if not count:
            self.first = batch.first
            self.append_ns_first = batch.append_ns
        self.visible = visible_of(
            batch.segment_size, batch.first + batch.count, count + batch.count)
        self.file_size = batch.segment_size
        return not count

    # ---- contents

    def holds_slot_of(self, set slots not None):
        """Whether messages in this file came, or may have come, from one of ``slots``."""
        if self.slots is not None:
            return not slots.isdisjoint(self.slots)
        return any([self.slot_min <= slot <= self.slot_max for slot in slots])

    def runs(self):
        """The dense runs of the visible part; the tables are loaded, or there are no gaps."""
        cdef list runs = []
        cdef int64_t at = self.first, end = self.visible.end
        for start, after in self.tables.gaps if self.tables is not None else ():
            if start >= end:
                break
            runs.append((at, start))
            at = after
        if at < end:
            runs.append((at, end))
        return runs

    def load_tables(self, files, bint wait):
        """The tables, read from the footer if necessary; None if that would wait."""
        cdef Tables tables = self.tables
        trailer = self.trailer
        if tables is not None:
            return tables
        assert trailer is not None
        data = files.pread(self.path, trailer.tables_offset, trailer.tables_size, wait)
        if data is None or (not wait and len(data) < trailer.tables_size):
            return None
        if not tables_good(data, trailer):
            # Without its tables a segment can still be scanned from the start.
            tables = Tables()
            tables.indexes.append(self.first)
            tables.offsets.append(SEGMENT_HEADER)
            tables.times.append(self.append_ns_first)
        else:
            tables = decode_tables(data, trailer)
        self.tables = tables
        return tables

    def seal(self, int64_t size, trailer):
        """The footer was written; from now on the tables can be loaded again."""
        self.sealed = self.closed = True
        self.file_size = size
        self.trailer = trailer

    def aged_as(self, Segment old not None):
        """Take over the age of the segment that this one replaces."""
        self.seen_ns, self.age_ns, self.seen_end = old.seen_ns, old.age_ns, self.visible.end

    def drop_tables(self):
        """Free the tables if they can be loaded again."""
        if self.trailer is not None:
            self.tables = self.tally = None
