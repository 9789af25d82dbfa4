"""Deferred messages on their way into slot files.

All messages accepted for a slot in one loop turn are one append and one ticket.

Rule 1: a message is in the schedule only after its record is written (and synced, if asked for).
Rule 2: a failed append leaves nothing behind; where it cannot be undone, its ordinals are void.
Rule 3: one write at a time per file, so that what fails can be cut off again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.core.schedule import NEVER
from penstock.core.slots import Batch
from penstock.core.ticket import Ticket
from penstock.engine.slot_file import SlotFile, SlotTable
from penstock.errors import StorageError, UncutError
from penstock.storage.slots import HEADER, SlotName, new_generation

MS = 1_000_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

# Slots that begin within this are kept in the schedule from the start.
NEAR_NS = 120 * 1_000_000_000

# An hour with more records than this goes on in slots of a minute, so that it is read in parts.
HOUR_COUNT_MAX = 100_000

# A larger file would be long to write again after a failed sync.
FILE_SIZE_MAX = 256 * 1024 * 1024

# An inline append that took longer sends the next second's to another thread (R9).
SLOW_NS = 10 * MS
SLOW_PAUSE_NS = 1000 * MS


class Rows:
    """The rows of a deferred part from ``at`` on; the next one has ``stamp``."""

    def __init__(self, part: bytes, stamp: int) -> None:
        self.part = part
        self.stamp = stamp
        self.at = 4  # behind their count

    @property
    def left(self) -> bool:
        return self.at < len(self.part)

    @property
    def due_ns(self) -> int:
        return int.from_bytes(self.part[self.at : self.at + 8], "big", signed=True)

    def skip(self) -> None:
        self.at += 12 + int.from_bytes(self.part[self.at + 8 : self.at + 12], "big")
        self.stamp += 1


class SlotWriter:
    """Accepts messages into batches and writes them; ``changed`` hears of each outcome."""

    def __init__(
        self,
        table: SlotTable,
        *,
        synced: bool,
        dirty: Callable[[], None],
        opened: Callable[[SlotFile], None],
        changed: Callable[[SlotFile], None],
        void: Callable[[SlotFile, list[int]], None],
        generation: Callable[[], int] = new_generation,
    ) -> None:
        self._table = table
        self._synced = synced
        self._dirty = dirty
        self._opened = opened
        self._changed = changed
        self._void = void
        self._generation = generation
        # The files that are appended to, by start_ms; a sealed one is not among them.
        self._minutes: dict[int, SlotFile] = {}
        self._hours: dict[int, SlotFile] = {}
        self._waiting: list[SlotFile] = []
        self._slow_until_ns = 0
        self.pending_size = 0
        self.unsynced_count = 0

    def defer(
        self, topic: str, instance: int, body: bytes, timestamp_ns: int, due_ns: int, stamp: int
    ) -> Ticket:
        file = self._file_for(due_ns, timestamp_ns)
        batch, ticket = self._batch_of(file)
        size = batch.size
        batch.add(file.ordinal, topic.encode(), instance, body, timestamp_ns, due_ns, stamp)
        file.ordinal += 1
        self.pending_size += batch.size - size
        return ticket

    def defer_rows(
        self, topic: bytes, instance: int, rows: Rows, count_max: int, timestamp_ns: int
    ) -> tuple[SlotFile, Ticket]:
        """Accept the next rows of a part, up to ``count_max`` and as far as one file takes them."""
        due_ns = max(rows.due_ns, timestamp_ns)
        file = self._file_for(due_ns, timestamp_ns)
        start_ns, end_ns = self._due_range(file, due_ns, timestamp_ns)
        if file.name.length_ms == HOUR_MS:
            count_max = min(count_max, HOUR_COUNT_MAX - file.ordinal)
        batch, ticket = self._batch_of(file)
        size = batch.size
        count, rows.at = batch.add_rows(
            rows.part,
            rows.at,
            count_max,
            file.ordinal,
            topic,
            instance,
            timestamp_ns,
            rows.stamp,
            start_ns,
            end_ns,
        )
        file.ordinal += count
        rows.stamp += count
        self.pending_size += batch.size - size
        return file, ticket

    def _batch_of(self, file: SlotFile) -> tuple[Batch, Ticket]:
        """What is accepted for ``file`` in this turn."""
        batch, ticket = file.batch, file.ticket
        if batch is None or ticket is None:
            batch = file.batch = Batch(file.number)
            ticket = file.ticket = Ticket()
            self._waiting.append(file)
            if len(self._waiting) == 1:
                self._dirty()
        return batch, ticket

    def _due_range(self, file: SlotFile, due_ns: int, now_ns: int) -> tuple[int, int]:
        """The due times around ``due_ns`` that ``_file_for`` has the same answer for."""
        start_ns = file.name.start_ns
        end_ns = start_ns + file.name.length_ms * MS
        far_ns = now_ns + HOUR_MS * MS + 1
        if due_ns >= far_ns:
            return max(start_ns, far_ns), end_ns
        return start_ns, min(end_ns, far_ns)

    def _file_for(self, due_ns: int, now_ns: int) -> SlotFile:
        due_ms = due_ns // MS
        if due_ns - now_ns > HOUR_MS * MS:
            start_ms = due_ms - due_ms % HOUR_MS
            file = self._hours.get(start_ms) or self._open(start_ms, HOUR_MS)
            if file.ordinal < HOUR_COUNT_MAX:
                return file
        start_ms = due_ms - due_ms % MINUTE_MS
        return self._minutes.get(start_ms) or self._open(start_ms, MINUTE_MS)

    def _open(self, start_ms: int, length_ms: int) -> SlotFile:
        name = SlotName(start_ms, length_ms, self._generation())
        while name.number in self._table.files:
            name = SlotName(start_ms, length_ms, self._generation())
        near = name.start_ns <= self._table.clock.wall_ns() + NEAR_NS
        file = SlotFile(name, NEVER if near else name.start_ns, found=False)
        self._table.add(file)
        self._open_files(file)[start_ms] = file
        self._opened(file)
        return file

    def _open_files(self, file: SlotFile) -> dict[int, SlotFile]:
        return self._hours if file.name.length_ms == HOUR_MS else self._minutes

    def retire(self, file: SlotFile) -> None:
        """The file is finished: nothing may be appended to it any more, nor need it be synced."""
        self._seal(file)
        self.unsynced_count -= file.unsynced_count
        file.unsynced_count = 0

    def _seal(self, file: SlotFile) -> None:
        files = self._open_files(file)
        if files.get(file.name.start_ms) is file:
            del files[file.name.start_ms]

    def flush(self) -> None:
        """Write what was accepted in this turn."""
        waiting, self._waiting = self._waiting, []
        for file in waiting:
            if file.batch is not None and not file.writing:
                self._write(file)

    def _write(self, file: SlotFile) -> None:
        batch, ticket = file.batch, file.ticket
        assert batch is not None and ticket is not None
        file.batch = file.ticket = None
        file.writing = file.begun = True
        table = self._table
        started_ns = table.clock.monotonic_ns()
        work = partial(self._store, file, file.size, batch.packed())
        if self._synced or started_ns < self._slow_until_ns:
            table.disk.submit(work, partial(self._written_elsewhere, file, batch, ticket))
            return
        try:
            size = work()
        except (OSError, StorageError) as error:
            self._written(file, batch, ticket, None, error)
        else:
            self._written(file, batch, ticket, size, None)
        if table.clock.monotonic_ns() - started_ns > SLOW_NS:
            self._slow_until_ns = started_ns + SLOW_PAUSE_NS

    def _store(self, file: SlotFile, old_size: int, packed: bytes) -> int:
        # Runs on the loop or on another thread; touches nothing of ``file`` that changes.
        store = self._table.store
        size = store.append(file.name, packed, fresh=old_size == 0)
        if self._synced:
            try:
                store.sync(file.name, fresh=old_size == 0)
            except OSError as error:
                try:
                    store.cut(file.name, old_size)
                except OSError as second:
                    raise UncutError(f"{file.name.slot_file}: {error}; and {second}") from error
                raise
        return size

    def _written_elsewhere(
        self,
        file: SlotFile,
        batch: Batch,
        ticket: Ticket,
        size: int | None,
        error: BaseException | None,
    ) -> None:
        self._written(file, batch, ticket, size, error)
        self._dirty()  # the turn that accepted them is over: the next due time may be another

    def _written(
        self,
        file: SlotFile,
        batch: Batch,
        ticket: Ticket,
        size: int | None,
        error: BaseException | None,
    ) -> None:
        file.writing = False
        self.pending_size -= batch.size
        if size is None:
            assert error is not None
            self._not_written(file, batch, error)
        else:
            batch.settle(file.size or HEADER.size)
            file.size = size
            self._table.schedule.index(file, batch)
            if size > FILE_SIZE_MAX:
                self._seal(file)
            if self._synced:
                file.name_synced = True
                file.synced_size = size
            else:
                file.unsynced_count += batch.count
                self.unsynced_count += batch.count
        if file.batch is not None:
            self._write(file)
        self._changed(file)
        ticket.settle(error if isinstance(error, Exception) else None)

    def _not_written(self, file: SlotFile, batch: Batch, error: BaseException) -> None:
        self._table.write_failed(error)
        if self._synced or file.size == 0 or isinstance(error, UncutError):
            self._seal(file)
        if file.size == 0:
            file.next_ns = NEVER  # there is nothing to be read later
        if isinstance(error, UncutError):
            # A restart may find these records, though their publishers were told of the failure.
            self._void(file, [row[0] for row in batch.rows()])
            late, ticket = file.batch, file.ticket
            file.batch = file.ticket = None
            if late is not None and ticket is not None:
                self.pending_size -= late.size
                ticket.settle(error)

    def sync(self, done: Callable[[BaseException | None], None] | None = None) -> None:
        """Sync what was written since the last sync, on another thread."""
        files = [
            f
            for f in self._table.files.values()
            if f.unsynced_count and not f.syncing and not (f.rewrite and (f.writing or f.batch))
        ]
        counts = [(f.unsynced_count, f.size) for f in files]
        fresh = [not f.name_synced for f in files]
        for file in files:
            file.syncing = True
        if files:
            work = partial(self._sync_all, files, fresh)
            self._table.disk.submit(work, partial(self._synced_all, files, counts, done))
        elif done is not None:
            done(None)

    def _sync_all(self, files: list[SlotFile], fresh: list[bool]) -> list[Exception | None]:
        # Runs on another thread.
        outcomes: list[Exception | None] = []
        store = self._table.store
        for file, is_fresh in zip(files, fresh, strict=True):
            try:
                if file.rewrite:
                    store.rewrite(file.name)
                else:
                    store.sync(file.name, fresh=is_fresh)
            except (OSError, StorageError) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def _synced_all(
        self,
        files: list[SlotFile],
        counts: list[tuple[int, int]],
        done: Callable[[BaseException | None], None] | None,
        outcomes: list[Exception | None] | None,
        error: BaseException | None,
    ) -> None:
        results = outcomes if outcomes is not None else [error] * len(files)
        for file, (count, size), failure in zip(files, counts, results, strict=True):
            file.syncing = False
            if failure is None:
                file.name_synced = True
                file.synced_size = max(file.synced_size, size)
                file.rewrite = False
                file.unsynced_count -= count
                self.unsynced_count -= count
            else:
                # The kernel forgets what it could not write: next time a new file is written (R8).
                self._table.write_failed(failure)
                file.rewrite = True
                self._seal(file)
            self._changed(file)
        if done is not None:
            done(next((failure for failure in results if failure is not None), None))
