# The writer of a topic log: appends, syncs and seals segments and, after a failed sync, copies
# them.
#
# Runs on the loop or on a disk thread.  It owns `active`, its tally and its counters; the loop
# learns of its work from events, in order (topic_log.pyx): a batch was written and can be
# committed, a segment was sealed, batches were moved.  Writes and rolls come one at a time; a sync
# may run concurrently with a write, which waits for it only if a segment has to be sealed or
# copied.
#
# Rule 1: a batch is written whole or not at all, and only after batches that were.
# Rule 2: a segment and its folder are synced before the next segment is created.
# Rule 3: batches that a failed sync should have covered are written to a new file.
# Rule 4: where the log ends is in the tally.  The file may be larger: with --sync-every=1 zeros are
#         written ahead of the end, since a sync of bytes that replace others does not wait for the
#         file system's journal (docs/benchmarks.md).  They are cut off before the footer.

import threading
from collections import deque
from functools import partial

from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from penstock.core.appender cimport Batch
from penstock.core.tables cimport Tally, Visible
from penstock.storage.files cimport Files
from penstock.storage.segment cimport Extent, Segment

from penstock.core.batches import HEADER_SIZE
from penstock.errors import UncutError
from penstock.storage.copies import copy_bytes
from penstock.storage.log_records import Moved, Sealed, SyncToken
from penstock.storage.segment_format import (
    TRAILER_SIZE, decode_trailer, encode_header, footer, segment_path,
)
from penstock.storage.survey import survey

SEGMENT_SIZE_MAX = 64 * 1024 * 1024

# A full segment may grow by this much before it is sealed (engine/writer.pyx).
EXCESS_SIZE_MAX = 32 * 1024 * 1024

cdef enum:
    # Zeros ahead of the end: as many as the segment has bytes, from the first size on, up to the
    # second, and more when half of them are used.
    ZEROS_SIZE_MIN = 64 << 10
    ZEROS_SIZE_MAX = 4 << 20
    # Written and synced at a time.  A write or sync of messages may wait for one such write.
    PIECE_SIZE = 256 << 10

# An active segment whose messages are all finished is rolled at this size, to be removed.
ROLL_SIZE_FINISHED = 4 * 1024 * 1024


