"""Writes deferred messages to slot files.

All messages accepted for a slot in one turn of the loop share one append and one ticket.

Rule 1: a message enters the schedule only after its record is written (--sync-every=1: synced).
Rule 2: a failed append is undone; if that fails too, its ordinals are void.
Rule 3: one write at a time per file, so that a failed one can be truncated.
Rule 4: the loop appends only to open files, and for a bounded time per turn.  Files are created and
        opened on disk threads, a bounded number at once, however many slots a client uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.core.schedule import NEVER
from penstock.core.slots import SlotBatch
from penstock.core.ticket import Ticket
from penstock.engine.deferred.counts import SlotCounts
from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.engine.deferred.syncer import SlotSync
from penstock.errors import StorageError, UncutError
from penstock.storage.slots import HEADER_SIZE, SlotName, new_generation

MS = 1_000_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

# Slots that begin within this time are near: their records are indexed at once.
NEAR_NS = 120 * 1_000_000_000

# An hour slot with this many records continues in minute slots, so that reads stay small.
HOUR_COUNT_MAX = 100_000

# Rewriting a larger file after a failed sync would take too long.
FILE_SIZE_MAX = 256 * 1024 * 1024

# After an inline append slower than this, disk threads write for a while (R9).
SLOW_NS = 10 * MS
SLOW_PAUSE_NS = 1000 * MS

# Files written in one turn, and how long the loop appends inline.
FLUSH_COUNT_MAX = 256
INLINE_NS = 1 * MS

# Writes on disk threads at once, and files in each of them.
WORK_COUNT_MAX = 4
WORK_FILE_MAX = 64


class _Write(NamedTuple):
    """One append in progress."""

    file: SlotFile
    batch: SlotBatch
    ticket: Ticket
    old_size: int
    packed: bytes


class Rows:
    """The rows of a deferred part from ``at`` on; the next one gets ``stamp``."""

    def __init__(self, part: bytes, stamp: int) -> None:
        self.part = part
        self.stamp = stamp
        self.at = 4  # after their count

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
    """Collects messages in batches and writes them; calls ``changed`` after each write."""

    def __init__(
        self,
        table: SlotTable,
        counts: SlotCounts,
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
        # The files open for appends, by start_ms.
        self._minutes: dict[int, SlotFile] = {}
        self._hours: dict[int, SlotFile] = {}
        self._waiting: deque[SlotFile] = deque()  # with messages accepted in this turn
        self._queue: deque[SlotFile] = deque()  # to be written by a disk thread
        self._work_count = 0
        self._idle: list[Callable[[], None]] = []  # called when all is written
        self._turn_ns = 0
        self._slow_until_ns = 0
        self._counts = counts
        self.syncing = SlotSync(table, counts, self._seal, changed)
        self.pending_size = 0

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
        """Accept the next rows of a part that go to one file, at most ``count_max``."""
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

    def _batch_of(self, file: SlotFile) -> tuple[SlotBatch, Ticket]:
        """The batch and ticket of ``file`` for this turn."""
        batch, ticket = file.batch, file.ticket
        if batch is None or ticket is None:
            batch = file.batch = SlotBatch(file.number)
            ticket = file.ticket = Ticket()
            self._waiting.append(file)
            if len(self._waiting) == 1:
                self._dirty()
        return batch, ticket

    def _due_range(self, file: SlotFile, due_ns: int, now_ns: int) -> tuple[int, int]:
        """The range of due times around ``due_ns`` for which ``_file_for`` returns ``file``."""
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
        """The file is finished: no more appends or syncs."""
        self._seal(file)
        self.syncing.retire(file)

    def _seal(self, file: SlotFile) -> None:
        files = self._open_files(file)
        if files.get(file.name.start_ms) is file:
            del files[file.name.start_ms]

    def flush(self) -> None:
        """Write what was accepted in this turn; files beyond FLUSH_COUNT_MAX in the next turns."""
        self._turn_ns = self._table.clock.monotonic_ns()
        for _ in range(min(len(self._waiting), FLUSH_COUNT_MAX)):
            file = self._waiting.popleft()
            if file.batch is not None and not file.writing and not file.queued:
                self._write(file)
        self._send()
        if self._waiting:
            self._dirty()

    def _write(self, file: SlotFile) -> None:
        table = self._table
        started_ns = table.clock.monotonic_ns()
        if (
            self._synced
            or not file.size
            or started_ns < self._slow_until_ns
            or started_ns > self._turn_ns + INLINE_NS
            or not table.store.is_open(file.name)
        ):
            file.queued = True
            self._queue.append(file)
            return
        write = self._begin(file)
        (outcome,) = self._store_all([write])
        self._written(write, outcome)
        write.ticket.settle(outcome if isinstance(outcome, Exception) else None)
        if table.clock.monotonic_ns() - started_ns > SLOW_NS:
            self._slow_until_ns = started_ns + SLOW_PAUSE_NS

    def _begin(self, file: SlotFile) -> _Write:
        batch, ticket = file.batch, file.ticket
        assert batch is not None and ticket is not None
        file.batch = file.ticket = None
        file.queued = False
        file.writing = file.begun = True
        return _Write(file, batch, ticket, file.size, batch.packed())

    def _send(self) -> None:
        """Submit queued files to disk threads, spread evenly."""
        while self._queue and self._work_count < WORK_COUNT_MAX:
            share = -(-len(self._queue) // (WORK_COUNT_MAX - self._work_count))
            count = min(share, WORK_FILE_MAX)
            writes = [self._begin(self._queue.popleft()) for _ in range(count)]
            self._work_count += 1
            work = partial(self._store_all, writes)
            self._table.disk.submit(work, partial(self._stored, writes))

    def _store_all(self, writes: list[_Write]) -> list[int | Exception]:
        # On the loop or a disk thread; uses no mutable state of the files.
        store = self._table.store
        outcomes = [self._store(write) for write in writes]
        fresh = [i for i, write in enumerate(writes) if not write.old_size]
        if self._synced and any(isinstance(outcomes[i], int) for i in fresh):
            try:
                store.sync_names()
            except OSError as error:
                for i in fresh:
                    if isinstance(outcomes[i], int):
                        outcomes[i] = self._undo(writes[i], error)
        return outcomes

    def _store(self, write: _Write) -> int | Exception:
        store = self._table.store
        try:
            size = store.append(
                write.file.name,
                write.packed,
                fresh=not write.old_size,
                counted=self._counts.exists,
            )
        except (OSError, StorageError) as error:
            return error
        if self._synced:
            try:
                store.sync(write.file.name, fresh=False)
            except OSError as error:
                return self._undo(write, error)
        return size

    def _undo(self, write: _Write, error: OSError) -> Exception:
        try:
            self._table.store.cut(write.file.name, write.old_size)
        except OSError as second:
            uncut = UncutError(f"{write.file.name.slot_file}: {error}; and {second}")
            uncut.__cause__ = error
            return uncut
        return error

    def _stored(
        self,
        writes: list[_Write],
        outcomes: list[int | Exception] | None,
        error: Exception | None,
    ) -> None:
        self._work_count -= 1
        failure = error or OSError("not written")
        settled: list[Ticket] = []
        for write, outcome in zip(writes, outcomes or [failure] * len(writes), strict=True):
            self._written(write, outcome)
            if isinstance(outcome, Exception):
                write.ticket.settle(outcome)
            else:
                settled.append(write.ticket)
        if self._synced:
            # All waiting clients share one sync of the counts.
            self._counts.commit(lambda _error: _settle(settled))
        else:
            _settle(settled)
        self._send()
        self._dirty()  # the turn that accepted them is over: the next due time may have changed
        if self.idle:
            waiting, self._idle = self._idle, []
            for call in waiting:
                call()

    def _written(self, write: _Write, outcome: int | Exception) -> None:
        file, batch = write.file, write.batch
        file.writing = False
        self.pending_size -= batch.size
        if isinstance(outcome, Exception):
            self._not_written(file, batch, outcome)
        else:
            self._take_in(file, batch, outcome)
        if file.batch is not None and not file.queued:
            self._write(file)
        self._changed(file)

    def _take_in(self, file: SlotFile, batch: SlotBatch, size: int) -> None:
        base = size - batch.size
        if base != (file.size or HEADER_SIZE):
            self._seal(file)  # it was truncated or removed; the loss is found when it is due
        batch.settle(base)
        file.size = size
        self._table.schedule.index(file, batch)
        if size > FILE_SIZE_MAX:
            self._seal(file)
        if self._synced:
            file.name_synced = True
            file.synced_size = size
            self.syncing.state(file)
        else:
            self.syncing.wrote(file, batch.count)

    def _not_written(self, file: SlotFile, batch: SlotBatch, error: Exception) -> None:
        self._table.write_failed(error)
        if self._synced or file.size == 0 or isinstance(error, UncutError):
            self._seal(file)
        if file.size == 0:
            file.next_ns = NEVER  # there is nothing to read later
        if isinstance(error, UncutError):
            # A restart may find these records, though their publishers got the error.
            self._void(file, [row[0] for row in batch.rows()])
            late, ticket = file.batch, file.ticket
            file.batch = file.ticket = None
            if late is not None and ticket is not None:
                self.pending_size -= late.size
                ticket.settle(error)

    @property
    def idle(self) -> bool:
        """Everything accepted is written or has failed."""
        return not (self._waiting or self._queue or self._work_count)

    def finish(self, done: Callable[[Exception | None], None]) -> None:
        """Sync everything that was accepted so far, once it is written."""
        while self._waiting:
            self.flush()
        if self.idle:
            self.syncing.sync(done)
        else:
            self._idle.append(partial(self.finish, done))


def _settle(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.settle()
