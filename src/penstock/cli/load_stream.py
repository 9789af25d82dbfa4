"""A load generator's socket with TLS, snappy or deflate, with the interface of a socket.

The server's certificate is not verified: only the cost is measured.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from penstock.errors import ProtocolError
from penstock.net.tls import client_context
from penstock.wire.compression import Deflate, Packing, Snappy
from penstock.wire.tls import Tls

_RECEIVE_SIZE = 128 << 10
_OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def fields_of(upgrade: str) -> dict[str, object]:
    """The fields for IDENTIFY; ``upgrade`` is tls, snappy or deflate, or two joined by a plus."""
    wanted = upgrade.split("+")
    return {("tls_v1" if name == "tls" else name): True for name in wanted if name}


class UpgradedSocket:
    """The socket after its upgrade.  A read does not wait for the rest of a TLS or snappy frame."""

    def __init__(self, sock: socket.socket, settings: dict[str, Any]) -> None:
        self._sock = sock
        self._tls: Tls | None = None
        self._packing: Packing | None = None
        received = b""
        if settings["tls_v1"]:
            self._tls = Tls(client_context(insecure=True), server_side=False)
            self._shake(self._tls)
            received = self._expect_ok(b"")
        if settings["snappy"]:
            self._packing = Snappy()
        elif settings["deflate"]:
            self._packing = Deflate(settings["deflate_level"])
        if self._packing is not None:
            # The second OK may have arrived with the first.
            self._expect_ok(self._packing.decompress(received))

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def sendall(self, data: bytes) -> None:
        if self._packing is not None:
            data = self._packing.compress((data,))
        if self._tls is not None:
            data = self._tls.send((data,))
        self._sock.sendall(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Received data; raises BlockingIOError also if it decodes to nothing yet."""
        data = b""
        if self._packing is None or not self._packing.pending:
            data = self._sock.recv(_RECEIVE_SIZE, flags)
            if not data:
                return b""
        if self._tls is not None:
            data = self._tls.receive(data)
        if self._packing is not None:
            data = self._packing.decompress(data)
        if not data:
            raise BlockingIOError
        return data

    def recv_into(self, buffer: memoryview) -> int:
        if self._tls is not None and self._packing is None:
            data = b""
            if not self._tls.waiting:
                data = self._sock.recv(_RECEIVE_SIZE)
                if not data:
                    return 0
            size = self._tls.receive_into(data, buffer)
            if not size:
                raise BlockingIOError
            return size
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _shake(self, tls: Tls) -> None:
        agreed = tls.handshake(b"")
        while not agreed:
            self._sock.sendall(tls.take_output())
            agreed = tls.handshake(self._sock.recv(_RECEIVE_SIZE))
        self._sock.sendall(tls.take_output())

    def _expect_ok(self, received: bytes) -> bytes:
        """Wait for the OK of a layer; return what was received after it."""
        while len(received) < len(_OK):
            try:
                piece = self.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                continue  # only a TLS record, such as a session ticket
            if not piece:
                raise ConnectionError("the server closed the connection during the upgrade")
            received += piece
        if not received.startswith(_OK):
            raise ProtocolError("E_INVALID", f"not an OK: {received[:40]!r}")
        return received[len(_OK) :]


def read_settings(sock: socket.socket) -> dict[str, Any]:
    """Read IDENTIFY's reply and not a byte more: what follows is upgraded."""
    (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    data = sock.recv(size, socket.MSG_WAITALL)
    if data[:4] != b"\x00\x00\x00\x00":
        code, _, text = data[4:].decode("utf-8", "replace").partition(" ")
        raise ProtocolError(code, text)
    settings: dict[str, Any] = json.loads(data[4:])
    return settings
