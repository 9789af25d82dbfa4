# Writes a topic's batches to its log, shows them to channels and answers their publishers.
#
#     appender --seal--> batch --write--> (page cache) --commit--> show to channels, OK
#                                                          |             ^
#                                                          `--fdatasync--'
#                                                          with --sync-every=1
#
# Rule 1: a batch is shown, and its publishers are answered, only after its write; with
#         --sync-every=1, only after its sync.
# Rule 2: the loop does not wait (R9).  It writes into the page cache; after a slow write the next
#         ones run on a thread for a while.  Rolling and syncing always do, except that with
#         --sync-every=1 the loop syncs the only topic of a turn while syncs are quick.
# Rule 3: one write and one sync at a time; publishes that arrive meanwhile form the next batch, so
#         with --sync-every=1 one sync serves all waiting producers (group commit).
# Rule 4: a failed write leaves only unused indexes behind (R1); its publishers get the error, and
#         the next batch is tried as usual (R8).
# Rule 5: the first write and sync of a topic use a lane, so that a thousand new topics do not delay
#         the syncs of the others.
# Rule 6: a part of a staging is one batch (R19).  A large one is encoded and written on a thread;
#         publishes that arrive meanwhile are written before the next part.

import logging
from collections import deque
from functools import partial

from libc.stdint cimport int64_t, uint32_t

from penstock.core.appender cimport Appender, Batch
from penstock.core.ticket cimport Ticket
from penstock.storage.topic_log cimport TopicLog

from penstock.core.batches import ORIGINS, STAGED
from penstock.core.parts import frames
from penstock.engine.health import refused_by
from penstock.errors import PenstockError

log = logging.getLogger("penstock.engine.writer")

# A write to the page cache takes microseconds; above this the kernel is throttling writers.
SLOW_NS = 20_000_000
SLOW_FOR_NS = 5_000_000_000
# Minimum time between syncs by --sync-every (except --sync-every=1).  At a million messages a
# second the default of 2,500 would sync 400 times a second, for a third of all CPU; with it, a
# power cut there can lose 25 ms of messages instead of 2.5.  With 10 ms instead of 25, a message
# published 200 at a time costs 5 % more.
SYNC_SPACING_NS = 25_000_000

cdef int64_t slow_ns = SLOW_NS
cdef int64_t slow_for_ns = SLOW_FOR_NS
cdef int64_t sync_spacing_ns = SYNC_SPACING_NS

cdef enum:
    # Unsynced bytes above which clients that flood are not read until the disk has caught up (R29),
    # and above which further batches wait for a sync.
    STRAIN_SIZE = 16 << 20
    RELIEF_SIZE = 8 << 20
    DIRTY_SIZE_MAX = 64 << 20
    # A full segment with more unsynced bytes is synced while writes continue, and sealed then,
    # unless it has grown too much (LogWriter.overgrown).
    SEAL_SIZE_MAX = 1 << 20
    # Larger batches get no zeros ahead: their syncs take the time of their bytes.
    ZEROS_BATCH_SIZE_MAX = 32 << 10
    # Parts of stagings up to this size are written by the loop: a tenth of a millisecond.
    PART_SIZE_INLINE = 128 << 10


cdef class Part:
    """Staged messages; ``body`` is like MPUB's, ``origin`` identifies the staging and the part."""

    def __init__(self, bytes body not None, int64_t count, int64_t origin, int64_t publish_ns,
                 Ticket ticket not None):
        self.body = body
        self.count = count
        self.origin = origin
        self.publish_ns = publish_ns
        self.ticket = ticket


cdef class Arrival:
    """Messages that are moved here from a channel (R25), as one batch.

    ``origin``, ``flags`` and ``ordinals`` say where they come from (storage/moved.py).
    """

    def __init__(self, list messages not None, int64_t origin, uint32_t flags,
                 bytes ordinals not None, Ticket ticket not None):
        self.messages = messages
        self.origin = origin
        self.flags = flags
        self.ordinals = ordinals
        self.ticket = ticket
        self.first = self.end = -1


