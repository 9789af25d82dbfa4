# The log of one topic: segments and side files in one folder (docs/storage-format.md).
#
#     [side] [ sealed ] [ sealed ] [ active ]      index ->
#
# Three kinds of callers, and what each may call:
#   the loop     everything without "blocking" in its docstring; only the loop changes the state
#   the writer   write, roll (blocking): one at a time per log.  sync, rewrite_unsynced (blocking):
#                one at a time, and may run concurrently with a write (log_writer.pyx)
#   readers      read, read_range, frame, seek, relocate (blocking with wait=True): any number of
#                threads.
#
# The writer reports to the loop by events, in order; commit() and synced() apply them.  So a batch
# is part of the log only after its commit, and a segment is sealed only after the commits of all
# its batches, however far the writer is ahead.
#
# Invariants, see check():
#  1. segments ascend and do not overlap; a batch is in exactly one of them.
#  2. the runs are exactly the indexes in the segments, without damaged ones.
#  3. first <= synced_end <= end; an index below end is final: it exists or is a gap forever.
#  4. a file is created by the first append, never by opening a log: idle topics have no files.

from array import array
from bisect import bisect_left

from libc.stdint cimport int64_t, uint64_t

from penstock.core.appender cimport Batch
from penstock.core.block cimport Block
from penstock.core.buried cimport Buried
from penstock.core.runs cimport Runs
from penstock.core.tables cimport Visible
from penstock.storage.files cimport Files
from penstock.storage.log_writer cimport LogWriter
from penstock.storage.segment cimport Segment

from penstock.core.batches import HEADER_SIZE
from penstock.errors import StorageError
from penstock.storage.evidence import keep_evidence
from penstock.storage.log_reader import Damage, LogReader, locate, missing
from penstock.storage.log_records import Moved, Sealed, SegmentRecord
from penstock.storage.log_writer import SEGMENT_SIZE_MAX
from penstock.storage.ranges import file_slice, read_range
from penstock.storage.relocation import write_side

# Damage found and not yet taken; what is beyond it is found again by a later read.
DAMAGE_MAX = 1024

# Segments dropped at once: unlinking them takes a disk thread some 100 ms.
cdef enum:
    REMOVE_COUNT_MAX = 16

# Retries of a read on a stale list of segments; the loop must have changed the list each time.
STALE_MAX = 16


