"""Keeps deferred.counts: how much each slot file must contain.

Rule 1: one write at a time, durable when it ends; changes noted meanwhile go into the next one.
        So with --sync-every=1 all waiting clients share a sync, however many slots they use.
Rule 2: a publish does not fail because of the counts: its record is durable.  While they cannot be
        written, health reports it and the write is retried.
Rule 3: after a failed write the end of the file is unknown, so the next write rewrites the file.
Rule 4: while the file cannot be read, it is neither compared nor written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.engine.disk import Disk
from penstock.errors import CorruptError
from penstock.storage.slot_counts import (
    KIND_GONE,
    KIND_SLOT,
    CountsFile,
    Loaded,
    SlotCount,
    pack_entry,
)
from penstock.storage.slots import SlotName

SOURCE = "deferred.counts"
# The file is rewritten above this many entries: most of them are superseded by then.
ENTRY_COUNT_MIN = 4096
ENTRY_FACTOR = 4

Done = Callable[[Exception | None], None]


class Reports(NamedTuple):
    """Where the deferred queue reports damage and failing disks."""

    damage: Callable[[str, str, int | None], None]  # a text, a path, messages lost if known
    failing: Callable[[str, Exception | str], None]  # a source and its error
    working: Callable[[str], None]


class SlotCounts:
    """The counts of each slot; writes changes to the file."""

    def __init__(
        self, file: CountsFile, disk: Disk, reports: Reports, loaded_late: Callable[[], None]
    ) -> None:
        self.file = file
        self._loaded_late = loaded_late
        self._disk = disk
        self._reports = reports
        self._counts: dict[int, SlotCount] = {}
        self._changed: dict[int, SlotName] = {}  # not in the file yet
        self._waiting: list[Done] = []
        self._entry_count = 0
        self._readable = False
        self._whole = False
        self._busy = False
        self.exists = False  # the file exists durably: the headers of new slot files may state that
        self.missing = False  # there was no file
        self.damaged = False  # there was one, and some of it was lost

    # Start

    def load(self) -> None:
        """Read the file.  Blocking; raises StorageError if a later version wrote it."""
        try:
            loaded = self.file.load()
        except OSError as error:
            self._reports.failing(SOURCE, error)
            return
        self._take(loaded)

    def _take(self, loaded: Loaded | None) -> None:
        self._readable = True
        self.missing = loaded is None
        if loaded is None:
            self._whole = True
            return
        for number, count in loaded.counts.items():
            if number not in self._changed:
                self._counts[number] = count
        self._entry_count = loaded.entry_count
        self._whole = not loaded.neat
        if loaded.damage:
            self.damaged = True
            self._report_damage(loaded.damage)

    def _report_damage(self, what: str) -> None:
        path = self.file.path
        text = f"{path}: {what}; missing data in slot files may go unnoticed this time"
        self._reports.damage(text, path, 0)

    def report_missing(self) -> None:
        """There is no file, but slot files state that there was one."""
        self.damaged = True
        self._report_damage("missing")

    def settle(self) -> None:
        """Rewrite the file if needed.  Blocking, at start: it must exist before new slot files."""
        if self._readable and self._whole:
            try:
                self.file.write_whole(self._counts.values())
            except OSError as error:
                self._reports.failing(SOURCE, error)
                return
            self._changed.clear()
            self._entry_count = len(self._counts)
            self._whole = False
        self.exists = self._readable

    # Counts

    @property
    def readable(self) -> bool:
        return self._readable

    def get(self, number: int) -> SlotCount | None:
        return self._counts.get(number)

    def all(self) -> list[SlotCount]:
        return list(self._counts.values())

    def note(self, count: SlotCount) -> None:
        """Record what is synced; ``commit`` makes the record durable."""
        number = count.name.number
        if self._counts.get(number) != count:
            self._counts[number] = count
            self._changed[number] = count.name

    def forget(self, name: SlotName) -> None:
        """The slot is gone: its file is not expected any more."""
        if self._counts.pop(name.number, None) is not None or not self._readable:
            self._changed[name.number] = name

    # Writing

    @property
    def wanted(self) -> bool:
        """Whether there is something to write or read, and nothing is in progress."""
        return not self._busy and (
            not self._readable or self._whole or bool(self._changed or self._waiting)
        )

    def commit(self, done: Done | None = None) -> None:
        """Write all changes; ``done`` is called when they are durable, or with the error."""
        if done is not None:
            self._waiting.append(done)
        if not self._busy:
            self._start()

    def _start(self) -> None:
        if not self._readable:
            self._busy = True
            self._disk.submit(self.file.load, self._have_loaded)
            self._settle(self._take_waiting(), OSError(f"{self.file.path} cannot be read"))
            return
        if not self._changed and not self._whole:
            self._settle(self._take_waiting(), None)
            return
        self._busy = True
        changed, self._changed = self._changed, {}
        waiting = self._take_waiting()
        limit = max(ENTRY_COUNT_MIN, ENTRY_FACTOR * len(self._counts))
        if self._whole or self._entry_count + len(changed) > limit:
            counts = list(self._counts.values())
            work = partial(self.file.write_whole, counts)
            done = partial(self._written, changed, waiting, len(counts))
        else:
            entries = [self._pack(number, name) for number, name in changed.items()]
            end = self._entry_count + len(entries)
            work = partial(self.file.append, entries, end)
            done = partial(self._written, changed, waiting, end)
        self._disk.submit(work, done)

    def _pack(self, number: int, name: SlotName) -> bytes:
        count = self._counts.get(number)
        if count is None:
            return pack_entry(SlotCount(name), self._entry_count, KIND_GONE)
        return pack_entry(count, self._entry_count, KIND_SLOT)

    def _take_waiting(self) -> list[Done]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _written(
        self,
        changed: dict[int, SlotName],
        waiting: list[Done],
        entry_count: int,
        _result: None,
        error: Exception | None,
    ) -> None:
        self._busy = False
        if error is None:
            self._entry_count = entry_count
            self._whole = False
            self.exists = True
            self._reports.working(SOURCE)
        else:
            self._whole = True
            self._changed = changed | self._changed
            if isinstance(error, CorruptError):
                self._report_damage("cut or removed while nsqd was running")
            self._reports.failing(SOURCE, error)
        self._settle(waiting, error)
        if self._waiting and not self._busy:
            self._start()

    def _have_loaded(self, loaded: Loaded | None, error: Exception | None) -> None:
        self._busy = False
        if error is None:
            self._take(loaded)
            self.exists = not self._whole
            self._reports.working(SOURCE)
            self._loaded_late()
            self.commit()
        else:
            self._reports.failing(SOURCE, error)

    def _settle(self, waiting: list[Done], error: Exception | None) -> None:
        for done in waiting:
            done(error)
