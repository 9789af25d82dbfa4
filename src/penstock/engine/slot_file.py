"""One slot file as the deferred queue knows it, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.schedule import NEVER, Bits, Schedule, Slot
from penstock.core.slots import Batch
from penstock.core.tally import Tallies
from penstock.core.ticket import Ticket
from penstock.engine.clock import Clock
from penstock.engine.disk import Disk
from penstock.storage.slots import HEADER, SlotName, SlotStore


class SlotFile(Slot):
    """A slot file and everything that is on its way into or out of it."""

    def __init__(self, name: SlotName, next_ns: int, *, found: bool) -> None:
        super().__init__(name.number, next_ns)
        self.name = name
        self.found = found  # made by an earlier process: read, never appended to
        self.primed = not found  # its size and .fired are known
        self.size = 0  # of what is written; 0 before the first append
        self.synced_size = 0  # how much of it this process has synced
        self.ordinal = 0  # of the next record
        self.batch: Batch | None = None  # accepted, not yet on its way
        self.ticket: Ticket | None = None
        self.begun = found  # there may be a file on disk
        self.writing = False
        self.unsynced_count = 0
        self.syncing = False
        self.name_synced = found
        self.rewrite = False  # a sync failed: the file is written anew
        self.count_offset = HEADER.size  # a scan has counted the records before it
        self.counted = not found
        self.floor_ns = NEVER  # while loading: nothing unindexed is due earlier
        self.unchecked_count = 0  # fired or void, not in .fired yet
        self.fired_named = False  # .fired exists durably
        self.damaged = False
        # Publications that may look for their rows here after a crash (R19): neither the file nor
        # a word in .fired about records that were never accepted before they are through.
        self.pin_count = 0

    @property
    def finished(self) -> bool:
        """Nothing in the file is needed any more, and nothing is on its way into it.

        A file found at start has a ``next_ns`` until it is read, and its origins with it.
        """
        return (
            self.next_ns == NEVER
            and not (self.near_count or self.firing_count or self.unchecked_count)
            and not self.pin_count
            and not (self.loading or self.writing or self.syncing)
            and self.batch is None
        )


class SlotTable:
    """The slot files by number, with what all parts of the deferred queue share."""

    def __init__(
        self,
        store: SlotStore,
        disk: Disk,
        clock: Clock,
        void_before: Callable[[int], int],
        health: Callable[[BaseException], None],
        near_count_max: int,
    ) -> None:
        self.store = store
        self.disk = disk
        self.clock = clock
        self.tallies = Tallies(void_before)
        self.schedule = Schedule(self.tallies, near_count_max)
        self.files: dict[int, SlotFile] = {}
        self.void_count = 0
        self.corrupt_count = 0
        self.torn_count = 0
        self.error_count = 0
        self._health = health

    def write_failed(self, error: BaseException) -> None:
        """A slot file could not be written or synced."""
        self.error_count += 1
        self._health(error)

    def add(self, file: SlotFile) -> None:
        self.files[file.number] = file
        self.schedule.attach(file)

    def drop(self, file: SlotFile) -> None:
        del self.files[file.number]
        self.schedule.detach(file)

    def set_origins(self, file: SlotFile, ordinals: list[int]) -> None:
        """Records that were found in topic logs: they have fired."""
        file.origins = Bits()
        for ordinal in ordinals:
            file.origins.add(ordinal)
