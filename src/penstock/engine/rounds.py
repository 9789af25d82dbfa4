"""The rounds: work that is not done at once but regularly, for all topics that need it.

journal   5 a second           what the channels finished goes to the journals
sync      --sync-timeout       messages, finishes and deferred publishes become durable
upkeep    once a second        segments that nobody needs go; the disk's health, lapsed readers
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket, after, settled

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

JOURNAL_INTERVAL_NS = 200_000_000
UPKEEP_INTERVAL_NS = 1_000_000_000


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

    def _journal(self) -> None:
        progressed, self._progressed = self._progressed, {}
        for topic in progressed:
            if not topic.closed:
                topic.write_progress()
                self._finished[topic] = None
                self._used[topic] = None

    def _sync(self) -> None:
        """What --sync-timeout bounds: messages, finishes and deferred publishes."""
        unsynced, self._unsynced = self._unsynced, {}
        for topic in unsynced:
            if not topic.closed:
                # The journal says how far: without it damage there would pass for a torn tail.
                topic.writer.sync().add(partial(self._synced, topic))
        finished, self._finished = self._finished, {}
        for topic in finished:
            if not topic.closed:
                topic.keeper.flush(sync=True)
        if self._broker.deferred.unsynced_count:
            self._broker.deferred.sync()

    def _synced(self, topic: Topic, _: Ticket) -> None:
        self.progressed(topic)

    def _upkeep(self) -> None:
        broker = self._broker
        while self.damaged:
            self._used[self.damaged.popleft()] = None
        used, self._used = self._used, {}
        for topic in used:
            if not topic.closed:
                if topic.retire():
                    self._used[topic] = None
                broker.identity.saw(topic.appender.next_index)
        broker.identity.saw(0)
        self._checkpoint()
        broker.pulls.look()
        broker.staging.look_at_notes()
        broker.premises.look()
        broker.health_of_disk.look()

    def _checkpoint(self) -> None:
        """Sync the logs that deferred messages went to, then let go of their slots (R16)."""
        deferred = self._broker.deferred
        if not deferred.checkpoint_wanted:
            return
        fired = deferred.checkpoint_due()
        topics = dict.fromkeys(self._broker.durable(f.instance) for f in fired)
        syncs = [topic.writer.sync() for topic in topics if topic is not None]

        def synced(ticket: Ticket) -> None:
            deferred.checkpoint([] if ticket.error is not None else fired)

        after(*syncs, settled()).add(synced)
