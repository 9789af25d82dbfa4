"""Reads slot files piece by piece: into the schedule when their time is near, and to count them.

Rule 1: one piece is read at a time, on another thread, and taken in at once: the loop never waits.
Rule 2: files are read in the order of their due times, those that are near before those that are
        only counted.  Nothing is fired that is due after something still to be read (``barrier``).
Rule 3: a file that cannot be read is tried again later and holds nobody up meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from penstock.core.schedule import NEVER
from penstock.core.slots import Records
from penstock.engine.slot_file import SlotFile, SlotTable
from penstock.engine.slot_writer import NEAR_NS
from penstock.storage.slots import HEADER, VERSION, FiredRuns

RETRY_NS = 1_000_000_000


class SlotLoader:
    """Brings near slot files into the schedule; counts those found at start."""

    def __init__(
        self,
        table: SlotTable,
        *,
        fired: Callable[[SlotFile, int, str, int], None],
        changed: Callable[[SlotFile], None],
        wake: Callable[[], None],
    ) -> None:
        self._table = table
        self._fired = fired
        self._changed = changed
        self._wake = wake
        self._queue: list[tuple[int, int]] = []  # (next_ns, number) of files not fully indexed
        self._broken: list[tuple[int, SlotFile]] = []  # (when to try again, monotonic)
        self._uncounted: dict[int, SlotFile] = {}  # by number, soonest first
        self._current: SlotFile | None = None  # being loaded
        self._offset = 0
        self._end = 0
        self._reading = False
        self._pumping = False
        self._now_ns = 0

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
    def barrier_ns(self) -> int:
        """Everything due before this is in the schedule.

        What the schedule has no room for does not count: it is later than what is in there, and
        there is room only after that is taken.
        """
        self._drop_stale()
        queued_ns = self._queue[0][0] if self._queue and self._has_room() else NEVER
        return min(queued_ns, self._current.floor_ns) if self._current else queued_ns

    @property
    def next_ns(self) -> int:
        """When ``advance`` has something to do, if it does not call ``wake`` before."""
        if self._reading:
            return NEVER
        if self._uncounted or self._current:
            return 0
        self._drop_stale()
        next_ns = self._queue[0][0] - NEAR_NS if self._queue and self._has_room() else NEVER
        if self._broken:
            next_ns = min(next_ns, self._table.clock.wall_ns() + RETRY_NS)
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
        """Read on, if there is anything to read and nothing is being read."""
        self._now_ns = now_ns
        self.take_fallen()
        if self._broken:
            self._revive()
        self._pump()

    def _pump(self) -> None:
        # A disk that answers at once would otherwise recurse once a piece.
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
            if next_ns - NEAR_NS <= self._now_ns and self._has_room():
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
        # Slots that the schedule had no room for: they are read again when there is.
        fallen = self._table.schedule.fallen
        while fallen:
            file = fallen.pop()
            assert isinstance(file, SlotFile)
            self.add(file)

    def _start(self, file: SlotFile) -> None:
        floor_ns, file.next_ns = file.next_ns, NEVER
        if file.primed and not file.size:
            # Empty; or its first write is still under way, and will find it near.
            self._changed(file)
            return
        file.floor_ns = floor_ns
        file.loading = True
        self._current = file
        self._offset = HEADER.size
        self._end = file.size

    def _read(self, file: SlotFile, offset: int, end: int) -> None:
        self._reading = True
        work = partial(self._read_piece, file, offset, end, primed=file.primed)
        self._table.disk.submit(work, partial(self._take_in, file))

    def _read_piece(
        self, file: SlotFile, offset: int, end: int, *, primed: bool
    ) -> tuple[Records | None, FiredRuns | None, int]:
        # Runs on another thread.
        store = self._table.store
        fired = None
        if not primed:
            if store.version(file.name) not in (VERSION, None):
                return None, None, 0
            fired = store.read_fired(file.name)
            end = store.size(file.name)
        return store.scan(file.name, min(offset, end), end), fired, end

    def _take_in(
        self,
        file: SlotFile,
        found: tuple[Records | None, FiredRuns | None, int] | None,
        error: BaseException | None,
    ) -> None:
        self._reading = False
        if found is None:
            self._stop(file)
        elif found[0] is None:
            self._refuse(file)
        else:
            records, fired, end = found
            assert records is not None
            if fired is not None:
                self._prime(file, fired, end)
            self._index(file, records, end)
        self._wake()
        self._pump()

    def _prime(self, file: SlotFile, fired: FiredRuns, end: int) -> None:
        file.primed = True
        file.size = end
        self._end = end
        file.fired_named = bool(fired.runs)
        if fired.bad_size:
            self._table.torn_count += 1
        for start, count in fired.runs:
            file.known.add_run(start, count)

    def _index(self, file: SlotFile, records: Records, end: int) -> None:
        table = self._table
        for ordinal, topic, instance in table.schedule.index(file, records):
            self._fired(file, ordinal, topic, instance)
        if records.next_offset > file.count_offset:
            file.count_offset = records.next_offset
            file.damaged = file.damaged or records.corrupt_count > 0
            table.corrupt_count += records.corrupt_count
            table.torn_count += records.torn_size > 0
        finished = records.next_offset >= end
        if finished:
            file.counted = True
            file.origins = None
        if file is self._current:
            self._offset = records.next_offset
            if finished:
                self._loaded(file)
        if finished:
            self._changed(file)

    def _loaded(self, file: SlotFile) -> None:
        file.loading = False
        file.floor_ns = NEVER
        self._current = None
        self.take_fallen()
        self.add(file)

    def _stop(self, file: SlotFile) -> None:
        self._table.error_count += 1
        if file is self._current:
            file.loading = False
            file.next_ns = min(file.next_ns, file.floor_ns)
            file.floor_ns = NEVER
            self._current = None
        else:
            self._uncounted.pop(file.number, None)
        self._broken.append((self._table.clock.monotonic_ns() + RETRY_NS, file))

    def _refuse(self, file: SlotFile) -> None:
        # Written by a later version: left alone, for that version to find again.
        self._table.error_count += 1
        if file is self._current:
            self._current = None
        file.loading = False
        file.counted = True
        self._table.drop(file)
