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
Rule 6: a channel has one reader (R45).  The first commit that carries an identity binds it; from
        then on every call that names the channel with another one, or with none, is refused.
        Only a take-over that names the bound identity binds another.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.core.block import Block
from penstock.core.ticket import Ticket, settled
from penstock.core.window import Window
from penstock.engine.channel import Channel
from penstock.engine.context import Context
from penstock.engine.shared import random_number
from penstock.engine.topic import Topic
from penstock.errors import PenstockError
from penstock.storage.channel_reader import SINCE_MS_MAX, ChannelReader

log = logging.getLogger(__name__)

MS_NS = 1_000_000

# A reader that was heard of within this time is there, however much waits for it.  A long poll
# ends after 30 s at most.
PRESENT_NS = 60_000_000_000

# Where a new channel starts, beside an index.
EARLIEST, LATEST = "earliest", "latest"


class InUseError(PenstockError):
    """A plain channel that somebody has used does not become a pull channel."""


class ReaderError(PenstockError):
    """Somebody who is not its reader named a pull channel."""

    def __init__(self, channel: PullChannel, text: str) -> None:
        super().__init__(text)
        self.channel = channel


class HasReaderError(ReaderError):
    """The channel is bound to another reader."""


class TakeOverError(ReaderError):
    """The channel is not bound to the reader that was to be replaced."""


class PullChannel(Channel):
    """A cursor that its reader moves."""

    pulled = True
    plain = False

    def __init__(self, pulls: Pulls, topic: Topic, name: str, low: int, *, id: int) -> None:
        super().__init__(topic, name, Window(low, seed=random_number()), id=id)
        self._pulls = pulls
        self._topic = topic
        self._log = topic.log
        self._finish_count = 0
        self._visit_ns = self._shared.context.clock.monotonic_ns()
        self._progress: dict[str, Any] | None = None
        self._progress_ns = 0
        self.poll_count = 0  # long polls that wait in its name
        self._bound = settled()  # when its reader is durable
        self._refused = ""  # the identity that was refused last, so that it is logged once
        pulls.channels.add(self)

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
        return 0 if self.poll_count else self._shared.context.clock.monotonic_ns() - self._visit_ns

    @property
    def whole_from(self) -> int:
        """From where on nothing was removed that its reader has not had.

        From its low on a channel keeps everything, also if it is not known any more what was
        removed because a journal was damaged; but not if it was made too late.
        """
        whole_from = self._topic.whole_from
        return whole_from if self.partial else min(whole_from, self.window.low)

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
        idle_ns, lapse_ns = self.idle_ns, self._shared.context.options.pull_channel_lapse_ns
        return {
            "low": self.window.low,
            "idle_ms": idle_ns // MS_NS,
            "lapses_in_ms": max(0, lapse_ns - idle_ns) // MS_NS if lapse_ns else None,
            "progress": self._progress,
            "progress_time": self._progress_ns,
            **self.reader_stats(),
        }

    def reader_stats(self) -> dict[str, Any]:
        if self.reader is None:
            return {"identity": None, "reader": None, "reader_since_ms": None}
        return {
            "identity": self.reader.identity,
            "reader": self.reader.name,
            "reader_since_ms": self.reader.since_ms,
        }

    # ---- its reader

    def visit(self) -> None:
        """Its reader is there."""
        self._visit_ns = self._shared.context.clock.monotonic_ns()

    def admits(self, identity: str | None) -> bool:
        """Whether a call with ``identity``, or without one, may name the channel (rule 6)."""
        return self.reader is None or self.reader.identity == identity

    def admit(self, identity: str | None) -> None:
        """HasReaderError unless it admits ``identity``."""
        if self.admits(identity):
            return
        self._pulls.refusal_counts["reader"] += 1
        if self._refused != (identity or "none"):
            self._refused = identity or "none"
            log.warning(
                "topic=%s channel=%s: refused identity %s, it is read by %s",
                *(self.topic.name, self.name, self._refused, self.reader),
            )
        raise HasReaderError(
            self, f"channel {self.name} of topic {self.topic.name} is read by {self.reader}"
        )

    def bind(self, identity: str, name: str | None) -> None:
        """A reader that was admitted committed.  ``name`` is for people; None leaves it."""
        reader = self.reader
        if reader is None:
            self._bind(identity, name or "")
        elif name is not None and name != reader.name:
            self.reader = ChannelReader(identity, name, reader.since_ms)
            self._topic.rename_reader(self)

    def take_over(self, identity: str, old: str) -> Ticket:
        """Bind ``identity`` in place of ``old``; the ticket is settled when that is durable.

        Repeating it changes nothing.  TakeOverError if the channel is bound to neither.
        """
        bound = None if self.reader is None else self.reader.identity
        if bound == identity:
            if self._bound.error is not None:
                self._bound = self.topic.save_channel(self)  # the disk may have recovered since
        elif bound == old:
            self._bind(identity, "")
        else:
            self._pulls.refusal_counts["take_over"] += 1
            reads = f"is read by {self.reader}" if bound else "is not bound to a reader"
            raise TakeOverError(
                self, f"channel {self.name} of topic {self.topic.name} {reads}, not by {old}"
            )
        return self._bound

    def restore_reader(self, reader: ChannelReader) -> None:
        """Bind it as nsqd.dat says: the channel's journal is gone."""
        self.reader = reader
        self._bound = self.topic.save_channel(self)

    def _bind(self, identity: str, name: str) -> None:
        since_ms = self._shared.context.clock.wall_ns() // MS_NS
        before = self.reader
        self.reader = ChannelReader(identity, name, min(max(0, since_ms), SINCE_MS_MAX))
        self._refused = ""
        log.info(
            "topic=%s channel=%s: bound to %s%s",
            *(self.topic.name, self.name, self.reader),
            f", taken over from {before}" if before is not None else "",
        )
        self._bound = self.topic.save_channel(self)  # which also answers polls of others

    def commit(self, index: int) -> None:
        """Everything below ``index`` is finished; never back, never past the end."""
        self.visit()
        low, index = self.window.low, min(index, self.topic.end)
        if index > low:
            self._finish_count += self._log.count_between(low, index)
            self.window.clear(index)
            self.partial = self.partial and index < self._topic.whole_from
            self.touched()

    def report(self, progress: dict[str, Any]) -> None:
        """What its reader tells of itself, for people who look at /stats."""
        self._progress = progress
        self._progress_ns = self._shared.context.clock.wall_ns()

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
        self._pulls.channels.discard(self)


