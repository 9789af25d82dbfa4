"""Long polls: who waits for the end of a log to move.

A poll names topics and how far its reader has come in each.  It is answered when one of them has
more that is synced (R18), has become another instance, has lost the poll's channel or is gone, or
when the channel has another reader (R45); or when its time is over.  What it is answered with is
looked up by whoever asked.

Rule 1: waiting costs nothing: there is one timer a poll, and topics tell when something happens.
Rule 2: only a poll makes the log sync earlier than --sync-every and --sync-timeout do, and at
        most once in SYNC_SPACING_NS a topic.
Rule 3: every poll is answered once, soon after its time at the latest.
Rule 4: nobody is refused: when too many wait, the poll that has waited longest of the reader with
        the most of them is answered, with what there is.  It may ask again.
Rule 5: one turn answers a bounded number; a crowd that waits for something else is not looked at
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
# After a sync that failed; the disk is in trouble and others look after it.
SYNC_RETRY_NS = 1_000_000_000

# Answers made in one turn of the loop: 64 take some 5 ms.
ANSWER_COUNT_MAX = 64
# So many who wait are looked at no more often than they could have the log synced.
CROWD_COUNT = 32

NOTHING, UNSYNCED, DUE = range(3)


class Known(NamedTuple):
    """What a reader knows of a topic: the instance, and the end up to which it has come."""

    instance: int | None
    after: int | None


class Poll:
    """One reader that waits."""

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
        self.named: list[PullChannel] = []  # which are not without their reader meanwhile


@dataclass(slots=True)
class _Place:
    """The polls of one topic."""

    polls: dict[Poll, None] = field(default_factory=dict)
    asked: bool = False  # they will be looked at in this turn
    syncing: bool = False
    resting: bool = False  # a crowd, for which nothing was there a moment ago
    missed: bool = False  # and a batch has come since


def readable_end(topic: Topic, channel: PullChannel | None) -> int:
    """How far a reader may go: to what is synced (R18), and a channel only to what it may have."""
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
        """A poll that is answered as soon as there is something to tell, or after ``wait_ns``.

        ``reader`` is whose poll it is, for rule 4; None is one of our own, which are few.
        ``identity`` is what it may name ``channel`` with.
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
        """End a poll's wait, whatever it waits for."""
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
        """Answer everybody: the end has begun."""
        for poll in list(self._polls):
            self.answer(poll)

    # ---- what topics tell

    def arrived(self, name: str) -> None:
        """A batch became visible.  While a sync runs for the polls, its end looks at it too."""
        place = self._places.get(name)
        if place is None or place.syncing:
            return
        if place.resting:
            place.missed = True
        else:
            self._look_soon(name, place)

    def changed(self, name: str) -> None:
        """A topic came, went, or changed its state."""
        place = self._places.get(name)
        if place is not None:
            self._look_soon(name, place)

    # ---- looking

    def _look_soon(self, name: str, place: _Place) -> None:
        if not place.asked:
            place.asked = True
            self._turns.soon(lambda: self._look(name, place))

    def _look(self, name: str, place: _Place) -> None:
        place.asked = False
        unsynced = False
        answer_count = 0
        for poll in list(place.polls):
            answer = self._judge(poll, name)
            if answer == DUE:
                self.answer(poll)
                answer_count += 1
                if answer_count == ANSWER_COUNT_MAX:
                    self._look_soon(name, place)
                    return
            unsynced = unsynced or answer == UNSYNCED
        topic = self._topics.get(name)
        if place.syncing:
            return
        if unsynced and isinstance(topic, Topic):
            self._sync(name, place, topic)
        elif len(place.polls) >= CROWD_COUNT and not place.resting:
            place.resting = True
            self._turns.after(SYNC_SPACING_NS, lambda: self._rested(name, place))

    def _rested(self, name: str, place: _Place) -> None:
        place.resting = False
        if place.missed:
            place.missed = False
            self._look_soon(name, place)

    def _judge(self, poll: Poll, name: str) -> int:
        """Whether there is something to tell ``poll`` of the topic, or will be after a sync."""
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
                self._look_soon(name, place)
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
