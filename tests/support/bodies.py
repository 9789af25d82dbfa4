"""Bodies of messages, as commands and requests have them."""

from __future__ import annotations

import struct


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Distinct bodies."""
    return [b"%d" % number for number in range(start, start + count)]


def sized(body: bytes) -> bytes:
    """A body as it follows a command: preceded by its size."""
    return struct.pack(">I", len(body)) + body


def several(*bodies: bytes) -> bytes:
    """Several bodies, as in MPUB and /mpub?binary=true."""
    return struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies))
