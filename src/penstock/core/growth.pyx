# What changes in a topic log with each batch: its last segment, and how far it reaches.
#
#     wrote()   the writer, on any thread: the bytes are in the file
#     show()    the loop: readers may see them
#
# Rule 1: compiled code holds the interpreter's lock from its first step to its last, so each method
#         happens at once to other threads.

from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.tables cimport Tally, Visible

cdef enum:
    BATCH_HEADER = 56       # as in core/segment.pyx


cdef class Extent:
    """What was written since a log was opened, and how much of it is synced."""

    def __init__(self, int64_t end):
        self.end = end      # one past the last index written; 0 if there is none

    def found(self, int64_t count, int64_t size):
        """So many messages and bytes were there at the start, and are not known to be synced."""
        self.count += count
        self.size += size

    def reached(self, int64_t count, int64_t size):
        """A sync covers what was written when these were its ``count`` and ``size``."""
        self.synced_count = max(self.synced_count, count)
        self.synced_size = max(self.synced_size, size)

    @property
    def unsynced_count(self):
        return self.count - self.synced_count

    @property
    def unsynced_size(self):
        return self.size - self.synced_size


cdef class Growth:
    """The part of a segment that changes while it grows."""

    @property
    def ended(self):
        """Whether nothing more may be appended as it is."""
        return self.closed or self.failed

    def wrote(self, Batch batch not None, Extent extent not None):
        """The batch is in the file, behind the others."""
        assert self.tally is not None
        batch.segment = self
        batch.segment_size = self.tally.append(batch)
        extent.end = batch.first + batch.count
        extent.count += batch.count
        extent.size += BATCH_HEADER + len(batch.payload)

    def show(self, Batch batch not None):
        """Readers may see the batch, which is the oldest they could not; whether it is the first."""
        cdef int64_t count = self.visible.count
        if not count:
            self.first = batch.first
            self.append_ns_first = batch.append_ns
        self.visible = Visible(batch.segment_size, batch.first + batch.count, count + batch.count)
        self.file_size = batch.segment_size
        return not count
