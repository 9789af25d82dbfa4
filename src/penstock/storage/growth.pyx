# What changes in a topic log with each batch: its last segment, and its ends.
#
#     Written.write()   the writer, on any thread: the bytes are in the file
#                       (the other half: LogWriter in storage/log_writer.py)
#     Shown.commit()    the loop: the batch becomes part of the log
#                       (the other half: TopicLog in storage/topic_log.py)
#
# A committed batch can be read from the log, but consumers and HTTP readers stop at the topic's
# `shown_end`, which the engine moves after the commit (docs/ARCHITECTURE.md, "The ends of a log").
#
# The other halves have everything that is not done for every batch.
#
# Rule 1: compiled code holds the interpreter's lock throughout, so code that calls no Python is
#         atomic to other threads.

from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.layouts cimport BATCH_HEADER
from penstock.core.tables cimport Visible

from penstock.errors import UncutError


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


cdef class Growth:
    """The fields of a segment that change with each batch."""

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
        self.visible = Visible(batch.segment_size, batch.first + batch.count, count + batch.count)
        self.file_size = batch.segment_size
        return not count


cdef class Written:
    """Appends to the last segment of a folder, and creates the next."""

    # ---- implemented by the subclass

    def _prepare(self):
        """Repair the active segment, which is closed or whose sync failed."""
        raise NotImplementedError

    def _start_segment(self, Batch batch):
        """Create the next segment with ``batch`` in it."""
        raise NotImplementedError

    cpdef write(self, Batch batch):
        """Write a batch to the file; commit() makes it part of the log.  Blocking.

        All or nothing: after an OSError or StorageError the batch is not in the log, and its
        indexes must be given up with abandon().
        """
        cdef Growth segment = self.active
        if segment is not None and (segment.closed or segment.failed):
            self._prepare()
        with self._lock:
            segment = self.active
            if segment is None:
                segment = self._start_segment(batch)
            else:
                try:
                    self._files.append(segment.path, [batch.header(), batch.payload])
                except UncutError:
                    segment.closed = True
                    raise
            segment.wrote(batch, self.extent)
            self.events.append(batch)


cdef class Shown:
    """The committed part of a log."""

    # ---- implemented by the subclass

    def _work_off(self):
        """Apply the events before the next batch."""
        raise NotImplementedError

    def needs_roll(self):
        """Whether a full segment has to be sealed."""
        raise NotImplementedError

    cpdef commit(self, Batch batch):
        """Commit the oldest written batch, which is this one."""
        cdef Growth segment = batch.segment
        cdef int64_t end = batch.first + batch.count
        events = self._writer.events
        if events[0] is not batch:
            self._work_off()
        event = events.popleft()
        assert event is batch, f"commit of {batch.first}: {event}"
        if segment.show(batch):
            self._segments = (*self._segments, segment)
        self._runs.add(batch.first, end)
        if end > self.end:
            self.end = end
        self.full = batch.segment_size >= self._segment_size_max
        if events:
            self._work_off()
