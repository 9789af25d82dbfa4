"""Bodies of messages, and how commands and requests carry them."""

from __future__ import annotations

import struct


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Bodies that tell one message from another."""
    return [b"%d" % number for number in range(start, start + count)]


def sized(body: bytes) -> bytes:
    """As it follows a command: its size in front."""
    return struct.pack(">I", len(body)) + body


def several(*bodies: bytes) -> bytes:
    """Many in one, as MPUB and /mpub?binary=true have them."""
    return struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies))
