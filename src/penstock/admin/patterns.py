"""Patterns (R47): which new topics get a reader's channel, as nsqds report in /stats.

A pattern is on every node of its reader; the page shows it as one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# nsqd's limits; anything above is not shown.
PATTERN_COUNT_MAX = 64
GLOB_COUNT_MAX = 64
EXCEPTION_COUNT_MAX = 1024
TEXT_SIZE_MAX = 255
NUMBER_MAX = 1 << 63

View = dict[str, Any]


class PatternPart(NamedTuple):
    """A pattern on one node."""

    channel: str
    identity: str
    reader: str
    topics: tuple[str, ...]
    excepted: tuple[str, ...]
    idle_ms: int
    lapses_in_ms: int | None


def read_patterns(raw: Any) -> tuple[PatternPart, ...]:
    """Parse a node's patterns; raises ValueError or TypeError if they are invalid."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise ValueError("patterns are not a list")
    return tuple(_part(each) for each in raw[:PATTERN_COUNT_MAX])


def _part(raw: Mapping[str, Any]) -> PatternPart:
    lapses_in_ms = raw["lapses_in_ms"]
    return PatternPart(
        _text(raw["channel"]),
        _text(raw["identity"]),
        _text(raw["reader"]),
        _texts(raw["topics"], GLOB_COUNT_MAX),
        _texts(raw["except"], EXCEPTION_COUNT_MAX),
        _count(raw["idle_ms"]),
        None if lapses_in_ms is None else _count(lapses_in_ms),
    )


def _texts(values: Any, count_max: int) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError("not a list")
    return tuple(_text(value) for value in values[:count_max])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError("not a number")
    return value


def rows(nodes: Iterable[tuple[str, tuple[PatternPart, ...]]]) -> list[View]:
    """One row for each channel and identity, by channel, from (node, its patterns)."""
    found: dict[tuple[str, str], View] = {}
    for node, parts in nodes:
        for part in parts:
            row = found.get((part.channel, part.identity))
            if row is None:
                row = found[part.channel, part.identity] = {
                    "channel": part.channel,
                    "identity": part.identity,
                    "reader": part.reader,
                    "topics": list(part.topics),
                    "except": list(part.excepted),
                    "nodes": [],
                    "idle_ms": part.idle_ms,
                    "lapses_in_ms": part.lapses_in_ms,
                }
            row["nodes"].append(node)
            if part.idle_ms < row["idle_ms"]:
                row |= {"idle_ms": part.idle_ms, "reader": part.reader}
            if part.lapses_in_ms is not None:
                least = row["lapses_in_ms"]
                row["lapses_in_ms"] = (
                    part.lapses_in_ms if least is None else min(least, part.lapses_in_ms)
                )
    return [found[key] for key in sorted(found)]
