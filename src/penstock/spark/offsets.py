"""Offsets: how far a query has come, and where a user wants it to begin or end.

A stream's offset, as Spark writes it into the checkpoint and shows it in its progress:

    {"channel": "archive", "identity": "<32 hex digits>", "nodes": {"<node's UUID>": {"<topic>":
        {"instance": "9f0c61f2a3b4d5e6", "index": 7350061592051712}}}}

Everything below ``index`` has been read; INDEX_MAX says that this instance of the topic was deleted
and that the query knows.  ``identity`` is the query's, by which a channel knows its reader; offsets
of earlier versions have none.  A query's first offset also has ``begin``, in the form of ``nodes``:
where its batch begins.  What a user gives (startingOffsets, endingOffsets) is a word, that form, or
a shorter one in which nodes may be addresses:

    earliest    latest    {"127.0.0.1:4151": {"orders": 7350061592051712, "clicks": "latest"}}

Rule 1: an index means something only together with its node and the topic's instance.
Rule 2: equal offsets are equal as text, because Spark compares them so: names are sorted.
Rule 3: keys that are not known are ignored, so that a later version's offsets can be read.
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
    """A place in one instance of a topic; an instance that is "" is whichever is there."""

    instance: str
    index: int

    @property
    def is_deleted(self) -> bool:
        """The instance was deleted, and the query has been told."""
        return self.index >= INDEX_MAX


Place = str | Position  # EARLIEST, LATEST or a position
Positions = dict[str, dict[str, Position]]  # by node and topic


@dataclass(frozen=True, slots=True)
class Places:
    """What a user gave.  ``word`` is for all that ``by_node`` does not name, if there is any."""

    word: str
    by_node: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    default: bool = True  # nobody gave it

    def of(self, node: str, address: str, topic: str, otherwise: str) -> Place:
        for name in (node, address):
            found = self.by_node.get(name, {}).get(topic)
            if found is not None:
                return found
        return self.word or otherwise

    def named(self) -> Iterator[tuple[str, str]]:
        """The (node, topic) pairs that are named."""
        for node, topics in self.by_node.items():
            yield from ((node, topic) for topic in topics)

    def __str__(self) -> str:
        return self.word


def parse_places(text: str) -> Places:
    """Read what a user gave; a ValueError says what is wrong with it."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return Places(word, default=False)
    value = json.loads(text)
    if is_offset(value):
        value = value["nodes"]
    by_node = {
        node: {topic: _place(place) for topic, place in _topics(node, topics).items()}
        for node, topics in _object(value, "it").items()
    }
    return Places("", by_node, default=False)


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    return value


def _topics(node: str, value: object) -> dict[str, Any]:
    topics = _object(value, f"what belongs to {node!r}")
    for topic in topics:
        if not is_valid_name(topic):
            raise ValueError(f"{topic!r} is no topic")
    return topics


def _place(value: object) -> Place:
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, dict):
        return _position(value)
    return Position("", _index(value))


def _index(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INDEX_MAX:
        raise ValueError(f"{value!r} is no index, earliest or latest")
    return value


def _position(value: Mapping[str, Any]) -> Position:
    instance = value.get("instance", "")
    if instance and not is_instance(instance):
        raise ValueError(f"{instance!r} is no instance of a topic")
    return Position(instance, _index(value.get("index")))


def is_instance(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def is_identity(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def is_offset(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether it is a stream's offset, by its keys."""
    return isinstance(value, dict) and isinstance(value.get("channel"), str) and ("nodes" in value)


def encode(channel: str, positions: Positions, identity: str = "") -> dict[str, Any]:
    """A stream's offset for Spark."""
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
    """The positions of a stream's offset; raises QueryError if it is none."""
    try:
        return _positions(offset)
    except ValueError as error:
        raise _not_ours(offset, error) from None


def identity_in(offset: object) -> str:
    """The identity of a stream's offset, "" if it has none; raises QueryError if it is wrong."""
    identity = offset.get("identity") if isinstance(offset, dict) else None
    if not identity:
        return ""
    if not is_identity(identity):
        raise _not_ours(offset, ValueError(f"{identity!r:.80} is no identity"))
    return identity


def parse_positions(text: str) -> Positions:
    """The positions of an offset that a user gives; a ValueError says what is wrong with it."""
    positions = _positions(json.loads(text))
    for node, topic, position in flat(positions):
        if not position.instance:
            raise ValueError(f"topic {topic} of node {node} has no instance")
    return positions


def _positions(offset: object) -> Positions:
    nodes = _object(_object(offset, "it").get("nodes"), "its nodes")
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
    """(node, topic, position) of all, in order."""
    for node, topics in sorted(positions.items()):
        for topic, position in sorted(topics.items()):
            yield node, topic, position
