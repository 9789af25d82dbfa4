"""Which topics and channels exist, written to nsqd.dat in NSQ's form.

A change costs the same however many channels its topic has: the parts of the file are kept encoded,
one for each channel, and joined when the file is written (catalog/saved_file.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from penstock.core.ticket import Ticket
from penstock.engine.catalog.saved_file import SavedFile
from penstock.engine.context import Context
from penstock.engine.disk import Disk
from penstock.engine.health import Health
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.metadata import (
    ChannelEntry,
    encode_channel_entry,
    encode_topic_head,
    join_entries,
    join_entry,
)
from penstock.version import NSQ_VERSION


class ListedChannel(Protocol):
    """A channel as nsqd.dat lists it."""

    name: str
    paused: bool
    named: bool
    pulled: bool
    reader: ChannelReader | None


class ListedTopic(Protocol):
    """A topic as nsqd.dat lists it."""

    name: str

    @property
    def channels(self) -> Mapping[str, ListedChannel]: ...
    @property
    def listable(self) -> bool: ...
    @property
    def listed_paused(self) -> bool: ...
    def lists(self, channel: str) -> bool: ...


class _Entry:
    """A topic's part of the file."""

    __slots__ = ("channels", "head", "topic")

    def __init__(self, topic: ListedTopic) -> None:
        self.topic = topic
        self.head = b""
        self.channels = {
            name: _encode(channel) for name, channel in topic.channels.items() if topic.lists(name)
        }


class Registry:
    """Keeps nsqd.dat in step."""

    def __init__(
        self, context: Context, health: Health, disk: Disk, topics: Mapping[str, ListedTopic]
    ) -> None:
        self._context = context
        self._topics = topics
        self._file = SavedFile(context, health, "nsqd.dat", self._encode_changed, disk)
        self._entries: dict[str, _Entry] = {}
        self._parts: dict[str, bytes] = {}  # what the last write had of each topic
        self._changed: dict[str, None] = {}  # topics since then, in order

    def save(self, topic: ListedTopic) -> Ticket:
        """``topic`` changed or went; the ticket is settled when the file says so."""
        self._note(topic)
        return self._file.save()

    def save_all(self) -> Ticket:
        self._entries.clear()
        self._parts.clear()
        for topic in self._topics.values():
            self._note(topic)
        return self._file.save()

    def note_channel(self, topic: ListedTopic, name: str) -> None:
        """A channel came, went or changed; its topic is saved by the caller."""
        entry = self._entries.get(topic.name)
        if entry is None or entry.topic is not topic:
            return  # a topic that is noted later is noted with its channels
        self._changed[topic.name] = None
        channel = topic.channels.get(name)
        if channel is None or not topic.lists(name):
            entry.channels.pop(name, None)
        else:
            entry.channels[name] = _encode(channel)

    def _note(self, topic: ListedTopic) -> None:
        if not topic.listable:
            return
        if self._topics.get(topic.name) is not topic:
            if topic.name not in self._topics:
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

    def _encode_changed(self) -> Callable[[], None]:
        """Encode the parts that changed, and write them all."""
        for name in self._changed:
            entry = self._entries.get(name)
            if entry is None:
                self._parts.pop(name, None)
            else:
                self._parts[name] = join_entry(entry.head, entry.channels.values())
        self._changed.clear()
        return partial(self._write, list(self._parts.values()))

    def _write(self, parts: list[bytes]) -> None:
        # On another thread.
        data = join_entries(parts, NSQ_VERSION)
        self._context.files.write_new(self._context.data.metadata, data)


def _encode(channel: ListedChannel) -> bytes:
    return encode_channel_entry(
        ChannelEntry(channel.name, channel.paused, channel.pulled, channel.named, channel.reader)
    )