cdef class TopicLog:
    """Messages of a topic instance by index."""

    def __init__(self, Files files not None, str folder not None, uint64_t instance, int node_id,
                 list segments not None, int64_t end, int64_t segment_size_max=SEGMENT_SIZE_MAX,
                 int64_t removed_end=0):
        cdef Segment segment
        # Where the next segment's header says that the log ended: with none left, what was removed.
        cdef int64_t written_end = removed_end
        self._files = files
        self._reader = LogReader(files)
        self._damage = {}
        self.on_damage = _ignore
        self._lost = []
        self.folder = folder
        self.instance = instance
        self.node_id = node_id
        self.pinned_slots = set()
        # Segments that extend beyond one of these are kept: a publication in progress may have
        # written parts to them, and searches for those after a crash (R19).
        self.holds = {}
        # Tables of buried messages: a finished segment with one of them is kept (R24).
        self.buried = []
        self.end = self.synced_end = end
        self.files = tuple(segments)
        self._runs = Runs()
        for segment in self.files:
            for start, stop in segment.runs():
                self._runs.add(start, stop)
            segment.drop_tables()
            written_end = segment.visible.end
        self.writer = LogWriter(files, folder, instance, node_id, written_end, segment_size_max)
        self.extent = self.writer.extent

    @staticmethod
    def create(files, folder, instance, node_id, base, segment_size_max=SEGMENT_SIZE_MAX):
        """The log of a new topic, whose first index is ``base``.  Blocking.

        Creates the folder if it is missing, and nothing in it.
        """
        if not files.exists(folder):
            files.make_folder(folder)
            files.sync_folder(folder.rpartition("/")[0])
        return TopicLog(files, folder, instance, node_id, [], base, segment_size_max)

    def resume(self, Segment tail not None, Visible synced not None):
        """Take over an unsealed last segment; it is sealed before the first append."""
        tail.closed = True
        tail.synced = synced
        self.writer.resume(tail)
        self.synced_end = synced.end
        self.extent.found(
            tail.visible.count - synced.count,
            max(0, tail.visible.size - max(synced.size, HEADER_SIZE)),
        )

    def count_damage(self, int64_t torn_count, int64_t corrupt_count):
        """Count what the start found."""
        self.torn_count += torn_count
        self.corrupt_count += corrupt_count

    # Contents

    @property
    def first(self):
        """The smallest index present, or ``end`` if there is none."""
        first = self._runs.first
        return self.end if first is None else first

    @property
    def append_ns_first(self):
        """When the first batch of the oldest file was appended; 0 if there is none."""
        return self.files[0].append_ns_first if self.files else 0

    @property
    def count(self):
        """Messages present, those in side files included."""
        return self._runs.count

    @property
    def size(self):
        """Bytes on disk, headers and footers included; without zeros ahead of the end."""
        cdef Py_ssize_t last = <Py_ssize_t>len(self.files) - 1
        if last < 0:
            return 0
        return self.size_before(last) + (<Segment>self.files[last]).file_size

    @property
    def zeros_size(self):
        """Bytes of zeros ahead of the end (log_writer.pyx)."""
        return self.writer.zeros_size()

    def size_before(self, Py_ssize_t place):
        """Bytes of the files before ``place`` in the list of files, which is at most the last."""
        cdef Segment segment
        cdef int64_t size = 0
        if self._sized is not self.files:
            # Files before the last are sealed: their sizes change only together with the list.
            before = array("q")
            for segment in self.files:
                before.append(size)
                size += segment.file_size
            self._before = before
            self._sized = self.files
        return self._before[place]

    @property
    def segment_count(self):
        return len(self.files)

    def next_index(self, index):
        """The smallest existing index at or above ``index``, or ``end``."""
        found = self._runs.next(index)
        return max(index, self.end) if found is None else found

    def count_between(self, start, end):
        """The exact number of messages in [start, end)."""
        return self._runs.count_between(start, end)

    def existing(self, start, end):
        """The dense runs of existing indexes in [start, end)."""
        return self._runs.between(start, end)

    def segments(self):
        return [_record(segment) for segment in self.files]

    # Appending

    cpdef write(self, Batch batch):
        """Write a batch to the file; commit() adds it to the log.  Blocking.

        All or nothing, see LogWriter.write().
        """
        self.writer.write(batch)

    def start_write(self, Batch batch, done):
        """Begin a write; False if write() has to be called.  See LogWriter.start_write()."""
        return self.writer.start_write(batch, done)

    cpdef commit(self, Batch batch):
        """Commit the oldest written batch, which is this one."""
        cdef Segment segment = batch.segment
        cdef int64_t end = batch.first + batch.count
        cdef list events = self.writer.events
        if events and events[0] is not batch:
            self._work_off()
        assert events and events[0] is batch, f"commit of {batch.first}: {events}"
        del events[0]
        if segment.show(batch):
            self.files = (*self.files, segment)
        self._runs.add(batch.first, end)
        if end > self.end:
            self.end = end
        self.full = (batch.segment_size >= self.writer.segment_size_max
                     or segment.visible.count >= self.writer.segment_count_max
                     or self.writer.roll_wanted)
        if events:
            self._work_off()

    def abandon(self, end):
        """Give up the indexes below ``end`` of a failed write."""
        self.end = max(self.end, end)

    cpdef bint needs_roll(self, int64_t low=0) except -1:
        """Whether the active segment is full, or is all below ``low`` and worth removing."""
        return self.writer.needs_roll(low)

    def want_roll(self):
        """Have the active segment sealed before the next append, whatever its size."""
        if self.writer.active is not None:
            self.full = self.writer.roll_wanted = True

    def limit_segments(self, int64_t size_max):
        """Let segments be full at ``size_max`` bytes from now on."""
        self.writer.limit(size_max)

    def bound_segments(self, size_max, count_max):
        """As limit_segments(), by messages too; the smaller one counts."""
        self.writer.bound(size_max, count_max)

    cdef bint overgrown(self) noexcept:
        return self.writer.overgrown()

    cdef bint wants_zeros(self) noexcept:
        return self.writer.wants_zeros()

    def write_zeros(self):
        """Write zeros ahead of the end; see LogWriter.write_zeros().  Blocking."""
        self.writer.write_zeros()

    def cut_zeros(self):
        """Cut them off, before a clean exit.  Blocking."""
        self.writer.cut_zeros()

    cpdef sync_here(self):
        """sync() on the loop, if that is quick; None if a thread has to do it."""
        return self.writer.sync_here()

    def start_sync(self, done):
        """Begin a sync; False if sync() has to be called.  See LogWriter.start_sync()."""
        return self.writer.start_sync(done)

    def sync(self):
        """Make written batches durable; pass the token to synced().  Blocking.

        After an OSError the next sync, roll or write first copies the unsynced batches to a new
        file (R8).
        """
        return self.writer.sync()

    def rewrite_unsynced(self):
        """After a failed sync: copy the unsynced batches to a new file.  Blocking.

        The same as sync(), which does this if the sync before it failed.
        """
        return self.writer.sync()

    def roll(self):
        """Seal the active segment; pass the token to synced().  Blocking."""
        return self.writer.roll()

    def synced(self, token):
        """Apply the result of a sync, roll or rewrite."""
        self._work_off()
        self.extent.reached(token.count, token.size)
        reached = self.end if not self.extent.unsynced_count else token.end
        self.synced_end = max(self.synced_end, reached)

    def _work_off(self):
        while self.writer.events and not isinstance(self.writer.events[0], Batch):
            event = self.writer.events.pop(0)
            if isinstance(event, Sealed):
                event.segment.seal(event.size, event.trailer)
                self._sized = None
                self._reader.keeps_tables(event.segment)
            elif isinstance(event, Moved):
                self._move(event)

    def _move(self, event):
        old, new = event.old, event.new
        end = max(old.visible.end, event.visible.end)
        lost = old.visible.count - event.keep.count - event.visible.count
        if lost > 0:  # the failed sync has dropped batches from the page cache
            self.corrupt_count += 1
            self._lost.append(
                Damage(old.path, event.keep.size, old.visible.size, event.keep.end, end, lost)
            )
            self.on_damage()
        old.visible = event.keep
        old.file_size = event.keep.size
        old.sealed = old.closed = True
        new.visible = event.visible
        new.file_size = event.visible.size
        if event.visible.count:
            self.files = (*self.files, new)
        if not event.keep.count:
            self.files = tuple([s for s in self.files if s is not old])
        self._runs.replace(event.keep.end, end, new.runs())
        self.writer.cuts.append((old, event.keep.size))

    # Reading

    def read(self, index, size_max, wait):
        """Whole batches, from the one with ``index``, or the next existing one, on.

        At least one batch and about ``size_max`` bytes, from one segment.  An empty block: there is
        nothing at or above ``index``.  None, only without ``wait``: it would have to wait for the
        disk.  Damaged batches are left out: see take_damage().  Blocking with ``wait``.
        """
        for _ in range(STALE_MAX):
            segments = self.files
            notes = []
            block = self._read(segments, index, size_max, wait, notes)
            if not notes:
                return block
            if segments is self.files:
                self._note(notes)
                return block
        if not wait:
            return None
        raise StorageError(f"{self.folder}: the log changes too fast to be read")

    def _note(self, notes):
        for damage in notes:
            if len(self._damage) < DAMAGE_MAX:
                self._damage[damage.path, damage.offset] = damage
        self.on_damage()

    def _read(self, segments, index, size_max, wait, notes):
        cdef Py_ssize_t place
        for place in range(<Py_ssize_t>locate(segments, index), <Py_ssize_t>len(segments)):
            segment = segments[place]
            try:
                block = self._reader.read(segment, index, size_max, wait, notes)
            except FileNotFoundError:
                notes.append(missing(segment))
                continue
            if block is None or block.span_count:
                return block
        return Block(b"", [], self.node_id)

    def file_slice(self, start, end, size_max):
        """A slice of a file with messages of [start, end), and the first index after it.

        None if it is not in memory; see storage/ranges.py.
        """
        return file_slice(self._files, self.files, start, end, size_max)

    def read_range(self, start, end, size_max, bint tables=False):
        """The batches with messages in [start, end), as stored.  Blocking.

        At least one if there is any, and about ``size_max`` bytes.  With ``tables`` the tables are
        loaded, so that file_slice() can serve the next range.
        """
        for _ in range(STALE_MAX):
            segments = self.files
            notes = []
            found = read_range(self._reader, segments, start, end, size_max, notes, tables=tables)
            if not notes:
                return found
            if segments is self.files:
                self._note(notes)
                return found
        raise StorageError(f"{self.folder}: the log changes too fast to be read")

    def frame(self, index, wait):
        """The frame of one message; b"" if it does not exist, None if it would have to wait.

        Blocking with ``wait``.
        """
        block = self.read(index, 1, wait)
        if block is None:
            return None
        return block.frame(index) or b""

    def seek(self, append_ns):
        """The first index appended at or after ``append_ns``, or ``end``.  Blocking."""
        for _ in range(STALE_MAX):
            segments = self.files
            try:
                return self._seek(segments, append_ns)
            except FileNotFoundError:
                if segments is self.files:
                    raise
        raise StorageError(f"{self.folder}: the log changes too fast to be read")

    def _seek(self, segments, append_ns):
        cdef Py_ssize_t place
        notes = []  # left to later reads
        # Append times never decrease, in a segment and from one to the next (R4).
        start = bisect_left(segments, append_ns, key=_append_ns_last)
        for place in range(<Py_ssize_t>start, <Py_ssize_t>len(segments)):
            found = self._reader.seek(segments[place], append_ns, notes)
            if found is not None:
                return found
        return self.end

    def take_damage(self):
        """Damage found by reads since the last call; it is a gap from now on."""
        taken, self._lost = self._lost, []
        if not self._damage:
            return taken
        current = {segment.path: segment for segment in self.files}
        while self._damage:
            _, damage = self._damage.popitem()
            segment = current.get(damage.path)
            if segment is None or damage.offset >= segment.visible.size:
                continue  # removed or moved since
            count = self._runs.count_between(damage.index_start, damage.index_end)
            if count:
                self._runs.replace(damage.index_start, damage.index_end)
                self.corrupt_count += 1
                taken.append(damage._replace(message_count=count))
        return sorted(taken, key=lambda damage: damage.index_start)

    def forget_damage(self):
        """Discard the damage found so far: the folder was renamed for a moment."""
        self._damage.clear()

    def keep_evidence(self, damage):
        """Copy damaged bytes before their segment is removed.  Blocking."""
        keep_evidence(self._files, damage.path, damage.offset, damage.end)

    # Removing

    def retire_end(self, low):
        """The index up to which ``retire`` would remove messages; 0 if it would not."""
        cdef list gone = self._finished(low)
        return gone[len(gone) - 1].visible.end if gone else 0

    def retire(self, low):
        """Drop sealed segments entirely below ``low``, the oldest REMOVE_COUNT_MAX of them.

        Returns their paths, to be unlinked.
        """
        cdef Segment segment
        cdef list gone = self._finished(low)
        if not gone:
            return []
        for segment in gone:
            self._runs.replace(segment.first, segment.visible.end)
            self.removed_ns = max(self.removed_ns, segment.append_ns_last)
        if gone[len(gone) - 1] is self.files[len(gone) - 1]:
            self.files = self.files[len(gone):]
        else:  # some between them are pinned
            left = set(gone)
            self.files = tuple([segment for segment in self.files if segment not in left])
        return [segment.path for segment in gone]

    cdef list _finished(self, int64_t low):
        # Removable segments entirely below ``low``, oldest first; not all of them if there are many.
        cdef Segment segment
        cdef list gone = []
        for segment in self.files:
            if segment.visible.end > low or len(gone) == REMOVE_COUNT_MAX:
                break
            if self._removable(segment) and not self._has_buried(segment):
                gone.append(segment)
        return gone

    def has_buried(self, Segment segment not None):
        """Whether a message of the segment was buried, as of the last change of ``buried``."""
        return self._has_buried(segment)

    def buried_size(self, int64_t low, list tables not None, int64_t count_max, double share_max):
        """Bytes of the files below ``low`` that their buried messages keep, by ``tables`` of them.

        Up to ``count_max`` and this share of a file's messages keep no file: they can be moved.
        """
        cdef int64_t at = 0, index, count
        cdef Py_ssize_t place
        cdef Segment segment
        size = 0
        while tables:
            index = min([(<Buried>one).next(at) for one in tables])
            place = locate(self.files, index)
            if index >= low or place == len(self.files):
                break
            segment = <Segment>self.files[place]
            if segment.visible.end > low:
                break
            count = 0
            for one in tables:
                count += one.count_between(segment.first, segment.visible.end)
            if count > min(count_max, <int64_t>(segment.visible.count * share_max)):
                size += segment.file_size
            at = max(index + 1, <int64_t>segment.visible.end)
        return size

    cdef bint _has_buried(self, Segment segment) except -1:
        for table in self.buried:
            if table.has_between(segment.first, segment.visible.end):
                return True
        return False

    def removable(self, base):
        """Whether nothing pins the segment: a publication, or a slot (R16, R19)."""
        return self._removable(self._by_base(base))

    def unpinned(self, Segment segment not None):
        """As removable(), of one of the files."""
        return self._removable(segment)

    def node_id_at(self, index):
        """The node id in the id of this message; -1 if the log does not have it."""
        if not self._runs.count_between(index, index + 1):
            return -1
        return self.files[locate(self.files, index)].node_id

    def relocate(self, base, indexes):
        """Copy the frames of ``indexes`` to a side file, for relocated().  Blocking.

        ``base`` is that of a sealed segment or a side file.  Without indexes nothing is written.
        """
        segment = self._by_base(base)
        return write_side(
            self._files,
            self._reader,
            self.folder,
            self.instance,
            segment,
            indexes,
            lambda damage: not self._runs.count_between(damage.index_start, damage.index_end),
        )

    def relocated(self, relocation):
        """Replace the segment by its side file; return the paths to be unlinked.

        The segment is kept if damage was found in it, until take_damage() has reported it.  It is
        also kept, with a StorageError, if the side file lacks a message that the log has.
        """
        old, side = relocation.segment, relocation.side
        if relocation.notes:
            self._note(relocation.notes)
            return [side.path] if side is not None else []
        if old not in self.files or not self._removable(old):
            return [side.path] if side is not None else []
        moved = Runs()
        for start, end in side.runs() if side is not None else ():
            moved.add(start, end)
        for index in relocation.indexes:
            if self._runs.count_between(index, index + 1) > moved.count_between(index, index + 1):
                raise StorageError(f"{old.path}: message {index} is not in its side file")
        place = self.files.index(old)
        fresh = (side,) if side is not None else ()
        self.files = self.files[:place] + fresh + self.files[place + 1 :]
        if side is not None:
            side.aged_as(old)
        runs = side.runs() if side is not None else []
        self.removed_ns = max(self.removed_ns, old.append_ns_last)
        self._runs.replace(old.first, old.visible.end, runs)
        return [old.path]

    cdef bint _removable(self, Segment segment) except -1:
        if not segment.sealed or self.writer.cuts:
            return False
        if self.pinned_slots and segment.holds_slot_of(self.pinned_slots):
            return False
        return not self.holds or segment.visible.end <= min(self.holds.values())

    def _by_base(self, base):
        for segment in self.files:
            if segment.base == base:
                return segment
        raise KeyError(f"no segment with base {base} in {self.folder}")

    def check(self):
        """Assert the invariants; for tests."""
        self._runs.check()
        at = 0
        for segment in self.files:
            assert at <= segment.first < segment.visible.end
            assert segment.visible.count >= self._runs.count_between(
                segment.first, segment.visible.end
            )
            at = segment.visible.end
        assert at <= self.end and self.synced_end <= self.end
        assert self.extent.unsynced_count >= 0 and self.extent.unsynced_size >= 0


