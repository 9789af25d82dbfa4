"""Which records are done, on disk: checkpoints of slot files, and the end of a file.

Rule 1: a checkpoint is written only for messages whose topic logs are synced; the engine says so.
Rule 2: until then the slot is open: the logs keep the segments that carry its origins.
Rule 3: a slot file goes only after all its records are done and in a durable checkpoint.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.engine.slot_file import SlotFile, SlotTable
from penstock.errors import StorageError
from penstock.storage.slots import SlotName


class Fired(NamedTuple):
    """Messages of one slot that went to one topic's log."""

    slot: int
    topic: str
    instance: int
    ordinals: array[int]


class _Entry(NamedTuple):
    file: SlotFile
    void: array[int]
    fired: list[Fired]


class Checkpoints:
    """What is done and not yet checkpointed."""

    def __init__(self, table: SlotTable, retire: Callable[[SlotFile], None]) -> None:
        self._table = table
        self._retire = retire
        self._fired: dict[tuple[int, int], Fired] = {}
        self._offered: dict[int, Fired] = {}  # by id()
        self._void: dict[int, array[int]] = {}
        self._gone: list[SlotFile] = []
        self._busy = False

    @property
    def wanted(self) -> bool:
        return not self._busy and bool(self._fired or self._offered or self._void or self._gone)

    def add(self, file: SlotFile, topic: str, instance: int, ordinals: Sequence[int]) -> None:
        """These are in the topic's log, which is not known to be synced."""
        file.unchecked_count += len(ordinals)
        fired = self._fired.get((file.number, instance))
        if fired is None:
            fired = Fired(file.number, topic, instance, array("I"))
            self._fired[file.number, instance] = fired
        fired.ordinals.extend(ordinals)

    def add_void(self, file: SlotFile, ordinals: Sequence[int]) -> None:
        """These are in no log and never will be."""
        if ordinals:
            file.unchecked_count += len(ordinals)
            self._void.setdefault(file.number, array("I")).extend(ordinals)

    def due(self) -> list[Fired]:
        """What waits for its log to be synced; the same again until ``write`` gets it."""
        if self._busy:
            return []
        for fired in self._fired.values():
            self._offered[id(fired)] = fired
        self._fired.clear()
        return list(self._offered.values())

    def write(self, synced: Iterable[Fired]) -> None:
        """The logs of ``synced`` are synced: checkpoint these, and remove finished files."""
        if self._busy:
            return  # they are offered again
        entries: dict[int, _Entry] = {}
        for number in [n for n in self._void if not self._table.files[n].pin_count]:
            entries[number] = _Entry(self._table.files[number], self._void.pop(number), [])
        for fired in synced:
            if self._offered.pop(id(fired), None) is None:
                continue
            entry = entries.get(fired.slot)
            if entry is None:
                entry = entries[fired.slot] = _Entry(self._table.files[fired.slot], array("I"), [])
            entry.fired.append(fired)
        if entries:
            self._busy = True
            batch = list(entries.values())
            work = partial(self._append_all, batch)
            self._table.disk.submit(work, partial(self._appended, batch))
        else:
            self._remove()

    def _append_all(self, batch: list[_Entry]) -> list[Exception | None]:
        # Runs on another thread.
        outcomes: list[Exception | None] = []
        for file, void, fired in batch:
            ordinals = array("I", void)
            for part in fired:
                ordinals.extend(part.ordinals)
            try:
                self._table.store.append_fired(file.name, ordinals, fresh=not file.fired_named)
            except (OSError, StorageError) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def _appended(
        self,
        batch: list[_Entry],
        outcomes: list[Exception | None] | None,
        error: BaseException | None,
    ) -> None:
        self._busy = False
        results = outcomes if outcomes is not None else [error] * len(batch)
        for (file, void, fired), failure in zip(batch, results, strict=True):
            if failure is not None:
                self._table.error_count += 1
                self._offered.update((id(part), part) for part in fired)
                if void:
                    self._void.setdefault(file.number, array("I")).extend(void)
                continue
            file.fired_named = True
            file.unchecked_count -= len(void) + sum(len(part.ordinals) for part in fired)
            self.settle(file)
        self._remove()

    def settle(self, file: SlotFile) -> None:
        """Take ``file`` out of the table if nothing in it is needed any more."""
        if file.finished and file.number in self._table.files:
            self._retire(file)
            self._table.drop(file)
            if file.begun:
                self._gone.append(file)

    def _remove(self) -> None:
        if self._busy or not self._gone:
            return
        self._busy = True
        gone, self._gone = self._gone, []
        names = [file.name for file in gone]
        damaged: list[SlotName] = [file.name for file in gone if file.damaged]
        work = partial(self._table.store.remove, names, damaged)
        self._table.disk.submit(work, partial(self._removed, gone))

    def _removed(self, gone: list[SlotFile], _result: None, error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self._table.error_count += 1
            self._gone.extend(gone)

    def open_slots(self) -> set[int]:
        """The slots whose origins the topic logs must keep."""
        return {
            file.number
            for file in self._table.files.values()
            if file.unchecked_count or file.origins is not None
        }
