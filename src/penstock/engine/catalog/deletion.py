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

from collections.abc import Callable
from functools import partial

from penstock.core.ticket import Ticket
from penstock.engine.catalog.registry import Registry
from penstock.engine.disk import Disk, report
from penstock.engine.topic import Topic
from penstock.storage.datapath import DataPath


class Deletion:
    """Takes topics out; ``forget`` frees the name of one whose folder is renamed."""

    def __init__(
        self, data: DataPath, disk: Disk, registry: Registry, forget: Callable[[Topic], None]
    ) -> None:
        self._data = data
        self._disk = disk
        self._registry = registry
        self._forget = forget

    def start(self, topic: Topic) -> Ticket:
        """Delete ``topic``; settled when that is durable, or has failed."""
        ticket = topic.deletion = Ticket()
        topic.appender.closed = True
        topic.flush()
        # Its folder may be being made right now.
        topic.created.add(partial(self._rename, topic, ticket))
        return ticket

    def _rename(self, topic: Topic, ticket: Ticket, _: Ticket) -> None:
        if topic.closed:  # it could not be made
            ticket.settle()
            return
        rename = partial(self._data.delete_topic, topic.log.folder)
        self._disk.submit(rename, partial(self._renamed, topic, ticket))

    def _renamed(
        self, topic: Topic, ticket: Ticket, gone: str | None, error: Exception | None
    ) -> None:
        if gone is None:
            topic.stay()
            report(f"topic={topic.name}: not deleted", error)
            ticket.settle(error)
            return
        self._forget(topic)
        self._disk.submit(
            partial(self._data.empty, gone), partial(self._emptied, topic, ticket, gone)
        )

    def _emptied(
        self, topic: Topic, ticket: Ticket, gone: str, _: None, error: Exception | None
    ) -> None:
        _report(None, error)
        self._registry.save(topic).add(partial(self._saved, ticket, gone))

    def _saved(self, ticket: Ticket, gone: str, saved: Ticket) -> None:
        # If nsqd.dat could not be written, health says so; the folder that stays says enough.
        if saved.error is None:
            self._disk.submit(partial(self._data.remove, gone), _report)
        ticket.settle()


def _report(_: None, error: Exception | None) -> None:
    if error is not None:
        report("deleted topic", error)
