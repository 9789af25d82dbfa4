# nsqd.dat: the topics and channels of a data path, as nsqd writes them.
#
#     {"topics":[{"name":"orders","paused":false,"channels":[{"name":"billing","paused":false}]}],
#      "version":"1.3.0"}                                       on one line, without a newline
#
# nsqd and its tools read this file: `topics` and `channels` are null when empty, ephemeral ones are
# left out (by the caller), unknown fields are ignored.  Our own fields are "pulled" and "named" of
# a channel, if true, and "reader", if it has one: they are needed if a journal is lost.

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import CorruptError
from penstock.storage.channel_reader import ChannelReader, checked_reader
from penstock.storage.files import Files


@dataclass
class ChannelEntry:
    """A channel; the fields from ``pulled`` on are copies of the journal's."""

    name: str
    paused: bool = False
    pulled: bool = False
    named: bool = False
    reader: ChannelReader | None = None


@dataclass
class TopicEntry:
    """A topic with its channels."""

    name: str
    paused: bool = False
    channels: list[ChannelEntry] = field(default_factory=list)


@dataclass
class Metadata:
    """The contents of the file."""

    topics: list[TopicEntry] = field(default_factory=list)
    version: str = ""


def encode_metadata(topics: Iterable[TopicEntry], version: str) -> bytes:
    return join_entries([encode_entry(topic) for topic in topics], version)


def encode_entry(topic: TopicEntry) -> bytes:
    """The object of one topic."""
    head = encode_topic_head(topic.name, topic.paused)
    return join_entry(head, map(encode_channel_entry, topic.channels))


# For a caller that caches the parts of many topics and channels:


def encode_topic_head(name: str, paused: bool) -> bytes:
    """The part of a topic's object before its channels."""
    return _json({"name": name, "paused": paused})[:-1] + b',"channels":'


def encode_channel_entry(channel: ChannelEntry) -> bytes:
    kind: dict[str, Any] = {name: True for name in ("pulled", "named") if getattr(channel, name)}
    if channel.reader is not None:
        kind["reader"] = channel.reader.as_json()
    return _json({"name": channel.name, "paused": channel.paused, **kind})


def join_entry(head: bytes, channels: Iterable[bytes]) -> bytes:
    joined = b",".join(channels)
    return head + (b"[" + joined + b"]}" if joined else b"null}")


def join_entries(entries: list[bytes], version: str) -> bytes:
    topics = b"[" + b",".join(entries) + b"]" if entries else b"null"
    return b'{"topics":' + topics + b',"version":' + _json(version) + b"}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_metadata(data: bytes, path: str = "nsqd.dat") -> Metadata:
    """Decode the file; CorruptError if it is malformed."""
    try:
        whole = json.loads(data)
    except ValueError as error:  # also if it is not UTF-8
        raise CorruptError(f"failed to parse metadata in {path} - {error}") from error
    try:
        return Metadata(
            [_topic(entry) for entry in _typed(whole, dict).get("topics") or []],
            _typed(whole.get("version") or "", str),
        )
    except (TypeError, AttributeError) as error:
        raise CorruptError(f"failed to parse metadata in {path} - {error}") from error


def load_metadata(files: Files, path: str) -> Metadata:
    """Read the file; empty if it is missing.  Blocking."""
    return decode_metadata(files.read(path), path) if files.exists(path) else Metadata()


def write_metadata(files: Files, path: str, topics: Iterable[TopicEntry], version: str) -> None:
    """Replace the file, synced; blocking."""
    files.write_new(path, encode_metadata(topics, version))


def _topic(entry: Any) -> TopicEntry:
    channels = [
        ChannelEntry(
            _typed(channel["name"], str),
            _typed(channel.get("paused", False), bool),
            pulled=channel.get("pulled") is True,
            named=channel.get("named") is True,
            reader=checked_reader(channel.get("reader")),
        )
        for channel in _named(_typed(entry, dict).get("channels") or [])
    ]
    (named,) = _named([entry])
    return TopicEntry(
        _typed(named["name"], str), _typed(entry.get("paused", False), bool), channels
    )


def _named(entries: Any) -> list[dict[str, Any]]:
    for entry in _typed(entries, list):
        if "name" not in _typed(entry, dict):
            raise TypeError("an entry has no name")
    return list(entries)


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.40} is not of type {kind.__name__}")
    return value
