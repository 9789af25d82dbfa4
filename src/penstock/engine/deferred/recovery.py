"""The folder of slots at start: which files exist, and which are missing.

Blocking, before a client can connect.  Headers are read, because nsqd must not start with a file of
a later version; records are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from penstock.core.schedule import Bits
from penstock.engine.deferred.counts import SlotCounts
from penstock.engine.deferred.damage import SlotDamage
from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.errors import StorageError
from penstock.storage.slot_counts import SlotCount
from penstock.storage.slots import VERSION, SlotName

log = logging.getLogger(__name__)


class SlotOpening:
    """Finds the slot files and compares them with the counts."""

    def __init__(
        self,
        table: SlotTable,
        counts: SlotCounts,
        damage: SlotDamage,
        take_over: Callable[[SlotName], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._damage = damage
        self._take_over = take_over
        self._opened = False

    def find(self) -> set[int]:
        """Add the slot files to the table; returns their numbers and those of the missing ones.

        Raises StorageError if a later version wrote one.
        """
        if not self._opened:
            self._opened = True
            self._counts.load()
            counted = False
            for name in self._table.store.list(_Everything()):
                counted = self._check(name) or counted
                self._table.add(SlotFile(name, name.start_ns, found=True))
            if counted and self._counts.missing:
                self._counts.report_missing()
        return {*self._table.files, *(count.name.number for count in self._counts.all())}

    def clear(self) -> None:
        """Remove checkpoints whose slot is gone; called when it is certain that nsqd starts."""
        if self._counts.readable:
            self._table.store.list({count.name.number for count in self._counts.all()})

    def _check(self, name: SlotName) -> bool:
        """Whether the process that wrote it kept counts; StorageError if it was a later version."""
        store = self._table.store
        try:
            header = store.header(name)
        except OSError:
            return False  # retried when it is loaded
        if header is not None and header.version > VERSION:
            path = store.path(name.slot_file)
            raise StorageError(f"{path}: written by a later version (format {header.version})")
        return header is not None and header.counted

    def report_missing(self, fired: Mapping[int, Iterable[int]]) -> None:
        """Report missing slot files; ``fired`` are the origins found in topic logs."""
        for stated in self._counts.all():
            number = stated.name.number
            if number not in self._table.files:
                self._report_missing(stated, fired.get(number, ()))

    def _report_missing(self, stated: SlotCount, fired: Iterable[int]) -> None:
        store, name = self._table.store, stated.name
        try:
            runs = store.read_fired(name).runs
        except OSError as error:
            # All of it may have been delivered: the next start checks again.
            log.error("%s: %s; its slot file is missing", store.path(name.fired_file), error)
            return
        done = Bits()
        for start, count in runs:
            done.add_run(start, count)
        for ordinal in fired:
            done.add(ordinal)
        done_count = done.count_below(stated.ordinal_end)
        lost = stated.record_count - max(done_count, stated.fired_count if not runs else 0)
        if lost <= 0:
            self._take_over(name)  # it was finished, and being removed
            return
        path = store.path(name.slot_file)
        self._table.corrupt_count += lost
        self._counts.forget(name)
        kept = self._set_aside(name)
        text = f"{path}: missing; {lost} of {stated.record_count} messages are lost{kept}"
        self._table.reports.damage(text, path, lost)

    def _set_aside(self, name: SlotName) -> str:
        store = self._table.store
        try:
            kept = store.set_aside(name.fired_file)
        except OSError:
            return ""
        return f"; its checkpoints are kept as {kept}" if kept else ""


class _Everything:
    def __contains__(self, _number: object) -> bool:
        return True
