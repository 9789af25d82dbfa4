"""One connection of the HTTP server: reads requests, runs and answers them.

The rules are in http_server.py, the states in http_states.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.net.acceptor import Accepted
from penstock.net.http_exchange import Exchange
from penstock.net.http_file import FileSending
from penstock.net.http_message import Response, encode_response
from penstock.net.http_reader import Incoming, RequestReader
from penstock.net.http_states import BETWEEN, IN_BODY, NO_FILE, SERVING, TABLE, Event, State
from penstock.net.peer import unsent_size
from penstock.page_cache import FileSlice
from penstock.wire.address import peer_address

if TYPE_CHECKING:
    from penstock.net.http_server import HttpServer

LOGGER = logging.getLogger(__name__)

# Answers are joined up to this size before they are written.
_WRITE_SIZE = 64 * 1024
# How long one turn of the loop works for one connection.  Without a limit 5000 pipelined /stats
# blocked the loop for 300 ms.
_SLICE_NS = 1_000_000
# Bytes parsed before the requests in them run; 16 KiB of the shortest requests take 2 ms.
_FEED_SIZE = 16 * 1024

# An attribute of an enum costs 0.1 us, a name of the module 0.02.
_OPEN, _DRAINING, _IDLE, _EXPECTING = State.OPEN, State.DRAINING, State.IDLE, State.EXPECTING
_ENDED, _READING, _CLEAR = State.ENDED, State.READING, State.CLEAR


class HttpConnection(Accepted, asyncio.Protocol):
    """One connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._lookout = server.lookout
        self._life = State.CONNECTING
        self._input = _READING
        self._output = _CLEAR
        self._fd = -1
        self._transport: Any = None
        self._reader = RequestReader(server.router, server.limits.read, server.known_heads, "")
        self._unread: bytes | memoryview = b""
        self._waiting: deque[Incoming] = deque()
        self._begun: deque[Exchange] = deque()
        self._begun_size = 0
        self._advancing = False
        self._scheduled = False  # advance() is called in the next turn
        self._sending: FileSending | None = None
        self._last_partial = False  # how to close after the last file
        self._secure = False
        # Called once the pieces of large answers are sent.
        self._on_sent: list[Callable[[], None]] = []
        # Since when the peer owes us something: more of a request, the next one, or reading.
        self._owed_since_s = server.now_s
        self._write_deadline_s = inf
        self._close_deadline_s = inf
        self._published = False
        self._noted = False  # whether the budget for bodies has an entry of ours
        # Since when the peer does not read, and how much was unsent then.
        self._stuck_since_s = inf
        self._left_size = -1
        self._left_since_s = inf

    @property
    def sent_command(self) -> bool:
        reader = self._reader
        return reader.message_count > (0 if reader.state in BETWEEN else 1)

    @property
    def idle_since_s(self) -> float:
        """A client that has published keeps its connection; one that does not read may lose it."""
        if self._output is State.BLOCKED or self._life in (State.LINGERING, State.CLOSING):
            return self._stuck_since_s
        if self._published or self._busy() or self._reader.state not in BETWEEN:
            return inf
        return self._owed_since_s

    @property
    def closed(self) -> bool:
        """Whether nothing more is answered."""
        return self._life not in SERVING

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._life = TABLE[self._life][Event.CONNECTED]
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
        if self.evicted:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._life = TABLE[self._life][Event.LOST]
        self._output = TABLE[self._output][Event.LOST]
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._sent()
        self._hurry()
        self._forget_requests()
        self._server.bodies.forget(self, self._server.now_s)
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._life not in SERVING or self._reader.state is _ENDED:
            return
        if self._lookout is not None:
            self._lookout.heard(self._fd)
        self._unread = bytes(self._unread) + data if self._unread else data
        self.advance()

    def eof_received(self) -> bool:
        self._life = TABLE[self._life][Event.EOF]
        self._hurry()
        # True leaves our side open, to answer what was received.
        return self._busy()

    def pause_writing(self) -> None:
        self._output = TABLE[self._output][Event.BLOCK]
        self._stuck_since_s = self._server.now_s
        self._write_deadline_s = self._server.now_s + self._limits.write_timeout_s

    def resume_writing(self) -> None:
        self._output = TABLE[self._output][Event.UNBLOCK]
        self._write_deadline_s = inf
        self._sent()
        self.advance()

    # Answering

    def advance(self) -> None:
        """Begin the requests that may begin, write the answers that are there."""
        if self._advancing or self._life not in SERVING:
            return
        self._advancing = True
        try:
            self._work()
            self._advancing = False
            if self._life in SERVING:
                self._after_work()
        except Exception as error:  # a mistake of ours: the caller may be the broker's turn
            self._advancing = False
            context = {"message": "an HTTP connection failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self.abort()

    def _after_work(self) -> None:
        state = self._reader.state
        if self._noted or self._waiting or (state is not _IDLE and state in IN_BODY):
            self._note_bodies()
            if self._life not in SERVING or self._transport.is_closing():
                return
        full = bool(self._waiting or self._unread)
        if full is (self._input is _READING):
            self._read_or_pause(full)
        if not (full or self._begun) and self._output in NO_FILE:
            self._all_answered()

    def _read_or_pause(self, full: bool) -> None:
        if self._input is State.HELD:
            return
        self._input = TABLE[self._input][Event.FULL if full else Event.EMPTIED]
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # The budget for bodies

    def _note_bodies(self) -> None:
        reader = self._reader
        size = sum(len(incoming.request.body) for incoming in self._waiting) + len(self._unread)
        total = size
        if reader.state in IN_BODY:
            size += reader.body_size
            total += reader.body_total
        self._noted = size > 0
        self._server.bodies.note(self, size, total, self._server.now_s)

    def hold(self) -> None:
        if self._input is _READING and self._life in SERVING:
            self._transport.pause_reading()
        self._input = TABLE[self._input][Event.HOLD]

    def release(self) -> None:
        self._input = TABLE[self._input][Event.RELEASE]
        self._owed_since_s = self._server.now_s
        if self._life in SERVING and not (self._waiting or self._unread):
            self._read_or_pause(full=False)

    def end_body(self, *, late: bool) -> None:
        if self._input is State.HELD:
            self._input = TABLE[self._input][Event.RELEASE]
        self._noted = False
        if self._life not in SERVING:
            return
        if self._reader.state not in IN_BODY:
            self.abort()  # the peer does not read its answers, and sends what we cannot begin
            return
        self._waiting.extend(self._reader.give_up(408 if late else 503))
        self.advance()

    def _busy(self) -> bool:
        """Whether there is something to answer."""
        return bool(self._waiting or self._begun or self._unread or self._output not in NO_FILE)

    def _work(self) -> None:
        """Work for one slice of time; a later turn does what is left then."""
        parts: list[bytes] = []
        size = 0
        end_ns = time.perf_counter_ns() + _SLICE_NS
        while True:
            while self._begun and self._output in NO_FILE:
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
                    if self._output is State.SENDING:
                        self._output = TABLE[self._output][Event.LAST]
                        self._last_partial = exchange.partial
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
                self._schedule()
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
        self._on_sent.append(response.done)
        self._left_size = -1
        if response.file is not None:
            self._send_file(head, response.file)
            return
        self._transport.write(head)
        for piece in response.pieces:
            self._transport.write(piece)
        # By the next turn the transport has called pause_writing if it could not send everything.
        asyncio.get_running_loop().call_soon(self._sent)

    def _send_file(self, head: bytes, file: FileSlice) -> None:
        # Over TLS, or after bytes that are still unsent, the file goes through the transport.
        if not self._secure and not self._transport.get_write_buffer_size():
            socket_fd = self._transport.get_extra_info("socket").fileno()
            try:
                self._sending = FileSending(socket_fd, head, file, self._file_sent)
            except OSError as error:
                # Too many descriptors are open.
                LOGGER.warning("cannot use sendfile, copying the file instead: %s", error)
            else:
                self._output = TABLE[self._output][Event.SEND_FILE]
                self._write_deadline_s = self._server.now_s + self._limits.write_timeout_s
                self._sending.start()
                return
        data = os.pread(file.fd, file.size, file.offset)
        self._transport.write(head + data)
        if len(data) < file.size:
            self.abort()
        asyncio.get_running_loop().call_soon(self._sent)

    def _file_sent(self, error: OSError | None) -> None:
        last = self._output is State.SENDING_LAST
        self._output = TABLE[self._output][Event.FILE_SENT]
        self._sending = None
        self._write_deadline_s = inf
        self._sent()
        if error is not None:
            self.abort()  # so the peer knows that the answer is incomplete
        elif last:
            self._close(self._last_partial)
        else:
            self.advance()

    def _sent(self) -> None:
        if self._on_sent and self._output is _CLEAR:
            calls, self._on_sent = self._on_sent, []
            for done in calls:
                done()

    def _feed(self) -> None:
        """Pass the next bytes to the reader; of a body, as many as there are."""
        reader, unread = self._reader, self._unread
        if len(unread) > _FEED_SIZE:
            view, feed_size = memoryview(unread), max(_FEED_SIZE, reader.body_left)
            data, self._unread = bytes(view[:feed_size]), view[feed_size:]
        else:
            data, self._unread = bytes(unread), b""
        message_count, state = reader.message_count, reader.state
        self._waiting.extend(reader.feed(data))
        if reader.message_count != message_count or reader.state is not state:
            self._owed_since_s = self._server.now_s
        if reader.state is _ENDED:
            self._unread = b""

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._scheduled = False
        self.advance()

    def _may_begin(self) -> bool:
        if not (self._waiting or self._unread) or self._output is not _CLEAR:
            return False
        if not self._begun:
            return True
        limits = self._limits
        return (
            len(self._begun) < limits.begun_count_max and self._begun_size < limits.begun_size_max
        )

    def _answer(self, exchange: Exchange, response: Response) -> bytes:
        request, route = exchange.request, exchange.route
        if route is not None and route.publishes and response.status == 200:
            self._published = True
        counts = self._server.request_counts
        counts[response.status] = counts.get(response.status, 0) + 1
        if self._life is _DRAINING and not self._busy():
            request.keep_alive = False
        if route is not None and route.logged:
            values = (response.status, request.method, request.target, request.remote_address)
            LOGGER.info("%d %s %s (%s)", *values)
        return encode_response(response, request, request.keep_alive)

    def _all_answered(self) -> None:
        reader = self._reader
        if reader.state in BETWEEN:
            self._owed_since_s = self._server.now_s
        if self._life is not _OPEN:
            self._close(partial=False)
        elif reader.state is _EXPECTING:
            reader.resume()
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Closing

    def drain(self) -> None:
        """Close once everything received is answered, at once if there is nothing."""
        if self._life in SERVING:
            self._life = TABLE[self._life][Event.DRAIN]
            if not self._busy():
                self._close(partial=False)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now_s: float) -> None:
        """Close, or refuse the request, if the peer has missed a deadline."""
        if now_s >= min(self._write_deadline_s, self._close_deadline_s) or self._stalled(now_s):
            self.abort()
        elif self._life not in SERVING or now_s < self._owed_since_s + self._patience_s():
            return
        elif self._reader.state in BETWEEN:
            self._close(partial=False)
        else:
            self._waiting.extend(self._reader.give_up(408))
            self.advance()

    def _patience_s(self) -> float:
        limits, reader = self._limits, self._reader
        if self._unread or self._input is State.HELD:
            return inf
        if reader.state in IN_BODY:
            return limits.body_timeout_s + reader.body_size / limits.body_rate_min
        if reader.state not in BETWEEN:
            return limits.head_timeout_s
        if self._busy():
            return inf  # the peer waits for us
        return limits.idle_timeout_s if reader.message_count else limits.head_timeout_s

    def _stalled(self, now_s: float) -> bool:
        """Whether the peer reads nothing of an answer that holds memory others wait for."""
        if not self._on_sent or self._transport is None:
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
        transport, now_s = self._transport, self._server.now_s
        slowly = partial and transport.can_write_eof()
        self._life = TABLE[self._life][Event.LINGER if slowly else Event.CLOSE]
        self._stuck_since_s = now_s
        self._server.bodies.forget(self, now_s)
        self._forget_requests()
        if slowly:
            transport.write_eof()
            if self._input is not _READING:
                self._input = TABLE[self._input][Event.LINGER]
                transport.resume_reading()
            self._close_deadline_s = now_s + self._limits.linger_timeout_s
        else:
            transport.close()
            self._close_deadline_s = now_s + self._limits.write_timeout_s
