"""A client's commands as bytes.

    NAME[ SP param]* LF
    NAME[ SP param]* LF | size: i32 | body: size bytes |        IDENTIFY, AUTH, PUB, MPUB, DPUB

Nothing is validated here: the server does that, and tests send invalid commands.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from penstock.wire import gojson

MAGIC_V2 = b"  V2"

CLS = b"CLS\n"
NOP = b"NOP\n"

_SIZE = struct.Struct(">i")


def identify(fields: Mapping[str, object]) -> bytes:
    """``fields`` as in the table of IDENTIFY: client_id, heartbeat_interval (ms) and so on."""
    return b"IDENTIFY\n" + sized(gojson.encode(fields))


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """All of ``bodies`` or none is published."""
    return f"MPUB {topic}\n".encode() + sized(multi(bodies))


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + sized(body)


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(id: bytes) -> bytes:
    return b"FIN " + id + b"\n"


def req(id: bytes, delay_ms: int = 0) -> bytes:
    return b"REQ %b %d\n" % (id, delay_ms)


def touch(id: bytes) -> bytes:
    return b"TOUCH " + id + b"\n"


def bury(id: bytes, text: str = "") -> bytes:
    """Only nsqds that offer it in IDENTIFY know it; a line is a text's end."""
    words = " ".join(text.split())
    return b"BURY " + id + (b" " + words.encode("utf-8", "replace") if words else b"") + b"\n"


def cls() -> bytes:
    return CLS


def nop() -> bytes:
    return NOP


def sized(body: bytes) -> bytes:
    """``body`` with its size before it."""
    return _SIZE.pack(len(body)) + body


def multi(bodies: Sequence[bytes]) -> bytes:
    """The body of MPUB, and of HTTP's binary /mpub: a count, then (size, body) each."""
    parts = [_SIZE.pack(len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    return b"".join(parts)
