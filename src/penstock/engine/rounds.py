"""The rounds: periodic work, for all topics that need it.

journal   5 a second           journals what the channels finished
sync      --sync-timeout       syncs messages, finishes and deferred publishes
upkeep    once a second        removes finished segments; checks the disk and lapsed readers

Rule 1: a round uses one millisecond of a turn of the loop, then continues in the next.
Rule 2: a round has only a few writes and syncs on the disk threads at once.  A topic that waits for
        its turn may roll, and be synced by others, as usual.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from penstock.core.appender import Appender
from penstock.core.marks import Marks
from penstock.core.ticket import Ticket, after
from penstock.engine.catalog.identity import Identity
from penstock.engine.context import Context
from penstock.engine.deferred.queue import DeferredQueue
from penstock.engine.disk import failed

JOURNAL_INTERVAL_NS = 200_000_000
UPKEEP_INTERVAL_NS = 1_000_000_000
# Time a round may use in one turn of the loop.
SLICE_NS = 1_000_000
# Journal writes and syncs of a round that are on the disk threads at once.
WRITE_COUNT_MAX = 4
SYNC_COUNT_MAX = 3
# Writes and syncs started in one turn of the loop.
BEGIN_COUNT_MAX = 64


class SyncedTopic(Protocol):
    """A topic as a checkpoint sees it."""

    def sync_log(self) -> Ticket: ...


class TendedTopic(SyncedTopic, Protocol):
    """A topic as the rounds see it."""

    name: str
    closed: bool
    appender: Appender

    def write_progress(self) -> Ticket: ...
    def sync_journal(self) -> Ticket: ...
    def retire(self) -> bool: ...


class LimitedQueue:
    """Work of topics, started in order with at most ``count_max`` at once; each is queued once."""

    def __init__(self, context: Context, count_max: int) -> None:
        self._turns = context.turns
        self._supervisor = context.supervisor
        self._count_max = count_max
        self._waiting: OrderedDict[Callable[[], Ticket], Ticket] = OrderedDict()
        self._count = 0
        self._scheduled = False

    def add(self, begin: Callable[[], Ticket]) -> Ticket:
        """Call ``begin`` when it is its turn; the ticket is settled like the one it returns."""
        ticket = self._waiting.get(begin)
        if ticket is None:
            ticket = self._waiting[begin] = Ticket()
            self._start_soon()
        return ticket

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._count

    def _start_soon(self) -> None:
        if not self._scheduled and self._waiting and self._count < self._count_max:
            self._scheduled = True
            self._turns.soon(self._start_next)

    def _start_next(self) -> None:
        self._scheduled = False
        for _ in range(BEGIN_COUNT_MAX):
            if not self._waiting or self._count >= self._count_max:
                return
            begin, ticket = self._waiting.popitem(last=False)
            self._count += 1
            self._begin(begin).add(partial(self._done, ticket))
        self._start_soon()

    def _begin(self, begin: Callable[[], Ticket]) -> Ticket:
        try:
            return begin()
        except Exception as error:
            self._supervisor.defect("round")
            return failed(error)

    def _done(self, ticket: Ticket, done: Ticket) -> None:
        self._count -= 1
        self._start_soon()
        ticket.settle(done.error)


class Rounds:
    """Which topics need periodic work, and the timers for it."""

    def __init__(
        self,
        context: Context,
        identity: Identity,
        deferred: DeferredQueue,
        by_instance: Mapping[int, SyncedTopic],
    ) -> None:
        self._turns = context.turns
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._sync_timeout_ns = context.options.sync_timeout_ns
        self._identity = identity
        self._deferred = deferred
        self._by_instance = by_instance
        self._checks: Sequence[Callable[[], None]] = ()
        # Topics with work for the next round.
        self.progressed = Marks()  # channels have something to journal
        self.unsynced = Marks()  # messages were added to the log
        self.used = Marks()  # there may be segments to remove
        self._finished = Marks()  # with unsynced progress in the journal
        self.damaged: deque[TendedTopic] = deque()  # reads found damage, on any thread
        self._writes = LimitedQueue(context, WRITE_COUNT_MAX)
        self._syncs = LimitedQueue(context, SYNC_COUNT_MAX)

    def start(self, checks: Sequence[Callable[[], None]]) -> None:
        """Start; every upkeep calls the ``checks`` of other components."""
        self._checks = checks
        self._every(JOURNAL_INTERVAL_NS, self._journal)
        self._every(self._sync_timeout_ns, self._sync)
        self._every(UPKEEP_INTERVAL_NS, self._upkeep)

    def _every(self, interval_ns: int, call: Callable[[], None]) -> None:
        def again() -> None:
            if not self._supervisor.exiting:
                self._supervisor.guard("round", call)
                self._turns.after(interval_ns, again)

        self._turns.after(interval_ns, again)

    def _each(self, topics: Iterator[TendedTopic], call: Callable[[TendedTopic], None]) -> None:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for topic in topics:
            if not topic.closed:
                self._supervisor.guard(topic.name, call, topic)
                if self._clock.monotonic_ns() >= end_ns:
                    self._turns.soon(partial(self._each, topics, call))
                    return

    def _journal(self) -> None:
        for topic in self.progressed.take():
            self._writes.add(topic.write_progress).add(partial(self._written, topic))

    def _written(self, topic: TendedTopic, _: Ticket) -> None:
        self._finished.add(topic)
        self.used.add(topic)

    def _sync(self) -> None:
        """Sync what --sync-timeout limits: messages, finishes and deferred publishes."""
        for topic in self.unsynced.take():
            # Then journal the synced offset: without it, damage there would pass for a torn tail.
            self._syncs.add(topic.sync_log).add(partial(self._synced, topic))
        for topic in self._finished.take():
            self._syncs.add(topic.sync_journal)
        syncing = self._deferred.writer.syncing
        if syncing.unsynced_count:
            syncing.sync()

    def _synced(self, topic: TendedTopic, _: Ticket) -> None:
        self.progressed.add(topic)

    def _upkeep(self) -> None:
        while self.damaged:
            self.used.add(self.damaged.popleft())
        self._each(iter(self.used.take()), self._retire)
        self._identity.reached(0)
        self._checkpoint()
        for check in self._checks:
            check()

    def _retire(self, topic: TendedTopic) -> None:
        if topic.retire():
            self.used.add(topic)
        self._identity.reached(topic.appender.next_index)

    def _checkpoint(self) -> None:
        """Sync the logs that deferred messages went to, then checkpoint their slots (R16)."""
        checkpoints = self._deferred.checkpoints
        if not checkpoints.wanted:
            return
        fired = checkpoints.due()
        topics = dict.fromkeys(self._by_instance.get(f.instance) for f in fired)
        syncs = [self._syncs.add(topic.sync_log) for topic in topics if topic is not None]

        def synced(ticket: Ticket) -> None:
            checkpoints.write([] if ticket.error is not None else fired)

        after(*syncs).add(synced)