def difference(tuple old not None, tuple new not None):
    """The files that are only in ``old``, and those only in ``new``.

    Lists that differ at one place, as most do, are compared at the speed of C.
    """
    cdef Py_ssize_t start = 0, old_end = len(old), new_end = len(new)
    while start < old_end and start < new_end and old[start] is new[start]:
        start += 1
    while old_end > start and new_end > start and old[old_end - 1] is new[new_end - 1]:
        old_end -= 1
        new_end -= 1
    gone, fresh = old[start:old_end], new[start:new_end]
    if gone and fresh:
        before, after = set(gone), set(fresh)
        gone = tuple([segment for segment in gone if segment not in after])
        fresh = tuple([segment for segment in fresh if segment not in before])
    return gone, fresh


def _append_ns_last(Segment segment):
    return segment.append_ns_last


def _ignore():
    """Nobody takes damage yet."""


def _record(Segment segment):
    slots = segment.slots
    return SegmentRecord(
        base=segment.base,
        first=segment.first,
        end=segment.visible.end,
        count=segment.visible.count,
        size=segment.file_size,
        sealed=segment.sealed,
        side=segment.side,
        slot_min=segment.slot_min if slots is None else min(slots, default=0),
        slot_max=segment.slot_max if slots is None else max(slots, default=0),
        append_ns_first=segment.append_ns_first,
        append_ns_last=segment.append_ns_last,
        path=segment.path,
    )
