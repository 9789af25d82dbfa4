"""Places in a topic's log, as people write them: where a channel starts, and what to seek to.

    earliest               the oldest message from which on nothing is missing
    latest                 after the newest message
    queued                 as in NSQ: what waits for the topic's first channel, else latest
    -1h                    that long ago; a Go duration with d for days
    2026-10-01T12:00:00Z   a time, as in RFC 3339
    1790856000000000000    a time in nanoseconds since 1970
    index:4711             a message's index

A time means the first message appended at or after it (R4).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.settings.kinds import Text, format_duration, parse_duration

EARLIEST, LATEST, QUEUED, AGO, TIME, INDEX = (
    "earliest",
    "latest",
    "queued",
    "ago",
    "time",
    "index",
)
NOUN = "earliest, latest, -1h, a time as in RFC 3339, nanoseconds since 1970, or index:n"

# Indexes have 54 bits (R1).
INDEX_MAX = (1 << 54) - 1
_TEXT_SIZE_MAX = 64
_TIME_NS_MAX = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}")
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class Place(NamedTuple):
    """A parsed place; ``number`` is a duration, a time or an index."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        if self.kind == AGO:
            return f"-{format_duration(self.number)}"
        if self.kind == TIME:
            return str(self.number)
        return f"index:{self.number}" if self.kind == INDEX else self.kind


def parse_place(text: str) -> Place:
    """Return the place that ``text`` means; raises ValueError if it means none."""
    if text in (EARLIEST, LATEST, QUEUED):
        return Place(text)
    if len(text) > _TEXT_SIZE_MAX:
        raise ValueError(text[:_TEXT_SIZE_MAX])
    if text.startswith("-"):
        ago_ns = -parse_duration(text)
        if ago_ns <= 1:  # -0, and -1, which is "off" elsewhere
            raise ValueError(text)
        return Place(AGO, ago_ns)
    if text.startswith("index:"):
        index = _number(text.removeprefix("index:"))
        if index > INDEX_MAX:
            raise ValueError(text)
        return Place(INDEX, index)
    if "-" in text:
        return Place(TIME, _time_ns(text))
    return Place(TIME, _number(text))


def _number(text: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > _TIME_NS_MAX:
        raise ValueError(text)
    return int(text)


def _time_ns(text: str) -> int:
    from datetime import UTC, datetime  # a start of nsqd does not need it

    found = _RFC_3339.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, clock, fraction, zone = found.groups()
    at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    time_ns = (since.days * 86400 + since.seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))
    if not 0 <= time_ns <= _TIME_NS_MAX:
        raise ValueError(text)
    return time_ns


class StartKind(Text):
    """Where new channels start, as the value of a setting."""

    kind = "place"
    noun = "queued, earliest, latest, or a duration such as -1h"

    def parse(self, text: str) -> Place:
        place = parse_place(text)
        if place.kind not in (EARLIEST, LATEST, QUEUED, AGO):
            raise ValueError(text)
        return place

    def to_json(self, value: Place) -> str:
        return str(value)
