# The reader that a pull channel is bound to (R45), for the journal and for nsqd.dat.
#
#     since_ms i64 | identity 16 | name, UTF-8, up to 255 bytes          big-endian, after the id
#
#     {"identity":"<32 hex digits>","name":"...","since_ms":...,"checksum":"<8 hex digits>"}
#
# The JSON is for nsqd.dat, which has no checksum of its own: a flipped digit there must not lock
# the reader out.

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
    """An identity, its display name, which may be empty, and since when it reads."""

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
    """Raises struct.error or UnicodeDecodeError if ``payload`` is not a reader."""
    since_ms, identity = _READER.unpack_from(payload)
    if not 0 <= since_ms <= SINCE_MS_MAX:
        raise struct.error("not a time")
    return ChannelReader(identity.hex(), payload[_READER.size :].decode(), since_ms)


def checked_reader(value: Any) -> ChannelReader | None:
    """The reader in nsqd.dat, None if it is not one or fails its checksum."""
    reader = reader_of(value)
    return reader if reader is not None and reader.as_json() == value else None


def reader_of(value: Any) -> ChannelReader | None:
    """The reader in a JSON object, None if it is not one."""
    if not isinstance(value, dict):
        return None
    identity, name, since_ms = value.get("identity"), value.get("name"), value.get("since_ms")
    if not is_identity(identity) or not isinstance(name, str) or type(since_ms) is not int:
        return None
    if not 0 <= since_ms <= SINCE_MS_MAX:
        return None
    return ChannelReader(identity, short_name(name), since_ms)


def is_identity(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def short_name(text: str) -> str:
    """``text`` as one line of at most NAME_SIZE_MAX bytes."""
    line = _BLANK.sub(" ", text).strip().encode("utf-8", "replace")
    return line[:NAME_SIZE_MAX].decode("utf-8", "ignore")
