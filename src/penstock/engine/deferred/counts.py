"""Keeps deferred.counts: what must be there of every slot file.

Rule 1: one write at a time, durable when it ends; what is noted meanwhile goes with the next one.
        So all who wait share a sync (--sync-every=1), however many slots they wrote to.
Rule 2: a publish does not fail because of the counts: its record is durable.  While they cannot be
        written health says so, and they are tried again.
Rule 3: after a failed write nobody knows how the file ends, so the next one is a whole file.
Rule 4: a file that cannot be read is left alone until it can be; nothing is compared with it and
        nothing is written to it meanwhile.
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
# Entries in the file before it is written anew: superseded ones are most of them by then.
ENTRY_COUNT_MIN = 4096
ENTRY_FACTOR = 4

Done = Callable[[Exception | None], None]


class Reports(NamedTuple):
    """Where the deferred queue tells of damage and of disks that fail."""

    damage: Callable[[str, str, int | None], None]  # a text, a path, messages lost if known
    failing: Callable[[str, Exception | str], None]  # a source and what is wrong with it
    working: Callable[[str], None]


class SlotCounts:
    """What is stated of each slot, and the way of changes into the file."""

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
        self.exists = False  # the file is there, durably: new slot files may say that it is
        self.missing = False  # there was no file
        self.damaged = False  # there was one, and something in it was lost

    # Start

    def load(self) -> None:
        """Read the file.  Blocking; StorageError if a later version wrote it."""
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
            self._tell_damage(loaded.damage)

    def _tell_damage(self, what: str) -> None:
        path = self.file.path
        text = f"{path}: {what}; what is missing of slot files may go unnoticed this time"
        self._reports.damage(text, path, 0)

    def tell_missing(self) -> None:
        """There is no file, though slot files say that there was one."""
        self.damaged = True
        self._tell_damage("missing")

    def settle(self) -> None:
        """Write the file whole if it is not.  Blocking, at start: no slot may come before it."""
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

    # What is stated

    @property
    def readable(self) -> bool:
        return self._readable

    def get(self, number: int) -> SlotCount | None:
        return self._counts.get(number)

    def all(self) -> list[SlotCount]:
        return list(self._counts.values())

    def note(self, count: SlotCount) -> None:
        """This much is synced; ``commit`` makes the statement durable."""
        number = count.name.number
        if self._counts.get(number) != count:
            self._counts[number] = count
            self._changed[number] = count.name

    def forget(self, name: SlotName) -> None:
        """The slot is gone: nothing is missing if there is no such file."""
        if self._counts.pop(name.number, None) is not None or not self._readable:
            self._changed[name.number] = name

    # Writing

    @property
    def wanted(self) -> bool:
        """Something is to be written, or the file to be read, and nothing is under way."""
        return not self._busy and (
            not self._readable or self._whole or bool(self._changed or self._waiting)
        )

    def commit(self, done: Done | None = None) -> None:
        """Write what was noted; ``done`` is called when it is durable, or cannot be."""
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
                self._tell_damage("cut or removed while nsqd was running")
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
