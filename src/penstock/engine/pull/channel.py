"""Pull channels: cursors for readers that read ranges of the log over HTTP, as Spark does (R18).

    log   |.........................|=====================|-----------|
          first                    low                 released      end
           finished, may be removed   the channel's depth   held back

A query is a pull channel.  It delivers nothing and refuses SUB.  Its reader keeps its own offsets,
reads ranges up to the lower of synced and released, and commits: everything below the index of a
commit is finished.  So uncommitted messages are kept, and its lag is a depth like any other.

Rule 1: ``low`` only rises.  It is the cursor of a window without entries, so the journal, the
        removal of segments and stragglers treat it like any channel.
Rule 2: depth is counted, never subtracted: indexes have gaps (R1).
Rule 3: the log is read as it is.  A reader also gets messages that other channels skip (R17).
Rule 4: a channel whose reader is gone lapses after a time or size that is an option; otherwise it
        would keep the log forever.
Rule 5: channels of consumers stay theirs.  A plain channel becomes a pull channel only if an
        nsqlookupd listed it and it was not used since (``Channel.named``), or by force.
Rule 6: a channel has one reader (R45).  The first commit with an identity binds it; after that,
        calls for the channel with another identity, or without one, are refused.  Only a take-over
        that states the bound identity binds another.
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
from penstock.storage.log_reader import locate

log = logging.getLogger(__name__)

MS_NS = 1_000_000

# A reader is present if its last call was within this time, however much waits for it.  A long poll
# takes at most 30 s.
PRESENT_NS = 60_000_000_000

# Where a new channel starts, other than an index.
EARLIEST, LATEST = "earliest", "latest"


class InUseError(PenstockError):
    """A plain channel that was used does not become a pull channel."""


class ReaderError(PenstockError):
    """A call for a pull channel did not come from its reader."""

    def __init__(self, channel: PullChannel, text: str) -> None:
        super().__init__(text)
        self.channel = channel


class HasReaderError(ReaderError):
    """The channel is bound to another reader."""


class TakeOverError(ReaderError):
    """The channel is not bound to the reader to be replaced."""


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
        self.poll_count = 0  # long polls that wait for this channel
        self._bound = settled()  # when its reader is durable
        self._refused = ""  # the last identity refused, to log it once
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
        """Time since its reader's last call."""
        return 0 if self.poll_count else self._shared.context.clock.monotonic_ns() - self._visit_ns

    @property
    def whole_from(self) -> int:
        """The index at and above which no message was removed before its reader had it.

        A channel keeps everything from its low on, even if a damaged journal lost what was
        removed; unless it was created too late.
        """
        whole_from = self._topic.whole_from
        return whole_from if self.partial else min(whole_from, self.window.low)

    @property
    def held_size(self) -> int:
        """Bytes of the log that wait for its reader, estimated by segment."""
        low, size = self.window.low, 0
        files = self._log.files
        for place in range(locate(files, low), len(files)):
            segment = files[place]
            visible = segment.visible
            waiting = self._log.count_between(max(low, segment.first), visible.end)
            size += segment.file_size * waiting // visible.count
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
        """Its reader made a call."""
        self._visit_ns = self._shared.context.clock.monotonic_ns()

    def admits(self, identity: str | None) -> bool:
        """Whether a call with ``identity``, or without one, may use the channel (rule 6)."""
        return self.reader is None or self.reader.identity == identity

    def admit(self, identity: str | None) -> None:
        """Raise HasReaderError unless it admits ``identity``."""
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
        """An admitted reader committed.  ``name`` is for display; None keeps it."""
        reader = self.reader
        if reader is None:
            self._bind(identity, name or "")
        elif name is not None and name != reader.name:
            self.reader = ChannelReader(identity, name, reader.since_ms)
            self._topic.rename_reader(self)

    def take_over(self, identity: str, old: str) -> Ticket:
        """Bind ``identity`` in place of ``old``; the ticket is settled when that is durable.

        Repeating it changes nothing.  Raises TakeOverError if the channel is bound to neither.
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
        """Bind the reader from nsqd.dat: the channel's journal is lost."""
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
        self._bound = self.topic.save_channel(self)  # this also answers the polls of others

    def commit(self, index: int) -> None:
        """Finish everything below ``index``; never moves back, nor past the end."""
        self.visit()
        low, index = self.window.low, min(index, self.topic.end)
        if index > low:
            self._finish_count += self._log.count_between(low, index)
            self.window.clear(index)
            self.partial = self.partial and index < self._topic.whole_from
            self.touched()

    def report(self, progress: dict[str, Any]) -> None:
        """Keep the progress that its reader reports, for /stats."""
        self._progress = progress
        self._progress_ns = self._shared.context.clock.wall_ns()

    # ---- called by the topic

    def arrive(self, block: Block) -> None:
        self.window.message_count += block.count

    def release(self, start: int, end: int) -> None:
        self.window.message_count += self._log.count_between(start, end)

    def skip(self, index: int) -> None:
        """Rule 3."""

    def skip_range(self, start: int, end: int) -> None:
        """The topic was emptied.  Held back messages stay readable if others are before them."""
        if self.window.low >= start:
            self.window.clear(end)
            self.touched()

    def empty(self) -> Ticket:
        """Finish all released messages."""
        self.window.clear(self.topic.released)
        return self.topic.save_channel(self)

    def expire_below(self, end: int) -> bool:
        """Its reader decides by itself what is too old."""
        return False

    def close(self) -> None:
        super().close()
        self._pulls.channels.discard(self)


def start_of(topic: Topic, wanted: str | int) -> int:
    """The index that ``wanted`` means now."""
    if wanted == EARLIEST:
        return topic.log.first
    if wanted == LATEST:
        return topic.end
    assert isinstance(wanted, int)
    return wanted


class Pulls:
    """All pull channels of a broker; creates them, and removes those whose readers are gone."""

    def __init__(self, context: Context) -> None:
        self._options = context.options
        self.channels: set[PullChannel] = set()
        self.lapse_counts = {"time": 0, "bytes": 0}
        # Calls by others than the reader, take-overs that state the wrong reader, and operations
        # that would have removed messages that a reader needs.
        self.refusal_counts = {"reader": 0, "take_over": 0, "guard": 0}
        self.loss_count = 0  # responses that reported lost messages

    def open(
        self, topic: Topic, name: str, start: int, *, force: bool = False, resumes: bool = False
    ) -> tuple[PullChannel, Ticket, bool]:
        """The pull channel ``name``; if missing, created at ``start`` or from an unused plain one.

        A plain channel keeps its low-water mark: nsqlookupd may have listed it before its reader
        came.  ``force`` converts a used one, if it has no consumers now.  ``resumes``: the reader
        was at ``start`` before and continues there.  Also returns whether ``start`` was used.
        Raises InUseError if the channel belongs to consumers (Rule 5).
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
        # A new id, because the old one has finished runs above the mark: a later mark that
        # touches a run would jump over it, and over messages that the reader has not read.
        turned = PullChannel(self, topic, name, channel.window.low, id=topic.next_channel_id())
        turned.paused = channel.paused
        turned.window.message_count = channel.message_count
        return turned, topic.replace_channel(channel, turned), False

    def expire(self) -> None:
        """Delete channels whose reader has been gone too long; called once a second."""
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
