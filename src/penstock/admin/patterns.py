"""Patterns (R47): which new topics get a reader's channel, as nsqds tell of them in /stats.

The same pattern is on every node of its reader; on the page it is one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# As nsqd bounds them; what a node says beyond is not shown.
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


def read_patterns(told: Any) -> tuple[PatternPart, ...]:
    """What a node says, taken apart; ValueError or TypeError if it makes no sense."""
    if told is None:
        return ()
    if not isinstance(told, list):
        raise ValueError("patterns that are none")
    return tuple(_part(each) for each in told[:PATTERN_COUNT_MAX])


def _part(told: Mapping[str, Any]) -> PatternPart:
    lapses_in_ms = told["lapses_in_ms"]
    return PatternPart(
        _text(told["channel"]),
        _text(told["identity"]),
        _text(told["reader"]),
        _texts(told["topics"], GLOB_COUNT_MAX),
        _texts(told["except"], EXCEPTION_COUNT_MAX),
        _count(told["idle_ms"]),
        None if lapses_in_ms is None else _count(lapses_in_ms),
    )


def _texts(values: Any, count_max: int) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError("a list that is none")
    return tuple(_text(value) for value in values[:count_max])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text that is none")
    return value[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError("a number that is none")
    return value


def rows(nodes: Iterable[tuple[str, tuple[PatternPart, ...]]]) -> list[View]:
    """One row a channel and identity, by channel, of (node, its patterns)."""
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
