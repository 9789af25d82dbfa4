"""The deferred queue: messages accepted now, fired into their topic's log when they are due.

    writer.defer() -> batch -> slot file -> schedule (when near) -> take() -> topic log -> fired()
                                                                                  |
             slot file removed <- .fired <- checkpoints.write() <- log synced (engine/rounds.py)

Rule 1: never early.  ``take`` compares wall-clock due times with the time it is given; no timer is
        set per message, so a clock that steps back delays messages and one that steps ahead makes
        them due.
Rule 2: never lost.  A record leaves the schedule only to be fired, and returns if that fails.  Its
        file is removed only when all its records are done and checkpointed.
Rule 3: never twice.  A fired message has its origin (slot, ordinal) in the topic log; a restart
        collects the origins, reads the checkpoints, and fires the others.
Rule 4: memory is used only for near messages: 32 bytes each, at most ``near_count_max``; bodies
        stay on disk.
Rule 5: all methods are called on the loop and do not wait; they may call ``wake`` and ``dirty``,
        which must not call back synchronously.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter

from penstock.clock import Clock
from penstock.core.schedule import NEVER, Slot, Taken
from penstock.core.slots import Due
from penstock.core.ticket import Ticket
from penstock.engine.deferred.checkpoints import Checkpoints, Fired
from penstock.engine.deferred.counts import Reports, SlotCounts
from penstock.engine.deferred.damage import SlotDamage
from penstock.engine.deferred.loader import SlotLoader
from penstock.engine.deferred.parked import PARKED_COUNT_MAX, Parked
from penstock.engine.deferred.recovery import SlotOpening
from penstock.engine.deferred.slot import RETRY_NS, SlotFile, SlotTable
from penstock.engine.deferred.writer import SlotWriter
from penstock.engine.disk import Disk
from penstock.storage.slot_counts import CountsFile
from penstock.storage.slots import SlotStore, new_generation

__all__ = ["FOREVER", "NEVER", "DeferredQueue", "Due", "Fired"]

# As a void stamp: all messages of this instance are void, because its topic is gone.
FOREVER = (1 << 63) - 1

NEAR_COUNT_MAX = 1_000_000

# Due messages of full topics, beyond those whose places are kept, are tried again this often.
PARKED_RETRY_NS = 30_000_000_000

# Neighbours in a file are read together if at most this is between them.
GAP_SIZE_MAX = 16 * 1024  # a separate read costs as much as copying 30 KB
READ_SIZE_MAX = 512 * 1024

Range = tuple[Slot, int, int, int, int]


class DeferredQueue:
    """All deferred messages of a broker.

    ``void_before(instance)`` is the stamp before which messages of a topic instance are void: 0
    if none are, FOREVER if there is no such instance.  The topic's journal keeps it; ``purge`` is
    called when it changes.
    """

    def __init__(
        self,
        store: SlotStore,
        disk: Disk,
        clock: Clock,
        *,
        void_before: Callable[[int], int],
        health: Callable[[Exception], None],
        reports: Reports,
        dirty: Callable[[], None],
        wake: Callable[[], None],
        sync_every: int = 2500,
        near_count_max: int = NEAR_COUNT_MAX,
        memory_count_max: int = 10_000,
        memory_size_max: int = 64 * 1024 * 1024,
        generation: Callable[[], int] = new_generation,
    ) -> None:
        self.table = SlotTable(store, disk, clock, void_before, health, reports, near_count_max)
        self.tallies = self.table.tallies
        self._schedule = self.table.schedule
        self.wake = wake
        counts_file = CountsFile(store.files, f"{store.folder}.counts")
        self._counts = SlotCounts(counts_file, disk, reports, self._loaded_late)
        self._damage = SlotDamage(self.table, self._changed)
        self.writer = SlotWriter(
            self.table,
            self._counts,
            synced=sync_every == 1,
            dirty=dirty,
            opened=lambda file: self.loader.add(file),
            changed=self._changed,
            void=self._void_ordinals,
            generation=generation,
        )
        self.checkpoints = Checkpoints(self.table, self._counts, self._damage, self.writer.retire)
        self.loader = SlotLoader(
            self.table,
            self._counts,
            self._damage,
            self.writer.syncing,
            fired=self._found_fired,
            changed=self._changed,
            wake=wake,
        )
        self.opening = SlotOpening(
            self.table, self._counts, self._damage, self.checkpoints.take_over
        )
        self._memory: list[tuple[int, int, Due]] = []
        self._memory_size = 0
        self._memory_count_max = memory_count_max
        self._memory_size_max = memory_size_max
        self._ready: deque[Due] = deque()
        self.parked = Parked()
        self._reading = False

    # Start

    def recover(self, fired: Mapping[int, Iterable[int]]) -> None:
        """Resume where the last process stopped; ``fired`` are the origins found in topic logs.

        Reads no records: from the first ``take`` on, slots are read in the background when near.
        """
        self.opening.find()
        self.opening.clear()
        for number, file in self.table.files.items():
            if number in fired:
                self.table.set_origins(file, list(fired[number]))
            self.loader.add(file)
        self.opening.report_missing(fired)
        self._counts.settle()

    def _loaded_late(self) -> None:
        self.opening.report_missing({})

    # Accepting

    def unpin(self, file: SlotFile) -> None:
        file.pin_count -= 1
        self._changed(file)

    def defer_memory(
        self, topic: str, instance: int, body: bytes, timestamp_ns: int, due_ns: int, stamp: int
    ) -> bool:
        """Accept a message of an ephemeral topic; False if there is no room for it."""
        size = self._memory_size + len(body)
        if len(self._memory) >= self._memory_count_max or size > self._memory_size_max:
            return False
        due = Due(0, 0, topic, instance, timestamp_ns, due_ns, stamp, body)
        heapq.heappush(self._memory, (due_ns, stamp, due))
        self._memory_size = size
        self.tallies.add(instance, due_ns, stamp)
        return True

    def finish(self, save_reports: Callable[[], Ticket]) -> Ticket:
        """Shutdown: write and sync all accepted messages, report all damage found."""
        ticket = Ticket()

        def synced(error: Exception | None) -> None:
            save_reports().add(lambda saved: ticket.settle(error or saved.error))

        self._damage.finish(partial(self.writer.finish, synced))
        return ticket

    # Firing

    @property
    def next_due_ns(self) -> int:
        """When to call ``take`` next (wall time), or NEVER; ``wake`` may be called before."""
        if self._ready:
            return 0
        next_ns = min(self.loader.next_ns, self._memory[0][0] if self._memory else NEVER)
        top_ns = self._schedule.top_ns
        if not self._reading and top_ns <= self.loader.barrier_ns:
            next_ns = min(next_ns, top_ns)
        return next_ns

    def take(self, now_ns: int, count_max: int, size_max: int) -> list[Due]:
        """Messages due at ``now_ns``, soonest first, up to ``count_max`` and ``size_max`` bytes.

        A single message may be larger.  The caller must pass each to ``fired``, ``failed`` or
        ``void``.  If bodies must be read from disk, it returns fewer and calls ``wake`` later.
        """
        self.loader.advance(now_ns)
        taken = self._take_memory(now_ns, count_max)
        while self._ready and len(taken) < count_max:
            due = self._ready.popleft()
            if due.stamp < self.tallies.void_stamp(due.instance):
                self.void([due])
            elif due.due_ns > now_ns:
                # The clock stepped back while the body was read.
                self._schedule.retry(self.table.files[due.slot], due, due.due_ns)
            else:
                taken.append(due)
        count_max -= len(taken)
        if count_max > 0 and not self._ready and not self._reading:
            until_ns = min(now_ns, self.loader.barrier_ns)
            if self._schedule.top_ns <= until_ns:
                taken += self._read_warm(self._schedule.take(until_ns, count_max, size_max))
                self.loader.advance(now_ns)
        # One that was read from disk may be later than the others: the clock may be set back.
        taken.sort(key=attrgetter("due_ns"))
        return taken

    def _take_memory(self, now_ns: int, count_max: int) -> list[Due]:
        taken: list[Due] = []
        while self._memory and self._memory[0][0] <= now_ns and len(taken) < count_max:
            due = heapq.heappop(self._memory)[2]
            self._memory_size -= len(due.body)
            if due.stamp < self.tallies.void_stamp(due.instance):
                self.void([due])
            else:
                taken.append(due)
        return taken

    def _read_warm(self, taken: Taken) -> list[Due]:
        out: list[Due | None] = [None] * taken.count
        cold: list[Range] = []
        store = self.table.store
        for part in self.ranges(taken):
            file, offset, size, _, _ = part
            assert isinstance(file, SlotFile)
            try:
                data = store.read_now(file.name, offset, size)
            except OSError:
                data = None
            if data is None:
                cold.append(part)
            else:
                if file.retry_ns:
                    self.table.read_works(file)
                self._parse(taken, part, data, out)
        if cold:
            self._reading = True
            work = partial(self.read_parts, cold)
            self.table.disk.submit(work, partial(self._have_read, taken, cold))
        return [due for due in out if due is not None]

    def ranges(self, taken: Taken) -> list[Range]:
        """What to read for these entries."""
        return taken.ranges(GAP_SIZE_MAX, READ_SIZE_MAX)

    def read_parts(self, cold: list[Range]) -> list[bytes | OSError]:
        """Read ranges of slot files.  Blocking; called on a disk thread."""
        found: list[bytes | OSError] = []
        store = self.table.store
        for file, offset, size, _, _ in cold:
            assert isinstance(file, SlotFile)
            try:
                found.append(store.read(file.name, offset, size))
            except FileNotFoundError as error:
                found.append(b"" if store.is_missing(file.name) else error)
            except OSError as error:
                found.append(error)
        return found

    def _have_read(
        self,
        taken: Taken,
        cold: list[Range],
        found: list[bytes | OSError] | None,
        error: Exception | None,
    ) -> None:
        self._reading = False
        self._ready.extend(self.parse_parts(taken, cold, found, error))
        self.wake()

    def parse_parts(
        self,
        taken: Taken,
        cold: list[Range],
        found: list[bytes | OSError] | None,
        error: Exception | None,
    ) -> list[Due]:
        """The messages in what ``read_parts`` found; entries that failed are put back."""
        out: list[Due | None] = [None] * taken.count
        wall_ns = self.table.clock.wall_ns()
        failures: dict[SlotFile, OSError] = {}
        failed = OSError(str(error))
        for part, data in zip(cold, found or [failed] * len(cold), strict=True):
            file = part[0]
            assert isinstance(file, SlotFile)
            if isinstance(data, OSError):
                if file not in failures:
                    failures[file] = data
                    self.table.read_failed(file, data)
                self._schedule.put_back(taken, part[3], part[4], wall_ns + file.retry_ns)
            else:
                if file not in failures:
                    self.table.read_works(file)
                self._parse(taken, part, data, out)
        return [due for due in out if due is not None]

    def _parse(self, taken: Taken, part: Range, data: bytes, out: list[Due | None]) -> None:
        file, offset, _, first, end = part
        assert isinstance(file, SlotFile)
        void, damaged = taken.parse(file, data, offset, first, end, out)
        if void or damaged:
            self._schedule.settle(file, len(void) + len(damaged))
            self.table.void_count += len(void)
            if damaged:
                self._damage.bodies(file, damaged)
            self.checkpoints.add_void(file, void + [ordinal for ordinal, _, _ in damaged])

    def fired(self, dues: list[Due]) -> None:
        """These are in their topics' logs now (in the page cache)."""
        if dues:
            self.parked.went(dues[0].instance, len(dues))
        for (number, instance), (topic, ordinals) in self._schedule.group(dues).items():
            if number:
                file = self.table.files[number]
                self._schedule.settle(file, len(ordinals))
                self.checkpoints.add(file, topic, instance, ordinals)

    def failed(self, dues: list[Due]) -> None:
        """These could not be fired: retry them soon."""
        retry_ns = self.table.clock.wall_ns() + RETRY_NS
        for due in dues:
            if due.slot:
                self._schedule.retry(self.table.files[due.slot], due, retry_ns)
            else:
                heapq.heappush(self._memory, (max(due.due_ns, retry_ns), due.stamp, due))
                self._memory_size += len(due.body)

    def park(self, dues: list[Due]) -> None:
        """Their topic is full: keep their places until ``unpark``."""
        self.parked.went(dues[0].instance, len(dues))
        retry_ns = self.table.clock.wall_ns() + PARKED_RETRY_NS
        for due in self.parked.add(dues):
            self._schedule.retry(self.table.files[due.slot], due, retry_ns)

    def unpark(self, instance: int, count: int) -> int:
        """Their topic has room: the next ``take`` returns up to ``count`` of them."""
        places = self.parked.take(instance, count)
        for place in places:
            file = self.table.files[place.slot]
            self._schedule.give_back(file, *place[1:])
        if places:
            self.wake()
        return len(places)

    def void(self, dues: list[Due]) -> None:
        """Discard these: their topic is gone or was emptied."""
        self.table.void_count += len(dues)
        for (number, _), (_, ordinals) in self._schedule.group(dues).items():
            if number:
                file = self.table.files[number]
                self._schedule.settle(file, len(ordinals))
                self.checkpoints.add_void(file, ordinals)

    # Counts

    def cut(self, instance: int, stamp: int) -> None:
        """Count messages before and after ``stamp`` apart, for a later purge or count at it.

        ``stamp`` is later than all before.  After a restart it is called for each stamp in the
        journals, before the first ``take``.
        """
        self.tallies.cut(instance, stamp, self.loader.counted)

    def purge(self, instance: int, stamp: int) -> int:
        """Messages accepted before ``stamp`` are void now; returns how many were pending.

        The counts drop at once; the records themselves are skipped when they are due.
        """
        dropped = self.tallies.purge(instance, stamp)
        self.unpark(instance, PARKED_COUNT_MAX)  # they are found to be void, or wait again
        self.parked.went(instance, PARKED_COUNT_MAX)
        kept = [item for item in self._memory if item[2].stamp >= self._void_stamp_of(item[2])]
        if len(kept) < len(self._memory):
            self.table.void_count += len(self._memory) - len(kept)
            heapq.heapify(kept)
            self._memory = kept
            self._memory_size = sum(len(item[2].body) for item in kept)
        return dropped

    def _void_stamp_of(self, due: Due) -> int:
        return self.tallies.void_stamp(due.instance)

    @property
    def empty(self) -> bool:
        """Whether no message waits for its time.

        A damaged record leaves its topic's count one too high, until its file is gone.
        """
        counted_out = self.loader.counted and not self.tallies.total
        return not self._memory and (counted_out or not self.table.files)

    def due_hours(self, instance: int) -> dict[int, int]:
        """Pending messages of a topic by the start (Unix seconds) of the hour of their due time."""
        return {hour * 3600: count for hour, count in self.tallies.due_hours(instance).items()}

    # Callbacks

    def _changed(self, file: SlotFile) -> None:
        self.checkpoints.settle(file)

    def _void_ordinals(self, file: SlotFile, ordinals: list[int]) -> None:
        self.checkpoints.add_void(file, ordinals)

    def _found_fired(self, file: SlotFile, ordinal: int, topic: str, instance: int) -> None:
        self.checkpoints.add(file, topic, instance, [ordinal])

    def check(self) -> None:
        """Raise AssertionError if an invariant is violated; tests call it."""
        self._schedule.check()
        for file in self.table.files.values():
            assert file.near_count >= 0 and file.firing_count >= 0 and file.unchecked_count >= 0
            assert not (file.found and file.batch), "an old file is never appended to"
