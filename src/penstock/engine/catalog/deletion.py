"""Deleting a topic: its folder is renamed first, then the topic is dropped.

    close      publishes are refused, as in nsqd; consumers stay connected
    moves      what was moved here is finished durably at its source (R25)
    rename     to <folder>.deleted, durably: after this a restart does not bring the topic back
    forget     consumers are disconnected, deferred messages are void, the name is free
    empty      its files are removed, which makes room on a full disk
    nsqd.dat   no longer lists it
    remove     the folder.  Until then it shows a start that the topic in nsqd.dat was deleted

If the rename fails, the topic stays as it was.
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
    """Deletes topics; ``forget`` drops one from the broker after its folder is renamed."""

    def __init__(
        self, data: DataPath, disk: Disk, registry: Registry, forget: Callable[[Topic], None]
    ) -> None:
        self._data = data
        self._disk = disk
        self._registry = registry
        self._forget = forget

    def start(self, topic: Topic) -> Ticket:
        """Delete ``topic``; the ticket is settled when that is durable, or has failed."""
        ticket = topic.deletion = Ticket()
        topic.appender.closed = True
        topic.flush()
        # Its folder may still be being created.
        topic.created.add(partial(self._settle_moves, topic, ticket))
        return ticket

    def _settle_moves(self, topic: Topic, ticket: Ticket, _: Ticket) -> None:
        # Or a start would find neither that messages were moved here, nor that they are finished.
        topic.moves_tried().add(partial(self._rename, topic, ticket))

    def _rename(self, topic: Topic, ticket: Ticket, _: Ticket) -> None:
        if topic.closed:  # it could not be created
            ticket.settle()
            return
        rename = partial(self._data.delete_topic, topic.log.folder)
        self._disk.submit(rename, partial(self._renamed, topic, ticket))

    def _renamed(
        self, topic: Topic, ticket: Ticket, gone: str | None, error: Exception | None
    ) -> None:
        if gone is None:
            topic.undelete()
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
        # If nsqd.dat could not be written, health reports it; the folder stays as the record.
        if saved.error is None:
            self._disk.submit(partial(self._data.remove, gone), _report)
        ticket.settle()


def _report(_: None, error: Exception | None) -> None:
    if error is not None:
        report("deleted topic", error)
