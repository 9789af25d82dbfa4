"""Keeps a topic's journal: buffers its records, writes them elsewhere, compacts it in time.

Rule 1: one write at a time, in order; what is added meanwhile goes with the next one.
Rule 2: after a failed write the file's end is unknown to us, so the next write is a whole
        snapshot.  Memory stays bounded while the disk is full: nothing piles up.
Rule 3: the file stays within a few times the size of a snapshot, which follows what is
        unfinished (R10).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.core.ticket import Ticket, settled
from penstock.engine.disk import Disk
from penstock.storage.journal import Journal

COMPACT_SIZE_MIN = 1 << 20
COMPACT_FACTOR = 4


class JournalKeeper:
    """The way of one topic's records into its journal."""

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        snapshot: Callable[[], list[bytes]],
        health: Callable[[BaseException | None], None],
    ) -> None:
        self._journal = journal
        self._disk = disk
        self._snapshot = snapshot
        self._health = health
        self._ticket: Ticket | None = None
        self._opened = False
        self._writing = False
        self._whole = False
        self._sync = False
        self._compacted_size = 0

    @property
    def idle(self) -> bool:
        return not self._writing and self._ticket is None

    @property
    def size(self) -> int:
        """Bytes of the journal's file."""
        return self._journal.size

    def add(self, record: bytes) -> None:
        self._journal.add(record)

    def rewrite(self) -> Ticket:
        """Write the journal anew from a snapshot."""
        self._whole = True
        return self.flush()

    def flush(self, *, sync: bool = False) -> Ticket:
        """A ticket for everything added so far; with ``sync`` a power cut does not take it."""
        self._sync = self._sync or sync
        if self._ticket is None:
            if not (self._journal.buffer_size or self._whole or self._sync):
                return settled()
            self._ticket = Ticket()
        ticket = self._ticket
        if self._opened and not self._writing:
            self._write()
        return ticket

    def open(self) -> None:
        """The journal's folder exists."""
        self._opened = True
        self.flush()

    def fail(self, error: Exception) -> None:
        """The journal's folder could not be made."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.settle(error)

    def _write(self) -> None:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        self._writing = True
        limit = max(COMPACT_SIZE_MIN, COMPACT_FACTOR * self._compacted_size)
        whole = self._whole or self._journal.size > limit
        if whole:
            self._whole = False
            records = self._snapshot()
            self._journal.take()
            work = partial(self._journal.compact, records)
        else:
            work = partial(self._journal.write, self._journal.take(), sync=self._sync)
        self._sync = False
        self._disk.submit(work, partial(self._written, ticket, whole))

    def _written(self, ticket: Ticket, whole: bool, _: None, error: BaseException | None) -> None:
        self._writing = False
        self._health(error)
        if error is not None:
            self._whole = True
            ticket.settle(error if isinstance(error, Exception) else OSError(str(error)))
        else:
            if whole:
                self._compacted_size = self._journal.size
            ticket.settle()
        if self._ticket is not None:
            self._write()
