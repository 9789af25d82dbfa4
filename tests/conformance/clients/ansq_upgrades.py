"""The three upgrades that ansq 0.3 asks for and leaves open, filled in.

ansq negotiates TLS, snappy and deflate, knows when each is due and what answer must follow, and
then raises NotImplementedError in a method of its own for each.  Those methods are here, so that
the rest of ansq runs over an upgraded connection.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Callable
from typing import Any

import snappy
from ansq.tcp.connection import NSQConnection

OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


class PackedStream:
    """A stream reader and writer in one, over those of a connection."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        unpack: Callable[[bytes], bytes],
        pack: Callable[[bytes], bytes],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._unpack = unpack
        self._pack = pack

    async def read(self, size: int) -> bytes:
        data = b""
        while not data and (packed := await self._reader.read(size)):
            data = self._unpack(packed)
        return data

    def at_eof(self) -> bool:
        return bool(self._reader.at_eof())

    def write(self, data: bytes) -> None:
        self._writer.write(self._pack(data))

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()


async def _start_reading(connection: Any, old: asyncio.Task[None]) -> None:
    await asyncio.wait([old])
    await connection._read_data_task()


def _upgrade(
    connection: Any, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]
) -> asyncio.Future[Any]:
    """From here on both directions are packed; the future is nsqd's OK."""
    old = connection._reader_task
    old.cancel()
    stream = PackedStream(connection._reader, connection._writer, unpack, pack)
    connection._reader = connection._writer = stream
    early = connection._early + bytes(connection._parser._buffer)
    connection._parser._buffer.clear()
    if early:
        connection._parser.feed(unpack(early))
    answered = connection._loop.create_future()
    connection._cmd_waiters.append((answered, None))
    connection._reader_task = connection._loop.create_task(_start_reading(connection, old))
    return answered


def _to_snappy(connection: Any) -> asyncio.Future[Any]:
    return _upgrade(
        connection, snappy.StreamDecompressor().decompress, snappy.StreamCompressor().add_chunk
    )


def _to_deflate(connection: Any) -> asyncio.Future[Any]:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)

    def pack(data: bytes) -> bytes:
        return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)

    return _upgrade(connection, zlib.decompressobj(-zlib.MAX_WBITS).decompress, pack)


def _keep_early(connection: Any, _: Any = None) -> None:
    """The answer to IDENTIFY is there, and maybe more.

    nsqd does not wait: its packed OK may have come with the answer, and ansq would go on parsing.
    """
    connection._is_upgrading = True
    connection._early = bytes(connection._parser._buffer)
    connection._parser._buffer.clear()


def install(ca: str | None) -> None:
    """Give every connection of ansq these upgrades; ``ca`` is whom to trust."""

    async def to_tls(connection: Any) -> None:
        old = connection._reader_task
        old.cancel()
        await asyncio.wait([old])
        context = ssl.create_default_context(cafile=ca)
        await connection._writer.start_tls(context, server_hostname=connection._host)
        assert await connection._reader.readexactly(len(OK_FRAME)) == OK_FRAME
        connection._reader_task = connection._loop.create_task(connection._read_data_task())

    methods = {
        "_start_upgrading": _keep_early,
        "_upgrade_to_tls": to_tls,
        "_upgrade_to_snappy": _to_snappy,
        "_upgrade_to_deflate": _to_deflate,
    }
    for name, method in methods.items():
        setattr(NSQConnection, name, method)
