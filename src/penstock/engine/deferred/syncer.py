"""Syncs slot files, and records in deferred.counts what is synced.

Rule 1: many files are synced in groups, a few groups at once, with one sync of the folder per
        group: other threads stay free, and the loop has little to do for each.
Rule 2: a sync is complete when the counts are durable too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.engine.deferred.counts import SlotCounts
from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.engine.disk import Lane
from penstock.errors import StorageError
from penstock.storage.slot_counts import SlotCount

PART_COUNT_MAX = 256
PARTS_AT_ONCE = 2

Outcome = Exception | None


class _Round:
    """One call of ``sync``: the groups not started, and how many are not finished."""

    def __init__(
        self, parts: deque[list[SlotFile]], done: Callable[[Outcome], None] | None
    ) -> None:
        self.parts = parts
        self.left_count = len(parts)
        self.done = done
        self.error: Outcome = None


class SlotSync:
    """Tracks and syncs unsynced slot files."""

    def __init__(
        self,
        table: SlotTable,
        counts: SlotCounts,
        seal: Callable[[SlotFile], None],
        changed: Callable[[SlotFile], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._seal = seal
        self._changed = changed
        self._lane = Lane(table.disk, PARTS_AT_ONCE)
        self.unsynced_count = 0

    def wrote(self, file: SlotFile, count: int) -> None:
        """``count`` records of ``file`` are written and not synced."""
        file.unsynced_count += count
        self.unsynced_count += count

    def state(self, file: SlotFile) -> None:
        """All of ``file`` is synced; the caller commits."""
        if file.number in self._table.files:
            self._counts.note(file.counts())

    def retire(self, file: SlotFile) -> None:
        """The file is finished and need not be synced any more."""
        self.unsynced_count -= file.unsynced_count
        file.unsynced_count = 0

    def sync(self, done: Callable[[Outcome], None] | None = None) -> None:
        """Sync what was written since the last sync, on disk threads."""
        files = [
            f
            for f in self._table.files.values()
            if f.unsynced_count and not f.syncing and not (f.rewrite and (f.writing or f.batch))
        ]
        for file in files:
            file.syncing = True
        starts = range(0, len(files), PART_COUNT_MAX)
        whole = _Round(deque(files[at : at + PART_COUNT_MAX] for at in starts), done)
        for _ in range(PARTS_AT_ONCE):
            self._begin_part(whole)
        if not files and done is not None:
            self._counts.commit(lambda _error: done(None))

    def _begin_part(self, whole: _Round) -> None:
        if whole.parts:
            part = whole.parts.popleft()
            stated = [(f.unsynced_count, f.counts()) for f in part]
            fresh = [not f.name_synced for f in part]
            work = partial(self._sync_part, part, fresh)
            self._lane.submit(work, partial(self._synced_part, whole, part, stated))

    def _sync_part(self, files: list[SlotFile], fresh: list[bool]) -> list[Exception | None]:
        # On a disk thread.
        outcomes: list[Exception | None] = []
        store = self._table.store
        for file in files:
            try:
                if file.rewrite:
                    store.rewrite(file.name)
                else:
                    store.sync(file.name, fresh=False)
            except (OSError, StorageError) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        if any(fresh):
            try:
                store.sync_names()
            except OSError as error:
                outcomes = [
                    failure or (error if new else None)
                    for failure, new in zip(outcomes, fresh, strict=True)
                ]
        return outcomes

    def _synced_part(
        self,
        whole: _Round,
        files: list[SlotFile],
        stated: list[tuple[int, SlotCount]],
        outcomes: list[Exception | None] | None,
        error: Outcome,
    ) -> None:
        results = outcomes if outcomes is not None else [error] * len(files)
        for file, (count, counts), failure in zip(files, stated, results, strict=True):
            file.syncing = False
            if failure is None:
                file.name_synced = True
                file.synced_size = max(file.synced_size, counts.size)
                file.rewrite = False
                file.unsynced_count -= count
                self.unsynced_count -= count
                if file.number in self._table.files:
                    self._counts.note(
                        counts._replace(fired_size=file.fired_size, fired_count=file.fired_count)
                    )
            else:
                # The kernel may drop what it could not write: next time rewrite the file (R8).
                self._table.write_failed(failure)
                whole.error = whole.error or failure
                file.rewrite = True
                self._seal(file)
            self._changed(file)
        self._begin_part(whole)
        whole.left_count -= 1
        if whole.left_count == 0 and whole.done is not None:
            done = whole.done
            self._counts.commit(lambda _error: done(whole.error))
        else:
            self._counts.commit()
