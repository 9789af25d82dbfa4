"""Which topics and channels exist, written to nsqd.dat in NSQ's form.

Rule 1: one write at a time; changes made meanwhile go together with the next one, so creating ten
        thousand channels does not write ten thousand files.
Rule 2: a change costs the same however many channels its topic has: the parts of the file are kept
        encoded, one for each channel, and joined when the file is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.disk import failure
from penstock.storage.metadata import (
    ChannelEntry,
    encode_channel_entry,
    encode_topic_head,
    join_entries,
    join_entry,
)
from penstock.version import NSQ_VERSION

if TYPE_CHECKING:
    from penstock.engine.broker import Broker


class _Entry:
    """A topic's part of the file."""

    __slots__ = ("channels", "head", "topic")

    def __init__(self, topic: BaseTopic) -> None:
        self.topic = topic
        self.head = b""
        self.channels = {
            channel.name: _encode(channel)
            for channel in topic.channels.values()
            if topic.lists(channel)
        }


class Registry:
    """Keeps nsqd.dat in step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._entries: dict[str, _Entry] = {}
        self._parts: dict[str, bytes] = {}  # what the last write had of each topic
        self._changed: dict[str, None] = {}  # topics since then, in order
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
        self._entries.clear()
        self._parts.clear()
        for topic in self._broker.topics.values():
            self._note(topic)
        return self.save()

    def note_channel(self, channel: Channel) -> None:
        """A channel came, went or changed; its topic is saved by the caller."""
        topic = channel.topic
        entry = self._entries.get(topic.name)
        if entry is None or entry.topic is not topic:
            return  # a topic that is noted later is noted with its channels
        self._changed[topic.name] = None
        current = topic.channels.get(channel.name)
        if current is None or not topic.lists(current):
            entry.channels.pop(channel.name, None)
        else:
            entry.channels[channel.name] = _encode(current)

    def _note(self, topic: BaseTopic) -> None:
        if not topic.listable:
            return
        if self._broker.topics.get(topic.name) is not topic:
            if topic.name not in self._broker.topics:
                self._entries.pop(topic.name, None)
                self._changed[topic.name] = None
            return
        entry = self._entries.get(topic.name)
        if entry is None or entry.topic is not topic:
            entry = self._entries[topic.name] = _Entry(topic)
        head = encode_topic_head(topic.name, topic.listed_paused)
        if head != entry.head:
            entry.head = head
            self._changed[topic.name] = None

    def _encode_changed(self) -> list[bytes]:
        """All parts of the file, of which those that changed are encoded anew."""
        for name in self._changed:
            entry = self._entries.get(name)
            if entry is None:
                self._parts.pop(name, None)
            else:
                self._parts[name] = join_entry(entry.head, entry.channels.values())
        self._changed.clear()
        return list(self._parts.values())

    def _again(self) -> None:
        if not self._writing:
            self.save()

    def _write(self) -> None:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        self._writing = True
        entries = self._encode_changed()
        broker = self._broker

        def write() -> None:
            broker.files.write_new(broker.data.metadata, join_entries(entries, NSQ_VERSION))

        def written(_: None, error: BaseException | None) -> None:
            self._writing = False
            broker.set_journal_health("nsqd.dat", error)
            if error is not None and not broker.exiting:
                broker.later(self._again)
            ticket.settle(failure(error))
            if self._ticket is not None:
                self._write()

        broker.changes_disk.submit(write, written)


def _encode(channel: Channel) -> bytes:
    return encode_channel_entry(
        ChannelEntry(channel.name, channel.paused, channel.pulled, channel.named, channel.reader)
    )
