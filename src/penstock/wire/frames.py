"""Frames from the server to a client.

    | size: u32 = 4 + data | type: u32 (0 response, 1 error, 2 message) | data |

Message frames are built when a message is appended (``penstock.core``), not here.
"""

from __future__ import annotations

import struct

from penstock.errors import ProtocolError

RESPONSE_TYPE, ERROR_TYPE, MESSAGE_TYPE = 0, 1, 2

_HEADER = struct.Struct(">II")


def response(data: bytes) -> bytes:
    """A response frame."""
    return _HEADER.pack(4 + len(data), RESPONSE_TYPE) + data


def error(failure: ProtocolError) -> bytes:
    """An error frame: the code, a space, the text.

    A peer's bytes that are not UTF-8 are returned unchanged (``invalid command %s``): texts hold
    them with ``surrogateescape``.
    """
    data = str(failure).encode("utf-8", "surrogateescape")
    return _HEADER.pack(4 + len(data), ERROR_TYPE) + data


OK = response(b"OK")
HEARTBEAT = response(b"_heartbeat_")
CLOSE_WAIT = response(b"CLOSE_WAIT")
