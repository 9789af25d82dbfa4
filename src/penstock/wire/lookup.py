"""nsqlookupd's V1 protocol, both ends: bytes in, commands or replies out.

    client   "  V1" | command | command | ...
    command  <NAME>[ <parameter>]...\\n          IDENTIFY\\n | size: 4 bytes | JSON: size bytes |
    reply    | size: 4 bytes | "OK", JSON, or "E_<CODE> <text>": size bytes |     big-endian

Rule 1: no I/O, no clock.  Where the bytes are split never changes the result.
Rule 2: sizes are checked when declared, lines as they grow, before anything is buffered.
Rule 3: every error is fatal: everything after it is ignored.

A reply has no frame type, unlike nsqd's.
"""

from __future__ import annotations

import struct

from penstock.errors import ProtocolError
from penstock.record import record
from penstock.wire import gojson

MAGIC = b"  V1"
OK = b"OK"

# Two names of 64 bytes and the longest command need 140; the remainder is for blanks.
LINE_SIZE_MAX = 1024
# nsqd sends about 200 bytes.
IDENTIFY_SIZE_MAX = 64 * 1024
# Bytes of a name, version or place; the longest host name has 253.  Every node's are in /nodes.
TEXT_SIZE_MAX = 255

_SIZE = struct.Struct(">i")
_FIELDS: dict[str, tuple[type, int]] = {
    "remote_address": (str, 0),
    "hostname": (str, 0),
    "broadcast_address": (str, 0),
    "tcp_port": (int, 64),
    "http_port": (int, 64),
    "https_port": (int, 64),
    "version": (str, 0),
    "topology_zone": (str, 0),
    "topology_region": (str, 0),
}
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


@record
class Identity:
    """The addresses of an nsqd, or of an nsqlookupd in its reply.

    ``https_port`` is an extension of ours, sent only if there is one.
    """

    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    https_port: int = 0


@record
class Place:
    """The HTTP address of an nsqlookupd; 0 for a port it did not send."""

    host: str
    http_port: int
    https_port: int = 0


@record
class Command:
    """A command with its parameters as sent; ``identity`` for IDENTIFY."""

    name: str
    params: tuple[str, ...] = ()
    identity: Identity | None = None


