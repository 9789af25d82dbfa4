"""One batch of buried messages on its way from a channel to another topic (R25).

    append to the topic, with origins -> sync its log -> finish at the source -> sync that journal
            |                                 |                                       |
            `- crash: the message is buried   `- crash: a start finds the origins     `- unpinned

Rule 1: nothing is finished at the source before the sync of the topic's log, so no power cut can
        take both.
Rule 2: once appended, a batch is not appended again: a failed sync or journal write is retried
        until it works.  A write that failed is the task's to retry; its messages are still buried.
Rule 3: segments of the topic from the batch on are kept, and the topic is not deleted, until the
        source's finish is durable: a start would not find the origins.
Rule 4: messages that the channel no longer has buried, because it was deleted or sought, are left
        alone.  What was appended stays appended.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.disk import failed
from penstock.engine.moves.messages import Message
from penstock.engine.topic import Topic
from penstock.engine.writer import Arrival
from penstock.errors import MoveError
from penstock.storage.moved import ORDINAL_BITS, encode_ordinals, origin_of


class Move:
    """A batch that is moved; its messages have one source, and indexes with the same high bits."""

    def __init__(self, channel: Channel, to: Topic, messages: list[Message]) -> None:
        self._channel = channel
        self._channel_id = channel.id
        assert isinstance(channel.topic, Topic)
        self._source = channel.topic
        self._to = to
        self._indexes = [index for index, _, _ in messages]
        self._shared = to.shared
        self.moved_count = 0
        # Settled when the messages are finished durably, or with an error if nothing was appended.
        self.ticket = Ticket()
        # Settled when that is so, or something after the append had to be retried.
        self.tried = Ticket()
        origin = origin_of(self._source.instance, channel.id, self._indexes[0])
        self._arrival = Arrival(
            [(body, timestamp_ns) for _, body, timestamp_ns in messages],
            *origin,
            encode_ordinals(self._indexes),
            Ticket(),
        )

    def begin(self) -> Ticket:
        """Append the batch."""
        to = self._to
        refusal = refused(to)
        if refusal is not None:
            return failed(refusal)
        to.open_move(self)
        to.writer.receive(self._arrival)
        self._shared.turn.flush_later(to.writer)
        self._arrival.ticket.add(self._appended)
        return self.ticket

    def _appended(self, appended: Ticket) -> None:
        if appended.error is not None:
            self._to.end_move(self)
            self._settle(appended.error)
        else:
            self._sync()

    def _sync(self) -> None:
        self._to.sync_log().add(self._synced)

    def _synced(self, synced: Ticket) -> None:
        if synced.error is not None and not self._to.closed:
            self._again(self._sync)
            return
        kept = self._kept()
        channel = self._channel
        if not channel.closed and channel.id == self._channel_id:
            self.moved_count = finish_moved(channel, self._source, kept)
        self._journal()

    def _kept(self) -> list[int]:
        """Those in the log: a failed sync may have lost some, which stay buried."""
        if self._to.closed:
            return self._indexes
        first, count_between = self._arrival.first, self._to.log.count_between
        if count_between(first, self._arrival.end) == len(self._indexes):
            return self._indexes
        placed = enumerate(self._indexes, first)
        return [index for place, index in placed if count_between(place, place + 1)]

    def _journal(self) -> None:
        self._source.sync_progress().add(self._journaled)

    def _journaled(self, journaled: Ticket) -> None:
        if journaled.error is not None and not self._source.closed:
            self._again(self._journal)
            return
        self._to.end_move(self)
        self._settle(None)

    def _again(self, step: Callable[[], None]) -> None:
        if not self.tried.done:
            self.tried.settle()
        self._shared.context.retry(step)

    def _settle(self, error: Exception | None) -> None:
        if not self.tried.done:
            self.tried.settle()
        self.ticket.settle(error)


def finish_moved(channel: Channel, topic: Topic, indexes: list[int]) -> int:
    """Finish buried messages that are in another topic now; returns how many there were."""
    buried = channel.window.buried
    if buried is None:
        return 0
    topic.journal_channel(channel)  # their burial comes first
    runs = [channel.window.discard(i, i + 1, 1)[2] for i in indexes if i in buried]
    if runs:
        topic.unburied(channel, b"".join(runs), kicked=False)
        topic.retire_later()
    channel.moved_count += len(runs)
    return len(runs)


def refused(to: Topic) -> Exception | None:
    """Why nothing can be moved to a topic now, or None."""
    if to.leaving or to.appender.closed:
        return MoveError("TOPIC_DELETED", f"topic {to.name} is being deleted")
    full = to.appender.refuse()
    return full.error if full is not None else to.shared.health.refusal()


def same_high_bits(messages: list[Message]) -> list[list[Message]]:
    """The messages in groups that fit a batch each."""
    groups: dict[int, list[Message]] = {}
    for message in messages:
        groups.setdefault(message[0] >> ORDINAL_BITS, []).append(message)
    return list(groups.values())
