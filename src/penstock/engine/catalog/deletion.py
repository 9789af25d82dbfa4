"""Deleting a topic: the folder is renamed first, and forgotten afterwards.

    close      publishes to it are refused, as in nsqd; whoever is connected stays
    rename     to <folder>.deleted, durably: from here on the topic is deleted, also for a start
    forget     consumers are disconnected, deferred messages are void, the name is free
    empty      its files go, which makes room on a full disk
    nsqd.dat   no longer lists it
    remove     the folder goes.  Until then it tells a start that what nsqd.dat lists was deleted

If the rename fails, the topic is as it was before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.engine.deferred.queue import FOREVER

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

log = logging.getLogger(__name__)


class Deletion:
    """One topic on its way out; ``ticket`` is settled when that is durable, or has failed."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._broker = broker
        self._topic = topic
        self._gone = ""
        self.ticket = Ticket()

    def start(self) -> None:
        topic = self._topic
        topic.deletion = self
        topic.appender.closed = True
        topic.flush()
        # Its folder may be being made right now.
        topic.created.add(self._rename)

    def _rename(self, _: Ticket) -> None:
        broker, topic = self._broker, self._topic
        if topic.closed:  # it could not be made
            self.ticket.settle()
            return
        broker.changes_disk.submit(
            lambda: broker.data.delete_topic(topic.log.folder), self._renamed
        )

    def _renamed(self, gone: str | None, error: BaseException | None) -> None:
        broker, topic = self._broker, self._topic
        if gone is None:
            topic.stay()
            broker.report(f"topic={topic.name}: not deleted", error)
            self.ticket.settle(error if isinstance(error, Exception) else OSError(str(error)))
            return
        self._gone = gone
        broker.drop_topic(topic)
        broker.deferred.purge(topic.instance, FOREVER)
        log.info("topic=%s: deleted", topic.name)
        broker.changes_disk.submit(lambda: broker.data.empty(gone), self._emptied)

    def _emptied(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._broker.report("deleted topic", error)
        self._broker.registry.save(self._topic).add(self._saved)

    def _saved(self, saved: Ticket) -> None:
        # If nsqd.dat could not be written, its health is told; the folder that stays says enough.
        broker, gone = self._broker, self._gone
        if saved.error is None:
            broker.changes_disk.submit(lambda: broker.data.remove(gone), self._removed)
        self.ticket.settle()

    def _removed(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._broker.report("deleted topic", error)