cdef class LogWriter:
    """Appends to the last segment of a folder, and creates the next."""

    def __init__(self, Files files not None, str folder not None, uint64_t instance, int node_id,
                 int64_t end, int64_t segment_size_max=SEGMENT_SIZE_MAX):
        self._files = files
        self._folder = folder
        self._instance = instance
        self._node_id = node_id
        self._size_max = segment_size_max
        self.bound(INT64_MAX, INT64_MAX)
        self.events = []
        self.cuts = deque()
        # Acquired in this order.  The first is held during fdatasync; the second protects the tally
        # and the events, and a sync does not hold it while it waits for the disk.
        self._sync_lock = threading.Lock()
        self.extent = Extent(end)

    def resume(self, Segment tail not None):
        """Take over an unsealed last segment; its name may not be synced."""
        self.active = tail
        self._folder_dirty = True

    def limit(self, int64_t size_max):
        """Let segments be full at ``size_max`` bytes from now on."""
        self._size_max = size_max
        self.segment_size_max = min(size_max, self._bound_size)

    def bound(self, int64_t size_max, int64_t count_max):
        """As limit(), by messages too; the smaller one counts."""
        self._bound_size = size_max
        self._excess_max = min(size_max, EXCESS_SIZE_MAX)
        self.segment_count_max = count_max
        self.segment_size_max = min(size_max, self._size_max)

    cdef bint overgrown(self) noexcept:
        # Whether the active segment must not grow any more, although its bytes are not synced.
        cdef Segment segment = self.active
        if segment is None or segment.tally is None:
            return False
        return (segment.tally.size - self.segment_size_max >= self._excess_max
                or segment.tally.count // 2 >= self.segment_count_max)

    cpdef write(self, Batch batch):
        """Write a batch to the file; TopicLog.commit() makes it part of the log.  Blocking.

        All or nothing: after an OSError or StorageError the batch is not in the log, and its
        indexes must be given up with abandon().
        """
        cdef Segment segment = self.active
        if segment is not None and (segment.closed or segment.failed):
            self._prepare()
        with self._lock:
            segment = self.active
            if segment is None:
                segment = self._start_segment(batch)
            else:
                try:
                    self._files.append(
                        segment.path, [batch.header(), batch.payload],
                        segment.tally.size if self._zeros_end else -1)
                except UncutError:
                    segment.closed = True
                    raise
                except OSError:
                    self._zeros_end = 0
                    raise
            segment.wrote(batch, self.extent)
            self.events.append(batch)

    def start_write(self, Batch batch, done):
        """write() without waiting: ``done(None, error)`` is called later.

        False if write() has to do more than append to an open file.
        """
        cdef Segment segment = self.active
        if segment is None or segment.tally is None or segment.closed or segment.failed:
            return False
        # Until the write has ended, no other thread changes the segment.
        self._lock.acquire()
        try:
            started = self._files.start_append(
                segment.path, [batch.header(), batch.payload],
                segment.tally.size if self._zeros_end else -1,
                partial(self._write_ended, segment, batch, done))
        except BaseException:
            self._lock.release()
            raise
        if not started:
            self._lock.release()
        return started

    def _write_ended(self, Segment segment, Batch batch, done, error):
        if error is None:
            segment.wrote(batch, self.extent)
            self.events.append(batch)
        elif isinstance(error, UncutError):
            segment.closed = True
        else:
            self._zeros_end = 0
        self._lock.release()
        done(None, error)

    # Zeros ahead of the end

    cdef int64_t zeros_size(self) noexcept:
        # Bytes of the active segment's file after its end.
        cdef Segment segment = self.active
        if not self._zeros_end or segment is None or segment.tally is None:
            return 0
        return max(0, self._zeros_end - segment.tally.size)

    cdef int64_t _ahead(self) noexcept:
        # How many zeros there should be.
        cdef int64_t size = self.active.tally.size
        cdef int64_t size_max = min(ZEROS_SIZE_MAX, self.segment_size_max // 16)
        if size < min(ZEROS_SIZE_MIN, size_max):
            return 0
        return max(0, min(size, size_max, self.segment_size_max - size))

    cdef bint wants_zeros(self) noexcept:
        # Whether write_zeros() has something to do.
        cdef Segment segment = self.active
        if (segment is None or segment.tally is None or segment.closed or segment.failed
                or self._zeros_refused):
            return False
        return self.zeros_size() < (self._ahead() + 1) // 2

    def write_zeros(self):
        """Write zeros ahead of the end of the active segment.  Blocking.

        After an OSError the segment gets no more: batches are appended as without.
        """
        cdef Segment segment = self.active
        cdef int64_t goal = 0, start, end
        while True:
            with self._lock:
                if segment is None or segment is not self.active or self._zeros_refused:
                    return
                if segment.closed or segment.failed:
                    return
                if not goal:
                    goal = segment.tally.size + self._ahead()
                start = max(self._zeros_end, segment.tally.size)
                end = min(goal, start + PIECE_SIZE)
                if start >= end:
                    return
                try:
                    self._files.extend(segment.path, start, end)
                except OSError:
                    self._zeros_refused = True
                    raise
                self._zeros_end = end
            try:
                self._files.sync_size(segment.path)
            except OSError:
                # A sync of the messages says whether theirs are affected.
                self._zeros_refused = True
                raise

    def cut_zeros(self):
        """Cut the zeros off, before a clean exit.  Blocking."""
        cdef Segment segment
        with self._lock:
            segment = self.active
            self._zeros_refused = True
            if self.zeros_size() and not segment.closed and not segment.failed:
                self._files.truncate(segment.path, segment.tally.size)
                self._zeros_end = 0

    def _prepare(self):
        with self._sync_lock:
            with self._lock:
                self._mend()
                if self.active is not None and self.active.closed:
                    self._seal(self.active)

    cpdef bint needs_roll(self, int64_t low=0) except -1:
        """Whether the active segment is full, or is all below ``low`` and worth removing.

        Or a roll was wanted.
        """
        cdef Segment segment = self.active
        cdef int64_t size
        if segment is None or segment.tally is None:
            return False
        if self.roll_wanted:
            return True
        size = segment.tally.size
        if size >= self.segment_size_max or segment.tally.count >= self.segment_count_max:
            return True
        if segment.closed:
            # Found at start, or its footer could not be written: it can only be sealed.
            return segment.tally.end <= low
        return size >= ROLL_SIZE_FINISHED and segment.tally.end <= low

    def sync(self):
        """Make written batches durable; pass the token to synced().  Blocking.

        After an OSError the next sync, roll or write first copies the unsynced batches to a new
        file (R8).
        """
        cdef Segment segment
        cdef Visible reached = None
        with self._sync_lock:
            with self._lock:
                self._mend()
                segment = self.active
                token = self._token()
                if segment is not None and segment.tally is not None:
                    reached = segment.tally.visible()
            if reached is not None and segment.synced.size < reached.size:
                self._sync_file(segment, reached)
            self._sync_folder()
        return token

    cdef bint _is_plain(self):
        # Whether a sync only has to sync the active segment.
        cdef Segment segment = self.active
        return not (segment is None or segment.failed or segment.closed or self._folder_dirty
                    or self.cuts or segment.synced.size >= segment.tally.size)

    cpdef sync_here(self):
        """sync() on the loop, if that is quick (Files.sync_here); None if a thread has to do it.

        Only while no thread writes.
        """
        cdef Segment segment = self.active
        cdef Visible reached
        if not self._is_plain() or not self._sync_lock.acquire(False):
            return None
        reached = segment.tally.visible()
        try:
            if not self._files.sync_here(segment.path):
                return None
        except OSError:
            segment.failed = True
            raise
        finally:
            self._sync_lock.release()
        segment.synced = reached
        return self._token()

    def start_sync(self, done):
        """sync() without waiting: ``done(token, error)`` is called later, as a sync's result.

        False if sync() has to do more than sync one open file.  Only while no thread writes.
        """
        cdef Segment segment = self.active
        if not self._is_plain() or not self._sync_lock.acquire(False):
            return False
        try:
            started = self._files.start_sync(segment.path, partial(
                self._sync_ended, segment, segment.tally.visible(), self._token(), done))
        except BaseException:
            self._sync_lock.release()
            raise
        if not started:
            self._sync_lock.release()
        return started

    def _sync_ended(self, Segment segment, Visible reached, token, done, error):
        if error is None:
            segment.synced = reached
        else:
            segment.failed = True
        self._sync_lock.release()
        done(None if error is not None else token, error)

    def roll(self):
        """Seal the active segment; pass the token to synced().  Blocking."""
        with self._sync_lock:
            with self._lock:
                self._mend()
                if self.active is not None:
                    self._seal(self.active)
                self._sync_folder()
                token = self._token()
        return token

    def _mend(self):
        self._cut_moved()
        if self.active is not None and self.active.failed:
            self._rewrite(self.active)

    def _start_segment(self, Batch batch):
        first = batch.first
        path = segment_path(self._folder, first)
        previous_end = self.extent.end or first
        segment_header = encode_header(
            self._node_id, first, previous_end, batch.append_ns, self._instance
        )
        try:
            self._files.append(path, [segment_header, batch.header(), batch.payload])
        except (OSError, UncutError):
            self._files.unlink(path)
            raise
        self._folder_dirty = True
        segment = Segment.from_tally(path, first, self._node_id, Tally(first))
        self.active = segment
        self._zeros_end = 0
        self._zeros_refused = False
        return segment

    def _token(self):
        cdef Segment segment = self.active
        base = segment.base if segment is not None else 0
        offset = segment.tally.size if segment is not None and segment.tally is not None else 0
        extent = self.extent
        return SyncToken(base, offset, extent.end, extent.count, extent.size)

    def _sync_file(self, Segment segment, Visible reached):
        try:
            self._files.sync(segment.path)
        except OSError:
            segment.failed = True
            raise
        segment.synced = reached

    def _sync_folder(self):
        # Cleared first: a segment created during the sync makes the folder dirty again.
        cdef bint dirty = self._folder_dirty
        self._folder_dirty = False
        if dirty:
            try:
                self._files.sync_folder(self._folder)
            except OSError:
                self._folder_dirty = True
                raise

    def _seal(self, Segment segment):
        # The batches are synced before the footer is written, so if the footer survives a power
        # cut, the batches did too.  A lost footer costs a scan at start.
        tally = segment.tally
        assert tally is not None
        segment.closed = True
        if self._files.size(segment.path) > tally.size:  # zeros, a write or a footer that failed
            self._files.truncate(segment.path, tally.size)
        self._zeros_end = 0
        if segment.synced.size < tally.size:
            self._sync_file(segment, tally.visible())
        ending = footer(tally)
        size = self._files.append(segment.path, [ending])
        self._files.sync(segment.path)
        self._sync_folder()
        self.active = None
        self.roll_wanted = False
        trailer = decode_trailer(ending[len(ending) - TRAILER_SIZE:], size)
        self.events.append(Sealed(segment, size, trailer))

    # A failed sync

    def _rewrite(self, Segment old):
        # The kernel may have dropped the pages that a failed sync could not write, or marked them
        # clean: a second sync of the same file proves nothing.  So the bytes are copied to a new
        # file.  If nothing of the old one was synced, the copy replaces it.
        tally = old.tally
        assert tally is not None
        whole = old.synced.size <= HEADER_SIZE
        base = old.base if whole else old.synced.end
        path = segment_path(self._folder, base)
        start = 0 if whole else old.synced.size
        self._zeros_end = 0  # the copy has none
        header = b""
        if not whole:
            header = encode_header(old.node_id, base, base, tally.append_ns_last, self._instance)
        copy_bytes(self._files, old.path, path, start, tally.size, header)
        self._folder_dirty = False
        if whole:
            old.synced = tally.visible()
            old.failed = False
            return
        found = survey(self._files, path, base)
        if found.size > found.tally.size:  # bytes lost from the page cache
            self._files.truncate(path, found.tally.size)
        new = Segment.from_tally(path, base, old.node_id, found.tally)
        new.closed = old.closed
        new.synced = found.tally.visible()
        self.active = new
        self.events.append(Moved(old, old.synced, new, new.synced))

    def _cut_moved(self):
        # Recovery ignores moved batches in the old file, so a failed truncate is just retried.
        # Until it is synced, the new file must not be removed.
        while self.cuts:
            segment, size = self.cuts[0]
            try:
                self._files.truncate(segment.path, size)
                self._files.sync(segment.path)
            except FileNotFoundError:
                pass  # the topic was deleted meanwhile
            except OSError:
                return
            self.cuts.popleft()
