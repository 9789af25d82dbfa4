"""Kicking and discarding buried messages (R24): some in each turn of the loop, or at a rate.

    kick      they are ready again, in order, and their attempts begin again
    discard   they are finished

What was done is in the journal before the ticket is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial

from penstock.core.ticket import Ticket
from penstock.core.window import KICK_COUNT_MAX
from penstock.engine.channel import Channel
from penstock.engine.topic import Topic
from penstock.record import record

# How often a sweep at a rate continues.
TICK_NS = 100_000_000
END = (1 << 63) - 1


class Act(Enum):
    """What to do with buried messages."""

    KICK = "kick"
    DISCARD = "discard"


@record
class Chosen:
    """Which buried messages: those ``indexes``, or the oldest ``count_max`` with ``reason``."""

    indexes: Sequence[int] | None = None
    count_max: int = END
    reason: int = 0  # 0: any
    after: int = -1  # the oldest above this index


class Sweep:
    """One request to kick or discard."""

    def __init__(self, channel: Channel, act: Act, chosen: Chosen, rate: int = 0) -> None:
        self.channel = channel
        self.act = act
        self.done_count = 0
        self.ticket = Ticket()  # settled when it has ended, and what it did is synced
        self._context = channel.topic.shared.context
        self._chosen = chosen
        self._rate = rate
        self._at = chosen.after + 1
        # Messages published from now on are above it.  If they failed fast enough, a kick at a rate
        # would never end.
        self._end_at = max(self._at, channel.topic.end)
        self._begun_ns = self._context.clock.monotonic_ns()
        self._ended = False

    @property
    def left(self) -> int:
        """How many messages are still to come, at most."""
        buried = self.channel.window.buried
        if self._ended or buried is None:
            return 0
        return min(self._chosen.count_max - self.done_count, buried.count_of(self._chosen.reason))

    @property
    def next(self) -> int | None:
        """``after`` of a sweep that continues where this one has ended; None: it is at the end."""
        return None if self._at >= self._end_at else self._at - 1

    def start(self) -> Ticket:
        """Begin; a sweep at a rate takes the place of another one of the channel."""
        if self._rate:
            if self.channel.sweep is not None:
                self.channel.sweep.stop()
            self.channel.sweep = self
        self._run()
        return self.ticket

    def stop(self) -> None:
        """End here."""
        if not self._ended:
            self._end()

    def _run(self) -> None:
        if self._ended:
            return
        if self.channel.closed or self._context.supervisor.exiting:
            self._end()
            return
        if self._chosen.indexes is not None:
            self.done_count += take_indexes(self.channel, self.act, self._chosen.indexes)
            self._end()
            return
        count_max = min(KICK_COUNT_MAX, self._chosen.count_max - self.done_count, self._due())
        if count_max > 0:
            count, self._at = take_some(
                self.channel, self.act, self._at, count_max, self._chosen.reason, self._end_at
            )
            self.done_count += count
        if self._at >= self._end_at or self.done_count >= self._chosen.count_max:
            self._end()
        elif self._rate and self._due() <= 0:
            self._context.turns.after(max(TICK_NS, 1_000_000_000 // self._rate), self._run)
        else:
            self._context.turns.soon(self._run)

    def _due(self) -> int:
        """How many messages the rate allows by now; the first one at once."""
        if not self._rate:
            return KICK_COUNT_MAX
        past_ns = self._context.clock.monotonic_ns() - self._begun_ns
        return 1 + past_ns * self._rate // 1_000_000_000 - self.done_count

    def _end(self) -> None:
        self._ended = True
        if self.channel.sweep is self:
            self.channel.sweep = None
        topic = self.channel.topic
        if not isinstance(topic, Topic):
            self.ticket.settle()
            return
        topic.sync_journal().add(partial(self._synced, topic))

    def _synced(self, topic: Topic, synced: Ticket) -> None:
        topic.retire_later()
        self.ticket.settle(synced.error)


def take_some(
    channel: Channel, act: Act, start: int, count_max: int, reason: int = 0, end: int = END
) -> tuple[int, int]:
    """Take up to ``count_max`` buried messages from ``start`` on: (count, where to continue)."""
    topic, window = channel.topic, channel.window
    if window.buried is None or not isinstance(topic, Topic):
        return 0, end
    if channel.moving:
        start, end = _around(channel.moving, start, end)
        if start >= end:
            return 0, end
    # Their burial, and progress from before, come first (storage/burials.py).
    topic.journal_channel(channel)
    take = window.kick if act is Act.KICK else window.discard
    count, after, runs = take(start, end, count_max, reason)
    _taken(channel, topic, act, count, runs)
    return count, after


def take_indexes(channel: Channel, act: Act, indexes: Sequence[int]) -> int:
    """Take the buried messages with these indexes; returns how many were found."""
    topic, window = channel.topic, channel.window
    if window.buried is None or not isinstance(topic, Topic):
        return 0
    topic.journal_channel(channel)
    take = window.kick if act is Act.KICK else window.discard
    wanted = sorted(set(indexes) - channel.moving)
    taken = [take(index, index + 1, 1) for index in wanted]
    count = sum([one[0] for one in taken])
    _taken(channel, topic, act, count, b"".join([one[2] for one in taken]))
    return count


def _taken(channel: Channel, topic: Topic, act: Act, count: int, runs: bytes) -> None:
    """Messages in ``runs`` were kicked or discarded."""
    if not count:
        return
    topic.unburied(channel, runs, kicked=act is Act.KICK)
    if act is Act.KICK:
        channel.wake()
    else:
        channel.window.discarded_count += count


def _around(moving: AbstractSet[int], start: int, end: int) -> tuple[int, int]:
    """The first range in start..end that has none of the messages that are being moved (R25)."""
    while start in moving:
        start += 1
    return start, min((index for index in moving if start < index < end), default=end)
