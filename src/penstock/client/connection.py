"""One connection to nsqd.

    connect -> "  V2" IDENTIFY -> JSON -> TLS? OK -> snappy or deflate? OK -> AUTH? -> up
                                                                              frames -> receiver

Rule 1: until the connection is up, exactly one frame is read at a time: bytes after the response to
        IDENTIFY may already belong to a compressed stream.
Rule 2: what is sent within one turn of the loop goes out in one write.
Rule 3: heartbeats are answered here, even while the receiver is busy.
Rule 4: a connection ends once, through ``receiver.lost``; nothing is received after that.
Rule 5: a connection on which nothing is received for ``read_timeout``, or nsqd accepts no data for
        ``write_timeout``, is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any, Protocol, cast

from penstock.client.config import OFF, Config, make_context
from penstock.core.frames import FrameReader, Message, Reply
from penstock.errors import (
    ClientError,
    NotConnectedError,
    OptionError,
    PenstockError,
    ProtocolError,
    RefusedError,
    StreamError,
)
from penstock.settings.places import QUEUED
from penstock.wire import commands
from penstock.wire.address import split_address
from penstock.wire.compression import Deflate, Packing, Snappy

log = logging.getLogger("penstock.client")

HEARTBEAT = b"_heartbeat_"
RDY_MAX = 2500  # if nsqd does not send max_rdy_count
MSG_TIMEOUT_MS = 60_000
# A response during setup is a few hundred bytes; AUTH's may contain a long URL.
BRING_UP_SIZE_MAX = 64 << 10
FRAME_SIZE_MAX = (5 << 20) + 30
# "HTTP" read as a size: the address is nsqd's HTTP port.
HTTP_SIZE = 1213486160
# How long a peer may take to close after our EOF.
CLOSE_SECONDS_MAX = 2.0
NON_FATAL = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED", b"E_BURY_FAILED")


class Receiver(Protocol):
    """The user of a connection that is up."""

    def received(self, messages: list[Message], replies: list[Reply]) -> None:
        """Frames of one read; replies, without heartbeats, came after or among the messages."""

    def lost(self, error: Exception | None) -> None:
        """The connection was closed; ``error`` is None if we closed it."""


def parse_address(address: str) -> tuple[str, int]:
    """``host:port``, ``[::1]:port``."""
    try:
        host, port = split_address(address)
    except OptionError:
        host, port = "", None
    if not host or port is None:
        raise NotConnectedError(f"{address!r} is not an address: missing host or port")
    return host, port


def refusal(text: bytes) -> RefusedError:
    code, _, remainder = text.decode("utf-8", "replace").partition(" ")
    return RefusedError(code, remainder)


class Connection(asyncio.Protocol):
    """A connection that ``open`` has brought up."""

    def __init__(self, address: str, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.config = config
        self.loop = loop
        self.negotiated: dict[str, Any] = {}
        self.closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._packing: Packing | None = None
        self._receiver: Receiver | None = None
        self._reader: FrameReader | None = None
        self._early = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._out: list[bytes] = []
        self._flushing = False
        self._write_closed = False  # EOF was sent
        self._received_s = loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    # Setup

    @classmethod
    async def open(cls, address: str, config: Config) -> Connection:
        """Connect and negotiate; raises ClientError, OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        host, port = parse_address(address)
        connection = cls(address, config, loop)
        try:
            async with asyncio.timeout(config.dial_timeout):
                await loop.create_connection(lambda: connection, host, port)
            # nsqd allows 5 s for the TLS handshake, and queries another server for AUTH.
            async with asyncio.timeout(config.dial_timeout + 10.0):
                await connection._bring_up(host)
        except TimeoutError:
            connection.abort()
            raise NotConnectedError(f"{address} did not answer in time") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _bring_up(self, host: str) -> None:
        self._write(commands.MAGIC_V2 + commands.identify(identity(self.config)))
        answer = await self._answer()
        if answer.startswith(b"{"):
            self.negotiated = _decode(answer)
        placed = self.config.start not in ("", QUEUED)
        if placed and "channel_start" not in self.negotiated:
            log.warning("nsqd=%s: it ignores start: a new channel starts as in NSQ", self.address)
        if self.config.tls_v1:
            await self._start_tls(host)
        if self.negotiated.get("snappy"):
            await self._pack(Snappy())
        elif self.negotiated.get("deflate"):
            await self._pack(Deflate(int(self.negotiated.get("deflate_level", 6))))
        if self.negotiated.get("auth_required"):
            if not self.config.auth_secret:
                raise ClientError(f"{self.address} requires auth_secret")
            self._write(commands.auth(self.config.auth_secret.encode()))
            await self._answer()

    async def _start_tls(self, host: str) -> None:
        # Never continue unencrypted if TLS was requested.
        if not self.negotiated.get("tls_v1"):
            raise ClientError(f"{self.address} does not offer TLS")
        assert self._transport is not None
        transport = await self.loop.start_tls(
            self._transport, self, make_context(self.config), server_hostname=host
        )
        self._transport = cast(asyncio.Transport, transport)
        await self._expect_ok()

    async def _pack(self, packing: Packing) -> None:
        remainder = bytes(self._early)
        self._early.clear()
        self._packing = packing
        for clear in self._unpacked(remainder):
            self._early += clear
        await self._expect_ok()

    async def _expect_ok(self) -> None:
        answer = await self._answer()
        if answer != b"OK":
            raise ClientError(f"{self.address} responded {answer[:80]!r} instead of OK")

    async def _answer(self) -> bytes:
        """Return the next frame that is not a heartbeat; raise an error frame."""
        while True:
            while (frame := self._take_early()) is None:
                if self._error is not None or self.closed.done():
                    raise self._error or NotConnectedError(f"{self.address} closed during setup")
                self._waiter = self.loop.create_future()
                await self._waiter
            kind, text = frame
            if kind == 1:
                raise refusal(text)
            if text != HEARTBEAT:
                return text
            self._write(commands.NOP)

    def _take_early(self) -> tuple[int, bytes] | None:
        early = self._early
        if len(early) < 8:
            return None
        size = int.from_bytes(early[:4])
        if size == HTTP_SIZE:
            raise ClientError(f"{self.address} is an HTTP port")
        if not 4 <= size <= BRING_UP_SIZE_MAX:
            raise ClientError(f"{self.address} does not speak NSQ's protocol")
        if len(early) < 4 + size:
            return None
        frame = int.from_bytes(early[4:8]), bytes(early[8 : 4 + size])
        del early[: 4 + size]
        return frame

    @property
    def rdy_max(self) -> int:
        return int(self.negotiated.get("max_rdy_count", RDY_MAX))

    @property
    def msg_timeout_s(self) -> float:
        return float(self.negotiated.get("msg_timeout", MSG_TIMEOUT_MS)) / 1000

    def use(self, receiver: Receiver) -> None:
        """Pass all further frames to ``receiver``."""
        size_max = self.config.max_msg_size
        frame_size_max = size_max + 30 if size_max else FRAME_SIZE_MAX
        self._receiver = receiver
        self._reader = FrameReader(max(frame_size_max, BRING_UP_SIZE_MAX), receiver)
        if self.closed.done():
            self.loop.call_soon(receiver.lost, self._error)
            return
        if self.config.heartbeat_interval != OFF:
            self._check_silence()
        remainder, self._early = bytes(self._early), bytearray()
        if remainder:
            self._receive(remainder)

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received_s = self.loop.time()
        try:
            if self._packing is None:
                self._receive(data)
            else:
                for clear in self._unpacked(data):
                    self._receive(clear)
        except (StreamError, ProtocolError) as error:
            self.abort(error)

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        packing = self._packing
        assert packing is not None
        yield packing.decompress(data)
        while packing.pending:
            yield packing.decompress(b"")

    def _receive(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self._early += data
            self._wake()
            if len(self._early) > 2 * BRING_UP_SIZE_MAX:
                self.abort(ClientError(f"{self.address} sent too much data during setup"))
            return
        if self._receiver is None:
            return
        frames = reader.feed(data)
        replies = [frame for frame in frames if frame.__class__ is Reply]
        if replies:
            messages = [frame for frame in frames if frame.__class__ is Message]
            replies = self._without_heartbeats(replies)
        else:
            messages = cast(list[Message], frames)
        if messages or replies:
            self._receiver.received(messages, replies)
        if reader.error is not None:
            raise reader.error

    def _without_heartbeats(self, replies: list[Reply]) -> list[Reply]:
        kept = [reply for reply in replies if reply.text != HEARTBEAT or reply.error]
        if len(kept) < len(replies):
            self._out.append(commands.NOP)
            self.flush()
        return kept

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Writing

    def send(self, data: bytes) -> None:
        """Send with everything else of this turn.

        Large data too: written immediately, a single batch would take 8 % less time, but each of
        eight concurrent batches a third more.
        """
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if not self.closed.done() and not self._write_closed:
                self._write(out[0] if len(out) == 1 else b"".join(out))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._packing is not None:
            data = self._packing.compress([data])
        self._transport.write(data)

    def pause_writing(self) -> None:
        self._check_stall(1 << 62)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _check_stall(self, size_before: int) -> None:
        """Abort the connection if nothing left the buffer since the last check."""
        if self._transport is None or self.closed.done():
            return
        size = self._transport.get_write_buffer_size()
        if size >= size_before:
            self.abort(NotConnectedError(f"{self.address} accepts no data"))
            return
        self._stall = self.loop.call_later(self.config.write_timeout, self._check_stall, size)

    # Closing

    def _check_silence(self) -> None:
        silent_s = self.loop.time() - self._received_s
        left_s = self.config.read_timeout - silent_s
        if left_s <= 0:
            self.abort(NotConnectedError(f"{self.address} sent nothing for {silent_s:.1f} s"))
        else:
            self._silence = self.loop.call_later(left_s, self._check_silence)

    def abort(self, error: Exception | None = None) -> None:
        """Close immediately; unsent data is dropped."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send unsent data and return when nsqd has read it and closed.

        A socket closed with unread bytes, such as a heartbeat, resets the connection, and nsqd may
        see the reset before it reads the last FINs.
        """
        self.flush()
        transport = self._transport
        if transport is None or self.closed.done():
            return
        self._write_closed = True
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await asyncio.shield(self.closed)
        transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.done():
            return
        for timer in (self._silence, self._stall):
            if timer is not None:
                timer.cancel()
        self._error = self._error or error
        self.closed.set_result(None)
        self._wake()
        receiver, self._receiver = self._receiver, None
        if self._reader is not None:
            self._reader.owner = None
        if receiver is not None:
            receiver.lost(self._error)


def identity(config: Config) -> dict[str, object]:
    """Return the fields of IDENTIFY."""
    hostname = config.hostname or socket.gethostname()
    client_id = config.client_id or hostname.partition(".")[0]
    fields: dict[str, object] = {
        "client_id": client_id,
        "hostname": hostname,
        "user_agent": config.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": _milliseconds(config.heartbeat_interval),
        "output_buffer_size": config.output_buffer_size,
        "output_buffer_timeout": _milliseconds(config.output_buffer_timeout),
        "sample_rate": config.sample_rate,
        "tls_v1": config.tls_v1,
        "snappy": config.snappy,
        "deflate": config.deflate,
        "deflate_level": config.deflate_level,
        "topology_region": config.topology_region,
        "topology_zone": config.topology_zone,
        "bury": True,
    }
    if config.start:
        fields["channel_start"] = config.start
    if config.msg_timeout:
        fields["msg_timeout"] = _milliseconds(config.msg_timeout)
    return fields


def _milliseconds(seconds: float) -> int:
    return -1 if seconds == OFF else round(seconds * 1000)


def _decode(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
        return {name: fields[name] for name in fields}
    except (ValueError, TypeError, RecursionError):
        raise PenstockError(f"response to IDENTIFY is not JSON: {text[:80]!r}") from None
