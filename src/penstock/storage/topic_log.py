# The log of one topic: segments and side files in one folder (docs/storage-format.md).
#
#     [side] [ sealed ] [ sealed ] [ active ]      index ->
#
# Three kinds of callers, and what each may call:
#   the loop     everything without "blocking" in its docstring; only the loop changes the state
#   the writer   write, roll (blocking): one at a time per log.  sync, rewrite_unsynced (blocking):
#                one at a time, and may run concurrently with a write (log_writer.py)
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

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.core.appender import Batch
from penstock.core.batches import HEADER_SIZE
from penstock.core.block import Block
from penstock.core.runs import Runs
from penstock.core.tables import Visible
from penstock.errors import StorageError
from penstock.page_cache import FileSlice
from penstock.record import record
from penstock.storage.evidence import keep_evidence
from penstock.storage.files import Files
from penstock.storage.growth import Shown
from penstock.storage.log_reader import Damage, LogReader, locate, missing
from penstock.storage.log_writer import (
    SEGMENT_SIZE_MAX,
    LogWriter,
    Moved,
    Sealed,
    SyncToken,
)
from penstock.storage.ranges import Range, file_slice, read_range
from penstock.storage.relocation import Relocation, write_side
from penstock.storage.segment import Segment

# Damage found and not yet taken; what is beyond it is found again by a later read.
DAMAGE_MAX = 1024

# Retries of a read on a stale list of segments; the loop must have changed the list each time.
STALE_MAX = 16


@record
class SegmentRecord:
    """The state of a segment or side file, for the engine."""

    base: int
    first: int
    end: int
    count: int
    size: int
    sealed: bool
    side: bool
    slot_min: int
    slot_max: int
    append_ns_first: int
    append_ns_last: int
    path: str


