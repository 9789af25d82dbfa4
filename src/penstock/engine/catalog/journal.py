"""Keeps a topic's journal: buffers records, writes them, compacts the file.

Rule 1: one write at a time, in order; records added meanwhile go into the next one.
Rule 2: one sync at a time, in parallel with writes: even if syncs are slow, progress is soon in the
        file and survives kill -9.
Rule 3: after a failed write the end of the file is unknown, and after a failed sync its contents;
        so the next write is a full snapshot.  Memory stays bounded while the disk is full.
Rule 4: a small write to an open file is done by the loop while that is quick: the threads would
        delay it more than the disk does.  Other writes use the disk threads directly, syncs use a
        lane, so that the syncs of a thousand changed topics do not delay a write (R9).
Rule 5: the file is at most a few times the size of a snapshot, which depends on the number of
        unfinished messages (R10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.core.ticket import Ticket, settled
from penstock.engine.disk import Disk, Here
from penstock.storage.journal import Journal

COMPACT_SIZE_MIN = 1 << 20
COMPACT_FACTOR = 4


class JournalKeeper:
    """Writes one topic's records to its journal."""

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        snapshot: Callable[[], Iterable[bytes]],
        health: Callable[[Exception | None], None],
        lane: Disk | None = None,
        here: Here | None = None,
    ) -> None:
        self._journal = journal
        self._disk = disk
        self._lane = lane or disk
        self._here = here
        self._snapshot = snapshot
        self._health = health
        self._ticket: Ticket | None = None  # of the next write
        self._written = settled()  # of the last write
        self._unsynced: list[Ticket] = []  # waiting for the next sync
        self._opened = False
        self._syncing = False
        self._dirty = True  # there may be unsynced writes
        self._whole = False
        self._compacted_size = 0

    @property
    def path(self) -> str:
        return self._journal.path

    @property
    def size(self) -> int:
        """Bytes of the journal's file."""
        return self._journal.size

    def add(self, record: bytes) -> None:
        self._journal.add(record)

    def rewrite(self) -> Ticket:
        """Rewrite the journal from a snapshot."""
        self._whole = True
        return self.flush()

    def flush(self, *, sync: bool = False) -> Ticket:
        """A ticket settled when everything added so far is written, with ``sync`` synced."""
        if self._ticket is None and (self._journal.buffer_size or self._whole):
            self._ticket = Ticket()
        written = self._ticket or self._written
        if self._ticket is not None and self._opened and self._written.done:
            self._write()
        if not sync:
            return written
        ticket = Ticket()
        written.add(partial(self._sync_after, ticket))
        return ticket

    def open(self) -> None:
        """The journal's folder exists."""
        self._opened = True
        self.flush()

    def begin(self) -> tuple[Journal, bytes]:
        """The file and its first records, to be written by the creation of the folder."""
        self._written, self._ticket = self._ticket or Ticket(), None
        return self._journal, self._journal.take()

    def begun(self, error: Exception | None) -> None:
        """The folder exists; without an error, the records of begin() are in the file."""
        self._opened = True
        self._wrote(False, None, error)

    def fail(self, error: Exception) -> None:
        """The journal's folder could not be created."""
        if not self._written.done:
            self._written.settle(error)
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.settle(error)

    def _write(self) -> None:
        assert self._ticket is not None and self._written.done
        self._written, self._ticket = self._ticket, None
        limit = max(COMPACT_SIZE_MIN, COMPACT_FACTOR * self._compacted_size)
        whole = self._whole or self._journal.size > limit
        wrote = partial(self._wrote, whole)
        if whole:
            self._whole = False
            records = self._snapshot()
            self._journal.take()
            self._disk.submit(partial(self._journal.compact, records), wrote)
            return
        data = self._journal.take()
        work = partial(self._journal.write, data)
        if self._here is not None and self._journal.is_quick(data):
            done, error = self._here.run(work)
            if done:
                wrote(None, error)
                return
        self._disk.submit(work, wrote)

    def _wrote(self, whole: bool, _: None, error: Exception | None) -> None:
        self._health(error)
        self._dirty = True
        if error is not None:
            self._whole = True
        elif whole:
            self._compacted_size = self._journal.size
        self._written.settle(error)
        if self._ticket is not None and self._written.done:
            self._write()

    def _sync_after(self, ticket: Ticket, written: Ticket) -> None:
        if written.error is not None:
            ticket.settle(written.error)
            return
        self._unsynced.append(ticket)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        tickets, self._unsynced = self._unsynced, []
        if not self._dirty:
            for ticket in tickets:
                ticket.settle()
            return
        self._syncing = True
        self._dirty = False
        self._lane.submit(self._journal.sync, partial(self._synced, tickets))

    def _synced(self, tickets: list[Ticket], _: None, error: Exception | None) -> None:
        self._syncing = False
        self._health(error)
        if error is not None:
            self._whole = self._dirty = True
        for ticket in tickets:
            ticket.settle(error)
        if self._unsynced and not self._syncing:
            self._sync()
