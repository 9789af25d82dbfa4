"""nsqlookupd's side of a connection from an nsqd.

After its first command an idle connection is not closed: nsqd may be configured to ping rarely, and
its registrations should last as long as its socket.  TCP keep-alive detects dead machines.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from math import inf
from typing import Any

from penstock.errors import ProtocolError, StreamError
from penstock.lookupd.registry import Producer, Registry
from penstock.lookupd.security import Security
from penstock.net.acceptor import Accepted
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Admission
from penstock.wire.address import peer_address
from penstock.wire.lookup import (
    OK,
    Command,
    CommandReader,
    Identity,
    encode_error,
    encode_identify_reply,
    encode_reply,
)
from penstock.wire.names import is_valid_name
from penstock.wire.tls import Tls

log = logging.getLogger(__name__)

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_COUNT = 9
# How long a peer may take to read the error that ends its connection.
LINGER_TIMEOUT_S = 1.0
# Time per connection in one turn of the loop, and bytes decoded between checks of that time.
SLICE_NS = 2_000_000
PIECE_SIZE = 2048
# How long a TLS handshake may take; Go's limit too.
HANDSHAKE_TIMEOUT_S = 5.0

_OK = encode_reply(OK)


class LookupdConnection(Accepted, asyncio.Protocol):
    """One nsqd."""

    def __init__(
        self,
        registry: Registry,
        security: Security,
        identity: Callable[[], Identity],
        now_ns: Callable[[], int],
        connections: set[LookupdConnection],
        admission: Admission,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._security = security
        self._identity = identity
        self._now_ns = now_ns
        self._connections = connections
        self._admission = admission
        self._loop = loop
        self._reader = CommandReader()
        self._producer: Producer | None = None
        self._address = ""
        self._transport: Any = None
        self._closing = False
        self._limited = False
        self._has_command = False
        self._begun = False
        self._tls: Tls | None = None
        self._handshaking = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread = b""
        self._working = False
        self._write_paused = False
        self._eof = False

    # Admission

    @property
    def sent_command(self) -> bool:
        # A peer that sends only PING is not an nsqd; it is evicted when a slot is needed.
        return self._producer is not None

    @property
    def idle_since_s(self) -> float:
        return inf

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._address = peer_address(transport.get_extra_info("peername"), f"unix:{id(self):x}")
        self._connections.add(self)
        _keep_alive(transport.get_extra_info("socket"))
        self._set_timer(FIRST_COMMAND_TIMEOUT_S)
        log.info("client=%s: connected", self._address)
        if self.evicted:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._admission.remove(self)
        self._set_timer(None)
        if self._producer is not None:
            self._registry.remove(self._producer, self._now_ns())
        log.info("client=%s: disconnected", self._address)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            clear = self._decrypt(data)
        except ProtocolError as error:
            self._fail(error, b"")
            return
        except StreamError as error:
            log.error("client=%s: %s", self._address, error)
            self._flush()
            self.close()
            return
        self._unread = self._unread + clear if self._unread else clear
        if not self._working:
            self._work()

    def eof_received(self) -> bool:
        self._eof = True
        if not self._working:
            self._finish()
        # True keeps our side open until all commands before EOF have run.
        return self._working

    def pause_writing(self) -> None:
        # Stop reading from a peer that does not read its replies.
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._update_reading()

    # Input

    def _work(self) -> None:
        """Execute received commands for one time slice; the remainder waits for a later turn.

        Without slices, 20,000 registrations in one read blocked the loop for half a second.
        """
        self._working = False
        if self._closing or self._transport is None:
            return
        end_ns = time.perf_counter_ns() + SLICE_NS
        replies: list[bytes] = []
        try:
            while self._unread and time.perf_counter_ns() < end_ns:
                piece, self._unread = self._unread[:PIECE_SIZE], self._unread[PIECE_SIZE:]
                for item in self._reader.feed(piece):
                    if isinstance(item, ProtocolError):
                        raise item
                    replies.append(self._execute(item))
        except ProtocolError as error:
            self._fail(error, b"".join(replies))
            return
        if replies:
            self._write(b"".join(replies))
        if self._unread:
            self._working = True
            self._loop.call_soon(self._work)
        self._update_reading()
        if not self._working and (self._eof or (self._tls is not None and self._tls.ended)):
            self._finish()
            self.close()

    def _finish(self) -> None:
        """Handle EOF: an incomplete command is an error."""
        error = self._reader.eof() if self._eof and not self._closing else None
        if error is not None:
            self._fail(error, b"")

    def _update_reading(self) -> None:
        """Pause reading while commands are left to run or the peer does not read replies."""
        if not self._closing and self._transport is not None:
            if self._write_paused or self._working:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # TLS

    def _decrypt(self, data: bytes) -> bytes:
        """Return the plain bytes of ``data``; start TLS if the peer does."""
        if not self._begun:
            self._begun = True
            self._tls = self._security.begin(data)
            if self._tls is not None:
                self._handshaking = True
                self._set_timer(HANDSHAKE_TIMEOUT_S)
        if self._tls is None:
            return data
        if self._handshaking:
            agreed = self._tls.handshake(data)
            self._flush()
            if not agreed:
                return b""
            self._handshaking = False
            self._set_timer(FIRST_COMMAND_TIMEOUT_S)
            data = b""
        return self._tls.receive(data)

    def _write(self, data: bytes) -> None:
        self._transport.write(data if self._tls is None else self._tls.send([data]))

    def _flush(self) -> None:
        """Send TLS protocol data such as handshake records."""
        if self._tls is not None and (output := self._tls.take_output()):
            self._transport.write(output)

    def _end_tls(self) -> None:
        if self._tls is not None and not self._handshaking:
            self._transport.write(self._tls.close())

    # Commands

    def _execute(self, command: Command) -> bytes:
        if not self._has_command:
            self._has_command = True
            self._set_timer(None)
        if command.name == "PING":
            if self._producer is not None:
                self._registry.ping(self._producer, self._now_ns())
            return _OK
        if command.identity is not None:
            return self._identify(command.identity)
        topic, channel = _names(command)
        assert self._producer is not None, "the reader lets nothing through before IDENTIFY"
        if command.name != "REGISTER":
            self._registry.unregister(self._producer, topic, channel, self._now_ns())
        elif not self._registry.register(self._producer, topic, channel, self._now_ns()):
            return self._not_registered(topic, channel)
        log.info("client=%s: %s topic=%s channel=%s", self._address, command.name, topic, channel)
        return _OK

    def _not_registered(self, topic: str, channel: str) -> bytes:
        """The one non-fatal error: closing would drop the other registrations too."""
        if not self._limited:
            self._limited = True
            log.error(
                "client=%s: %d topics and channels are registered, no more are accepted (topic=%s"
                " channel=%s), see --max-registrations",
                *(self._address, self._producer and self._producer.registration_count),
                *(topic, channel),
            )
        return encode_error(ProtocolError("E_LIMIT", f"REGISTER {topic} {channel}".rstrip()))

    def _identify(self, identity: Identity) -> bytes:
        if not self._registry.may_identify(self._address):
            count = self._registry.limits.nodes
            text = f"IDENTIFY {count} nodes of this address, see --max-nodes-per-address"
            raise ProtocolError("E_LIMIT", text)
        self._producer = self._registry.identify(self._address, identity, self._now_ns())
        log.info(
            "client=%s: identified as %s, TCP %d, HTTP %d, version %s",
            self._address,
            identity.broadcast_address,
            identity.tcp_port,
            identity.http_port,
            identity.version,
        )
        return encode_identify_reply(self._identity())

    # Closing

    def _fail(self, error: ProtocolError, before: bytes) -> None:
        """Send the error and close after the peer reads it; unread input would cause a reset."""
        log.error("client=%s: %s", self._address, error)
        self._closing = True
        self._write(before + encode_error(error))
        self._end_tls()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._set_timer(LINGER_TIMEOUT_S)

    def _set_timer(self, delay_s: float | None) -> None:
        """Abort the connection after ``delay_s``; None: cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_s is None else self._loop.call_later(delay_s, self.abort)

    def close(self) -> None:
        if self._transport is not None:
            self._end_tls()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _names(command: Command) -> tuple[str, str]:
    """(topic, channel or "")"""
    topic, channel = (*command.params, "")[:2]
    if not is_valid_name(topic):
        text = f"{command.name} topic name '{topic}' is not valid"
        raise ProtocolError("E_BAD_TOPIC", text)
    if channel and not is_valid_name(channel):
        text = f"{command.name} channel name '{channel}' is not valid"
        raise ProtocolError("E_BAD_CHANNEL", text)
    return topic, channel


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
