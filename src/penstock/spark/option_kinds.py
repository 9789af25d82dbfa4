"""Kinds of the data source's options: how their texts are parsed.

A kind raises ValueError for a wrong text; the caller adds the name of the option.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

from penstock.settings.kinds import Choice, Listed, Text, parse_int
from penstock.spark.loss import Loss, parse_losses
from penstock.spark.offsets import Places, Positions, is_identity, parse_places, parse_positions
from penstock.wire.names import is_valid_name

COLUMNS = ("topic", "node", "index", "id", "timestamp", "body")
NOTE_SIZE_MAX = 1 << 20


class Offsets(Text):
    """Where to start or end: a word, or JSON by node and topic."""

    kind = "offsets"
    noun = 'earliest, latest, or JSON such as {"<node>":{"<topic>":123}}'

    def parse(self, text: str) -> Places:
        return parse_places(text)

    def show(self, value: Any) -> str:
        return str(value)


class Time(Text):
    """A time in nanoseconds since 1970; None if not set."""

    kind = "time"
    noun = "milliseconds since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z (by default UTC)"

    def parse(self, text: str) -> int:
        if text.isdecimal():
            return int(text) * 1_000_000
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        time_ns = (since // datetime.timedelta(microseconds=1)) * 1000
        if time_ns < 0:
            raise ValueError(text)
        return time_ns

    def show(self, value: Any) -> str:
        return ""


class Name(Text):
    noun = "a name of 1 to 64 letters, digits or ._-"

    def parse(self, text: str) -> str:
        if not is_valid_name(text) or text.endswith("#ephemeral"):
            raise ValueError(text)
        return text


class ColumnList(Listed):
    def __init__(self) -> None:
        super().__init__(Choice(dict.fromkeys(COLUMNS)))
        self.kind = "columns"
        self.noun = f"some of {', '.join(COLUMNS)}, separated by commas"

    def limits(self) -> str:
        return ""


class Count(Text):
    """A positive number; separators as in 1_000_000 are allowed."""

    kind = "int"
    noun = "an integer, 1 or more"

    def parse(self, text: str) -> int:
        value = parse_int(text)
        if not 1 <= value < 1 << 62:
            raise ValueError(text)
        return value

    def show(self, value: Any) -> str:
        return ""


class Identity(Text):
    noun = "32 hex digits"

    def parse(self, text: str) -> str:
        if text and not is_identity(text.lower()):
            raise ValueError(text)
        return text.lower()


class ReaderName(Text):
    noun = "1 to 255 bytes of text"

    def parse(self, text: str) -> str:
        if len(text.encode()) > 255:
            raise ValueError("too long")
        return text


class Resume(Text):
    kind = "offset"
    noun = 'an offset such as {"nodes":{"<node>":{"<topic>":{"instance":"...","index":123}}}}'

    def parse(self, text: str) -> Positions:
        return parse_positions(text)

    def show(self, value: Any) -> str:
        return ""


class Ranges(Text):
    kind = "ranges"
    noun = 'JSON such as [{"node":"...","topic":"...","instance":"...","start":123,"end":456}]'

    def parse(self, text: str) -> tuple[Loss, ...]:
        return parse_losses(text)

    def show(self, value: Any) -> str:
        return ""


class LocalFolder(Text):
    noun = "a folder on this machine"

    def parse(self, text: str) -> str:
        path = re.sub(r"file:(//)?(?=/)", "", text, count=1) if text.startswith("file:") else text
        if "://" in path or re.match(r"[a-z][a-z0-9+.-]*:/", path):
            raise ValueError("not a local path")
        return path


class WriteId(Text):
    noun = "1 to 200 ASCII characters without spaces"

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[!-~]{1,200}", text):
            raise ValueError(text)
        return text


class Note(Text):
    noun = "a text of up to 1 MiB"

    def parse(self, text: str) -> str:
        if len(text.encode()) > NOTE_SIZE_MAX:
            raise ValueError(f"{len(text.encode())} bytes")
        return text