class CommandReader:
    """nsqlookupd's side of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched_size = 0  # bytes of the buffer known to have no line end
        self._magic_seen = False
        self._identified = False
        self._in_identify = False
        self._body_size: int | None = None
        self._ended = False

    def feed(self, data: bytes) -> list[Command | ProtocolError]:
        """Return the commands that ``data`` completes.

        An error is the last item rather than an exception, because the commands before it in
        the same packet are valid and must run.
        """
        items: list[Command | ProtocolError] = []
        if self._ended:
            return items
        self._buffer += data
        try:
            while (item := self._next()) is not None:
                items.append(item)
        except ProtocolError as error:
            items.append(self._end(error))
        return items

    def eof(self) -> ProtocolError | None:
        """The peer has closed; the error if an IDENTIFY is incomplete, otherwise None."""
        if self._ended or not self._in_identify:
            return None
        missing = "body size" if self._body_size is None else "body"
        return self._end(ProtocolError("E_BAD_BODY", f"IDENTIFY failed to read {missing}"))

    def _end(self, error: ProtocolError) -> ProtocolError:
        self._ended = True
        self._buffer.clear()
        return error

    def _next(self) -> Command | None:
        if not self._magic_seen:
            if len(self._buffer) < len(MAGIC):
                return None
            if self._take(len(MAGIC)) != MAGIC:
                raise ProtocolError("E_BAD_PROTOCOL")
            self._magic_seen = True
        if self._in_identify:
            return self._identify()
        line = self._line()
        if line is None:
            return None
        name, *params = line.strip().decode("utf-8", "surrogateescape").split(" ")
        if name == "IDENTIFY":
            if self._identified:
                raise ProtocolError("E_INVALID", "cannot IDENTIFY again")
            self._in_identify = True
            return self._identify()
        if name in ("REGISTER", "UNREGISTER"):
            if not self._identified:
                raise ProtocolError("E_INVALID", "client must IDENTIFY")
            if not params:
                raise ProtocolError("E_INVALID", f"{name} insufficient number of params")
        elif name != "PING":
            raise ProtocolError("E_INVALID", f"invalid command {name}")
        return Command(name, tuple(params))

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched_size)
        if (len(self._buffer) if end < 0 else end) > LINE_SIZE_MAX:
            raise ProtocolError("E_INVALID", f"command longer than {LINE_SIZE_MAX} bytes")
        if end < 0:
            self._searched_size = len(self._buffer)
            return None
        self._searched_size = 0
        return self._take(end + 1)

    def _identify(self) -> Command | None:
        if self._body_size is None:
            if len(self._buffer) < _SIZE.size:
                return None
            (size,) = _SIZE.unpack(self._take(_SIZE.size))
            if not 0 <= size <= IDENTIFY_SIZE_MAX:
                raise ProtocolError("E_BAD_BODY", f"IDENTIFY invalid body size {size}")
            self._body_size = size
        if len(self._buffer) < self._body_size:
            return None
        identity = decode_identity(self._take(self._body_size))
        self._in_identify = False
        self._identified = True
        return Command("IDENTIFY", (), identity)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


class ReplyReader:
    """nsqd's side: replies of at most ``size_max`` bytes each."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._buffer = bytearray()
        self._size: int | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the replies that ``data`` completes; ProtocolError if one is too large."""
        self._buffer += data
        replies: list[bytes] = []
        while True:
            if self._size is None:
                if len(self._buffer) < _SIZE.size:
                    return replies
                (self._size,) = _SIZE.unpack_from(self._buffer)
                del self._buffer[: _SIZE.size]
            assert self._size is not None
            if not 0 <= self._size <= self._size_max:
                raise ProtocolError("E_BAD_BODY", f"reply of {self._size} bytes")
            if len(self._buffer) < self._size:
                return replies
            replies.append(bytes(self._buffer[: self._size]))
            del self._buffer[: self._size]
            self._size = None


def decode_identity(body: bytes) -> Identity:
    """Decode the JSON of IDENTIFY, which must have all addresses of the node.

    Texts for people are truncated.  A truncated address would be another one, so it is refused.
    """
    try:
        fields = gojson.decode_object(body, _FIELDS)
    except ValueError:
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    if not all(fields.get(name) for name in _REQUIRED):
        raise ProtocolError("E_BAD_BODY", "IDENTIFY missing fields")
    address = str(fields["broadcast_address"])
    if _cut(address) != address:
        text = f"IDENTIFY broadcast_address longer than {TEXT_SIZE_MAX} bytes"
        raise ProtocolError("E_BAD_BODY", text)
    return Identity(
        broadcast_address=address,
        hostname=_cut(str(fields.get("hostname", ""))),
        tcp_port=int(fields["tcp_port"]),
        http_port=int(fields["http_port"]),
        version=_cut(str(fields["version"])),
        topology_zone=_cut(str(fields.get("topology_zone", ""))),
        topology_region=_cut(str(fields.get("topology_region", ""))),
    )


def _cut(text: str) -> str:
    """``text``, truncated to TEXT_SIZE_MAX bytes."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= TEXT_SIZE_MAX else raw[:TEXT_SIZE_MAX].decode("utf-8", "ignore")


def decode_place(body: bytes) -> Place:
    """Decode the reply to IDENTIFY.

    An error, or anything else that is not a JSON object, is a ProtocolError.
    """
    if body.startswith(b"E_"):
        code, _, text = body.decode("utf-8", "replace").partition(" ")
        raise ProtocolError(code, text)
    try:
        fields = gojson.decode_object(body, _FIELDS)
    except ValueError as error:
        raise ProtocolError("E_BAD_BODY", f"reply to IDENTIFY: {error}") from None
    return Place(
        str(fields.get("broadcast_address", "")),
        int(fields.get("http_port", 0)),
        int(fields.get("https_port", 0)),
    )


def encode_reply(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


def encode_error(error: ProtocolError) -> bytes:
    return encode_reply(str(error).encode("utf-8", "surrogateescape"))


def encode_identify(identity: Identity) -> bytes:
    body = gojson.encode(
        {
            "broadcast_address": identity.broadcast_address,
            "hostname": identity.hostname,
            "http_port": identity.http_port,
            "tcp_port": identity.tcp_port,
            "topology_region": identity.topology_region,
            "topology_zone": identity.topology_zone,
            "version": identity.version,
        }
    )
    return b"IDENTIFY\n" + encode_reply(body)


def encode_identify_reply(identity: Identity) -> bytes:
    """nsqlookupd's reply to IDENTIFY: its own addresses, keys in alphabetical order."""
    https = {"https_port": identity.https_port} if identity.https_port else {}
    return encode_reply(
        gojson.encode(
            {
                "broadcast_address": identity.broadcast_address,
                "hostname": identity.hostname,
                "http_port": identity.http_port,
                **https,
                "tcp_port": identity.tcp_port,
                "version": identity.version,
            }
        )
    )


def encode_command(name: str, *params: str) -> bytes:
    """A command line; empty parameters are left out."""
    return " ".join((name, *filter(None, params))).encode() + b"\n"