def start_of(topic: Topic, wanted: str | int) -> int:
    """The index that ``wanted`` stands for at this moment."""
    if wanted == EARLIEST:
        return topic.log.first
    if wanted == LATEST:
        return topic.end
    assert isinstance(wanted, int)
    return wanted


class Pulls:
    """All pull channels of a broker; makes them, and removes those whose readers are gone."""

    def __init__(self, context: Context) -> None:
        self._options = context.options
        self.channels: set[PullChannel] = set()
        self.lapse_counts = {"time": 0, "bytes": 0}
        # Calls by others than the reader, take-overs that name another reader than there is, and
        # what would have removed messages under a reader.
        self.refusal_counts = {"reader": 0, "take_over": 0, "guard": 0}
        self.loss_count = 0  # answers that told a reader of messages that are gone

    def open(
        self, topic: Topic, name: str, start: int, *, force: bool = False, resumes: bool = False
    ) -> tuple[PullChannel, Ticket, bool]:
        """The pull channel ``name``; made at ``start``, or out of an unused plain one, if need be.

        A plain channel keeps its low-water mark: nsqlookupd may have had it made before its reader
        came.  ``force`` takes one that was used, if it has no consumers now.  ``resumes``: a reader
        that was at ``start`` before wants what is there from then on.  Also returns whether
        ``start`` counted.  InUseError if the channel is others' (Rule 5).
        """
        channel = topic.channels.get(name)
        if isinstance(channel, PullChannel):
            channel.visit()
            if channel.created.error is not None:
                channel.created = topic.save()  # the disk may have recovered since
            return channel, channel.created, False
        if channel is None:
            made = PullChannel(self, topic, name, start, id=topic.next_channel_id())
            made.partial = resumes and start < topic.whole_from
            return made, topic.add_channel(made), True
        if channel.consumers or channel.in_flight_count or not (channel.named or force):
            raise InUseError(f"channel {name} is a plain one")
        # A new id, because finished runs of the old one lie above the mark: a later mark that
        # touches one would swallow it, and with it messages that the reader has not seen.
        turned = PullChannel(self, topic, name, channel.window.low, id=topic.next_channel_id())
        turned.paused = channel.paused
        turned.window.message_count = channel.message_count
        return turned, topic.replace_channel(channel, turned), False

    def look(self) -> None:
        """Let lapse what has been without its reader for too long; called once a second."""
        options = self._options
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
