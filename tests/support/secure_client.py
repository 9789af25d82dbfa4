"""A client that negotiates TLS and compression; otherwise like tests.support.client.

Compression is by zlib and python-snappy, not by the code under test.
"""

from __future__ import annotations

import json
import socket
import ssl
import zlib
from typing import Any, Self

import snappy

from penstock.wire import commands
from tests.support.client import Client
from tests.support.daemon import ERROR, Nsqd, Raw


class Deflated:
    def __init__(self, level: int) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._inflate = zlib.decompressobj(-15)

    def pack(self, data: bytes) -> bytes:
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def unpack(self, data: bytes) -> bytes:
        return self._inflate.decompress(data)


class Snapped:
    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()

    def pack(self, data: bytes) -> bytes:
        return bytes(self._compressor.compress(data))

    def unpack(self, data: bytes) -> bytes:
        return bytes(self._decompressor.decompress(data))


class PackedSocket:
    """A socket whose bytes are compressed."""

    def __init__(self, sock: socket.socket, packing: Deflated | Snapped) -> None:
        self.sock = sock
        self.packing = packing

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(self.packing.pack(data))

    def recv(self, size: int) -> bytes:
        while True:
            data = self.sock.recv(size)
            if not data:
                return b""
            if clear := self.packing.unpack(data):
                return clear

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class SecureClient(Client):
    """``negotiated`` is nsqd's reply to IDENTIFY."""

    negotiated: dict[str, Any]

    @classmethod
    def of(cls, nsqd: Nsqd, context: ssl.SSLContext | None = None, **fields: object) -> Self:
        """A client of ``nsqd`` that requests TLS if a context is given."""
        client = cls(("127.0.0.1", nsqd.tcp_port))
        client.upgrade(context, **fields)
        return client

    def upgrade(self, context: ssl.SSLContext | None, **fields: object) -> None:
        fields = {"feature_negotiation": True, "tls_v1": context is not None, **fields}
        self.sock.sendall(commands.identify(fields))
        # Read not a byte more than the reply: what follows is upgraded.
        kind, data = Raw(self.sock).frame()
        assert kind != ERROR, data
        self.negotiated = json.loads(data)
        if self.negotiated["tls_v1"]:
            assert context is not None
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
            assert Raw(self.sock).frame() == (0, b"OK")
        packing: Deflated | Snapped | None = None
        if self.negotiated["deflate"]:
            packing = Deflated(self.negotiated["deflate_level"])
        elif self.negotiated["snappy"]:
            packing = Snapped()
        if packing is not None:
            self.sock = PackedSocket(self.sock, packing)  # type: ignore[assignment]
            assert self.reply().text == b"OK"

    def auth(self, secret: str) -> Any:
        return json.loads(self.command(commands.auth(secret.encode())))
