"""Long polls: requests that wait for the end of a log to move.

A poll has topics with the reader's position in each.  It is answered when one of them has more
synced messages (R18), is another instance, has lost the poll's channel or is gone; when the channel
has another reader (R45); or when its time is over.  The caller then reads the current state.

Rule 1: waiting costs nothing: there is one timer per poll, and topics notify of changes.
Rule 2: a log is synced earlier than by --sync-every and --sync-timeout only for a poll, and at most
        once in SYNC_SPACING_NS per topic.
Rule 3: every poll is answered once, at the latest soon after its time.
Rule 4: no poll is refused: if too many wait, the oldest poll of the reader with the most of them is
        answered with the current state.  It may poll again.
Rule 5: one turn answers a bounded number; many polls that wait for something else are not checked
        for every batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.context import Context, Timer
from penstock.engine.pull.channel import PullChannel
from penstock.engine.topic import Topic

POLL_COUNT_MAX = 1024
SYNC_SPACING_NS = 5_000_000
# After a failed sync; health handles the disk.
SYNC_RETRY_NS = 1_000_000_000

# Polls answered in one turn of the loop: 64 take about 5 ms.
ANSWER_COUNT_MAX = 64
# This many polls of a topic are checked at most once in SYNC_SPACING_NS.
CROWD_COUNT = 32

NOTHING, UNSYNCED, DUE = range(3)


class Known(NamedTuple):
    """What a reader knows of a topic: its instance, and the index after the last message read."""

    instance: int | None
    after: int | None


class Poll:
    """One waiting request."""

    __slots__ = ("channel", "identity", "named", "reader", "ticket", "timer", "topics")

    def __init__(
        self,
        topics: Mapping[str, Known],
        channel: str | None,
        reader: Hashable = None,
        identity: str | None = None,
    ) -> None:
        self.topics = topics
        self.reader = reader
        self.channel = channel
        self.identity = identity
        self.ticket = Ticket()
        self.timer: Timer | None = None
        self.named: list[PullChannel] = []  # whose readers count as present meanwhile


@dataclass(slots=True)
class _Place:
    """The polls of one topic."""

    polls: dict[Poll, None] = field(default_factory=dict)
    scheduled: bool = False  # a check is scheduled in this turn
    syncing: bool = False
    pausing: bool = False  # many polls, just checked without a result
    missed: bool = False  # a batch has arrived since


def readable_end(topic: Topic, channel: PullChannel | None) -> int:
    """How far a reader may read: to the synced end (R18), with a channel also only to released."""
    return min(topic.log.synced_end, _visible_end(topic, channel))


def _visible_end(topic: Topic, channel: PullChannel | None) -> int:
    if channel is None:
        return topic.end
    return min(topic.end, channel.low if channel.paused else topic.released)


class Polls:
    """All polls of a broker, by topic."""

    def __init__(self, context: Context, topics: Mapping[str, BaseTopic]) -> None:
        self._turns = context.turns
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._topics = topics
        self._places: dict[str, _Place] = {}
        self._polls: dict[Poll, None] = {}
        self._by_reader: dict[Hashable, dict[Poll, None]] = {}  # longest waiting first

    @property
    def awaited(self) -> Mapping[str, object]:
        """The topics that polls wait for; the same dict for good."""
        return self._places

    @property
    def waiting_count(self) -> int:
        return len(self._polls)

    @property
    def full(self) -> bool:
        return len(self._polls) >= POLL_COUNT_MAX

    def wait(
        self,
        topics: Mapping[str, Known],
        channel: str | None,
        wait_ns: int,
        reader: Hashable = None,
        identity: str | None = None,
    ) -> Poll:
        """A poll that is answered when there is something new, or after ``wait_ns``.

        ``reader`` identifies the client, for rule 4; None for internal polls, which are few.
        ``identity`` is the one it uses ``channel`` with.
        """
        poll = Poll(topics, channel, reader, identity)
        answers = [self._judge(poll, name) for name in topics]
        if not wait_ns or self._supervisor.exiting or DUE in answers:
            poll.ticket.settle()
            return poll
        if reader is not None:
            if self.full:
                self._make_room()
            self._by_reader.setdefault(reader, {})[poll] = None
        self._polls[poll] = None
        self._name(poll)
        for name in topics:
            self._places.setdefault(name, _Place()).polls[poll] = None
        poll.timer = self._turns.after(wait_ns, lambda: self.answer(poll))
        for name in topics:
            self.changed(name)
        return poll

    def answer(self, poll: Poll) -> None:
        """Answer a poll now."""
        if poll.ticket.done:
            return
        del self._polls[poll]
        own = self._by_reader.get(poll.reader)
        if own is not None:
            del own[poll]
            if not own:
                del self._by_reader[poll.reader]
        for channel in poll.named:
            channel.poll_count -= 1
            channel.visit()
        if poll.timer is not None:
            poll.timer.cancel()
        for name in poll.topics:
            place = self._places[name]
            del place.polls[poll]
            if not place.polls and not place.syncing:
                del self._places[name]
        poll.ticket.settle()

    def _make_room(self) -> None:
        most = max(self._by_reader.values(), key=len, default=None)
        if most:
            self.answer(next(iter(most)))

    def close(self) -> None:
        """Shutdown: answer all polls."""
        for poll in list(self._polls):
            self.answer(poll)

    # ---- called by topics

    def arrived(self, name: str) -> None:
        """A batch became visible.  If a sync for the polls is running, its end checks them."""
        place = self._places.get(name)
        if place is None or place.syncing:
            return
        if place.pausing:
            place.missed = True
        else:
            self._check_soon(name, place)

    def changed(self, name: str) -> None:
        """A topic was created, deleted or changed."""
        place = self._places.get(name)
        if place is not None:
            self._check_soon(name, place)

    # ---- checking

    def _check_soon(self, name: str, place: _Place) -> None:
        if not place.scheduled:
            place.scheduled = True
            self._turns.soon(lambda: self._check(name, place))

    def _check(self, name: str, place: _Place) -> None:
        place.scheduled = False
        unsynced = False
        answer_count = 0
        for poll in list(place.polls):
            answer = self._judge(poll, name)
            if answer == DUE:
                self.answer(poll)
                answer_count += 1
                if answer_count == ANSWER_COUNT_MAX:
                    self._check_soon(name, place)
                    return
            unsynced = unsynced or answer == UNSYNCED
        topic = self._topics.get(name)
        if place.syncing:
            return
        if unsynced and isinstance(topic, Topic):
            self._sync(name, place, topic)
        elif len(place.polls) >= CROWD_COUNT and not place.pausing:
            place.pausing = True
            self._turns.after(SYNC_SPACING_NS, lambda: self._resume(name, place))

    def _resume(self, name: str, place: _Place) -> None:
        place.pausing = False
        if place.missed:
            place.missed = False
            self._check_soon(name, place)

    def _judge(self, poll: Poll, name: str) -> int:
        """Whether there is something new for ``poll`` in the topic, or will be after a sync."""
        known = poll.topics[name]
        topic = self._topics.get(name)
        if not isinstance(topic, Topic):
            return NOTHING if known.after is None else DUE
        if known.after is None or known.instance not in (None, topic.instance):
            return DUE
        channel = None
        if poll.channel is not None:
            named = topic.channels.get(poll.channel)
            if not isinstance(named, PullChannel) or not named.admits(poll.identity):
                return DUE
            channel = named
        if _visible_end(topic, channel) <= known.after:
            return NOTHING
        return DUE if topic.log.synced_end > known.after else UNSYNCED

    def _sync(self, name: str, place: _Place, topic: Topic) -> None:
        place.syncing = True
        now_ns = self._clock.monotonic_ns()
        wait_ns = topic.poll_sync_ns + SYNC_SPACING_NS - now_ns

        def begin() -> None:
            if topic.closed or not place.polls:
                ended()
                return
            topic.poll_sync_ns = self._clock.monotonic_ns()
            topic.writer.sync().add(synced)

        def synced(ticket: Ticket) -> None:
            if ticket.error is None:
                ended()
            else:
                self._turns.after(SYNC_RETRY_NS, ended)

        def ended() -> None:
            place.syncing = False
            if place.polls:
                self._check_soon(name, place)
            elif self._places.get(name) is place:
                del self._places[name]

        if wait_ns > 0:
            self._turns.after(wait_ns, begin)
        else:
            begin()

    def _name(self, poll: Poll) -> None:
        for name in poll.topics if poll.channel is not None else ():
            topic = self._topics.get(name)
            channel = topic.channels.get(poll.channel or "") if topic is not None else None
            if isinstance(channel, PullChannel):
                poll.named.append(channel)
                channel.poll_count += 1
