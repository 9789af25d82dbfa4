"""Pull channels: cursors for readers that take ranges of the log over HTTP, as Spark does (R18).

    log   |.........................|=====================|-----------|
          first                    low                 synced end    end
              finished, may go        the channel's depth

A query is a pull channel.  It delivers nothing and refuses SUB.  Its reader keeps its own offsets,
reads ranges that end at the synced end, and commits: everything below the index it names is
finished.  So what it has not committed is kept, and its lag is a depth like any other.

Rule 1: ``low`` only rises.  It is the cursor of a window without entries, so the journal, segments
        that go and stragglers treat it as they treat every channel.
Rule 2: depth is counted, never subtracted: indexes have gaps (R1).
Rule 3: the log is read as it is.  What other channels pass over (R17) a reader sees all the same.
Rule 4: a channel whose reader is gone lapses after a stated time or size, or it would keep the log
        for ever.
Rule 5: what belongs to consumers is theirs.  A plain channel becomes a pull channel only if an
        nsqlookupd named it and nobody has used it since (``Channel.named``), or by force.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.core.block import Block
from penstock.core.ticket import Ticket
from penstock.core.window import Window
from penstock.engine.channel import Channel
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

log = logging.getLogger(__name__)

MS_NS = 1_000_000

# A reader that was heard of within this time is there, however much waits for it.  A long poll
# ends after 30 s at most.
PRESENT_NS = 60_000_000_000

# Where a new channel starts, beside an index.
EARLIEST, LATEST = "earliest", "latest"


class InUseError(PenstockError):
    """A plain channel that somebody has used does not become a pull channel."""


class PullChannel(Channel):
    """A cursor that its reader moves."""

    pulled = True
    plain = False

    def __init__(self, topic: Topic, name: str, low: int, *, id: int) -> None:
        broker = topic.broker
        super().__init__(
            topic, name, broker.channel_number(), Window(low, seed=broker.seed()), id=id
        )
        self._log = topic.log
        self._finish_count = 0
        self._visit_ns = broker.clock.monotonic_ns()
        self._progress: dict[str, Any] | None = None
        self._progress_ns = 0
        self.poll_count = 0  # long polls that wait in its name
        broker.pulls.channels.add(self)

    # ---- what /stats shows

    @property
    def low(self) -> int:
        return self.window.low

    @property
    def depth(self) -> int:
        return self._log.count_between(self.window.low, self.topic.released)

    @property
    def finish_count(self) -> int:
        return self._finish_count

    @property
    def idle_ns(self) -> int:
        """Since its reader was last heard of."""
        return 0 if self.poll_count else self.topic.broker.clock.monotonic_ns() - self._visit_ns

    @property
    def held_size(self) -> int:
        """Bytes of the log that wait for its reader, as good as segments tell."""
        low, size = self.window.low, 0
        for segment in self._log.segments():
            if segment.end > low:
                waiting = self._log.count_between(max(low, segment.first), segment.end)
                size += segment.size * waiting // segment.count
        return size

    @property
    def pull(self) -> dict[str, Any]:
        broker = self.topic.broker
        idle_ns, lapse_ns = self.idle_ns, broker.options.pull_channel_lapse_ns
        return {
            "low": self.window.low,
            "idle_ms": idle_ns // MS_NS,
            "lapses_in_ms": max(0, lapse_ns - idle_ns) // MS_NS if lapse_ns else None,
            "progress": self._progress,
            "progress_time": self._progress_ns,
        }

    # ---- its reader

    def visit(self) -> None:
        """Its reader is there."""
        self._visit_ns = self.topic.broker.clock.monotonic_ns()

    def commit(self, index: int) -> None:
        """Everything below ``index`` is finished; never back, never past the end."""
        self.visit()
        low, index = self.window.low, min(index, self.topic.end)
        if index > low:
            self._finish_count += self._log.count_between(low, index)
            self.window.clear(index)
            self.touched()

    def report(self, progress: dict[str, Any]) -> None:
        """What its reader tells of itself, for people who look at /stats."""
        self._progress = progress
        self._progress_ns = self.topic.broker.clock.wall_ns()

    # ---- what a channel is told

    def arrive(self, block: Block) -> None:
        self.window.message_count += block.count

    def release(self, start: int, end: int, count: int) -> None:
        self.window.message_count += count

    def skip(self, index: int) -> None:
        """Rule 3."""

    def skip_range(self, start: int, end: int) -> None:
        """The topic was emptied.  What was held back stays readable unless nothing is before it."""
        if self.window.low >= start:
            self.window.clear(end)
            self.touched()

    def pump(self, now_ns: int) -> None:
        """There is nobody to send to."""
        self._woken = False

    def empty(self) -> Ticket:
        """Finish what was released."""
        self.window.clear(self.topic.released)
        return self.topic.save_channel(self)

    def close(self) -> None:
        super().close()
        self.topic.broker.pulls.channels.discard(self)


def pull_channel(
    topic: Topic, name: str, start: int, *, force: bool = False
) -> tuple[PullChannel, Ticket, bool]:
    """The pull channel ``name``; made at ``start``, or out of an unused plain one, if need be.

    A plain channel keeps its low-water mark: nsqlookupd may have had it made before its reader
    came.  ``force`` takes one that was used, if it has no consumers now.  Also returns whether
    ``start`` counted.  InUseError if the channel is others' (Rule 5).
    """
    channel = topic.channels.get(name)
    if isinstance(channel, PullChannel):
        channel.visit()
        if channel.created.error is not None:
            channel.created = topic.save()  # the disk may have recovered since
        return channel, channel.created, False
    if channel is None:
        made = PullChannel(topic, name, start, id=topic.next_channel_id())
        return made, topic.add_channel(made), True
    if channel.consumers or channel.in_flight_count or not (channel.named or force):
        raise InUseError(f"channel {name} is a plain one")
    # A new id, because finished runs of the old one lie above the mark: a later mark that touches
    # one would swallow it, and with it messages that the reader has not seen.
    turned = PullChannel(topic, name, channel.window.low, id=topic.next_channel_id())
    turned.paused = channel.paused
    turned.window.message_count = channel.message_count
    return turned, topic.replace_channel(channel, turned), False


def start_of(topic: Topic, wanted: str | int) -> int:
    """The index that ``wanted`` stands for at this moment."""
    if wanted == EARLIEST:
        return topic.log.first
    if wanted == LATEST:
        return topic.end
    assert isinstance(wanted, int)
    return wanted


class Pulls:
    """All pull channels of a broker; removes those whose readers are gone."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.channels: set[PullChannel] = set()
        self.lapse_counts = {"time": 0, "bytes": 0}

    def look(self) -> None:
        """Let lapse what has been without its reader for too long; called once a second."""
        options = self._broker.options
        time_ns, size = options.pull_channel_lapse_ns, options.pull_channel_lapse_bytes
        for channel in list(self.channels):
            idle_ns = channel.idle_ns
            if time_ns and idle_ns >= time_ns:
                self._lapse(channel, "time")
            elif size and idle_ns >= PRESENT_NS and channel.held_size > size:
                self._lapse(channel, "bytes")

    def _lapse(self, channel: PullChannel, cause: str) -> None:
        self.lapse_counts[cause] += 1
        topic = channel.topic
        log.warning(
            "topic=%s channel=%s: lapsed by %s after %d s without its reader, with %d messages"
            " and %d bytes kept for it",
            topic.name,
            channel.name,
            cause,
            channel.idle_ns // 1_000_000_000,
            channel.depth,
            channel.held_size,
        )
        topic.delete_channel(channel.name)