cdef class Waiting:
    """Batches and tickets that wait for the next sync."""

    def __cinit__(self):
        self.batches = []
        self.tickets = []


cdef class TopicWriter:
    """Writes one topic's batches to its log."""

    def __init__(self, topic):
        """For ``topic``, which is notified of failures and of shown deferred messages."""
        shared = topic.shared
        context = shared.context
        self._topic = topic
        self.name = topic.name
        self.log = topic.log
        self.appender = Appender(
            topic.name, self.log.node_id, self.log.end, partial(shared.turn.flush_later, self))
        self._feed = topic.feed
        self._inventory = topic.inventory
        self._progressed = shared.rounds.progressed
        self._unsynced = shared.rounds.unsynced
        self._used = shared.rounds.used
        self._awaited = shared.awaited
        self._arrived = shared.arrived
        self._unfired = shared.turn.unfired
        self._disk = context.disk
        self._zeros_disk = shared.zeros_disk
        self._first_disk = shared.changes_disk
        self._clock = context.clock
        self._sync_every = context.options.sync_every
        self._reserve = shared.health.reserve
        self._sync_times = shared.sync_times
        self._fired = deque()
        self._parts = deque()
        self._waiting = Waiting()
        # Never decreases, even if the clock was set back since the last start (R4).
        self._append_ns = max(
            [segment.append_ns_last for segment in self.log.files], default=0)
        # The first write opens a file, which may wait for the disk.
        self._slow_until_ns = self._clock.monotonic_ns() + slow_for_ns

    @property
    def idle(self):
        return not (self._busy or self._syncing or self.pending())

    cdef bint pending(self) except -1:
        return self.appender.count or self._fired or self._parts

    def open(self):
        """The topic's folder exists: batches may be written."""
        self._open = True
        self.flush()

    def close(self):
        """The topic is gone: nobody waits for its disk any more."""
        self.appender.strain(False)

    def fire(self, list dues not None):
        """Append deferred messages, all of one slot, that are due."""
        self._fired.append(dues)

    cdef int64_t fired_count(self) except -1:
        # Messages passed to fire() that are not in a batch yet.
        return sum([len(dues) for dues in self._fired])

    def stage(self, Part part not None):
        """Append a staged part; the caller limits how many wait here."""
        self._parts.append(part)

    def receive(self, Arrival arrival not None):
        """Append messages that are moved here; the caller limits how many wait here."""
        self._parts.append(arrival)

    # ---- a batch

    cpdef flush(self, bint alone=False):
        """Write pending batches, as far as possible without waiting.

        ``alone``: no other topic has anything to write in this turn.
        """
        cdef TopicLog log = self.log
        while self._open and not self._busy and (self._lost is not None or self.pending()):
            if self._lost is not None:
                self._rewrite()
            elif not self._reserve.held:
                self._fail(self.take_next(), refused_by(self._reserve))
            elif log.full and log.needs_roll() and not self._seal_later():
                if self._syncing:
                    return
                self._roll()
            elif log.extent.unsynced_bytes() > DIRTY_SIZE_MAX:
                self.start_sync()
                return
            else:
                self.write(self.take_next(), alone)

    cdef bint _seal_later(self) except -1:
        # Sealing waits for the disk, and so do all publishers meanwhile: sync first.
        if self.log.extent.unsynced_bytes() <= SEAL_SIZE_MAX or self.log.overgrown():
            return False
        self.start_sync()
        return True

    cdef Batch take_next(self):
        # The next batch: publishes first, then fired deferrals slot by slot, then staged parts and
        # messages that are moved here.
        cdef int64_t wall_ns = self._clock.wall_ns()
        cdef Batch batch
        if wall_ns > self._append_ns:
            self._append_ns = wall_ns
        if self.appender.count:
            batch = self.appender.seal(self._append_ns)
        elif self._fired:
            batch = self._take_fired(self._fired.popleft())
        else:
            part = self._parts.popleft()
            batch = self._take_arrival(part) if type(part) is Arrival else self._take_part(part)
        self.unshown_count += batch.count
        self.unshown_size += batch.body_size
        return batch

    cdef int ended(self, Batch batch) except -1:
        # The batch was shown, or has failed.
        self.unshown_count -= batch.count
        self.unshown_size -= batch.body_size
        return 0

    def _take_fired(self, list dues):
        cdef Batch batch
        for due in dues:
            self.appender.add(due.body, due.timestamp_ns)
        batch = self.appender.seal(self._append_ns)
        batch.payload += b"".join([due.ordinal.to_bytes(4, "big") for due in dues])
        batch.origin = dues[0].slot
        batch.flags = ORIGINS
        batch.dues = dues
        return batch

    def _take_arrival(self, Arrival arrival):
        cdef Batch batch
        cdef bytes body
        cdef int64_t timestamp_ns
        for body, timestamp_ns in arrival.messages:
            self.appender.append(body, len(body), timestamp_ns)
        arrival.messages.clear()
        batch = self.appender.seal(self._append_ns)
        batch.payload += arrival.ordinals
        batch.origin = arrival.origin
        batch.flags = arrival.flags
        batch.ticket = arrival.ticket
        arrival.first, arrival.end = batch.first, batch.first + batch.count
        return batch

    def _take_part(self, Part part):
        first = self.appender.take(part.count)
        # _put encodes the payload, on the thread that writes it.
        cdef Batch batch = Batch(
            b"", first, part.count, self._append_ns, part.publish_ns, part.origin, STAGED)
        batch.body_size = len(part.body) - 4 - 4 * part.count
        batch.ticket = part.ticket
        batch.part = part
        return batch

    cdef int write(self, Batch batch, bint alone) except -1:
        cdef int64_t started_ns = self._clock.monotonic_ns()
        cdef int64_t now_ns
        cdef Part part = batch.part
        if (started_ns < self._slow_until_ns or not self._written_once
                or (part is not None and len(part.body) > PART_SIZE_INLINE)):
            self._write_elsewhere(batch, started_ns)
            return 0
        try:
            if part is None:
                self.log.write(batch)
            else:
                self._put(batch)
        except (OSError, PenstockError) as error:
            self._fail(batch, error)
            return 0
        now_ns = self._clock.monotonic_ns()
        if now_ns - started_ns > slow_ns:
            self._slow_until_ns = now_ns + slow_for_ns
        self.written(batch, now_ns, alone)
        return 0

    def _write_elsewhere(self, Batch batch, int64_t started_ns):
        disk = self._disk if self._written_once else self._first_disk
        written = partial(self._written_elsewhere, batch, started_ns)
        self._busy = True
        self._written_once = True
        self._writing = batch.part is None and self.log.start_write(batch, written)
        if not self._writing:
            disk.submit(partial(self._put, batch), written)

    def _put(self, Batch batch):
        # On the loop or a disk thread: nothing else uses the batch until it is written.
        cdef Part part = batch.part
        if part is not None:
            batch.payload = frames(part.body, self.log.node_id, batch.first, part.publish_ns)
            part.body = b""
        self.log.write(batch)

    def _written_elsewhere(self, Batch batch, int64_t started_ns, _, error):
        cdef int64_t now_ns
        self._busy = self._writing = False
        if error is not None:
            self._fail(batch, error)
        else:
            now_ns = self._clock.monotonic_ns()
            if batch.part is None:  # a large part is slow on any disk
                self._slow_until_ns = now_ns + slow_for_ns if now_ns - started_ns > slow_ns else 0
            self.written(batch, now_ns, False)
        self._resume()

    cdef int written(self, Batch batch, int64_t now_ns, bint alone) except -1:
        # The batch is in the file: show and answer it, or sync it first.
        self.log.commit(batch)
        if self._troubled:
            self._troubled = False
            self._topic.record_write(None)
        if self._sync_every == 1:
            self._waiting.batches.append(batch)
            if not alone or not self._sync_here():
                self.start_sync()
            return self._prepare(batch)
        self.show(batch)
        if self.log.extent.unsynced_bytes() > STRAIN_SIZE and not self.appender.strained:
            self.appender.strain(True)
            self.start_sync()
        if (now_ns - self._sync_ns >= sync_spacing_ns
                and self.log.extent.unsynced_messages() >= self._sync_every):
            self.start_sync()
        return 0

    cdef int _prepare(self, Batch batch) except -1:
        # With --sync-every=1: have zeros written ahead of the end of the log, for quicker syncs.
        if (not self._preparing and len(batch.payload) <= ZEROS_BATCH_SIZE_MAX
                and self.log.wants_zeros() and self._reserve.held):
            self._preparing = True
            self._zeros_disk.submit(self.log.write_zeros, self._prepared)
        return 0

    def _prepared(self, _, error):
        # After an error the log is appended to as without zeros, until its next segment.
        self._preparing = False
        if error is not None:
            log.debug("topic=%s: no zeros ahead of the end: %s", self.name, error)

    def cut_zeros(self):
        """Cut off the zeros ahead of the end; a ticket."""
        cdef Ticket ticket = Ticket()
        # If that fails, the next start cuts them off.
        self._disk.submit(self.log.cut_zeros, lambda _, error: ticket.settle())
        return ticket

    cdef int show(self, Batch batch) except -1:
        # Show the batch to the channels, mark the topic for the rounds, answer the publishers.
        self.ended(batch)
        self._feed.show(batch, self.log.node_id)
        if batch.dues is not None:
            self._topic.deferred_shown(batch)
        if self.appender.dropping and not self.appender.below_limits():
            self._topic.bound.overflow()
        self._unsynced.add(self._topic)
        self._used.add(self._topic)
        if self.log.files is not self._inventory.seen:
            self._progressed.add(self._topic)
        if self._awaited and self.name in self._awaited:
            self._arrived(self.name)
        batch.ticket.settle()
        return 0

    def _fail(self, Batch batch, error):
        self.ended(batch)
        self.log.abandon(batch.first + batch.count)
        self._troubled = True
        self._topic.record_write(error)
        if batch.dues is not None:
            self._unfired(batch.dues)
        batch.ticket.settle(error)

    # ---- rolling

    def roll_if_finished(self, int64_t low):
        """Seal the active segment if all of it is finished, so that it can be removed."""
        if not self.log.needs_roll(low):
            return False
        if not self._busy and not self._syncing:
            self._roll()
        return True

    def roll_soon(self):
        """Seal the active segment, whatever its size; if a write is under way, with the next one.

        Returns a ticket that is settled when a thread has done it.
        """
        cdef Ticket ticket = Ticket()
        self.log.want_roll()
        if self._busy or self._syncing or not self._open or not self.log.needs_roll():
            ticket.settle()
        else:
            self._roll_ticket = ticket
            self._roll()
        return ticket

    def _roll(self):
        self._busy = self._exclusive = True
        # What floods in meanwhile would be one large batch.
        self.appender.strain(True)
        self._disk.submit(self.log.roll, self._rolled)

    def _rolled(self, token, error):
        self._busy = self._exclusive = False
        if token is None:
            # The segment could not be sealed.  Fail the next batch; the next publish retries.
            self._topic.record_seal(error)
            if error is not None and self.pending():
                self._fail(self.take_next(), error)
        else:
            self._apply(token)
        if self._roll_ticket is not None:
            ticket, self._roll_ticket = self._roll_ticket, None
            ticket.settle(error)
        self._resume()
        self._relieve(error)

    cdef int _relieve(self, error) except -1:
        # Clients that flood are read again once the disk has caught up.
        if not self.appender.strained or self._exclusive:
            return 0
        if self.log.extent.unsynced_bytes() <= RELIEF_SIZE or self._topic.closed:
            return self.appender.strain(False)
        if error is None:
            self.start_sync()
        else:
            self._unsynced.add(self._topic)     # the next round tries again
        return 0

    def _apply(self, token):
        self.log.synced(token)
        if token.base:
            self.synced_at = (token.base, token.offset)

    def _resume(self):
        if self._waiting.batches or self._waiting.tickets:
            self.start_sync()
        self.flush()

    # ---- syncing

    def sync(self):
        """A ticket that is settled when everything written so far is durable."""
        cdef Ticket ticket = Ticket()
        self._waiting.tickets.append(ticket)
        self.start_sync()
        return ticket

    cpdef start_sync(self):
        """Sync what is written; writes may continue meanwhile, a roll may not."""
        cdef Waiting waiting = self._waiting
        if self._syncing or self._exclusive or self._writing or self._lost is not None:
            return
        self._syncing = True
        self._sync_ns = self._clock.monotonic_ns()
        self._waiting = Waiting()
        synced = partial(self._synced, waiting)
        if not self._busy and self.log.start_sync(synced):
            return
        disk = self._disk if self.synced_at is not None else self._first_disk
        disk.submit(self.log.sync, synced)

    cdef bint _sync_here(self) except -1:
        # Sync on the loop, if that is quick; the caller flushes on, which also mends a failed one.
        cdef Waiting waiting = self._waiting
        token = failure = None
        if self._syncing or self._busy or self._exclusive or self._lost is not None:
            return False
        self._sync_ns = self._clock.monotonic_ns()
        try:
            token = self.log.sync_here()
        except OSError as error:
            failure = error
        if token is None and failure is None:
            return False
        self._waiting = Waiting()
        self._end_sync(waiting, token, failure)
        return True

    def _synced(self, Waiting waiting, token, error):
        self._syncing = False
        self._end_sync(waiting, token, error)
        self._resume()
        self._relieve(error)

    cdef int _end_sync(self, Waiting waiting, token, error) except -1:
        self._sync_times.put(self._clock.monotonic_ns() - self._sync_ns)
        if token is not None:
            self._apply(token)
            self._settle(waiting, None)
        else:
            # After a failed fdatasync the kernel may have dropped the pages (R8): first of all,
            # write all unsynced batches again, into a new segment.
            self._troubled = True
            self._topic.record_write(error)
            self._lost = waiting
        return 0

    def _rewrite(self):
        cdef Waiting waiting = self._lost
        self._lost = None
        self._busy = self._exclusive = True
        self._disk.submit(self.log.rewrite_unsynced, partial(self._rewritten, waiting))

    def _rewritten(self, Waiting waiting, token, error):
        self._busy = self._exclusive = False
        if token is not None:
            self._apply(token)
            self.start_sync()  # truncates the old file, and lets segments be removed again
        elif self.pending() and (
                self.log.full or self.log.extent.unsynced_bytes() > DIRTY_SIZE_MAX):
            self._fail(self.take_next(), error)  # it cannot be written before there was a sync
        self._topic.record_write(error)
        self._settle(waiting, error)
        self._resume()
        self._relieve(error)

    def _settle(self, Waiting waiting, error):
        cdef Batch batch
        for batch in waiting.batches:
            # Deferred and staged messages were accepted earlier, and are not appended again once
            # their origin is in the log, so they must be shown.  A slot's checkpoint and a
            # publication sync again before they rely on them (R16, R19).
            if error is None or batch.origin:
                self.show(batch)
            else:
                self.ended(batch)
                batch.ticket.settle(error)
        for ticket in waiting.tickets:
            ticket.settle(error)
