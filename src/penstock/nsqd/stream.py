"""A client's TCP connection: its bytes, flow control, TLS and compression, and its end.

    transport  <->  [Upgrade]  <->  Scanner  <->  Connection (nsqd/tcp.py), which has the commands

The work for every packet and reply is compiled (nsqd/session.pyx).  Received commands are executed
for a slice of time, and then in later turns.  While a command waits, the following ones are
buffered up to a limit; above it the socket is not read.  Output is limited by the transport: above
its limit the client gets no messages and its commands are not read, and if it reads nothing for a
while it is disconnected.

Everything received is executed, even if the connection is lost before: a producer may send and
close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from math import inf
from typing import cast

from penstock.core.scanner import Scanner
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.errors import ProtocolError, StreamError
from penstock.net.acceptor import Accepted
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Admission
from penstock.net.body_budget import BodyBudget
from penstock.net.lookout import Lookout
from penstock.net.peer import peer_of, set_no_delay
from penstock.nsqd.client_stats import ClientStats
from penstock.nsqd.clients import Clients
from penstock.nsqd.heartbeat import Heartbeat
from penstock.nsqd.security import Security
from penstock.nsqd.upgrade import Upgrade
from penstock.wire import frames, identify

log = logging.getLogger(__name__)

MAGIC = b"  V2"
# Output not yet accepted by the kernel: above this the client gets no more messages.
OUTPUT_SIZE_MAX = 1 << 20
# What is still read from a lost connection: about what the kernel buffers.
LEFT_READ_SIZE = 256 << 10
LEFT_READ_COUNT_MAX = 24
# Compressed input that is not decompressed yet: above this the socket is not read.
PACKED_SIZE_MAX = 256 << 10
# How long a refused client may continue to send before it is disconnected.
LINGER_S = 1.0
MS_NS = 1_000_000


class Stream(ClientStats, Accepted, Heartbeat, asyncio.BufferedProtocol):
    """One client; the subclass executes its commands."""

    def __init__(
        self,
        components: Components,
        clients: Clients,
        loop: asyncio.AbstractEventLoop,
        security: Security,
        lookout: Lookout,
        admission: Admission,
        bodies: BodyBudget,
    ) -> None:
        super().__init__(components, clients, loop)
        self._admission = admission
        self._bodies = bodies
        self._short = False  # not read because the budget for bodies is exhausted
        self._security = security
        self._lookout = lookout
        self._transport: asyncio.Transport | None = None
        self._supervisor = components.context.supervisor
        self._deferred = components.deferred.writer
        self._ok = frames.OK
        self._magic = b""
        self._unpacking = False
        self._permit = None if security.auth is None else security.auth.permit(loop)
        self.channel: Channel | None = None
        self.consumer = None
        self._host = ""
        self.connect_time = 0
        options = self._options
        self._scanner = Scanner(
            components.broker.appenders if self._permit is None else self._permit.appenders,
            self._settle,
            message_size_max=options.max_msg_size,
            body_size_max=options.max_body_size,
            ready_count_max=options.max_rdy_count,
            requeue_ms_max=options.max_req_timeout_ns // MS_NS,
            defer_ms_max=options.max_defer_ns // MS_NS,
            msg_timeout_max_ns=options.max_msg_timeout_ns,
        )
        self._scanner.tls_required = security.tls_required
        if self._permit is not None:
            self._permit.on_expired = self._scanner.forget_topic

    # ---- implemented by the subclass

    def _fail(self, failure: ProtocolError) -> None:
        """Send the error to the client; close if it is fatal."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """Execute received commands that had to wait."""
        raise NotImplementedError

    # ---- admission

    @property
    def sent_command(self) -> bool:
        return self._scanner.command_count > 0

    @property
    def idle_since_s(self) -> float:
        """Never: heartbeats detect clients that are gone."""
        return inf

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_SIZE_MAX)
        set_no_delay(self._transport)
        self._fd = transport.get_extra_info("socket").fileno()
        self._host, self.remote_address = peer_of(self._transport)
        self.settings = identify.initial(self._options, self._host)
        self._scanner.msg_timeout_ns = self.settings.msg_timeout_ns
        self.connect_time = self._clock.wall_ns() // 1_000_000_000
        self._clients.connected.add(self)
        self._timer = self._loop.call_later(FIRST_COMMAND_TIMEOUT_S, self.abort)
        log.debug("client=%s: connected", self.remote_address)
        if self.evicted:
            self.abort()

    def _received(self, data: bytes) -> None:
        if self._upgrade is not None:
            self._unwrap(data)
            return
        data = self._greet(data)
        if data:
            self._scanner.feed(data)
            self._run()
            self._hold_back()

    def eof_received(self) -> bool:
        """The client sends no more: execute what it sent, and send the replies."""
        self._ended = True
        if self._upgrade is not None and self._upgrade.handshaking:
            self._break("unexpected EOF")
            return False
        if not self._busy:
            self._end()
        return bool(self._scanner.owed) or self._busy

    @property
    def _busy(self) -> bool:
        """Whether received commands are still to be executed."""
        return self._stopped or (self._upgrade is not None and self._upgrade.pending)

    def _end(self) -> None:
        """The client sends no more, and everything it sent is executed."""
        if not self._closed and self._greeted:
            failure = self._scanner.eof()
            if isinstance(failure, ProtocolError):
                self._execute_after_owed(failure)
        if self._transport is None:
            if not self._stopped:
                self._leave()
        elif not self._scanner.owed and not self._stopped:
            self._transport_close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended = True
        self._admission.remove(self)
        self._bodies.forget(self, self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
        if self.consumer is not None:
            self.consumer.writable = False
        shaking = self._upgrade is not None and self._upgrade.handshaking
        if self._upgrade is not None:
            self._upgrade.cancel()
        if self._closed or shaking:
            self._leave()
            return
        self._blocked = self._choked = False
        left = self._read_left() if exc is not None and self._greeted else b""
        if self._upgrade is not None:
            self._upgrade.lose()
            self._unwrap(left)
        elif left:
            self._scanner.feed(left)
        if self._closed or self._busy:
            return
        if self._scanner.buffered_size:
            self._rest_later()
        else:
            self._end()

    def _read_left(self) -> bytes:
        """Read what the kernel had received before a reply found the connection closed."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while len(parts) < LEFT_READ_COUNT_MAX:
                parts.append(os.read(self._fd, LEFT_READ_SIZE))
                if not parts[-1]:
                    break
        return b"".join(parts)

    def _leave(self) -> None:
        """The connection is lost, and no more of its commands will be executed."""
        self._closed = True
        self._detach()
        if self._permit is not None:
            self._permit.close()
        if self in self._clients.connected:
            self._clients.connected.discard(self)
            self._clients.left_command_count += self._scanner.command_count
            # Break the reference cycle with the scanner, so that no collection is needed.
            self._scanner.drop_held()
            log.debug("client=%s: disconnected", self.remote_address)

    def _detach(self) -> None:
        """Leave the channel, which requeues the client's messages."""
        channel, self.channel = self.channel, None
        if channel is not None and self.consumer is not None:
            self._scanner.consumer = None
            self.consumer.writable = False
            channel.leave(self.consumer)

    def pause_writing(self) -> None:
        self._begin_blocked()
        if self.consumer is not None:
            self.consumer.writable = False

    def resume_writing(self) -> None:
        choked = self._choked
        self._blocked = self._choked = False
        self._taken_ns = self._clock.monotonic_ns()
        if self.consumer is not None and self.channel is not None:
            self.consumer.writable = True
            self.channel.offer(self.consumer)
        if choked and not self._stopped and not self._closed:
            self._go_on()

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Messages for this client, from its channel."""
        if not self._closed and self._transport is not None:
            if self._upgrade is not None:
                self._transport.write(self._upgrade.wrap(parts))
            elif len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def close(self) -> None:
        """Close after pending output is sent.

        The peer may still be sending.  Closing at once would reset the connection, and the peer
        might never read the last frame; so input is read and dropped for a moment.
        """
        if self._closed:
            return
        self._closed = True
        self._bodies.forget(self, self._loop.time())
        if self._transport is None:
            self._leave()
            return
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
        if self._upgrade is not None:
            self._upgrade.close()
        if self._ended or self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._read_on()
        self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        else:
            self._leave()

    def _transport_close(self) -> None:
        if self._upgrade is not None and not self._closed:
            self._upgrade.close()
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def _held_up(self, full: bool) -> bool:
        assert self._upgrade is not None
        if not self._upgrade.pending:
            return full
        if not full and not self._stopped:
            self._unpack_soon()
        return full or self._upgrade.pending_size > PACKED_SIZE_MAX

    def _read_on(self) -> None:
        if self._upgrade is not None and self._upgrade.pending and not self._closed:
            self._unpack_soon()
        elif (self._held or self._short) and self._transport is not None:
            self._held = False
            # Input that is dropped needs no memory.
            self._short = self._short and not self._closed
            # The time while nothing was read does not count as silence.
            self._waiting_since_ns = self._clock.monotonic_ns()
            if not self._short:
                self._transport.resume_reading()

    # ---- turns

    def _rest_later(self) -> None:
        self._resting = True
        self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Execute the next slice of received commands."""
        self._resting = False
        try:
            if not self._closed and not self._stopped:
                self._go_on()
        except Exception:
            self._supervisor.defect(f"client={self.remote_address}")
            self.abort()

    def _greet(self, data: bytes) -> bytes:
        """Remove the magic from the stream; returns the bytes after it."""
        self._magic += data
        if len(self._magic) < len(MAGIC):
            if not MAGIC.startswith(self._magic):
                self._fail(ProtocolError("E_BAD_PROTOCOL"))
            return b""
        data, magic = self._magic[4:], self._magic[:4]
        self._magic = b""
        if magic != MAGIC:
            self._fail(ProtocolError("E_BAD_PROTOCOL"))
            return b""
        self._greeted = True
        self._waiting_since_ns = self._clock.monotonic_ns()
        self._start_beating()
        return data

    # ---- incomplete bodies

    def _note_body(self) -> None:
        gone = self._closed or self._transport is None
        size = self._scanner.buffered_size if self._noted and not gone else 0
        self._bodies.note(self, size, self._scanner.wanted, self._loop.time())

    def hold(self) -> None:
        self._short = True
        if self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        self._short = False
        self._waiting_since_ns = self._clock.monotonic_ns()
        if not self._held and not self._closed and self._transport is not None:
            self._transport.resume_reading()

    def end_body(self, *, late: bool) -> None:
        """Fail the command, as if the client had stopped sending there."""
        if late and (self._stopped or self._held):
            return  # the delay is ours
        failure = self._scanner.eof()
        why = "is too late" if late else "has no room"
        log.info("client=%s: gave up, its body %s", self.remote_address, why)
        if isinstance(failure, ProtocolError):
            self._fail(failure)
        else:
            self.abort()
        self._scanner.drop_held()

    # ---- TLS and compression

    def _start_upgrade(self, settings: identify.Settings) -> None:
        """Set up what IDENTIFY negotiated.

        Bytes received after IDENTIFY belong to the new stream.  nsqd loses them; executing them
        would let a man in the middle insert commands before those that TLS protects.
        """
        if self._transport is None:
            self.close()
            return
        rest = self._scanner.take_held()
        if self._upgrade is None:
            self._upgrade = Upgrade(self._transport, self._security.tls)
        self._upgrade.begin(settings, self._loop, partial(self._break, "i/o timeout"))
        self._waiting = self._upgrade.handshaking
        if rest:
            self._unwrap(rest)

    def _unwrap(self, data: bytes) -> None:
        """As data_received, for encrypted or compressed input."""
        upgrade = self._upgrade
        assert upgrade is not None
        shaking = upgrade.handshaking
        try:
            clear = upgrade.receive(data)
        except StreamError as failure:
            self._break(str(failure))
            return
        if shaking and not upgrade.handshaking:
            self._scanner.tls_required = False
            self._waiting = False
            self._waiting_since_ns = self._clock.monotonic_ns()
        if clear:
            self._scanner.feed(clear)
            if not self._stopped:
                self._run()
        if self._closed:
            return
        self._hold_back()
        if not upgrade.pending:
            if not self._stopped and not self._scanner.owed:
                self._read_on()
            if upgrade.ended or self._ended:
                self.eof_received()

    def _unpack_soon(self) -> None:
        """Continue in another turn with input that is too large to decompress in one."""
        if not self._unpacking:
            self._unpacking = True
            self._loop.call_soon(self._unpack)

    def _unpack(self) -> None:
        self._unpacking = False
        # If a command waits, _read_on calls this again.
        if not self._closed and not self._stopped:
            self._unwrap(b"")

    def _break(self, reason: str) -> None:
        """The stream cannot be decoded; an error can be sent only during the handshake."""
        upgrade = self._upgrade
        assert upgrade is not None
        upgrade.cancel()
        upgrade.flush()
        if upgrade.handshaking:
            self._upgrade = None
            self._fail(ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}"))
        else:
            log.info("client=%s: %s", self.remote_address, reason)
            self.close()
