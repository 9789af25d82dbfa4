"""One connection of the HTTP server: reads, runs and answers requests (rules: http_server.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.net.acceptor import Visitor
from penstock.net.http_exchange import Exchange
from penstock.net.http_file import FileSending
from penstock.net.http_message import Response, encode_response
from penstock.net.http_reader import BETWEEN, BODY, Incoming, RequestReader
from penstock.net.peer import unsent_size
from penstock.page_cache import Stretch
from penstock.wire.address import peer_address

if TYPE_CHECKING:
    from penstock.net.http_server import HttpServer

LOGGER = logging.getLogger(__name__)

# Answers are gathered up to this size before they are written.
_WRITE_SIZE = 64 * 1024
# How long one turn works for one connection.  Unsliced, 5000 pipelined /stats held the loop for
# 300 ms.
_SLICE_NS = 1_000_000
# Bytes read before what is in them is worked off; 16 KiB of the shortest requests take 2 ms.
_FEED_SIZE = 16 * 1024


class HttpConnection(Visitor, asyncio.Protocol):
    """One connection."""

    # Methods of a class with slots are found faster: a request takes a twentieth less.
    __slots__ = (
        "_advancing",
        "_begun",
        "_begun_size",
        "_close_after",
        "_close_deadline_s",
        "_closing",
        "_coming_back",
        "_eof",
        "_fd",
        "_held",
        "_left_since_s",
        "_left_size",
        "_limits",
        "_lookout",
        "_noted",
        "_owed_since_s",
        "_published",
        "_read_paused",
        "_reader",
        "_secure",
        "_sending",
        "_server",
        "_stuck_since_s",
        "_transport",
        "_unread",
        "_unsent",
        "_waiting",
        "_write_deadline_s",
        "_write_paused",
        "handshake",
        "unwanted",
    )

    def __init__(self, server: HttpServer) -> None:
        self.handshake = None
        self.unwanted = False
        self._server = server
        self._limits = server.limits
        self._lookout = server.lookout
        self._fd = -1
        self._transport: Any = None
        self._reader = RequestReader(server.router, server.limits.read, server.known_heads, "")
        self._unread: bytes | memoryview = b""
        self._waiting: deque[Incoming] = deque()
        self._begun: deque[Exchange] = deque()
        self._begun_size = 0
        self._advancing = False
        self._coming_back = False
        self._closing = False
        self._read_paused = False
        self._write_paused = False
        self._eof = False
        # A file on its way: until it is sent nothing else is written.
        self._sending: FileSending | None = None
        self._close_after: bool | None = None  # as _close() wants it, once that is sent
        self._secure = False
        # What to call once the pieces of large answers are sent.
        self._unsent: list[Callable[[], None]] = []
        # Since when the peer owes us something: the rest of a request, a next one, reading.
        self._owed_since_s = server.now_s
        self._write_deadline_s = inf
        self._close_deadline_s = inf
        self._published = False
        # Whether there is something in the budget for bodies, and whether that is exhausted.
        self._noted = False
        self._held = False
        # Since when the peer takes no more of what is written, and how much was left then.
        self._stuck_since_s = inf
        self._left_size = -1
        self._left_since_s = inf

    @property
    def spoke(self) -> bool:
        reader = self._reader
        return reader.message_count > (0 if reader.phase is BETWEEN else 1)

    @property
    def idle_since_s(self) -> float:
        """Who has published keeps its connection; who takes no answer need not."""
        if self._closing or self._write_paused:
            return self._stuck_since_s
        if self._published or self._busy() or self._reader.phase is not BETWEEN:
            return inf
        return self._owed_since_s

    @property
    def closed(self) -> bool:
        """Whether nothing more is answered."""
        return self._closing or self._transport is None

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        server = self._server
        server.connections.add(self)
        if server.closing:
            self._close(partial=False)
            return
        self._fd = transport.get_extra_info("socket").fileno()
        address = peer_address(transport.get_extra_info("peername"))
        self._secure = transport.get_extra_info("sslcontext") is not None
        gate = server.gate(self._secure) if server.gate is not None else None
        self._reader = RequestReader(
            server.router, self._limits.read, server.known_heads, address, gate, server.origins
        )
        if self.unwanted:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._write_paused = False
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._sent()
        self._hurry()
        self._forget_requests()
        self._server.bodies.forget(self, self._server.now_s)
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._reader.ended:
            return
        if self._lookout is not None:
            self._lookout.heard(self._fd)
        self._unread = bytes(self._unread) + data if self._unread else data
        self.advance()

    def eof_received(self) -> bool:
        self._eof = True
        self._hurry()
        # True leaves our side open, to answer what was asked before.
        return self._busy()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._stuck_since_s = self._server.now_s
        self._write_deadline_s = self._server.now_s + self._limits.write_timeout_s

    def resume_writing(self) -> None:
        self._write_paused = False
        self._write_deadline_s = inf
        self._sent()
        self.advance()

    # Answering

    def advance(self) -> None:
        """Begin what may begin, write what is answered."""
        if self._advancing or self._closing or self._transport is None:
            return
        self._advancing = True
        try:
            self._work()
        finally:
            self._advancing = False
        if self._closing:
            return
        if self._noted or self._waiting or self._reader.phase is BODY:
            self._note_bodies()
            if self._closing or self._transport is None or self._transport.is_closing():
                return
        if bool(self._waiting or self._unread or self._held) != self._read_paused:
            self._read_or_not()
        if not self._busy():
            self._rest()

    def _read_or_not(self) -> None:
        if bool(self._waiting or self._unread or self._held) != self._read_paused:
            self._read_paused = not self._read_paused
            if self._read_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Bodies that are not whole, or cannot be begun yet

    def _note_bodies(self) -> None:
        reader = self._reader
        size = sum(len(incoming.request.body) for incoming in self._waiting) + len(self._unread)
        total = size
        if reader.phase is BODY:
            size += reader.body_size
            total += reader.body_total
        self._noted = size > 0
        self._server.bodies.note(self, size, total, self._server.now_s)

    def hold(self) -> None:
        self._held = True
        if not self._closing and self._transport is not None:
            self._read_or_not()

    def release(self) -> None:
        self._held = False
        self._owed_since_s = self._server.now_s
        if not self._closing and self._transport is not None:
            self._read_or_not()

    def end_body(self, *, late: bool) -> None:
        self._held = self._noted = False
        if self._closing or self._transport is None:
            return
        if self._reader.phase is not BODY:
            self.abort()  # it takes no answers, and keeps what we cannot begin
            return
        self._waiting.extend(self._reader.give_up(408 if late else 503))
        self.advance()

    def _busy(self) -> bool:
        return bool(self._waiting or self._begun or self._unread or self._sending)

    def _work(self) -> None:
        """For the time of a slice; what is left then is done in a later turn."""
        parts: list[bytes] = []
        size = 0
        end_ns = time.perf_counter_ns() + _SLICE_NS
        while True:
            while self._begun and not self._sending:
                exchange = self._begun[0]
                response = exchange.response
                if response is None:
                    break
                self._begun.popleft()
                self._begun_size -= exchange.size
                part = self._answer(exchange, response)
                parts.append(part)
                size += len(part)
                if response.done is not None:
                    self._write_pieces(response, b"".join(parts))
                    parts, size = [], 0
                if not exchange.request.keep_alive:
                    if self._sending:
                        self._close_after = exchange.partial
                        return
                    self._transport.write(b"".join(parts))
                    self._close(exchange.partial)
                    return
            if size >= _WRITE_SIZE:
                self._transport.write(b"".join(parts))
                parts, size = [], 0
            if not self._may_begin():
                break
            if time.perf_counter_ns() >= end_ns:
                self._come_back()
                break
            if not self._waiting:
                self._feed()
                continue
            incoming = self._waiting.popleft()
            exchange = Exchange(self, incoming.request)
            self._begun.append(exchange)
            self._begun_size += exchange.size
            if not (self._server.stopping and exchange.refuse()):
                exchange.begin(incoming)
        if parts:
            self._transport.write(b"".join(parts))
            if self._lookout is not None:
                self._lookout.answered()

    def _write_pieces(self, response: Response, head: bytes) -> None:
        """Write ``head`` and then the pieces of a large answer."""
        assert response.done is not None
        self._unsent.append(response.done)
        self._left_size = -1
        if response.file is not None:
            self._send_file(head, response.file)
            return
        self._transport.write(head)
        for piece in response.pieces:
            self._transport.write(piece)
        # By the next turn the transport has said if it could not pass everything on.
        asyncio.get_running_loop().call_soon(self._sent)

    def _send_file(self, head: bytes, file: Stretch) -> None:
        # What is encrypted or has to wait its turn goes through the transport.
        if not self._secure and not self._transport.get_write_buffer_size():
            socket_fd = self._transport.get_extra_info("socket").fileno()
            try:
                self._sending = FileSending(socket_fd, head, file, self._file_sent)
            except OSError as error:
                LOGGER.warning("a file is copied to be sent: %s", error)  # too many are open
            else:
                self._write_deadline_s = self._server.now_s + self._limits.write_timeout_s
                self._sending.start()
                return
        data = os.pread(file.fd, file.size, file.offset)
        self._transport.write(head + data)
        if len(data) < file.size:
            self.abort()
        asyncio.get_running_loop().call_soon(self._sent)

    def _file_sent(self, error: OSError | None) -> None:
        self._sending = None
        self._write_deadline_s = inf
        self._sent()
        if error is not None:
            self.abort()  # the peer sees that the answer is not whole
        elif self._close_after is not None:
            self._close(self._close_after)
        else:
            self.advance()

    def _sent(self) -> None:
        if self._unsent and not self._write_paused and not self._sending:
            unsent, self._unsent = self._unsent, []
            for done in unsent:
                done()

    def _feed(self) -> None:
        """Let the reader have the next bytes; of a body as many as there are."""
        reader, unread = self._reader, self._unread
        if len(unread) > _FEED_SIZE:
            view, feed_size = memoryview(unread), max(_FEED_SIZE, reader.body_left)
            data, self._unread = bytes(view[:feed_size]), view[feed_size:]
        else:
            data, self._unread = bytes(unread), b""
        message_count, phase = reader.message_count, reader.phase
        self._waiting.extend(reader.feed(data))
        if reader.message_count != message_count or reader.phase is not phase:
            self._owed_since_s = self._server.now_s
        if reader.ended:
            self._unread = b""

    def _come_back(self) -> None:
        if not self._coming_back:
            self._coming_back = True
            asyncio.get_running_loop().call_soon(self._come_on)

    def _come_on(self) -> None:
        self._coming_back = False
        self.advance()

    def _may_begin(self) -> bool:
        if not (self._waiting or self._unread) or self._write_paused or self._sending:
            return False
        if not self._begun:
            return True
        limits = self._limits
        return (
            len(self._begun) < limits.begun_count_max and self._begun_size < limits.begun_size_max
        )

    def _answer(self, exchange: Exchange, response: Response) -> bytes:
        request = exchange.request
        if exchange.publishes and response.status == 200:
            self._published = True
        counts = self._server.request_counts
        counts[response.status] = counts.get(response.status, 0) + 1
        if self._server.closing and not self._busy():
            request.keep_alive = False
        if exchange.logged:
            LOGGER.info(
                "%d %s %s (%s)",
                response.status,
                request.method,
                request.target,
                request.remote_address,
            )
        return encode_response(response, request, request.keep_alive)

    def _rest(self) -> None:
        """Everything is answered."""
        reader = self._reader
        if reader.phase is BETWEEN:
            self._owed_since_s = self._server.now_s
        if self._eof:
            self._close(partial=False)
        elif reader.continue_due:
            reader.continue_due = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Closing

    def drain(self) -> None:
        """Close once everything begun is answered; at once if nothing is."""
        if not self._closing and not self._busy():
            self._close(partial=False)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now_s: float) -> None:
        """Give up on a peer that takes too long."""
        if now_s >= min(self._write_deadline_s, self._close_deadline_s) or self._stalled(now_s):
            self.abort()
        elif self._closing or now_s < self._owed_since_s + self._patience_s():
            return
        elif self._reader.phase is BETWEEN:
            self._close(partial=False)
        else:
            self._waiting.extend(self._reader.give_up(408))
            self.advance()

    def _patience_s(self) -> float:
        limits, reader = self._limits, self._reader
        if self._unread or self._held:
            return inf
        if reader.phase is BODY:
            return limits.body_timeout_s + reader.body_size / limits.body_rate_min
        if reader.phase is not BETWEEN:
            return limits.head_timeout_s
        if self._waiting or self._begun or self._sending:
            return inf  # it is we who owe
        return limits.idle_timeout_s if reader.message_count else limits.head_timeout_s

    def _stalled(self, now_s: float) -> bool:
        """Whether the peer takes nothing of an answer that holds what others wait for."""
        if not self._unsent or self._transport is None:
            return False
        left_size = unsent_size(self._fd) + self._transport.get_write_buffer_size()
        if self._sending is not None:
            left_size += self._sending.left_size
        if left_size != self._left_size:
            self._left_size = left_size
            self._left_since_s = now_s
        return now_s >= self._left_since_s + self._server.stall_timeout_s

    def _hurry(self) -> None:
        for exchange in list(self._begun):
            exchange.hurry()

    def _forget_requests(self) -> None:
        self._unread = b""
        self._waiting.clear()
        begun, self._begun = self._begun, deque()
        for exchange in begun:
            exchange.drop()

    def _close(self, partial: bool) -> None:
        self._closing = True
        self._stuck_since_s = self._server.now_s
        self._server.bodies.forget(self, self._server.now_s)
        self._forget_requests()
        transport = self._transport
        if partial and transport.can_write_eof():
            transport.write_eof()
            if self._read_paused:
                transport.resume_reading()
            self._close_deadline_s = self._server.now_s + self._limits.linger_timeout_s
        else:
            transport.close()
            self._close_deadline_s = self._server.now_s + self._limits.write_timeout_s
