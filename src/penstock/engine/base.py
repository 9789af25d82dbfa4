"""What durable and ephemeral topics have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.core.appender import Appender
from penstock.core.block import Block
from penstock.core.ticket import Ticket, after, settled
from penstock.engine.channel import Channel
from penstock.engine.deferred.queue import Due
from penstock.engine.disk import failed
from penstock.engine.feed import Feed
from penstock.engine.policy.subjects import RuledChannel
from penstock.engine.shared import Shared
from penstock.engine.stats.latency import OFF, Percentiles, measured
from penstock.settings.policy import DEFAULT, Policy

# Channels from nsqlookupd created in one turn of the loop: about a millisecond.
KNOWN_COUNT_MAX = 32


class BaseTopic(ABC):
    """Channels, counters and the appender that collects publishes."""

    ephemeral: bool
    appender: Appender

    def __init__(self, shared: Shared, name: str, instance: int, first: int) -> None:
        self.shared = shared
        self._options = shared.context.options
        self._clock = shared.context.clock
        self.name = name
        self.instance = instance
        self.closed = False
        self.void_stamp = 0
        self.policy = DEFAULT
        # What was set for this very topic, as in the journal; see engine/policy.
        self.own_policy: dict[str, Any] = {}
        self.created: Ticket = settled()
        # A new topic that awaits channels stays frozen until the channels that nsqlookupds know
        # exist here too, so that all of them get its first message.
        self.channels_known: Ticket = settled()
        self.feed = Feed(shared.tail_budget, first)
        self.channels: dict[str, Channel] = self.feed.channels

    def apply_policy(self, policy: Policy) -> None:
        """The topic's effective policy has changed."""
        self.policy = policy

    def policy_stats(self) -> dict[str, Any]:
        """What /stats shows besides a topic's policy, if that is shown."""
        return {}

    @property
    def end(self) -> int:
        """The index after the last message shown to channels; written ones may follow."""
        return self.feed.shown_end

    @property
    def released(self) -> int:
        """The index after the last message that channels may read."""
        return self.feed.released

    @property
    def paused(self) -> bool:
        return self.feed.paused

    @property
    def awaiting_channels(self) -> bool:
        return self.feed.awaiting_channels

    @property
    def message_count(self) -> int:
        """All messages that ever arrived."""
        return self.feed.message_count

    @property
    def message_bytes(self) -> int:
        return self.feed.message_bytes

    @property
    def depth(self) -> int:
        """Messages that no channel may read yet."""
        return self.feed.held_count

    @property
    def backend_depth(self) -> int:
        return max(0, self.depth - self._options.mem_queue_size)

    @property
    def latency(self) -> Percentiles:
        """Times from publish to finish in all channels together."""
        shares = self._options.e2e_processing_latency_percentiles
        if not shares:
            return OFF
        latencies = (channel.window.latency for channel in self.channels.values())
        return measured(latencies, shares, self._clock.wall_ns())

    @property
    def deferred_count(self) -> int:
        """Messages waiting for their time: deferred publishes, and those requeued with a delay."""
        requeued = sum(channel.window.deferred_count for channel in self.channels.values())
        return self.shared.deferred.tallies.count(self.instance) + requeued

    def deferred_pending(self, stamp: int) -> int:
        """Deferred publishes accepted at or after ``stamp`` and not due yet."""
        tallies = self.shared.deferred.tallies
        return tallies.count(self.instance) - tallies.before(self.instance, stamp)

    def publish(self, bodies: list[bytes]) -> Ticket:
        """Append messages, all or none; the ticket is settled when they are stored."""
        if self.appender.closed:
            return failed(OSError("exiting"))
        if (refusal := self.appender.refuse()) is not None:
            return refusal
        self.appender.extend(bodies, self._clock.wall_ns())
        return self.appender.ticket

    def publish_multi(self, body: bytes) -> Ticket:
        """As publish(), for the body of an MPUB; raises ValueError if it is not one."""
        if self.appender.closed:
            return failed(OSError("exiting"))
        if (refusal := self.appender.refuse()) is not None:
            return refusal
        options = self._options
        count_max, size_max = (options.max_body_size - 4) // 5, options.max_msg_size
        self.appender.extend_multi(body, count_max, size_max, self._clock.wall_ns())
        return self.appender.ticket

    def publish_lines(self, body: bytes) -> Ticket:
        """As publish(), one message per line; raises ValueError if one is too large."""
        if self.appender.closed:
            return failed(OSError("exiting"))
        if (refusal := self.appender.refuse()) is not None:
            return refusal
        size_max = self._options.max_msg_size
        count = self.appender.extend_lines(body, size_max, self._clock.wall_ns())
        return self.appender.ticket if count else settled()

    def defer(self, body: bytes, delay_ns: int) -> Ticket:
        """Accept a message to be published ``delay_ns`` from now."""
        shared = self.shared
        refusal = shared.health.refusal()
        if self.appender.closed or refusal is not None:
            return failed(refusal or OSError("exiting"))
        if (full := self.appender.refuse()) is not None:
            return full
        now_ns = self._clock.wall_ns()
        shared.turn.deferred_changed()
        return self._defer(body, now_ns, now_ns + delay_ns, shared.identity.stamp())

    def room(self, count: int) -> int:
        """How many of ``count`` messages that were accepted earlier may be appended now (R20)."""
        return count

    def park(self, dues: list[Due]) -> None:
        """Let due messages wait for room."""
        raise AssertionError("only a bounded topic has no room")

    def use_room(self) -> None:
        """There may be room for what waits."""
        raise AssertionError("only a bounded topic has no room")

    def skip_void(self, dues: list[Due], first: int) -> None:
        """A channel emptied after a deferred publish was accepted does not get it (R17)."""
        for channel in self.channels.values():
            for index, due in enumerate(dues, first):
                if due.stamp < channel.defer_stamp:
                    channel.skip(index)

    def release(self) -> None:
        """Move ``released`` to the end, unless the topic is frozen."""
        feed = self.feed
        if feed.frozen:
            return
        start, end = feed.released, feed.shown_end
        feed.release()
        if start < end:
            for channel in self.channels.values():
                channel.release(start, end)

    def await_channels(self) -> None:
        """Hold back all messages until ``know_channels`` is called."""
        self.feed.await_channels(True)
        self.channels_known = Ticket()

    def know_channels(self, names: Iterable[str]) -> None:
        """Create the channels that other nodes have of this topic, then release its messages.

        All of them start at the same ``released``: the topic is frozen until the last exists.
        """
        self._make_known(list(dict.fromkeys(names)), 0, [])

    def _make_known(self, names: list[str], place: int, made: list[Ticket]) -> None:
        if not self.awaiting_channels or self.appender.closed:
            return  # not awaited, or the topic was deleted meanwhile
        end = place + KNOWN_COUNT_MAX
        if place < len(names):
            made.append(self.create_named(names[place:end]))
        if end < len(names):
            self.shared.context.turns.soon(partial(self._make_known, names, end, made))
            return
        known = self.channels_known
        self.feed.await_channels(False)
        self.release()
        after(*made, self.save()).add(lambda saved: known.settle(saved.error))

    def create_named(self, names: list[str]) -> Ticket:
        """Create channels that an nsqlookupd listed."""
        return after(*[self.create_channel(name, named=True)[1] for name in names])

    def close(self) -> None:
        """Stop for good: refuse publishes and disconnect consumers."""
        self.closed = self.appender.closed = True
        if self.awaiting_channels:
            self.feed.await_channels(False)
            self.channels_known.settle(OSError("exiting"))
        self.feed.tail.clear()
        for channel in list(self.channels.values()):
            channel.close()

    @property
    def listable(self) -> bool:
        """Whether nsqd.dat may list the topic."""
        return False

    @property
    def listed_paused(self) -> bool:
        """Whether nsqd.dat may list the topic as paused."""
        return self.paused

    def lists(self, channel: str) -> bool:
        """Whether nsqd.dat may list the channel of this name."""
        return False

    def sync_log(self) -> Ticket:
        """Sync what is written to the log."""
        return settled()

    @abstractmethod
    def flush(self) -> None:
        """Store pending messages."""

    @abstractmethod
    def _defer(self, body: bytes, now_ns: int, due_ns: int, stamp: int) -> Ticket: ...

    @abstractmethod
    def fire(self, dues: list[Due]) -> None:
        """Append deferred messages that are due, all of one slot (R16)."""

    @abstractmethod
    def create_channel(
        self, name: str, *, named: bool = False, start: int | None = None
    ) -> tuple[Channel, Ticket]:
        """The channel ``name``, created if missing; the ticket is settled when it is durable.

        ``named``: an nsqlookupd listed it, and nothing on this node has used it.  ``start``: the
        index of a new channel's first message; None as in NSQ, at ``released``.
        """

    @abstractmethod
    def delete_channel(self, name: str) -> Ticket:
        """Remove a channel and disconnect its consumers."""

    @abstractmethod
    def pause(self, paused: bool) -> Ticket: ...

    @abstractmethod
    def empty(self) -> Ticket:
        """Discard the topic's own queue and its pending deferred publishes, not the channels'."""

    @abstractmethod
    def block_at(self, index: int, size_max: int, *, wait: bool) -> Block | None:
        """The block with ``index``, or the next one; None if that needs a disk read.

        With ``wait`` it reads only files, so another thread may call it.
        """

    @abstractmethod
    def frame(self, index: int, wait: bool) -> bytes | None:
        """One message; b"" if it is gone, None if that needs a disk read."""

    @abstractmethod
    def save(self) -> Ticket:
        """Make the topic's own state durable."""

    @abstractmethod
    def save_policy(self, channel: RuledChannel | None) -> Ticket:
        """Make what was set for the topic, or for a channel of it, durable."""

    @abstractmethod
    def save_channel(self, channel: Channel) -> Ticket:
        """Make a channel's state (pause, progress and so on) durable."""

    @abstractmethod
    def journal_later(self) -> None:
        """A channel has progress to journal."""
