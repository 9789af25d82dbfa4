"""Checkpoints: which records of slot files are done; and removing finished files.

Rule 1: a checkpoint is written only for messages whose topic logs the engine has synced.
Rule 2: until then the slot is open: the logs keep the segments that contain its origins.
Rule 3: a slot file is removed only after all its records are done and in a durable checkpoint.
Rule 4: its checkpoints are removed only after deferred.counts records that the slot is gone: until
        then they show a start that none of it is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.engine.deferred.counts import SlotCounts
from penstock.engine.deferred.damage import SlotDamage
from penstock.engine.deferred.slot import SlotFile, SlotTable
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
    """Records that are done and not yet checkpointed."""

    def __init__(
        self,
        table: SlotTable,
        counts: SlotCounts,
        damage: SlotDamage,
        retire: Callable[[SlotFile], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._damage = damage
        self._retire = retire
        self._fired: dict[tuple[int, int], Fired] = {}
        self._offered: dict[int, Fired] = {}  # by id()
        self._void: dict[int, array[int]] = {}
        self._gone: list[SlotFile] = []
        self._left: list[SlotName] = []  # only their checkpoints are left
        self._busy = False

    @property
    def wanted(self) -> bool:
        return not self._busy and bool(
            self._fired
            or self._offered
            or self._void
            or self._gone
            or self._left
            or self._damage.wanted
            or self._counts.wanted
        )

    def add(self, file: SlotFile, topic: str, instance: int, ordinals: Sequence[int]) -> None:
        """These are in the topic's log, which may not be synced yet."""
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

    def lacks(self, numbers: set[int]) -> bool:
        """Whether records of these slots that are void may not be durable in .fired yet."""
        return self._busy or not numbers.isdisjoint(self._void)

    def due(self) -> list[Fired]:
        """What waits for a sync of its log; returned again until passed to ``write``."""
        if self._busy:
            return []
        self._damage.flush()
        for fired in self._fired.values():
            self._offered[id(fired)] = fired
        self._fired.clear()
        return list(self._offered.values())

    def write(self, synced: Iterable[Fired]) -> None:
        """The logs of ``synced`` are synced: checkpoint these, and remove finished files."""
        if self._busy:
            return  # the next due() returns them again
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

    def _append_all(self, batch: list[_Entry]) -> list[int | Exception]:
        # On a disk thread.
        outcomes: list[int | Exception] = []
        store = self._table.store
        for file, void, fired in batch:
            ordinals = array("I", void)
            for part in fired:
                ordinals.extend(part.ordinals)
            try:
                outcomes.append(store.append_fired(file.name, ordinals, fresh=False))
            except (OSError, StorageError) as error:
                outcomes.append(error)
        fresh = [not entry.file.fired_named for entry in batch]
        if any(fresh):
            try:
                store.sync_names()
            except OSError as error:
                outcomes = [
                    error if new else outcome for new, outcome in zip(fresh, outcomes, strict=True)
                ]
        return outcomes

    def _appended(
        self,
        batch: list[_Entry],
        outcomes: list[int | Exception] | None,
        error: Exception | None,
    ) -> None:
        self._busy = False
        failed: list[int | Exception] = [error or OSError()] * len(batch)
        for (file, void, fired), outcome in zip(batch, outcomes or failed, strict=True):
            if isinstance(outcome, Exception):
                self._table.error_count += 1
                self._offered.update((id(part), part) for part in fired)
                if void:
                    self._void.setdefault(file.number, array("I")).extend(void)
                continue
            file.fired_named = True
            count = len(void) + sum(len(part.ordinals) for part in fired)
            file.unchecked_count -= count
            self._state(file, count, outcome)
            self.settle(file)
        self._counts.commit()
        self._remove()

    def _state(self, file: SlotFile, count: int, size: int) -> None:
        if size <= file.fired_size:
            what = f"cut or removed while nsqd was running; {file.fired_count} messages"
            self._damage.fired(file, f"{what} may be delivered again after a restart")
            file.fired_count = 0
        file.fired_size = size
        file.fired_count += count
        stated = self._counts.get(file.number)
        if stated is not None:
            self._counts.note(stated._replace(fired_size=size, fired_count=file.fired_count))

    def settle(self, file: SlotFile) -> None:
        """Drop ``file`` from the table if nothing in it is needed any more."""
        if file.finished and file.number in self._table.files:
            self._retire(file)
            self._table.drop(file)
            if file.begun:
                self._gone.append(file)

    def _remove(self) -> None:
        if self._busy:
            return
        if self._gone:
            self._busy = True
            gone, self._gone = self._gone, []
            names = [file.name for file in gone]
            damaged: set[SlotName] = {file.name for file in gone if file.damaged}
            work = partial(self._table.store.remove, names, damaged)
            self._table.disk.submit(work, partial(self._removed, gone))
        elif self._left:
            self._forget([])
        elif self._counts.wanted:
            self._counts.commit()

    def _removed(self, gone: list[SlotFile], _result: None, error: Exception | None) -> None:
        self._busy = False
        if error is not None:
            self._table.error_count += 1
            self._gone.extend(gone)
        else:
            self._forget([file.name for file in gone])

    def _forget(self, names: list[SlotName]) -> None:
        names, self._left = self._left + names, []
        for name in names:
            self._counts.forget(name)
        self._busy = True
        self._counts.commit(partial(self._forgotten, names))

    def _forgotten(self, names: list[SlotName], error: Exception | None) -> None:
        if error is not None:
            self._busy = False
            self._left = names
            return
        work = partial(self._table.store.remove_fired, names)
        self._table.disk.submit(work, partial(self._cleared, names))

    def _cleared(self, names: list[SlotName], _result: None, error: Exception | None) -> None:
        self._busy = False
        if error is not None:
            self._table.error_count += 1
            self._left.extend(names)

    def take_over(self, name: SlotName) -> None:
        """An earlier process finished this slot; only its checkpoints are left to remove."""
        self._left.append(name)

    def open_slots(self) -> set[int]:
        """The slots whose origins the topic logs must keep."""
        return {
            file.number
            for file in self._table.files.values()
            if file.unchecked_count or file.origins is not None
        }
