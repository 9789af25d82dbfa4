"""Writes nsqd.dat, which lists topics and channels, in NSQ's format.

A change costs the same however many channels its topic has: the entry of each channel is kept
encoded, and they are joined when the file is written (catalog/saved_file.py).
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

    paused: bool
    named: bool
    pulled: bool
    reader: ChannelReader | None

    @property
    def name(self) -> str: ...


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
    """A topic's entry in the file."""

    __slots__ = ("channels", "head", "topic")

    def __init__(self, topic: ListedTopic) -> None:
        self.topic = topic
        self.head = b""
        self.channels = {
            name: _encode(channel) for name, channel in topic.channels.items() if topic.lists(name)
        }


class Registry:
    """Keeps nsqd.dat up to date."""

    def __init__(
        self, context: Context, health: Health, disk: Disk, topics: Mapping[str, ListedTopic]
    ) -> None:
        self._context = context
        self._topics = topics
        self._file = SavedFile(context, health, "nsqd.dat", self._encode_changed, disk)
        self._entries: dict[str, _Entry] = {}
        self._parts: dict[str, bytes] = {}  # each topic's entry in the last write
        self._changed: dict[str, None] = {}  # topics changed since then, in order

    def save(self, topic: ListedTopic) -> Ticket:
        """``topic`` changed or was deleted; the ticket is settled when the file has it."""
        self._note(topic)
        return self._file.save()

    def save_all(self) -> Ticket:
        self._entries.clear()
        self._parts.clear()
        for topic in self._topics.values():
            self._note(topic)
        return self._file.save()

    def note_channel(self, topic: ListedTopic, name: str) -> None:
        """A channel was created, deleted or changed; the caller saves its topic."""
        entry = self._entries.get(topic.name)
        if entry is None or entry.topic is not topic:
            return  # its channels are added together with the topic, later
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
        """Encode the entries that changed; returns the work that writes all of them."""
        for name in self._changed:
            entry = self._entries.get(name)
            if entry is None:
                self._parts.pop(name, None)
            else:
                self._parts[name] = join_entry(entry.head, entry.channels.values())
        self._changed.clear()
        return partial(self._write, list(self._parts.values()))

    def _write(self, parts: list[bytes]) -> None:
        # On a disk thread.
        data = join_entries(parts, NSQ_VERSION)
        self._context.files.write_new(self._context.data.metadata, data)


def _encode(channel: ListedChannel) -> bytes:
    return encode_channel_entry(
        ChannelEntry(channel.name, channel.paused, channel.pulled, channel.named, channel.reader)
    )
