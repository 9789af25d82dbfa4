"""The state of a slot file, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock
from penstock.core.schedule import NEVER, Bits, Schedule, Slot
from penstock.core.slots import SlotBatch
from penstock.core.tally import Tallies
from penstock.core.ticket import Ticket
from penstock.engine.deferred.counts import Reports
from penstock.engine.disk import Disk
from penstock.storage.slot_counts import ORDINAL_END, SlotCount
from penstock.storage.slots import HEADER_SIZE, SlotName, SlotStore

# A failed read is retried after the first pause; each pause is twice as long as the last.
RETRY_NS = 100_000_000
RETRY_NS_MAX = 4_000_000_000
# Failing files shown in health at once; others are shown when these can be read again.
FAILING_COUNT_MAX = 32


class SlotFile(Slot):
    """A slot file, with its pending writes and reads."""

    def __init__(self, name: SlotName, next_ns: int, *, found: bool) -> None:
        super().__init__(name.number, next_ns)
        self.name = name
        self.found = found  # written by an earlier process: read, never appended to
        self.primed = not found  # its size and .fired are known
        self.size = 0  # bytes written; 0 before the first append
        self.synced_size = 0  # how much of it this process has synced
        self.ordinal = 0  # of the next record
        self.batch: SlotBatch | None = None  # accepted, not being written yet
        self.ticket: Ticket | None = None
        self.begun = found  # a file may exist on disk
        self.queued = False  # waits for a disk thread
        self.writing = False
        self.unsynced_count = 0
        self.syncing = False
        self.name_synced = found
        self.rewrite = False  # a sync failed: rewrite the file
        self.count_offset = HEADER_SIZE  # a scan has counted the records before it
        self.counted = not found
        self.floor_ns = NEVER  # while loading: nothing unindexed is due earlier
        self.unchecked_count = 0  # fired or void, not in .fired yet
        self.fired_named = False  # .fired exists durably
        self.fired_size = 0  # of .fired
        self.fired_count = 0  # ordinals in it
        self.damaged = False
        self.retry_ns = 0  # the pause before the next read; 0 while reading works
        # Publications that may search their rows here after a crash (R19), and copies of damaged
        # bytes in progress.  While there are any, the file stays, and .fired gets no records
        # that were never accepted.
        self.pin_count = 0
        # For a file found at start, while it is read for the first time:
        self.stated: SlotCount | None = None  # what it must contain
        self.sure_done_total = 0  # ordinals below sure_end that are done, in the file or not
        self.whole_size = 0  # up to here bodies were synced
        self.uncounted = False  # from before there were counts, or they are lost
        self.bad_header = False
        self.bad_offset = -1  # the first byte that is not a record
        self.bad_end = 0
        self.bad_size = 0
        self.good_end = 0  # where the last good record ends

    @property
    def finished(self) -> bool:
        """Nothing in the file is needed any more, and nothing is being written to it.

        A file found at start has a ``next_ns`` until it is read, and its origins with it.
        """
        return (
            self.next_ns == NEVER
            and not (self.near_count or self.firing_count or self.unchecked_count)
            and not self.pin_count
            and not (self.loading or self.writing or self.syncing)
            and self.batch is None
        )

    @property
    def unindexed_count(self) -> int:
        """Known records that are neither near nor firing nor done."""
        return self.pending_count + self.done_count - len(self.known)

    def counts(self) -> SlotCount:
        """The counts to record once everything written is synced."""
        if self.found:
            count, ordinal_end = self.pending_count + self.done_count, ORDINAL_END
        else:
            count, ordinal_end = self.pending_count, self.counted_end
        return SlotCount(
            self.name,
            self.size,
            self.whole_size if self.found else self.size,
            count,
            ordinal_end,
            self.bad_size,
            self.fired_size,
            self.fired_count,
        )


class SlotTable:
    """The slot files by number, and what the modules of the deferred queue share."""

    def __init__(
        self,
        store: SlotStore,
        disk: Disk,
        clock: Clock,
        void_before: Callable[[int], int],
        health: Callable[[Exception], None],
        reports: Reports,
        near_count_max: int,
    ) -> None:
        self.store = store
        self.disk = disk
        self.clock = clock
        self.reports = reports
        self.tallies = Tallies(void_before)
        self.schedule = Schedule(self.tallies, near_count_max)
        self.files: dict[int, SlotFile] = {}
        self.void_count = 0
        self.corrupt_count = 0
        self.torn_count = 0
        self.error_count = 0
        self._health = health
        self._failing: dict[int, str] = {}

    def write_failed(self, error: Exception) -> None:
        """A slot file could not be written or synced."""
        self.error_count += 1
        self._health(error)

    def read_failed(self, file: SlotFile, error: Exception | str) -> int:
        """``file`` cannot be read at the moment; returns the pause before the retry."""
        self.error_count += 1
        file.retry_ns = min(max(RETRY_NS, 2 * file.retry_ns), RETRY_NS_MAX)
        if file.number not in self._failing and len(self._failing) < FAILING_COUNT_MAX:
            self._failing[file.number] = self.store.path(file.name.slot_file)
        if file.number in self._failing:
            self.reports.failing(self._failing[file.number], error)
        return file.retry_ns

    def read_works(self, file: SlotFile) -> None:
        if file.retry_ns:
            file.retry_ns = 0
            source = self._failing.pop(file.number, None)
            if source is not None:
                self.reports.working(source)

    def add(self, file: SlotFile) -> None:
        self.files[file.number] = file
        self.schedule.attach(file)

    def drop(self, file: SlotFile) -> None:
        self.read_works(file)
        del self.files[file.number]
        self.schedule.detach(file)

    def set_origins(self, file: SlotFile, ordinals: list[int]) -> None:
        """These records were found in topic logs: they have fired."""
        file.origins = Bits()
        for ordinal in ordinals:
            file.origins.add(ordinal)
