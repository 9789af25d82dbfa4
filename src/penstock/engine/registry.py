"""Which topics and channels exist, written to nsqd.dat in NSQ's form.

One write at a time; changes made meanwhile go together with the next one, so creating ten
thousand channels does not write ten thousand files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.storage.metadata import ChannelEntry, TopicEntry, encode_entry, join_entries
from penstock.version import NSQ_VERSION

if TYPE_CHECKING:
    from penstock.engine.broker import Broker


class Registry:
    """Keeps nsqd.dat in step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._entries: dict[str, bytes] = {}
        self._ticket: Ticket | None = None
        self._writing = False

    @property
    def idle(self) -> bool:
        return not self._writing

    def save(self, topic: BaseTopic | None = None) -> Ticket:
        """``topic`` changed or went; the ticket is settled when the file says so."""
        if topic is not None:
            self._note(topic)
        if self._ticket is None:
            self._ticket = Ticket()
        ticket = self._ticket
        if not self._writing:
            self._write()
        return ticket

    def save_all(self) -> Ticket:
        for topic in self._broker.topics.values():
            self._note(topic)
        return self.save()

    def _note(self, topic: BaseTopic) -> None:
        if topic.ephemeral:
            return
        if self._broker.topics.get(topic.name) is not topic:
            if topic.name not in self._broker.topics:
                self._entries.pop(topic.name, None)
            return
        channels = [
            ChannelEntry(channel.name, channel.paused)
            for channel in topic.channels.values()
            if not channel.ephemeral
        ]
        self._entries[topic.name] = encode_entry(TopicEntry(topic.name, topic.paused, channels))

    def _write(self) -> None:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        self._writing = True
        entries = list(self._entries.values())
        broker = self._broker

        def write() -> None:
            broker.files.write_new(broker.data.metadata, join_entries(entries, NSQ_VERSION))

        def written(_: None, error: BaseException | None) -> None:
            self._writing = False
            broker.set_journal_health(error)
            ticket.settle(error if error is None or isinstance(error, Exception) else None)
            if self._ticket is not None:
                self._write()

        broker.disk.submit(write, written)
