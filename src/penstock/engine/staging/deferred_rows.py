"""Writes the deferred rows of a publication to slot files (R19).

A row is identified by its stamp, which the publication's intent has reserved.  After a crash or an
error, the slot files are searched for the stamps, and only missing rows are written.

Rule 1: a slot file that got rows is pinned until the publication is complete, so that rows that
        have fired are still found.
Rule 2: a row whose append failed is not in its file, except if the failed write could not be
        truncated.  Then the rows are stuck until the next start, which reads what is on the disk
        and treats complete records as accepted.
Rule 3: the loop writes a bounded number of rows in one turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import partial

from penstock.core.ticket import Ticket, after
from penstock.engine.deferred.slot import SlotFile
from penstock.engine.deferred.writer import Rows
from penstock.engine.shared import Shared
from penstock.engine.topic import Topic
from penstock.errors import StagingError, UncutError

# Rows written in one turn, and runs of rows for the same file: half a millisecond.
ROW_COUNT_MAX = 1024
RUN_COUNT_MAX = 128
# Interval to poll a sync that another caller has started.
SYNC_POLL_NS = 2_000_000


class StagedRows:
    """The rows of one publication in slot files."""

    def __init__(self, shared: Shared) -> None:
        self._turns = shared.context.turns
        self._health = shared.health
        self._deferred = shared.deferred
        self._sizes: dict[SlotFile, int] = {}  # pinned files, and how much of each must be synced
        self._firsts: list[int] = []  # ascending
        self._counts: list[int] = []
        self._present: set[int] = set()
        self._searched: list[SlotFile] = []
        self._distrusted: set[int] = set()
        self.stuck: Exception | None = None

    # Searching

    def expect(self, stamps: Mapping[int, int]) -> None:
        """Have ``find`` search for these stamps, given as first stamp and count."""
        self._firsts = sorted(stamps)
        self._counts = [stamps[first] for first in self._firsts]
        self._present = set()
        self._searched = []
        if stamps:
            self._searched = [file for file in self._deferred.table.files.values() if file.begun]
            for file in self._searched:
                self._pin(file)

    def find(self) -> None:
        """Find which rows exist, and sync them.  Blocking."""
        store = self._deferred.table.store
        for file in self._searched:
            if not store.files.exists(store.path(file.name.slot_file)):
                continue
            found = set()
            for records in store.scan_all(file.name):
                found |= {row[5] for row in records.rows() if self._is_expected(row[5])}
            if found and file.found:
                self._sync_found(file)
            self._present |= found

    def _is_expected(self, stamp: int) -> bool:
        place = bisect_right(self._firsts, stamp) - 1
        return place >= 0 and stamp < self._firsts[place] + self._counts[place]

    def _sync_found(self, file: SlotFile) -> None:
        # A file of an earlier process gets no appends, and no other syncs.
        store = self._deferred.table.store
        if file.number in self._distrusted:
            store.rewrite(file.name)
            return
        try:
            store.sync(file.name, fresh=True)
        except OSError:
            self._distrusted.add(file.number)
            raise

    # Writing

    def put(self, topic: Topic, body: bytes, time_ns: int, stamp: int) -> Ticket:
        """Defer the missing rows of a part; the ticket is settled when they are in their files."""
        ticket = Ticket()
        self._put_some(topic, Rows(body, stamp), time_ns, ticket)
        return ticket

    def _put_some(self, topic: Topic, rows: Rows, time_ns: int, whole: Ticket) -> None:
        refusal = self._health.refusal()
        if refusal is not None or self.stuck is not None:
            whole.settle(refusal or self.stuck)
            return
        tickets: dict[SlotFile, Ticket] = {}
        end = rows.stamp + ROW_COUNT_MAX
        name, writer = topic.name.encode(), self._deferred.writer
        for _ in range(RUN_COUNT_MAX):
            self._skip_present(rows, end)
            if not rows.left or rows.stamp >= end:
                break
            count_max = self._absent_count(rows.stamp, end)
            file, ticket = writer.defer_rows(name, topic.instance, rows, count_max, time_ns)
            tickets[file] = ticket
            self._pin(file)
        put_more = partial(self._put_on, topic, rows, time_ns, whole, list(tickets))
        after(*tickets.values()).add(put_more)

    def _skip_present(self, rows: Rows, end: int) -> None:
        while self._present and rows.left and rows.stamp in self._present and rows.stamp < end:
            rows.skip()

    def _absent_count(self, stamp: int, end: int) -> int:
        """How many rows from ``stamp`` on are missing in a row, up to ``end``."""
        if not self._present:
            return end - stamp
        return next(
            i for i in range(end - stamp + 1) if stamp + i in self._present or stamp + i == end
        )

    def _put_on(
        self,
        topic: Topic,
        rows: Rows,
        time_ns: int,
        whole: Ticket,
        files: list[SlotFile],
        ticket: Ticket,
    ) -> None:
        if isinstance(ticket.error, UncutError):
            self.stuck = StagingError("STAGING_STUCK", f"until nsqd is restarted: {ticket.error}")
        for file in files:
            self._sizes[file] = file.size
        if ticket.error is not None or not rows.left:
            whole.settle(ticket.error)
        else:
            self._turns.soon(partial(self._put_some, topic, rows, time_ns, whole))

    def _pin(self, file: SlotFile) -> None:
        if file not in self._sizes:
            self._sizes[file] = 0
            file.pin_count += 1

    # Finishing

    def sync(self) -> Ticket:
        """A ticket settled when all rows are synced."""
        ticket = Ticket()
        self._sync(ticket)
        return ticket

    def _sync(self, ticket: Ticket) -> None:
        if self._is_synced():
            ticket.settle()
        else:
            self._deferred.writer.syncing.sync(partial(self._synced, ticket))

    def _is_synced(self) -> bool:
        return all(file.synced_size >= size for file, size in self._sizes.items())

    def _synced(self, ticket: Ticket, error: Exception | None) -> None:
        if self._is_synced():
            ticket.settle()
        elif error is not None:
            ticket.settle(error)
        else:
            # Another caller's sync of a file is in progress and may not cover our rows.
            self._turns.after(SYNC_POLL_NS, partial(self._sync, ticket))

    def release(self) -> None:
        """The publication is complete: unpin the files."""
        for file in self._sizes:
            self._deferred.unpin(file)
        self._sizes.clear()
        self._searched = []
        self._present = set()
