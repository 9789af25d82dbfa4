"""Reads slot files piece by piece: into the schedule when they are near, and to count them.

Rule 1: one piece is read at a time, on a disk thread, and indexed on the loop, which never waits.
Rule 2: files are read in the order of their due times, near ones before those that are only
        counted.  No message is fired before an earlier one that is still to be read (``barrier``).
Rule 3: a file that cannot be read is retried after growing pauses, shows in health, and delays no
        other file.  Only bytes that were read, or a missing file, can be damage.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from penstock.core.schedule import NEVER
from penstock.core.slots import SlotRecords
from penstock.engine.deferred.counts import SlotCounts
from penstock.engine.deferred.damage import SlotDamage
from penstock.engine.deferred.piece import Piece, Primed, read_piece
from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.engine.deferred.syncer import SlotSync
from penstock.engine.deferred.writer import NEAR_NS
from penstock.storage.slots import HEADER_SIZE

LATER_VERSION_RETRY_NS = 60_000_000_000
# While messages are taken for another node, all slots are near.
FAR_NS = 1 << 62


class SlotLoader:
    """Loads near slot files into the schedule; counts those found at start."""

    def __init__(
        self,
        table: SlotTable,
        counts: SlotCounts,
        damage: SlotDamage,
        syncing: SlotSync,
        *,
        fired: Callable[[SlotFile, int, str, int], None],
        changed: Callable[[SlotFile], None],
        wake: Callable[[], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._damage = damage
        self._syncing = syncing
        self._fired = fired
        self._changed = changed
        self._wake = wake
        self._queue: list[tuple[int, int]] = []  # (next_ns, number) of files not fully indexed
        self._broken: list[tuple[int, SlotFile]] = []  # (time of the retry, monotonic)
        self._uncounted: dict[int, SlotFile] = {}  # by number, soonest first
        self._current: SlotFile | None = None  # being loaded
        self._offset = 0
        self._end = 0
        self._reading = False
        self._pumping = False
        self._now_ns = 0
        self.far = False  # read slots that are not near too

    def add(self, file: SlotFile) -> None:
        """``file`` has records that are not in the schedule."""
        if file.next_ns != NEVER and not file.loading:
            heapq.heappush(self._queue, (file.next_ns, file.number))
        if not file.counted:
            self._uncounted[file.number] = file

    @property
    def counted(self) -> bool:
        return not (self._uncounted or self._broken)

    @property
    def _near_ns(self) -> int:
        return FAR_NS if self.far else NEAR_NS

    @property
    def barrier_ns(self) -> int:
        """Everything due before this is in the schedule.

        Files that the schedule has no room for do not count: they are due later than everything
        in it, and there is room only after that is taken.
        """
        self._drop_stale()
        queued_ns = self._queue[0][0] if self._queue and self._has_room() else NEVER
        return min(queued_ns, self._current.floor_ns) if self._current else queued_ns

    @property
    def next_ns(self) -> int:
        """When to call ``advance`` next, unless ``wake`` is called before."""
        if self._reading:
            return NEVER
        if self._uncounted or self._current:
            return 0
        self._drop_stale()
        next_ns = NEVER
        if self._queue and self._has_room():
            next_ns = max(0, self._queue[0][0] - self._near_ns)
        if self._broken:
            clock = self._table.clock
            wait_ns = min(retry_ns for retry_ns, _ in self._broken) - clock.monotonic_ns()
            if wait_ns <= 0:
                return 0  # due now, even if the wall clock is stepped meanwhile
            next_ns = min(next_ns, clock.wall_ns() + wait_ns)
        return next_ns

    def _drop_stale(self) -> None:
        while self._queue:
            next_ns, number = self._queue[0]
            file = self._table.files.get(number)
            if file is not None and file.next_ns == next_ns and not file.loading:
                return
            heapq.heappop(self._queue)

    def _has_room(self) -> bool:
        schedule = self._table.schedule
        return not schedule.limited or self._queue[0][0] < schedule.limit_ns

    def advance(self, now_ns: int) -> None:
        """Start the next read, if there is one and none is in progress."""
        self._now_ns = now_ns
        self.take_fallen()
        if self._broken:
            self._revive()
        self._pump()

    def _pump(self) -> None:
        # A disk that answers synchronously would otherwise recurse once per piece.
        if not self._pumping:
            self._pumping = True
            while not self._reading and self._choose():
                pass
            self._pumping = False

    def _revive(self) -> None:
        monotonic_ns = self._table.clock.monotonic_ns()
        broken, self._broken = self._broken, []
        for retry_ns, file in broken:
            if retry_ns > monotonic_ns:
                self._broken.append((retry_ns, file))
            else:
                self.add(file)

    def _choose(self) -> bool:
        self.take_fallen()
        self._drop_stale()
        if self._current is None and self._queue:
            next_ns, number = self._queue[0]
            if next_ns - self._near_ns <= self._now_ns and self._has_room():
                heapq.heappop(self._queue)
                self._start(self._table.files[number])
                return True
        if self._current is not None:
            self._read(self._current, self._offset, self._end)
            return True
        while self._uncounted:
            file = next(iter(self._uncounted.values()))
            if not file.counted and file.number in self._table.files:
                self._read(file, file.count_offset, file.size)
                return True
            del self._uncounted[file.number]
        return False

    def take_fallen(self) -> None:
        # Slots that the schedule dropped for lack of room are read again when there is room.
        fallen = self._table.schedule.fallen
        while fallen:
            file = fallen.pop()
            assert isinstance(file, SlotFile)
            self.add(file)

    def _start(self, file: SlotFile) -> None:
        if any(file is broken for _, broken in self._broken):
            return  # its pause is not over; it is added again afterwards
        floor_ns, file.next_ns = file.next_ns, NEVER
        if file.primed and not file.size:
            # Empty; or its first write is still in progress and indexes it.
            self._changed(file)
            return
        file.floor_ns = floor_ns
        file.loading = True
        self._current = file
        self._offset = HEADER_SIZE
        self._end = file.size

    def _read(self, file: SlotFile, offset: int, end: int) -> None:
        self._reading = True
        stated = None if file.primed else self._counts.get(file.number)
        work = partial(read_piece, self._table.store, file.name, offset, end, file.primed, stated)
        self._table.disk.submit(work, partial(self._take_in, file))

    def _take_in(self, file: SlotFile, piece: Piece | None, error: Exception | None) -> None:
        self._reading = False
        if piece is None:
            self._stop(file, self._table.read_failed(file, error or OSError("cannot be read")))
        elif piece.later_version:
            # Not noticed at start because the header could not be read.
            what = f"written by a later version (format {piece.later_version})"
            self._table.read_failed(file, what)
            self._stop(file, LATER_VERSION_RETRY_NS)
        else:
            self._table.read_works(file)
            if piece.primed is not None:
                self._prime(file, piece.primed)
            if piece.records is None:
                self._lose(file)
            else:
                self._index(file, piece.records, piece.end)
        self._wake()
        self._pump()

    def _prime(self, file: SlotFile, primed: Primed) -> None:
        file.primed = True
        file.size = primed.size
        self._end = primed.size
        file.fired_named = bool(primed.fired_size)
        file.fired_size, file.fired_count = primed.fired_size, primed.fired_count
        if primed.fired_damage:
            self._damage.fired(file, primed.fired_damage)
        self._table.torn_count += primed.fired_torn
        for start, count in primed.runs:
            file.known.add_run(start, count)
        file.done_count = len(file.known)
        stated = file.stated = self._counts.get(file.number)
        lacking = self._counts.missing or self._counts.damaged
        counted = primed.header.counted if primed.header is not None else not lacking
        file.uncounted = stated is None and (lacking or not counted)
        if primed.header is None and file.size >= HEADER_SIZE:
            file.bad_header = True
            file.bad_size += HEADER_SIZE
        if stated is not None:
            file.whole_size = stated.whole_size
            file.sure_end = stated.ordinal_end
            file.sure_done_total = file.known.count_below(stated.ordinal_end, file.origins)
        elif file.uncounted:
            file.whole_size = file.size

    def _index(self, file: SlotFile, records: SlotRecords, end: int) -> None:
        table = self._table
        for ordinal, topic, instance in table.schedule.index(file, records):
            self._fired(file, ordinal, topic, instance)
        if records.next_offset > file.count_offset:
            file.count_offset = records.next_offset
            if file.found:
                self._note_bad(file, records)
        finished = records.next_offset >= end
        was_counted = file.counted
        if file is self._current:
            self._offset = records.next_offset
        if not finished:
            return
        file.counted = True
        file.origins = None
        if file is self._current:
            self._loaded(file)
        if not was_counted:
            self._judge(file)
        self._changed(file)

    def _note_bad(self, file: SlotFile, records: SlotRecords) -> None:
        if records.bad_offset >= 0:
            if file.bad_offset < 0:
                file.bad_offset = records.bad_offset
            file.bad_end = records.bad_end
            file.bad_size += records.corrupt_size + records.torn_size
        file.good_end = max(file.good_end, records.good_end)

    def _judge(self, file: SlotFile) -> None:
        """All of the file was read for the first time: compare it with the counts."""
        self._damage.judge(file)
        if file.stated is None or not file.counts().agrees(file.stated):
            # Records that a killed process wrote count from now on, so sync them.
            self._syncing.wrote(file, 1)

    def _loaded(self, file: SlotFile) -> None:
        file.loading = False
        file.floor_ns = NEVER
        self._current = None
        self.take_fallen()
        if file.next_ns == NEVER and file.counted and file.unindexed_count > 0:
            lost = file.unindexed_count
            file.pending_count -= lost
            self._table.corrupt_count += lost
            what = f"cut or damaged while nsqd was running; {lost} messages are lost"
            self._damage.report(file, what, lost)
        self.add(file)

    def _lose(self, file: SlotFile) -> None:
        """The file no longer exists."""
        lost = file.unindexed_count
        stated = file.stated
        if not file.counted:
            there = file.sure_count + file.sure_done_total - file.sure_done_count
            lost += max(0, stated.record_count - there) if stated is not None else 0
        file.pending_count -= file.unindexed_count
        file.next_ns = NEVER
        file.counted = True
        file.origins = None
        self._uncounted.pop(file.number, None)
        if file is self._current:
            self._loaded(file)
        self._damage.missing(file, lost)
        self._changed(file)

    def _stop(self, file: SlotFile, pause_ns: int) -> None:
        if file is self._current:
            file.loading = False
            file.next_ns = min(file.next_ns, file.floor_ns)
            file.floor_ns = NEVER
            self._current = None
        self._uncounted.pop(file.number, None)
        self._broken.append((self._table.clock.monotonic_ns() + pause_ns, file))
