"""Offsets: how far a query has read, and where a user wants it to start or end.

A stream's offset, as Spark writes it to the checkpoint and shows it in its progress:

    {"channel": "archive", "identity": "<32 hex digits>", "nodes": {"<node's UUID>": {"<topic>":
        {"instance": "9f0c61f2a3b4d5e6", "index": 7350061592051712}}}}

Everything below ``index`` has been read; INDEX_MAX means that this instance of the topic was
deleted and the query has recorded it.  ``identity`` identifies the query as its channel's reader;
offsets of earlier versions have none.  A query's first offset also has ``begin``, in the form of
``nodes``: where its batch starts.  A user gives startingOffsets and endingOffsets as a word, in
that form, or in a shorter one in which nodes may be addresses:

    earliest    latest    {"127.0.0.1:4151": {"orders": 7350061592051712, "clicks": "latest"}}

Rule 1: an index is valid only for its node and instance of the topic.
Rule 2: equal offsets have equal texts, because Spark compares the texts: names are sorted.
Rule 3: unknown keys are ignored, so that offsets of later versions can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from penstock.errors import QueryError
from penstock.wire.names import is_valid_name

EARLIEST, LATEST = "earliest", "latest"
INDEX_MAX = 1 << 54

_INSTANCE = re.compile(r"[0-9a-f]{16}")
_IDENTITY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one instance of a topic; "" is the current instance."""

    instance: str
    index: int

    @property
    def is_deleted(self) -> bool:
        """Whether the instance was deleted, and the query has recorded it."""
        return self.index >= INDEX_MAX


Place = str | Position  # EARLIEST, LATEST or a position
Positions = dict[str, dict[str, Position]]  # by node and topic


@dataclass(frozen=True, slots=True)
class Places:
    """A user's offsets.  ``word``, unless empty, applies to all logs that ``by_node`` lacks."""

    word: str
    by_node: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    default: bool = True  # not set by the user

    def of(self, node: str, address: str, topic: str, otherwise: str) -> Place:
        for name in (node, address):
            found = self.by_node.get(name, {}).get(topic)
            if found is not None:
                return found
        return self.word or otherwise

    def named(self) -> Iterator[tuple[str, str]]:
        """The (node, topic) pairs of ``by_node``."""
        for node, topics in self.by_node.items():
            yield from ((node, topic) for topic in topics)

    def __str__(self) -> str:
        return self.word


def parse_places(text: str) -> Places:
    """Parse a user's offsets; raises ValueError."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return Places(word, default=False)
    value = json.loads(text)
    if is_offset(value):
        value = value["nodes"]
    by_node = {
        node: {topic: _place(place) for topic, place in _topics(node, topics).items()}
        for node, topics in _object(value, "the value").items()
    }
    return Places("", by_node, default=False)


def _object(value: object, subject: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{subject} is not a JSON object")
    return value


def _topics(node: str, value: object) -> dict[str, Any]:
    topics = _object(value, f"the value of {node!r}")
    for topic in topics:
        if not is_valid_name(topic):
            raise ValueError(f"{topic!r} is not a valid topic")
    return topics


def _place(value: object) -> Place:
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, dict):
        return _position(value)
    return Position("", _index(value))


def _index(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INDEX_MAX:
        raise ValueError(f"{value!r} is not an index, earliest or latest")
    return value


def _position(value: Mapping[str, Any]) -> Position:
    instance = value.get("instance", "")
    if instance and not is_instance(instance):
        raise ValueError(f"{instance!r} is not an instance of a topic")
    return Position(instance, _index(value.get("index")))


def is_instance(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def is_identity(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def is_offset(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether ``value`` has the keys of a stream's offset."""
    return isinstance(value, dict) and isinstance(value.get("channel"), str) and ("nodes" in value)


def encode(channel: str, positions: Positions, identity: str = "") -> dict[str, Any]:
    """Return a stream's offset for Spark."""
    nodes = {
        node: {
            topic: {"instance": position.instance, "index": position.index}
            for topic, position in sorted(topics.items())
        }
        for node, topics in sorted(positions.items())
        if topics
    }
    if not identity:
        return {"channel": channel, "nodes": nodes}
    return {"channel": channel, "identity": identity, "nodes": nodes}


def decode(offset: object) -> Positions:
    """Return the positions of a stream's offset; raises QueryError if it is not one."""
    try:
        return _positions(offset)
    except ValueError as error:
        raise _not_ours(offset, error) from None


def identity_in(offset: object) -> str:
    """Return the identity of a stream's offset, or ""; raises QueryError if it is invalid."""
    identity = offset.get("identity") if isinstance(offset, dict) else None
    if not identity:
        return ""
    if not is_identity(identity):
        raise _not_ours(offset, ValueError(f"{identity!r:.80} is not an identity"))
    return identity


def parse_positions(text: str) -> Positions:
    """Parse the positions of an offset that a user gives; raises ValueError."""
    positions = _positions(json.loads(text))
    for node, topic, position in flat(positions):
        if not position.instance:
            raise ValueError(f"topic {topic} of node {node} has no instance")
    return positions


def _positions(offset: object) -> Positions:
    nodes = _object(_object(offset, "the offset").get("nodes"), "nodes")
    return {
        node: {
            topic: _position(_object(position, "a position"))
            for topic, position in _topics(node, topics).items()
        }
        for node, topics in nodes.items()
    }


def _not_ours(offset: object, error: ValueError) -> QueryError:
    return QueryError(
        f"the checkpoint's offset is not one of the source nsq ({error}): {offset!r:.200}; "
        "does the checkpoint belong to another query?"
    )


def flat(positions: Positions) -> Iterator[tuple[str, str, Position]]:
    """Yield (node, topic, position), sorted."""
    for node, topics in sorted(positions.items()):
        for topic, position in sorted(topics.items()):
            yield node, topic, position
