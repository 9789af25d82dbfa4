"""A topic: one log, and the channels that read it.

``released`` (R2) is how far channels may read.  It follows the log's end, except while the topic
is paused, has no channels, or is new and waits for nsqlookupd to list its channels.  New channels
start at it.

    log     |---------------------------|=================|
            first                    released            end
                 channels read here        the topic's own depth
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.core.appender import Batch
from penstock.core.block import Block
from penstock.core.deadlines import NEVER_NS
from penstock.core.ticket import Ticket, after, settled
from penstock.core.window import Window
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.inventory import Inventory
from penstock.engine.catalog.journal import JournalKeeper
from penstock.engine.catalog.listing import Listing
from penstock.engine.channel import Channel
from penstock.engine.deferred.queue import Due
from penstock.engine.disk import failed, report
from penstock.engine.ephemeral import EphemeralChannel
from penstock.engine.shared import Shared, random_number
from penstock.engine.writer import TopicWriter
from penstock.errors import StorageError
from penstock.storage import journal as records
from penstock.storage.damage import DamageKind
from penstock.storage.journal import Journal
from penstock.storage.log_reader import Damage
from penstock.storage.log_records import SegmentRecord
from penstock.storage.relocation import Relocation
from penstock.storage.topic_log import TopicLog
from penstock.wire.names import is_ephemeral

# A sealed segment with fewer unfinished messages than both of these is removed, after they are
# copied to a side file (R5).
STRAGGLER_COUNT_MAX = 10_000
STRAGGLER_SHARE_MAX = 0.1
# The search walks all unfinished messages: it runs rarely, and not if there are too many.
STRAGGLER_INTERVAL_NS = 5_000_000_000
UNFINISHED_COUNT_MAX = 200_000


class Move(Protocol):
    """Messages that are moved to a topic; see moves/move.py."""

    tried: Ticket


class Topic(BaseTopic):
    """A durable topic."""

    ephemeral = False

    def __init__(
        self, shared: Shared, name: str, log: TopicLog, journal: Journal, instance: int
    ) -> None:
        super().__init__(shared, name, instance, log.end)
        context = shared.context
        self._rounds = shared.rounds
        self.log = log
        self.deletion: Ticket | None = None  # settled when it is gone, or could not be deleted
        self.listing = Listing(self, shared.registry)
        self.inventory = Inventory(log)
        self._channel_id = 0
        self._retiring = False
        self._straggler_ns = 0
        self._relocation_failed = False
        self._synced_journaled: tuple[int, int] | None = None
        self.poll_sync_ns = 0  # when a long poll last had the log synced
        # At and above it no message was ever removed; journaled before a removal.
        self.whole_from = 0
        self._removed_end = 0
        self._removed_journaled = 0
        self._moves: dict[Move, int] = {}  # on their way here, by the index they began at
        self._moves_settled_end = 0
        self._journal_source = f"topic={name}: journal"
        log.on_damage = partial(shared.rounds.damaged.append, self)
        self.writer = TopicWriter(self)
        self.appender = self.writer.appender
        self.keeper = JournalKeeper(
            journal, context.disk, self._snapshot, self._record_journal, shared.changes_disk
        )

    # ---- publishing

    def begin(self) -> tuple[Journal, bytes]:
        """The journal and its first records, for the creation of a new topic's folder."""
        self.keeper.add(self._topic_record())
        return self.keeper.begin()

    def begun(self, error: Exception | None) -> Ticket:
        """The folder exists; the ticket is settled when it and the journal are durable."""
        self.keeper.begun(error)
        self.writer.open()
        return self.listing.save(self.keeper.flush(sync=True)) if error is None else failed(error)

    def open(self) -> None:
        """The folder exists: publishes may be written."""
        self.keeper.open()
        self.writer.open()

    def flush(self) -> None:
        self.writer.flush()

    def _defer(self, body: bytes, now_ns: int, due_ns: int, stamp: int) -> Ticket:
        writer = self.shared.deferred.writer
        accepted = writer.defer(self.name, self.instance, body, now_ns, due_ns, stamp)
        # The topic must exist when the message is due, so wait for its creation too.
        return accepted if self.created.done else after(accepted, self.created)

    def fire(self, dues: list[Due]) -> None:
        self.writer.fire(dues)
        self.flush()

    @property
    def leaving(self) -> bool:
        """Deleted, or about to be: missing files are then no error."""
        return self.closed or self.deletion is not None

    def undelete(self) -> None:
        """The deletion failed: the topic stays in use."""
        self.deletion = None
        self.log.forget_damage()  # of files that were renamed for a moment
        self.appender.closed = self.shared.context.supervisor.exiting
        if self.awaiting_channels and not self.shared.hooks.query_channels(self):
            self.know_channels(())
        self.journal_later()

    def record_write(self, error: Exception | None) -> None:
        """A write or sync of the log failed, or works again."""
        if not self.leaving:
            self.shared.health.record(error)

    def record_seal(self, error: Exception | None) -> None:
        """The active segment could not be sealed."""
        if error is not None and not self.leaving:
            self.shared.health.record(error)
            self.shared.health.needs_room(error)  # sealing lets segments be removed

    def _record_journal(self, error: Exception | None) -> None:
        if error is None or self.leaving:
            self.shared.health.working(self._journal_source)
        else:
            self.shared.health.record_journal(self._journal_source, error)
            self._rounds.progressed.add(self)  # write it again

    def deferred_shown(self, batch: Batch) -> None:
        """A batch of deferred messages was shown to the channels."""
        self.skip_void(batch.dues, batch.first)
        self.shared.deferred.fired(batch.dues)

    # ---- reading

    def block_at(self, index: int, size_max: int, *, wait: bool) -> Block | None:
        if not wait:
            block = self.feed.tail.find(index)
            if block is not None:
                return block
        return self.log.read(index, size_max, wait)

    def frame(self, index: int, wait: bool) -> bytes | None:
        return self.log.frame(index, wait)

    # ---- channels

    def create_channel(self, name: str, *, named: bool = False) -> tuple[Channel, Ticket]:
        channel = self.channels.get(name)
        if channel is not None:
            if channel.named and not named:
                return channel, self._use(channel)
            if channel.created.error is not None:
                channel.created = self.save()  # the disk may have recovered since
            return channel, channel.created
        channel = self._new_channel(name, named)
        return channel, self.add_channel(channel)

    def create_named(self, names: list[str]) -> Ticket:
        """Create channels that an nsqlookupd listed, with one save for all."""
        made = [self._new_channel(name, True) for name in names if name not in self.channels]
        for channel in made:
            self._take_channel(channel)
        ticket = self.save()
        for channel in made:
            channel.created = ticket
        return ticket

    def _new_channel(self, name: str, named: bool) -> Channel:
        if is_ephemeral(name):
            return EphemeralChannel(self, name)
        window = Window(self.released, seed=random_number())
        channel = Channel(self, name, window, id=self.next_channel_id())
        channel.named = named
        return channel

    def _use(self, channel: Channel) -> Ticket:
        """A channel listed by an nsqlookupd is used: from now on it is a plain one."""
        channel.named = False
        made = channel.created.done and channel.created.error is None
        saved, channel.created = self.save_channel(channel), Ticket()
        # A failing disk must not keep consumers from a channel that exists: the next write is a
        # full snapshot of the journal.
        saved.add(lambda done: channel.created.settle(None if made else done.error))
        return channel.created

    @property
    def listable(self) -> bool:
        return self.listing.journaled

    @property
    def listed_paused(self) -> bool:
        return self.listing.paused

    def lists(self, channel: str) -> bool:
        listed = self.channels[channel]
        return not listed.ephemeral and self.listing.holds(listed)

    def next_channel_id(self) -> int:
        """The journal identifies channels by id; ids are never reused."""
        self._channel_id += 1
        return self._channel_id

    def add_channel(self, channel: Channel) -> Ticket:
        """Add a new channel; it starts at its window's low-water mark."""
        self._take_channel(channel)
        if not channel.ephemeral:
            channel.created = self.save()
        return channel.created

    def add_first_channel(self, channel: Channel) -> None:
        """Add a channel that a new topic is created with: it is in the topic's first records."""
        self._take_channel(channel)
        channel.created = self.created

    def _take_channel(self, channel: Channel) -> None:
        start = channel.window.low
        self.channels[channel.name] = channel
        self.release()
        channel.announce(True)
        if not channel.ephemeral:
            self.keeper.add(self._channel_record(channel, start))
            self.listing.made(channel)

    def replace_channel(self, old: Channel, new: Channel) -> Ticket:
        """Replace a channel that has no consumers by one of another kind."""
        old.close()
        self.channels[new.name] = new
        # In this order: of two channels with the same name the later record counts.
        self.keeper.add(self._channel_record(new, new.window.low))
        self.keeper.add(records.encode_gone(old.id))
        self.shared.registry.note_channel(self, new.name)
        new.created = self.save()
        return new.created

    def recover(self, whole_from: int, channel_id_max: int, moves_settled_end: int) -> None:
        """Restore what the journal has besides the channels."""
        self._moves_settled_end = moves_settled_end
        self.whole_from = self._removed_end = self._removed_journaled = whole_from
        self._channel_id = channel_id_max

    def recover_files(self, files: dict[int, records.FileState]) -> None:
        """Restore the list of files from the journal; journal again what differs on disk."""
        self.inventory.recover(files)
        if self._journal_files():
            self.journal_later()

    def add_recovered(self, channel: Channel) -> None:
        self.channels[channel.name] = channel

    def delete_channel(self, name: str) -> Ticket:
        channel = self.channels.pop(name)
        channel.close()
        channel.announce(False)
        self.shared.registry.note_channel(self, channel.name)
        # After the topic's own record: if a power cut tears the journal between them, a topic
        # without channels must not keep an old `released` and hold the last channel's messages.
        gone = () if channel.ephemeral else (records.encode_gone(channel.id),)
        if gone:
            made = self._channel_record(channel, channel.window.low)
            self.listing.gone(channel.id, made + gone[0])
        return self.save(*gone)

    # ---- operations

    def pause(self, paused: bool) -> Ticket:
        self.feed.pause(paused)
        self.release()
        return self.save()

    def empty(self) -> Ticket:
        start, end = self.released, self.end
        if start < end:
            for channel in self.channels.values():
                channel.skip_range(start, end)
        self.feed.release()
        self.void_stamp = self.shared.identity.stamp()
        self.shared.deferred.purge(self.instance, self.void_stamp)
        self._add_progress()
        return self.save()

    # ---- moves from other topics (R25)

    def open_move(self, move: Move, first: int = 0) -> None:
        """Messages will be moved here, or were from ``first`` on: keep them, for a start."""
        self._moves[move] = self.log.holds[move] = first or self.log.end

    def end_move(self, move: Move) -> None:
        """The messages are durably finished at their source, or were not appended."""
        self._moves.pop(move)
        self.log.holds.pop(move)
        settled_end = min(self._moves.values(), default=self.end)
        if settled_end > self._moves_settled_end and not self.closed:
            self._moves_settled_end = settled_end
            self.keeper.add(records.encode_moved(settled_end))
            self.journal_later()

    def moves_tried(self) -> Ticket:
        """A ticket settled when no move here is open, except those whose source cannot be written.

        A start would deliver again what was moved to a topic that is gone by then.
        """
        return after(*[move.tried for move in self._moves])

    # ---- journal

    def journal_later(self) -> None:
        self._rounds.progressed.add(self)

    def rename_reader(self, channel: Channel) -> None:
        """Journal the new display name of a channel's reader, together with progress."""
        assert channel.reader is not None
        self.keeper.add(records.encode_reader(channel.id, channel.reader))
        self.journal_later()

    def save_channel(self, channel: Channel) -> Ticket:
        if channel.ephemeral:
            return settled()
        self.keeper.add(self._channel_record(channel, channel.window.low))
        self._add_channel_progress(channel)
        self.shared.registry.note_channel(self, channel.name)
        return self.save()

    def save(self, *then: bytes) -> Ticket:
        """Journal the topic's own state and write nsqd.dat; for what must be durable (R6).

        ``then``: records to journal after the topic's record.
        """
        for record in (self._topic_record(), *then):
            self.keeper.add(record)
        # The change may have freed segments; without traffic nothing else would check.
        self._rounds.used.add(self)
        self.shared.changed(self.name)
        synced = self.listing.needs_sync(self.log.first)
        listed = self.listing.save(self.keeper.flush(sync=synced))
        return after(self.keeper.flush(sync=True), listed)

    def sync_log(self) -> Ticket:
        return settled() if self.closed else self.writer.sync()

    def sync_progress(self) -> Ticket:
        """Journal what the channels finished, and sync it."""
        if self.closed:
            return settled()
        self._add_progress()
        return self.keeper.flush(sync=True)

    def sync_journal(self) -> Ticket:
        """Sync what was added to the journal."""
        return settled() if self.closed else self.keeper.flush(sync=True)

    def write_progress(self) -> Ticket:
        """Journal what the channels finished since the last call."""
        if self.closed:
            return settled()
        self._add_progress()
        return self.keeper.flush()

    def _add_progress(self) -> None:
        durable = False
        for channel in self.channels.values():
            durable = durable or not channel.ephemeral
            self._add_channel_progress(channel)
        if self.channels and not durable:
            # With only ephemeral channels, ``released`` is the only state to keep.
            self.keeper.add(self._topic_record())
        synced_at = self.writer.synced_at
        if synced_at is not None and synced_at != self._synced_journaled:
            self._synced_journaled = synced_at
            self.keeper.add(records.encode_synced(*synced_at))
        self._journal_files()

    def _journal_files(self) -> bool:
        """Journal files added to and removed from the log; whether there were any."""
        changes = self.inventory.changes()
        for record in changes:
            self.keeper.add(record)
        return bool(changes)

    def _add_channel_progress(self, channel: Channel) -> None:
        if channel.window.changed and not channel.ephemeral:
            low, runs, marks = channel.window.drain()
            self.keeper.add(records.encode_packed_progress(channel.id, low, runs, marks))

    def save_exit(self) -> list[Ticket]:
        """Journal the attempts of everything in flight (R11) and sync the log."""
        for channel in self.channels.values():
            channel.window.mark_all()
        self._add_progress()
        tickets = [self.keeper.flush(sync=True)]
        if damages := self.log.take_damage():
            tickets.append(self._keep_evidence(damages))
        if self.log.extent.unsynced_count or not self.writer.idle:
            tickets.append(self.writer.sync())
        return tickets

    def fail(self, error: Exception) -> None:
        """The folder could not be created: fail all waiting publishes."""
        if self.appender.count:
            self.appender.seal(0).ticket.settle(error)
        self.keeper.fail(error)

    def _topic_record(self) -> bytes:
        frozen = records.AWAITING if self.awaiting_channels else self.feed.frozen
        return records.encode_topic(self.released, frozen, self.paused, self.void_stamp)

    def _channel_record(self, channel: Channel, start: int) -> bytes:
        record = records.encode_channel(
            channel.id,
            start,
            channel.paused,
            channel.defer_stamp,
            channel.name,
            channel.pulled,
            channel.named,
            channel.partial,
        )
        if channel.reader is None:
            return record
        return record + records.encode_reader(channel.id, channel.reader)

    def _snapshot(self) -> list[bytes]:
        whole = [self._topic_record(), *self.listing.gone_records()]
        for channel in self.channels.values():
            if channel.ephemeral:
                continue
            channel.window.drain()
            whole.append(self._channel_record(channel, channel.window.low))
            whole.append(records.encode_packed_progress(channel.id, *channel.window.snapshot()))
        if self.writer.synced_at is not None:
            whole.append(records.encode_synced(*self.writer.synced_at))
        if self._removed_end:
            whole.append(records.encode_removed(self._removed_end))
        if self._moves_settled_end:
            whole.append(records.encode_moved(self._moves_settled_end))
        return whole + self.inventory.records()

    # ---- removing finished segments (R5)

    def low(self) -> int:
        """The low-water mark: no channel, nor the topic itself, needs a message below it."""
        low = self.released
        for channel in self.channels.values():
            if not channel.ephemeral:
                low = min(low, channel.window.low)
        return low

    def retire(self) -> bool:
        """Remove finished segments, and relocate the stragglers of old ones.

        Returns whether to check again later even if nothing happens on this topic.
        """
        if self._retiring or self.leaving:
            return not self.closed
        damages = self.log.take_damage()
        if damages:
            self._keep_evidence(damages)
            return True
        low = self.low()
        self.log.pinned_slots = self.shared.deferred.checkpoints.open_slots()
        rolling = self.writer.roll_if_finished(low)
        end = self.log.retire_end(low)
        if end > self._removed_journaled:
            self._journal_removed(end)
            return True
        paths = self.log.retire(low)
        if paths:
            self.whole_from = max(self.whole_from, end)
            self._unlink(paths)
            return True
        early = self._clock.monotonic_ns() < self._straggler_ns
        segment, stragglers = self._find_stragglers()
        if segment is None and self._relocation_failed and not early:
            self._relocation_failed = False  # what could not be moved is finished now
            self.shared.retries.worked(self._relocating)
        if segment is not None:
            if segment.end > self._removed_journaled:
                self._journal_removed(segment.end)
                return True
            self._retiring = True
            self.shared.context.disk.submit(
                partial(self.log.relocate, segment.base, stragglers), self._relocated
            )
        # A segment below the mark still exists because a deferred slot pins it.
        pinned = any(segment.sealed and segment.end <= low for segment in self.log.segments()[:1])
        return rolling or early or segment is not None or pinned

    def _journal_removed(self, end: int) -> None:
        """Journal first: a reader must not take a range with removed messages for whole (R18)."""
        self._retiring = True
        self._removed_end = max(self._removed_end, end)
        self.keeper.add(records.encode_removed(end))

        def journaled(ticket: Ticket) -> None:
            self._retiring = False
            if ticket.error is None:
                self._removed_journaled = max(self._removed_journaled, end)
                self.retire()

        self.keeper.flush(sync=True).add(journaled)

    def _keep_evidence(self, damages: list[Damage]) -> Ticket:
        """Reads found corrupt bytes: treat them as gaps and keep copies as evidence (R3).

        The ticket is settled when the copies are made.
        """
        for damage in damages:
            size, last = damage.end - damage.offset, damage.index_end - 1
            where = f"{damage.path} at {damage.offset}, {size} bytes"
            lost = f"messages {damage.index_start} to {last} are lost"
            self.shared.damage.report(
                DamageKind.SIDE if damage.path.endswith(".side") else DamageKind.LOG,
                f"corrupt: {where}; {lost}",
                topic=self.name,
                path=damage.path,
                messages=damage.message_count,
            )
        self._retiring = True  # the files stay until the copies are made

        ticket = Ticket()

        def keep() -> None:
            for damage in damages:
                self.log.keep_evidence(damage)

        def kept(_: None, error: Exception | None) -> None:
            self._retiring = False
            if error is not None:
                self._report(error)
            ticket.settle()

        self.shared.context.disk.submit(keep, kept)
        return ticket

    def _report(self, error: Exception | None) -> None:
        if not self.leaving:
            report(f"topic={self.name}", error)

    def _unlink(self, paths: list[str]) -> None:
        """Unlink files that the log dropped, after the journal no longer lists them."""
        self._retiring = True
        journaled = self.keeper.flush(sync=True) if self._journal_files() else settled()
        journaled.add(partial(self._unlink_journaled, paths))

    def _unlink_journaled(self, paths: list[str], journaled: Ticket) -> None:
        if journaled.error is not None:
            if not self.closed:
                self.shared.context.retry(partial(self._unlink, paths))
            return

        def unlink() -> None:
            for path in paths:
                self.shared.context.files.unlink(path)

        self.shared.context.disk.submit(unlink, self._unlinked)

    def _unlinked(self, _: None, error: Exception | None) -> None:
        self._retiring = False
        if error is not None:
            self._report(error)
        else:
            # There may be more: moving a stuck message frees everything after it.
            self.retire()

    def _relocated(self, moved: Relocation | None, error: Exception | None) -> None:
        self._retiring = False
        if self.closed:
            return
        if moved is None:
            self._not_relocated(error if error is not None else OSError("not written"))
            return
        old, side = moved.segment, moved.side
        paths = [side.path] if side is not None else []
        # Otherwise a pull channel was created meanwhile that starts in this segment.
        if old.visible.end <= self._passed():
            try:
                paths = self.log.relocated(moved)
            except StorageError as error:
                self._not_relocated(error)
            else:
                self._relocation_failed = False
                self.shared.retries.worked(self._relocating)
            if old.path in paths:
                self.whole_from = max(self.whole_from, old.visible.end)
        self._unlink(paths)

    @property
    def _relocating(self) -> str:
        return f"topic={self.name}: moving unfinished messages of an old segment"

    def _not_relocated(self, error: Exception) -> None:
        """Keep the segment and retry after a pause, as for a failed read."""
        self.shared.health.needs_room(error)
        self._relocation_failed = True
        self._straggler_ns = NEVER_NS

        def again() -> None:
            self._straggler_ns = 0
            if self.closed:
                self.shared.retries.worked(self._relocating)
            else:
                self._rounds.used.add(self)

        self.shared.retries.failed(self._relocating, error, again)

    def _passed(self) -> int:
        """The index below which all channels have delivered everything."""
        windows = [c.window for c in self.channels.values() if not c.ephemeral]
        return min([self.released, *(window.cursor for window in windows)])

    def _find_stragglers(self) -> tuple[SegmentRecord | None, list[int]]:
        """A segment that all cursors have passed with few unfinished messages; and those."""
        now_ns = self._clock.monotonic_ns()
        windows = [c.window for c in self.channels.values() if not c.ephemeral]
        unfinished_count = sum(window.unfinished_count for window in windows)
        if now_ns < self._straggler_ns or unfinished_count > UNFINISHED_COUNT_MAX:
            return None, []
        passed = self._passed()
        for segment in self.log.segments():
            if not segment.sealed or segment.end > passed:
                break
            if not self.log.removable(segment.base):
                continue
            limit = min(STRAGGLER_COUNT_MAX, int(segment.count * STRAGGLER_SHARE_MAX))
            alive = _alive(windows, segment.first, segment.end, limit)
            if alive is not None:
                # Messages lost to damage may still be in flight; they cannot be moved.
                return segment, [i for i in alive if self.log.count_between(i, i + 1)]
        self._straggler_ns = now_ns + STRAGGLER_INTERVAL_NS
        return None, []


def _alive(windows: list[Window], start: int, end: int, count_max: int) -> list[int] | None:
    """Messages in start..end that some channel has not finished; None if there are too many."""
    alive: set[int] = set()
    for window in windows:
        found = window.unfinished(start, end, count_max)
        if found is None:
            return None
        alive.update(found)
    return sorted(alive) if len(alive) <= count_max else None
