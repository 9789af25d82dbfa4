# The reader of a pull channel (R45): who reads it, for the journal and for nsqd.dat.
#
#     since_ms i64 | identity 16 | name, UTF-8, up to 255 bytes          big-endian, after the id
#
#     {"identity":"<32 hex digits>","name":"...","since_ms":...,"checksum":"<8 hex digits>"}
#
# The second one is that of nsqd.dat, which has no checksum of its own: a digit that changed there
# must not shut the reader out.

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from penstock.core.crc32c import crc32c

NAME_SIZE_MAX = 255
SINCE_MS_MAX = 253_402_300_799_999  # the end of the year 9999

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_BLANK = re.compile(r"[\x00-\x20\x7f-\x9f]+")
_READER = struct.Struct(">q16s")


@dataclass(frozen=True, slots=True)
class ChannelReader:
    """An identity, its name for people, which may be empty, and since when it reads."""

    identity: str
    name: str
    since_ms: int

    def encode(self) -> bytes:
        return _READER.pack(self.since_ms, bytes.fromhex(self.identity)) + self.name.encode()

    def as_json(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "name": self.name,
            "since_ms": self.since_ms,
            "checksum": f"{crc32c(self.encode()):08x}",
        }

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        name = self.name or "a reader without a name"
        return f"{name} (identity {self.identity}, since {since:%Y-%m-%dT%H:%M:%SZ})"


def decode_reader(payload: bytes) -> ChannelReader:
    """Raises struct.error or UnicodeDecodeError if it is not one."""
    since_ms, identity = _READER.unpack_from(payload)
    if not 0 <= since_ms <= SINCE_MS_MAX:
        raise struct.error("not a time")
    return ChannelReader(identity.hex(), payload[_READER.size :].decode(), since_ms)


def checked_reader(told: Any) -> ChannelReader | None:
    """What nsqd.dat tells, None if that is not a reader or fails its checksum."""
    reader = reader_of(told)
    return reader if reader is not None and reader.as_json() == told else None


def reader_of(told: Any) -> ChannelReader | None:
    """What a JSON object tells, None if that is not a reader."""
    if not isinstance(told, dict):
        return None
    identity, name, since_ms = told.get("identity"), told.get("name"), told.get("since_ms")
    if not is_identity(identity) or not isinstance(name, str) or type(since_ms) is not int:
        return None
    if not 0 <= since_ms <= SINCE_MS_MAX:
        return None
    return ChannelReader(identity, short_name(name), since_ms)


def is_identity(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def short_name(text: str) -> str:
    """A name that fits: one line of at most NAME_SIZE_MAX bytes."""
    line = _BLANK.sub(" ", text).strip().encode("utf-8", "replace")
    return line[:NAME_SIZE_MAX].decode("utf-8", "ignore")
