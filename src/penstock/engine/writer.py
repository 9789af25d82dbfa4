"""Writes a topic's batches to its log, shows them to channels and answers their publishers.

    appender --seal--> batch --write--> (page cache) --commit--> show to channels, OK
                                                         |             ^
                                                         `--fdatasync--'
                                                         with --sync-every=1

Rule 1: a batch is shown, and its publishers are answered, only after its write; with
        --sync-every=1, only after its sync.
Rule 2: the loop does not wait (R9).  It writes into the page cache; after a slow write the next
        ones run on a thread for a while.  Rolling and syncing always do.
Rule 3: one write and one sync at a time; publishes that arrive meanwhile form the next batch, so
        with --sync-every=1 one sync serves all waiting producers (group commit).
Rule 4: a failed write leaves only unused indexes behind (R1); its publishers get the error, and
        the next batch is tried as usual (R8).
Rule 5: the first write and sync of a topic use a lane, so that a thousand new topics do not delay
        the syncs of the others.
Rule 6: a part of a staging is one batch (R19).  A large one is encoded and written on a thread;
        publishes that arrive meanwhile are written before the next part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from penstock.clock import Clock
from penstock.core.appender import Appender, Batch
from penstock.core.batches import ORIGINS, STAGED
from penstock.core.latency import Histogram
from penstock.core.parts import frames
from penstock.core.ticket import Ticket
from penstock.engine.deferred.queue import Due
from penstock.engine.disk import Disk
from penstock.engine.flushing import SLOW_FOR_NS, SLOW_NS, Flushing
from penstock.engine.health import refused_by
from penstock.storage.log_records import SyncToken
from penstock.storage.reserve import Reserve
from penstock.storage.topic_log import TopicLog


@dataclass(slots=True)
class Part:
    """Staged messages; ``body`` is like MPUB's, ``origin`` identifies the staging and the part."""

    body: bytes
    count: int
    origin: int
    publish_ns: int
    ticket: Ticket


class Waiting(NamedTuple):
    """Batches and tickets that wait for the next sync."""

    batches: list[Batch]
    tickets: list[Ticket]


