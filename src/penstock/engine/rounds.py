"""The rounds: work that is not done at once but regularly, for all topics that need it.

journal   5 a second           what the channels finished goes to the journals
sync      --sync-timeout       messages, finishes and deferred publishes become durable
upkeep    once a second        segments that nobody needs go; the disk's health, lapsed readers

Rule 1: a round serves its topics a millisecond at a time, and the loop others in between.
Rule 2: few writes and syncs of a round are with the disk at once.  A topic that waits for its turn
        may roll and be synced by others meanwhile, as if there was no round.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket, after, settled
from penstock.engine.disk import failed

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

JOURNAL_INTERVAL_NS = 200_000_000
UPKEEP_INTERVAL_NS = 1_000_000_000
# What a round takes of one turn of the loop.
SLICE_NS = 1_000_000
# Writes of journals and syncs of a round that are with the disk at once.
WRITE_COUNT_MAX = 4
SYNC_COUNT_MAX = 3
# And of both, that are begun in one turn of the loop.
BEGIN_COUNT_MAX = 64


class InTurn:
    """Works of topics that wait for their turn, in order, each of them once."""

    def __init__(self, broker: Broker, count_max: int) -> None:
        self._broker = broker
        self._count_max = count_max
        self._waiting: OrderedDict[Callable[[], Ticket], Ticket] = OrderedDict()
        self._count = 0
        self._asked = False

    def add(self, begin: Callable[[], Ticket]) -> Ticket:
        """Have ``begin`` called in a while; the ticket is settled as the one that it returns."""
        ticket = self._waiting.get(begin)
        if ticket is None:
            ticket = self._waiting[begin] = Ticket()
            self._go_on_soon()
        return ticket

    def _go_on_soon(self) -> None:
        if not self._asked and self._waiting and self._count < self._count_max:
            self._asked = True
            self._broker.turns.soon(self._go_on)

    def _go_on(self) -> None:
        self._asked = False
        for _ in range(BEGIN_COUNT_MAX):
            if not self._waiting or self._count >= self._count_max:
                return
            begin, ticket = self._waiting.popitem(last=False)
            self._count += 1
            self._begin(begin).add(partial(self._done, ticket))
        self._go_on_soon()

    def _begin(self, begin: Callable[[], Ticket]) -> Ticket:
        try:
            return begin()
        except Exception as error:
            self._broker.defect("round")
            return failed(error)

    def _done(self, ticket: Ticket, done: Ticket) -> None:
        self._count -= 1
        self._go_on_soon()
        ticket.settle(done.error)


class Rounds:
    """Which topics have something to do, and when it is done."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Sets that keep their order: the same steps go the same way again.
        self._progressed: dict[Topic, None] = {}
        self._unsynced: dict[Topic, None] = {}
        self._finished: dict[Topic, None] = {}  # with progress in the journal, not synced
        self._used: dict[Topic, None] = {}
        self.damaged: deque[Topic] = deque()  # reads found damage, on any thread
        self._writes = InTurn(broker, WRITE_COUNT_MAX)
        self._syncs = InTurn(broker, SYNC_COUNT_MAX)

    def start(self) -> None:
        self._every(JOURNAL_INTERVAL_NS, self._journal)
        self._every(self._broker.options.sync_timeout_ns, self._sync)
        self._every(UPKEEP_INTERVAL_NS, self._upkeep)

    def written(self, topic: Topic) -> None:
        """Messages were added to the log of ``topic``."""
        self._unsynced[topic] = None
        self._used[topic] = None

    def used(self, topic: Topic) -> None:
        """``topic`` may have segments to let go of."""
        self._used[topic] = None

    def progressed(self, topic: Topic) -> None:
        """Channels of ``topic`` have something to journal."""
        self._progressed[topic] = None

    def _every(self, interval_ns: int, call: Callable[[], None]) -> None:
        broker = self._broker

        def again() -> None:
            if not broker.exiting:
                broker.guard("round", call)
                broker.turns.after(interval_ns, again)

        broker.turns.after(interval_ns, again)

    def _each(self, topics: Iterator[Topic], call: Callable[[Topic], None]) -> None:
        clock = self._broker.clock
        end_ns = clock.monotonic_ns() + SLICE_NS
        for topic in topics:
            if not topic.closed:
                self._broker.guard(topic.name, call, topic)
                if clock.monotonic_ns() >= end_ns:
                    self._broker.turns.soon(partial(self._each, topics, call))
                    return

    def _journal(self) -> None:
        progressed, self._progressed = self._progressed, {}
        for topic in progressed:
            self._writes.add(topic.write_progress).add(partial(self._written, topic))

    def _written(self, topic: Topic, _: Ticket) -> None:
        self._finished[topic] = None
        self._used[topic] = None

    def _sync(self) -> None:
        """What --sync-timeout bounds: messages, finishes and deferred publishes."""
        unsynced, self._unsynced = self._unsynced, {}
        finished, self._finished = self._finished, {}
        for topic in unsynced:
            # The journal says how far: without it damage there would pass for a torn tail.
            self._syncs.add(topic.sync_log).add(partial(self._synced, topic))
        for topic in finished:
            self._syncs.add(topic.sync_journal)
        if self._broker.deferred.unsynced_count:
            self._broker.deferred.sync()

    def _synced(self, topic: Topic, _: Ticket) -> None:
        self.progressed(topic)

    def _upkeep(self) -> None:
        broker = self._broker
        while self.damaged:
            self._used[self.damaged.popleft()] = None
        used, self._used = self._used, {}
        self._each(iter(used), self._look_after)
        broker.identity.saw(0)
        self._checkpoint()
        broker.pulls.look()
        broker.patterns.look()
        broker.staging.look_at_notes()
        broker.premises.look()
        broker.health_of_disk.look()

    def _look_after(self, topic: Topic) -> None:
        if topic.retire():
            self._used[topic] = None
        self._broker.identity.saw(topic.appender.next_index)

    def _checkpoint(self) -> None:
        """Sync the logs that deferred messages went to, then let go of their slots (R16)."""
        deferred = self._broker.deferred
        if not deferred.checkpoint_wanted:
            return
        fired = deferred.checkpoint_due()
        topics = dict.fromkeys(self._broker.durable(f.instance) for f in fired)
        syncs = [self._syncs.add(topic.sync_log) for topic in topics if topic is not None]

        def synced(ticket: Ticket) -> None:
            deferred.checkpoint([] if ticket.error is not None else fired)

        after(*syncs, settled()).add(synced)
