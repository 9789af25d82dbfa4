"""A topic: one log, and the channels that read it.

``released`` (R2) is how far channels may read.  It follows the log's end, except while the topic
is paused, has no channels, or is new and waits for nsqlookupd to list its channels.  New channels
start at it.

    log     |---------------------------|=================|
            first                    released            end
                 channels read here        the topic's own depth
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from penstock.core.appender import Batch
from penstock.core.block import Block
from penstock.core.ticket import Ticket, after, settled
from penstock.core.window import Window
from penstock.engine.base import BaseTopic
from penstock.engine.bounds import Bound
from penstock.engine.catalog.inventory import Inventory
from penstock.engine.catalog.journal import JournalKeeper
from penstock.engine.catalog.listing import Listing
from penstock.engine.channel import Channel
from penstock.engine.deferred.queue import Due
from penstock.engine.disk import failed
from penstock.engine.ephemeral import EphemeralChannel
from penstock.engine.policy.subjects import RuledChannel
from penstock.engine.retention.removal import Removal
from penstock.engine.shared import Shared, random_number
from penstock.engine.writer import TopicWriter
from penstock.settings.policy import DROP, Policy
from penstock.storage import journal as records
from penstock.storage.journal import Journal
from penstock.storage.topic_log import TopicLog
from penstock.wire.names import is_ephemeral


class OpenMove(Protocol):
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
        self._synced_journaled: tuple[int, int] | None = None
        self.poll_sync_ns = 0  # when a long poll last had the log synced
        self._moves: dict[OpenMove, int] = {}  # on their way here, by the index they began at
        self._moves_settled_end = 0
        self._journal_source = f"topic={name}: journal"
        log.on_damage = partial(shared.rounds.damaged.append, self)
        self.writer = TopicWriter(self)
        self.appender = self.writer.appender
        self.removal = Removal(self, shared)
        self.bound = Bound(self)
        # Messages given up while they waited for the topic's first channel.
        self.dropped_count = self.expired_count = 0
        self.keeper = JournalKeeper(
            journal,
            context.disk,
            self._snapshot,
            self._record_journal,
            shared.changes_disk,
            shared.here,
        )

    def apply_policy(self, policy: Policy) -> None:
        super().apply_policy(policy)
        self.removal.retained.apply_policy(policy)
        self.bound.apply(policy)
        if policy.msg_ttl_ns:
            self.shared.expiry.watch(self)

    def policy_stats(self) -> dict[str, Any]:
        return {
            **super().policy_stats(),
            "unfinished_count": self.bound.unfinished_count,
            "unfinished_bytes": self.unfinished_size + self.buried_size,
            "waiting_count": self.shared.deferred.parked.waiting(self.instance),
            "refused_count": self.appender.refused_count,
            "dropped_count": self.dropped_count,
            "expired_count": self.expired_count,
            "whole_from": self.whole_from,
            **self.removal.retained.stats(),
        }

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

    def room(self, count: int) -> int:
        return min(count, self.bound.room()) if self.appender.bounded else count

    def park(self, dues: list[Due]) -> None:
        self.shared.deferred.park(dues)
        self.bound.wait()

    def use_room(self) -> None:
        self.bound.use_room()

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
        if self.feed.room_wanted:
            self.shared.turn.room_at(self)  # those behind it may have room as well

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

    def create_channel(
        self, name: str, *, named: bool = False, start: int | None = None
    ) -> tuple[Channel, Ticket]:
        channel = self.channels.get(name)
        if channel is not None:
            if channel.named and not named:
                return channel, self._use(channel)
            if channel.created.error is not None:
                channel.created = self.save()  # the disk may have recovered since
            return channel, channel.created
        channel = self._new_channel(name, named, start)
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

    def _new_channel(self, name: str, named: bool, start: int | None = None) -> Channel:
        if is_ephemeral(name):
            channel: Channel = EphemeralChannel(self, name, start)
        else:
            window = Window(self.released if start is None else start, seed=random_number())
            channel = Channel(self, name, window, id=self.next_channel_id())
            channel.named = named
            if start is not None:
                self.removal.rewound()
        if start is not None:
            channel.begin(self._clock.wall_ns())
        return channel

    def rewind(self, channel: Channel, start: int) -> Ticket:
        """Move a channel to ``start``, as a new one of the same name (R22)."""
        if channel.ephemeral:  # it keeps nothing, and counts for no bound
            channel.rewind(channel.id, start, self._clock.wall_ns())
            return settled()
        self.removal.rewound()
        self.bound.stale()
        # Segments may be finished now; without traffic nothing else would check.
        self._rounds.used.add(self)
        named, old_id = channel.named, channel.id
        self.journal_channel(channel)  # what is buried below the start stays so
        channel.rewind(self.next_channel_id(), start, self._clock.wall_ns())
        begun = channel.begun_ns, channel.begun_end
        self.keeper.add(records.encode_seek(old_id, *begun, *_stated(channel, start)))
        if named:
            self.shared.registry.note_channel(self, channel.name)
            return self.save()
        return self.keeper.flush(sync=True)

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
        self.bound.stale()  # it may start with more than others have
        self.shared.policies.admit_channel(channel)
        self.release()
        channel.announce(True)
        if not channel.ephemeral:
            self.keeper.add(self._channel_record(channel, start))
            self.listing.made(channel)

    def replace_channel(self, old: Channel, new: Channel) -> Ticket:
        """Replace a channel that has no consumers by one of another kind."""
        old.close()
        self.channels[new.name] = new
        self.bound.stale()
        self.shared.policies.admit_channel(new)
        # In this order: of two channels with the same name the later record counts.
        self.keeper.add(self._channel_record(new, new.window.low))
        self.keeper.add(records.encode_gone(old.id))
        self.shared.registry.note_channel(self, new.name)
        new.created = self.save()
        return new.created

    def recover(self, whole_from: int, channel_id_max: int, moves_settled_end: int) -> None:
        """Restore what the journal has besides the channels."""
        self._moves_settled_end = moves_settled_end
        self.removal.recover(whole_from)
        self._channel_id = channel_id_max

    def recover_files(self, files: dict[int, records.FileState]) -> None:
        """Restore the list of files from the journal; journal again what differs on disk."""
        self.inventory.recover(files)
        if self.journal_files():
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
        gone = () if channel.ephemeral else (_gone(channel),)
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

    def open_move(self, move: OpenMove, first: int = 0) -> None:
        """Messages will be moved here, or were from ``first`` on: keep them, for a start."""
        self._moves[move] = self.log.holds[move] = first or self.log.end

    def end_move(self, move: OpenMove) -> None:
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

    def retire_later(self) -> None:
        """Something was finished other than by delivering it."""
        self._rounds.used.add(self)

    def rename_reader(self, channel: Channel) -> None:
        """Journal the new display name of a channel's reader, together with progress."""
        assert channel.reader is not None
        self.keeper.add(records.encode_reader(channel.id, channel.reader))
        self.journal_later()

    def save_policy(self, channel: RuledChannel | None) -> Ticket:
        if channel is not None and channel.ephemeral:
            return settled()
        self.keeper.add(
            records.encode_policy(records.TOPIC_ID, self.own_policy)
            if channel is None
            else records.encode_policy(channel.id, channel.own_policy)
        )
        self._rounds.used.add(self)  # what is kept may have changed
        return self.keeper.flush(sync=True)

    def save_channel(self, channel: Channel) -> Ticket:
        if channel.ephemeral:
            return settled()
        self.keeper.add(self._channel_record(channel, channel.window.low))
        self.journal_channel(channel)
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
            self.journal_channel(channel)
        if self.channels and not durable:
            # With only ephemeral channels, ``released`` is the only state to keep.
            self.keeper.add(self._topic_record())
        synced_at = self.writer.synced_at
        if synced_at is not None and synced_at != self._synced_journaled:
            self._synced_journaled = synced_at
            self.keeper.add(records.encode_synced(*synced_at))
        self.journal_files()

    def journal_files(self) -> bool:
        """Journal files added to and removed from the log; whether there were any."""
        changes = self.inventory.changes()
        for record in changes:
            self.keeper.add(record)
        return bool(changes)

    def journal_channel(self, channel: Channel) -> None:
        if channel.window.changed and not channel.ephemeral:
            for body in channel.window.drain_buried():
                self.keeper.add(records.encode_buried(channel.id, body))
            low, runs, marks = channel.window.drain()
            self.keeper.add(records.encode_packed_progress(channel.id, low, runs, marks))

    def save_exit(self) -> list[Ticket]:
        """Journal the attempts of everything in flight (R11) and sync the log."""
        for channel in self.channels.values():
            channel.window.mark_all()
        self._add_progress()
        tickets = [self.keeper.flush(sync=True)]
        if damages := self.log.take_damage():
            tickets.append(self.removal.keep_evidence(damages))
        if self.log.extent.unsynced_count or not self.writer.idle:
            tickets.append(self.writer.sync())
        if self.log.zeros_size:
            tickets.append(self.writer.cut_zeros())
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
        record = records.encode_channel(*_stated(channel, start))
        if channel.begun_ns:
            record += records.encode_begun(channel.id, channel.begun_ns, channel.begun_end)
        if channel.reader is not None:
            record += records.encode_reader(channel.id, channel.reader)
        if channel.own_policy:
            record += records.encode_policy(channel.id, channel.own_policy)
        return record

    def unburied(self, channel: Channel, runs: bytes, *, kicked: bool) -> None:
        """Journal that messages are not buried any more; their burial is in the journal."""
        self.bound.stale()
        self.keeper.add(records.encode_unburied(channel.id, runs, kicked=kicked))
        self.journal_later()

    def _snapshot(self) -> Iterable[bytes]:
        # What there may be a million of is encoded by the thread that writes it.
        whole: list[bytes | Iterator[bytes]] = [self._topic_record()]
        whole += self.listing.gone_records()
        if self.own_policy:
            whole.append(records.encode_policy(records.TOPIC_ID, self.own_policy))
        for channel in self.channels.values():
            if channel.ephemeral:
                continue
            channel.window.drain()
            whole.append(self._channel_record(channel, channel.window.low))
            if channel.window.buried is not None:
                snapshot = channel.window.buried.snapshot()
                whole.append(records.encode_burials(channel.id, snapshot))
            whole.append(records.packed_progress(channel.id, *channel.window.snapshot()))
        if self.writer.synced_at is not None:
            whole.append(records.encode_synced(*self.writer.synced_at))
        if self._moves_settled_end:
            whole.append(records.encode_moved(self._moves_settled_end))
        whole += self.removal.records()
        whole += self.inventory.records()
        return _flat(whole)

    # ---- removing finished segments (R5)

    def removed(self, end: int) -> None:
        """Messages below ``end`` were removed; channels must not find them in memory either."""
        self.feed.tail.drop_below(end)

    def low(self) -> int:
        """The low-water mark: no channel, nor the topic itself, needs a message below it."""
        low = self.released
        for channel in self.channels.values():
            if not channel.ephemeral:
                low = min(low, channel.window.low)
        return low

    @property
    def unfinished_size(self) -> int:
        """Bytes of files with unfinished messages that retention alone does not keep."""
        return self.removal.unfinished.size

    @property
    def buried_size(self) -> int:
        """Bytes of finished files that many buried messages keep (R24)."""
        return self.removal.unfinished.buried_size

    def drop_below(self, end: int) -> None:
        """Finish everything below ``end`` on all durable channels, and here (R20)."""
        assert end <= self.end
        for channel in self.channels.values():
            if not channel.ephemeral:
                channel.drop_below(end)
                # Before the removal: a pull channel counts all from its low on as kept (R18).
                self.journal_channel(channel)
        if self.released < end:
            self.dropped_count += self._drop_held(end)
        self.journal_later()
        self.shared.context.turns.soon(self._retire_dropped)

    def _retire_dropped(self) -> None:
        self.retire()

    def _drop_held(self, end: int) -> int:
        """Drop what is held back below ``end``; returns how many, if no channel counts them."""
        count = self.log.count_between(self.released, end)
        for channel in self.channels.values():
            if channel.ephemeral:  # it must not read them when they are below ``released``
                channel.skip_range(self.released, end)
        self.feed.drop_below(end, count)
        self.keeper.add(self._topic_record())
        self.journal_later()
        return 0 if self.windows() else count

    def cutoffs(self, wall_ns: int) -> list[int]:
        """Times before which something that waits was appended, if it has expired."""
        found = {c.cutoff_ns(wall_ns) for c in self.channels.values() if c.ttl_ns and c.depth}
        if self._drops_held and self.depth:
            found.add(max(0, wall_ns - self.policy.msg_ttl_ns))
        return sorted(found - {0})

    @property
    def _drops_held(self) -> bool:
        """Whether what waits for the first channel is dropped when it has expired.

        Only a channel can bury or move it: otherwise it waits for one.
        """
        policy = self.policy
        return not self.channels and policy.msg_ttl_ns > 0 and policy.on_expired == DROP

    def expire_below(self, ends: dict[int, int], wall_ns: int) -> bool:
        """Give up what has expired, by the ends found for the cutoffs; whether there is more."""
        more = False
        for channel in list(self.channels.values()):
            if channel.ttl_ns:
                more = channel.expire_below(_end_of(ends, channel.cutoff_ns(wall_ns))) or more
        if self._drops_held:
            end = min(_end_of(ends, wall_ns - self.policy.msg_ttl_ns), self.end)
            if self.released < end:
                self.expired_count += self._drop_held(end)
        self._rounds.used.add(self)
        return more

    def passed(self) -> int:
        """The index below which all channels have delivered everything."""
        return min([self.released, *(window.cursor for window in self.windows())])

    def windows(self) -> list[Window]:
        """The windows of the durable channels."""
        return [c.window for c in self.channels.values() if not c.ephemeral]

    @property
    def whole_from(self) -> int:
        """At and above it no message was ever removed."""
        return self.removal.whole_from

    @property
    def safe_from(self) -> int:
        """``whole_from``, or what it will be after a removal that is in progress."""
        return self.removal.safe_from

    def close(self) -> None:
        super().close()
        self.writer.close()
        self.removal.retained.close()

    def retire(self) -> bool:
        """Remove finished segments; returns whether to check again even if nothing happens here."""
        return self.removal.run()


def _flat(pieces: list[bytes | Iterator[bytes]]) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        else:
            yield from piece


def _stated(channel: Channel, start: int) -> tuple[int, int, bool, int, str, bool, bool, bool]:
    """The arguments of the channel's CHANNEL or SEEK record."""
    return (
        *(channel.id, start, channel.paused, channel.defer_stamp, channel.name),
        *(channel.pulled, channel.named, channel.partial),
    )


def _gone(channel: Channel) -> bytes:
    """Versions that skip SEEK records know the channel by its first id."""
    first = records.encode_gone(channel.first_id) if channel.first_id != channel.id else b""
    return first + records.encode_gone(channel.id)


def _end_of(ends: dict[int, int], cutoff_ns: int) -> int:
    """The end found for the latest cutoff that is not after ``cutoff_ns``; 0 if there is none."""
    return max((end for cutoff, end in ends.items() if cutoff <= cutoff_ns), default=0)
