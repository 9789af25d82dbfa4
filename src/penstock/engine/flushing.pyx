# What a topic's writer does for every batch: seal it, write it, show it.
#
# The subclass (engine/writer.py) has the rules, and everything that is not done for every batch.

from libc.stdint cimport int64_t

from penstock.core.appender cimport Appender, Batch
from penstock.storage.topic_log cimport TopicLog

from penstock.errors import PenstockError

# A write to the page cache takes microseconds; above this the kernel is throttling writers.
SLOW_NS = 20_000_000
SLOW_FOR_NS = 5_000_000_000
# Minimum time between syncs by --sync-every (except --sync-every=1).  At a million messages a
# second the default of 2,500 would sync 400 times a second, for a third of all CPU; with it, a
# power cut there can lose 25 ms of messages instead of 2.5.  With 10 ms instead of 25, a message
# published 200 at a time costs 5 % more.
SYNC_SPACING_NS = 25_000_000

cdef int64_t slow_ns = SLOW_NS
cdef int64_t slow_for_ns = SLOW_FOR_NS
cdef int64_t sync_spacing_ns = SYNC_SPACING_NS

cdef enum:
    # Unsynced bytes above which further batches wait for a sync.
    DIRTY_SIZE_MAX = 64 << 20
    # Parts of stagings up to this size are written by the loop: a tenth of a millisecond.
    PART_SIZE_INLINE = 128 << 10


cdef class Flushing:
    """Writes one topic's batches to its log."""

    # ---- implemented by the subclass

    def _rewrite(self):
        """Rewrite what a failed sync may have lost."""
        raise NotImplementedError

    def _refuse(self, Batch batch):
        """Fail the batch: the disk is full."""
        raise NotImplementedError

    def _roll(self):
        """Seal the active segment, on a thread."""
        raise NotImplementedError

    def start_sync(self):
        """Sync what is written, on a thread."""
        raise NotImplementedError

    def _take_fired(self, dues):
        """A batch of deferred messages."""
        raise NotImplementedError

    def _take_part(self, part):
        """A batch of staged messages."""
        raise NotImplementedError

    def _put(self, Batch batch):
        """Encode a staged part's payload and write it.  Blocking."""
        raise NotImplementedError

    def _write_elsewhere(self, Batch batch, int64_t started_ns):
        """Write on a thread."""
        raise NotImplementedError

    def _fail(self, Batch batch, error):
        """The batch could not be written."""
        raise NotImplementedError

    def _recovered(self):
        """A write succeeded after one that did not."""
        raise NotImplementedError

    def _wait_for_sync(self, Batch batch):
        """With --sync-every=1: show and answer the batch after a sync."""
        raise NotImplementedError

    # ---- a batch

    def flush(self):
        """Write pending batches, as far as possible without waiting."""
        cdef TopicLog log = self.log
        while not self._busy and (
                self._appender.count or self._fired or self._parts or self._lost is not None):
            if self._lost is not None:
                self._rewrite()
            elif not self._reserve.held:
                self._refuse(self._next())
            elif log.full and log.needs_roll():
                if self._syncing:
                    return
                self._roll()
            elif log.writer.extent.unsynced_bytes() > DIRTY_SIZE_MAX:
                self.start_sync()
                return
            else:
                self.write(self._next())

    cpdef Batch _next(self):
        """The next batch: publishes first, then fired deferrals slot by slot, then staged parts."""
        cdef int64_t wall_ns = self._clock.wall_ns()
        if wall_ns > self._append_ns:
            self._append_ns = wall_ns
        if self._appender.count:
            return self._appender.seal(self._append_ns)
        if self._fired:
            return self._take_fired(self._fired.popleft())
        return self._take_part(self._parts.popleft())

    cdef int write(self, Batch batch) except -1:
        cdef int64_t started_ns = self._clock.monotonic_ns()
        cdef int64_t now_ns
        part = batch.part
        if (started_ns < self._slow_until_ns or not self._opened
                or (part is not None and len(part.body) > PART_SIZE_INLINE)):
            self._write_elsewhere(batch, started_ns)
            return 0
        try:
            if part is None:
                self.log.writer.write(batch)
            else:
                self._put(batch)
        except (OSError, PenstockError) as error:
            self._fail(batch, error)
            return 0
        now_ns = self._clock.monotonic_ns()
        if now_ns - started_ns > slow_ns:
            self._slow_until_ns = now_ns + slow_for_ns
        self._written(batch, now_ns)
        return 0

    cpdef _written(self, Batch batch, int64_t now_ns):
        """The batch is in the file: show and answer it, or sync it first."""
        self.log.commit(batch)
        if self._troubled:
            self._troubled = False
            self._recovered()
        if self._sync_every == 1:
            self._wait_for_sync(batch)
            return
        self._visible(batch)
        if (now_ns - self._sync_ns >= sync_spacing_ns
                and self.log.writer.extent.unsynced_messages() >= self._sync_every):
            self.start_sync()