class LogWriter(Flushing):
    """Writes one topic's batches to its log."""

    log: TopicLog
    _fired: deque[list[Due]]
    _parts: deque[Part]
    _lost: Waiting | None

    def __init__(
        self,
        log: TopicLog,
        appender: Appender,
        disk: Disk,
        clock: Clock,
        sync_every: int,
        visible: Callable[[Batch], None],
        unfired: Callable[[list[Due]], None],
        health: Callable[[Exception | None], None],
        unsealed: Callable[[Exception | None], None],
        reserve: Reserve,
        sync_times: Histogram,
        first_disk: Disk | None = None,
    ) -> None:
        """``first_disk``: for the first write and the first sync, which create and open files."""
        self.log = log
        self._appender = appender
        self._disk = disk
        self._first_disk = first_disk or disk
        self._clock = clock
        self._sync_every = sync_every
        self._visible = visible
        self._unfired = unfired
        self._health = health
        self._unsealed = unsealed
        self._reserve = reserve
        self._sync_times = sync_times
        self._fired = deque()
        self._parts = deque()
        self._exclusive = False
        self._waiting = Waiting([], [])
        self.synced_at: tuple[int, int] | None = None
        # Never decreases, even if the clock was set back since the last start (R4).
        self._append_ns = max((segment.append_ns_last for segment in log.segments()), default=0)
        # The first write opens a file, which may wait for the disk.
        self._slow_until_ns = clock.monotonic_ns() + SLOW_FOR_NS

    @property
    def idle(self) -> bool:
        return not (self._busy or self._syncing or self._pending)

    @property
    def _pending(self) -> bool:
        return bool(self._appender.count or self._fired or self._parts)

    def fire(self, dues: list[Due]) -> None:
        """Append deferred messages, all of one slot, that are due."""
        self._fired.append(dues)

    def stage(self, part: Part) -> None:
        """Append a staged part; the caller limits how many wait here."""
        self._parts.append(part)

    def roll_if_finished(self, low: int) -> bool:
        """Seal the active segment if all of it is finished, so that it can be removed."""
        if not self.log.needs_roll(low):
            return False
        if not self._busy and not self._syncing:
            self._roll()
        return True

    def _roll(self) -> None:
        self._busy = self._exclusive = True
        self._disk.submit(self.log.roll, self._rolled)

    def sync(self) -> Ticket:
        """A ticket that is settled when everything written so far is durable."""
        ticket = Ticket()
        self._waiting.tickets.append(ticket)
        self.start_sync()
        return ticket

    def start_sync(self) -> None:
        """Sync what is written; writes may continue meanwhile, a roll may not."""
        if self._syncing or self._exclusive or self._lost:
            return
        self._syncing = True
        self._sync_ns = self._clock.monotonic_ns()
        waiting, self._waiting = self._waiting, Waiting([], [])
        disk = self._disk if self.synced_at is not None else self._first_disk
        disk.submit(self.log.sync, partial(self._synced, waiting))

    def _take_fired(self, dues: list[Due]) -> Batch:
        for due in dues:
            self._appender.add(due.body, due.timestamp_ns)
        batch = self._appender.seal(self._append_ns)
        batch.payload += b"".join(due.ordinal.to_bytes(4, "big") for due in dues)
        batch.origin = dues[0].slot
        batch.flags = ORIGINS
        batch.dues = dues
        return batch

    def _take_part(self, part: Part) -> Batch:
        first = self._appender.take(part.count)
        # _put encodes the payload, on the thread that writes it.
        batch = Batch(b"", first, part.count, self._append_ns, part.publish_ns, part.origin, STAGED)
        batch.body_size = len(part.body) - 4 - 4 * part.count
        batch.ticket = part.ticket
        batch.part = part
        return batch

    def _write_elsewhere(self, batch: Batch, started_ns: int) -> None:
        disk = self._disk if self._opened else self._first_disk
        self._busy = True
        self._opened = True
        disk.submit(partial(self._put, batch), partial(self._written_elsewhere, batch, started_ns))

    def _put(self, batch: Batch) -> None:
        # On the loop or a disk thread: nothing else uses the batch until it is written.
        part: Part | None = batch.part
        if part is not None:
            batch.payload = frames(part.body, self.log.node_id, batch.first, part.publish_ns)
            part.body = b""
        self.log.write(batch)

    def _written_elsewhere(
        self, batch: Batch, started_ns: int, _: None, error: Exception | None
    ) -> None:
        self._busy = False
        if error is not None:
            self._fail(batch, error)
        else:
            now_ns = self._clock.monotonic_ns()
            if batch.part is None:  # a large part is slow on any disk
                slow = now_ns - started_ns > SLOW_NS
                self._slow_until_ns = now_ns + SLOW_FOR_NS if slow else 0
            self._written(batch, now_ns)
        self._go_on()

    def _recovered(self) -> None:
        self._health(None)

    def _wait_for_sync(self, batch: Batch) -> None:
        self._waiting.batches.append(batch)
        self.start_sync()

    def _refuse(self, batch: Batch) -> None:
        self._fail(batch, refused_by(self._reserve))

    def _fail(self, batch: Batch, error: Exception) -> None:
        self.log.abandon(batch.end)
        self._troubled = True
        self._health(error)
        if batch.dues is not None:
            self._unfired(batch.dues)
        batch.ticket.settle(error)

    def _rolled(self, token: SyncToken | None, error: Exception | None) -> None:
        self._busy = self._exclusive = False
        if token is None:
            # The segment could not be sealed.  Fail the next batch; the next publish retries.
            self._unsealed(error)
            if error is not None and self._pending:
                self._fail(self._next(), error)
        else:
            self._apply(token)
        self._go_on()

    def _apply(self, token: SyncToken) -> None:
        self.log.synced(token)
        if token.base:
            self.synced_at = (token.base, token.offset)

    def _go_on(self) -> None:
        if self._waiting.batches or self._waiting.tickets:
            self.start_sync()
        self.flush()

    def _synced(self, waiting: Waiting, token: SyncToken | None, error: Exception | None) -> None:
        self._syncing = False
        self._sync_times.add(self._clock.monotonic_ns() - self._sync_ns)
        if token is not None:
            self._apply(token)
            self._settle(waiting, None)
        else:
            # After a failed fdatasync the kernel may have dropped the pages (R8): first of all,
            # write all unsynced batches again, into a new segment.
            self._troubled = True
            self._health(error)
            self._lost = waiting
        self._go_on()

    def _rewrite(self) -> None:
        waiting, self._lost = self._lost, None
        assert waiting is not None
        self._busy = self._exclusive = True

        def rewritten(token: SyncToken | None, error: Exception | None) -> None:
            self._busy = self._exclusive = False
            if token is not None:
                self._apply(token)
                self.start_sync()  # truncates the old file, and lets segments be removed again
            self._health(error)
            self._settle(waiting, error)
            self._go_on()

        self._disk.submit(self.log.rewrite_unsynced, rewritten)

    def _settle(self, waiting: Waiting, error: Exception | None) -> None:
        for batch in waiting.batches:
            # Deferred and staged messages were accepted earlier, and are not appended again once
            # their origin is in the log, so they must be shown.  A slot's checkpoint and a
            # publication sync again before they rely on them (R16, R19).
            if error is None or batch.origin:
                self._visible(batch)
            else:
                batch.ticket.settle(error)
        for ticket in waiting.tickets:
            ticket.settle(error)