class TopicLog(Shown):
    """Messages of a topic instance by index."""

    _segments: tuple[Segment, ...]
    _writer: LogWriter

    def __init__(
        self,
        files: Files,
        folder: str,
        instance: int,
        node_id: int,
        segments: list[Segment],
        end: int,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> None:
        self._files = files
        self._reader = LogReader(files)
        self._damage: dict[tuple[str, int], Damage] = {}
        # Called when there is damage to take; on any thread.
        self.on_damage: Callable[[], None] = lambda: None
        self._lost: list[Damage] = []  # found by the writer; not in a segment any more
        self.folder = folder
        self.instance = instance
        self.node_id = node_id
        self.pinned_slots: set[int] = set()
        # Segments that extend beyond one of these are kept: a publication in progress may have
        # written parts to them, and searches for those after a crash (R19).
        self.holds: dict[object, int] = {}
        self.corrupt_count = 0
        self.torn_count = 0
        self.end = end
        self._segments = tuple(segments)
        self._runs = Runs()
        self.synced_end = end
        for segment in self._segments:
            for start, stop in segment.runs():
                self._runs.add(start, stop)
            segment.drop_tables()
        written_end = segments[-1].visible.end if segments else 0
        self._writer = LogWriter(files, folder, instance, node_id, written_end, segment_size_max)
        self._segment_size_max = segment_size_max
        self.extent = self._writer.extent
        # Writes a batch to the file; commit() adds it to the log.  Blocking, see LogWriter.write().
        self.write: Callable[[Batch], None] = self._writer.write

    @staticmethod
    def create(
        files: Files,
        folder: str,
        instance: int,
        node_id: int,
        base: int,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> TopicLog:
        """The log of a new topic, whose first index is ``base``.  Blocking.

        Creates the folder if it is missing, and nothing in it.
        """
        if not files.exists(folder):
            files.make_folder(folder)
            files.sync_folder(folder.rpartition("/")[0])
        return TopicLog(files, folder, instance, node_id, [], base, segment_size_max)

    def resume(self, tail: Segment, synced: Visible) -> None:
        """Take over an unsealed last segment; it is sealed before the first append."""
        tail.closed = True
        tail.synced = synced
        self._writer.active = tail
        self.synced_end = synced.end
        self.extent.found(
            tail.visible.count - synced.count,
            max(0, tail.visible.size - max(synced.size, HEADER_SIZE)),
        )
        self._writer.folder_dirty = True

    # Contents

    @property
    def first(self) -> int:
        """The smallest index present, or ``end`` if there is none."""
        first = self._runs.first
        return self.end if first is None else first

    @property
    def count(self) -> int:
        """Messages present, those in side files included."""
        return self._runs.count

    @property
    def size(self) -> int:
        """Bytes on disk, headers and footers included."""
        return sum(segment.file_size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def next_index(self, index: int) -> int:
        """The smallest existing index at or above ``index``, or ``end``."""
        found = self._runs.next(index)
        return max(index, self.end) if found is None else found

    def count_between(self, start: int, end: int) -> int:
        """The exact number of messages in [start, end)."""
        return self._runs.count_between(start, end)

    def existing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The dense runs of existing indexes in [start, end)."""
        return self._runs.between(start, end)

    @property
    def files(self) -> tuple[Segment, ...]:
        """The segments and side files; a new tuple after each change."""
        return self._segments

    def segments(self) -> list[SegmentRecord]:
        return [_record(segment) for segment in self._segments]

    # Appending

    def abandon(self, end: int) -> None:
        """Give up the indexes below ``end`` of a failed write."""
        self.end = max(self.end, end)

    def needs_roll(self, low: int = 0) -> bool:
        """Whether the active segment is full, or is all below ``low`` and worth removing."""
        return self._writer.needs_roll(low)

    def sync(self) -> SyncToken:
        """Make written batches durable; pass the token to synced().  Blocking.

        After an OSError the next sync, roll or write first copies the unsynced batches to a new
        file (R8).
        """
        return self._writer.sync()

    def rewrite_unsynced(self) -> SyncToken:
        """After a failed sync: copy the unsynced batches to a new file.  Blocking.

        The same as sync(), which does this if the sync before it failed.
        """
        return self._writer.sync()

    def roll(self) -> SyncToken:
        """Seal the active segment; pass the token to synced().  Blocking."""
        return self._writer.roll()

    def synced(self, token: SyncToken) -> None:
        """Apply the result of a sync, roll or rewrite."""
        self._work_off()
        self.extent.reached(token.count, token.size)
        reached = self.end if not self.extent.unsynced_count else token.end
        self.synced_end = max(self.synced_end, reached)

    def _work_off(self) -> None:
        while self._writer.events and not isinstance(self._writer.events[0], Batch):
            event = self._writer.events.popleft()
            if isinstance(event, Sealed):
                event.segment.seal(event.size, event.trailer)
                self._reader.keeps_tables(event.segment)
            elif isinstance(event, Moved):
                self._move(event)

    def _move(self, event: Moved) -> None:
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
            self._segments = (*self._segments, new)
        if not event.keep.count:
            self._segments = tuple(s for s in self._segments if s is not old)
        self._runs.replace(event.keep.end, end, new.runs())
        self._writer.cuts.append((old, event.keep.size))

    # Reading

    def read(self, index: int, size_max: int, wait: bool) -> Block | None:
        """Whole batches, from the one with ``index``, or the next existing one, on.

        At least one batch and about ``size_max`` bytes, from one segment.  An empty block: there is
        nothing at or above ``index``.  None, only without ``wait``: it would have to wait for the
        disk.  Damaged batches are left out: see take_damage().  Blocking with ``wait``.
        """
        for _ in range(STALE_MAX):
            segments = self._segments
            notes: list[Damage] = []
            block = self._read(segments, index, size_max, wait, notes)
            if not notes:
                return block
            if segments is self._segments:
                self._note(notes)
                return block
        if not wait:
            return None
        raise StorageError(f"{self.folder}: the log changes too fast to be read")

    def _note(self, notes: list[Damage]) -> None:
        for damage in notes:
            if len(self._damage) < DAMAGE_MAX:
                self._damage[damage.path, damage.offset] = damage
        self.on_damage()

    def _read(
        self,
        segments: tuple[Segment, ...],
        index: int,
        size_max: int,
        wait: bool,
        notes: list[Damage],
    ) -> Block | None:
        for segment in segments[locate(segments, index) :]:
            try:
                block = self._reader.read(segment, index, size_max, wait, notes)
            except FileNotFoundError:
                notes.append(missing(segment))
                continue
            if block is None or block.span_count:
                return block
        return Block(b"", [], self.node_id)

    def file_slice(self, start: int, end: int, size_max: int) -> tuple[FileSlice, int] | None:
        """A slice of a file with messages of [start, end), and the first index after it.

        None if it is not in memory; see storage/ranges.py.
        """
        return file_slice(self._files, self._segments, start, end, size_max)

    def read_range(self, start: int, end: int, size_max: int, tables: bool = False) -> Range:
        """The batches with messages in [start, end), as stored.  Blocking.

        At least one if there is any, and about ``size_max`` bytes.  With ``tables`` the tables are
        loaded, so that file_slice() can serve the next range.
        """
        for _ in range(STALE_MAX):
            segments = self._segments
            notes: list[Damage] = []
            found = read_range(self._reader, segments, start, end, size_max, notes, tables=tables)
            if not notes:
                return found
            if segments is self._segments:
                self._note(notes)
                return found
        raise StorageError(f"{self.folder}: the log changes too fast to be read")

    def frame(self, index: int, wait: bool) -> bytes | None:
        """The frame of one message; b"" if it does not exist, None if it would have to wait.

        Blocking with ``wait``.
        """
        block = self.read(index, 1, wait)
        if block is None:
            return None
        return block.frame(index) or b""

    def seek(self, append_ns: int) -> int:
        """The first index appended at or after ``append_ns``, or ``end``.  Blocking."""
        notes: list[Damage] = []  # left to later reads
        for segment in self._segments:
            if segment.append_ns_last >= append_ns:
                found = self._reader.seek(segment, append_ns, notes)
                if found is not None:
                    return found
        return self.end

    def take_damage(self) -> list[Damage]:
        """Damage found by reads since the last call; it is a gap from now on."""
        taken, self._lost = self._lost, []
        if not self._damage:
            return taken
        current = {segment.path: segment for segment in self._segments}
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

    def forget_damage(self) -> None:
        """Discard the damage found so far: the folder was renamed for a moment."""
        self._damage.clear()

    def keep_evidence(self, damage: Damage) -> None:
        """Copy damaged bytes before their segment is removed.  Blocking."""
        keep_evidence(self._files, damage.path, damage.offset, damage.end)

    # Removing

    def retire_end(self, low: int) -> int:
        """The index up to which ``retire`` would remove messages; 0 if it would not."""
        gone = [s for s in self._segments if s.visible.end <= low and self._removable(s)]
        return gone[-1].visible.end if gone else 0

    def retire(self, low: int) -> list[str]:
        """Drop the sealed segments entirely below ``low``; return their paths, to be unlinked."""
        gone = [s for s in self._segments if s.visible.end <= low and self._removable(s)]
        if not gone:
            return []
        for segment in gone:
            self._runs.replace(segment.first, segment.visible.end)
        self._segments = tuple(s for s in self._segments if s not in gone)
        return [segment.path for segment in gone]

    def removable(self, base: int) -> bool:
        """Whether nothing pins the segment: a publication, or a slot (R16, R19)."""
        return self._removable(self._by_base(base))

    def relocate(self, base: int, indexes: list[int]) -> Relocation:
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

    def relocated(self, relocation: Relocation) -> list[str]:
        """Replace the segment by its side file; return the paths to be unlinked.

        The segment is kept if damage was found in it, until take_damage() has reported it.  It is
        also kept, with a StorageError, if the side file lacks a message that the log has.
        """
        old, side = relocation.segment, relocation.side
        if relocation.notes:
            self._note(relocation.notes)
            return [side.path] if side is not None else []
        if old not in self._segments or not self._removable(old):
            return [side.path] if side is not None else []
        moved = Runs()
        for start, end in side.runs() if side is not None else ():
            moved.add(start, end)
        for index in relocation.indexes:
            if self._runs.count_between(index, index + 1) > moved.count_between(index, index + 1):
                raise StorageError(f"{old.path}: message {index} is not in its side file")
        place = self._segments.index(old)
        fresh = (side,) if side is not None else ()
        self._segments = self._segments[:place] + fresh + self._segments[place + 1 :]
        runs = side.runs() if side is not None else []
        self._runs.replace(old.first, old.visible.end, runs)
        return [old.path]

    def _removable(self, segment: Segment) -> bool:
        return (
            segment.sealed
            and not self._writer.cuts
            and not segment.holds_slot_of(self.pinned_slots)
            and segment.visible.end <= min(self.holds.values(), default=segment.visible.end)
        )

    def _by_base(self, base: int) -> Segment:
        for segment in self._segments:
            if segment.base == base:
                return segment
        raise KeyError(f"no segment with base {base} in {self.folder}")

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._runs.check()
        at = 0
        for segment in self._segments:
            assert at <= segment.first < segment.visible.end
            assert segment.visible.count >= self._runs.count_between(
                segment.first, segment.visible.end
            )
            at = segment.visible.end
        assert at <= self.end and self.synced_end <= self.end
        assert self.extent.unsynced_count >= 0 and self.extent.unsynced_size >= 0


def _record(segment: Segment) -> SegmentRecord:
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
