"""A client's TCP connection: bytes in, commands executed, frames out.

The compiled Scanner executes what runs per message; what it returns is executed here.  Commands
of one connection run strictly in order: while a reply waits for the disk, later commands that
are not publishes wait too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from penstock.core.deadlines import NEVER_NS
from penstock.core.scanner import CLOSING, SUBSCRIBED, Scanner
from penstock.core.window import Consumer
from penstock.engine.broker import Broker
from penstock.engine.channel import Channel
from penstock.engine.names import is_valid_name
from penstock.engine.ticket import Ticket
from penstock.engine.topology import locality
from penstock.engine.writer import PENDING_SIZE_MAX
from penstock.errors import ProtocolError
from penstock.wire import frames, identify
from penstock.wire.quote import quote

log = logging.getLogger(__name__)

MAGIC = b"  V2"
# Received and not yet executed, while a command waits: past this the socket is not read.
BUFFERED_SIZE_MAX = 1 << 20
# Sent and not yet taken by the kernel: past this no more messages are given to the client.
OUTPUT_SIZE_MAX = 1 << 20
# How long a refused client may go on sending before it is cut off.
LINGER_S = 1.0
# How long a connection may take to say that it speaks V2; nsqd waits for ever.
GREETING_TIMEOUT_S = 600.0
MS_NS = 1_000_000


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._magic = b""
        self._greeted = False
        self._closed = False
        self._ended = False
        self._waiting = False
        self._parked: Any = None
        self._held = False
        self._blocked_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat_ns = 0
        self._waiting_since_ns = 0
        self._identified: identify.Settings | None = None
        self.settings: identify.Settings
        self.channel: Channel | None = None
        self.consumer: Consumer | None = None
        self.remote_address = ""
        self.connect_time = 0
        options = broker.options
        self._scanner = Scanner(
            broker.appenders,
            self._owed,
            message_size_max=options.max_msg_size,
            body_size_max=options.max_body_size,
            ready_count_max=options.max_rdy_count,
            requeue_ms_max=options.max_req_timeout_ns // MS_NS,
            defer_ms_max=options.max_defer_ns // MS_NS,
            msg_timeout_max_ns=options.max_msg_timeout_ns,
        )

    # ---- what /stats shows

    @property
    def client_id(self) -> str:
        return self.settings.client_id

    @property
    def hostname(self) -> str:
        return self.settings.hostname

    @property
    def user_agent(self) -> str:
        return self.settings.user_agent

    @property
    def topology_zone(self) -> str:
        return self.settings.topology_zone

    @property
    def topology_region(self) -> str:
        return self.settings.topology_region

    @property
    def sample_rate(self) -> int:
        return self.settings.sample_rate

    @property
    def state(self) -> int:
        return self._scanner.state

    @property
    def ready_count(self) -> int:
        return self.consumer.ready_count if self.consumer is not None else 0

    @property
    def in_flight_count(self) -> int:
        return self.consumer.in_flight_count if self.consumer is not None else 0

    @property
    def message_count(self) -> int:
        return self.consumer.message_count if self.consumer is not None else 0

    @property
    def finish_count(self) -> int:
        return self.consumer.finish_count if self.consumer is not None else 0

    @property
    def requeue_count(self) -> int:
        return self.consumer.requeue_count if self.consumer is not None else 0

    @property
    def pub_counts(self) -> dict[str, int]:
        return self._scanner.pub_counts

    @property
    def command_count(self) -> int:
        return self._scanner.command_count

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_SIZE_MAX)
        set_no_delay(self._transport)
        host, self.remote_address = peer_of(self._transport)
        self.settings = identify.initial(self._broker.options, host)
        self._scanner.msg_timeout_ns = self.settings.msg_timeout_ns
        self.connect_time = self._broker.clock.wall_ns() // 1_000_000_000
        self._broker.clients.add(self)
        self._timer = self._loop.call_later(GREETING_TIMEOUT_S, self.abort)
        log.debug("client=%s: connected", self.remote_address)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        if not self._greeted:
            data = self._greet(data)
            if not data:
                return
        self._scanner.feed(data)
        if not self._waiting:
            self._run()
        self._hold_back()

    def eof_received(self) -> bool:
        """The client sends no more; what it is owed still goes out."""
        self._ended = True
        if not self._closed and self._greeted and not self._waiting:
            failure = self._scanner.eof()
            if isinstance(failure, ProtocolError):
                self._execute_after_owed(failure)
        if self._scanner.owed or self._waiting:
            return True
        self._transport_close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._detach()
        self._broker.clients.discard(self)
        self._broker.left_command_count += self._scanner.command_count
        log.debug("client=%s: disconnected", self.remote_address)

    def _detach(self) -> None:
        """Leave the channel; its messages come back."""
        channel, self.channel = self.channel, None
        if channel is not None and self.consumer is not None:
            self._scanner.consumer = None
            self.consumer.writable = False
            channel.leave(self.consumer)

    def pause_writing(self) -> None:
        self._blocked_ns = self._broker.clock.monotonic_ns()
        if self.consumer is not None:
            self.consumer.writable = False

    def resume_writing(self) -> None:
        self._blocked_ns = 0
        if self.consumer is not None and self.channel is not None:
            self.consumer.writable = True
            self.channel.offer(self.consumer)

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Messages for this client, from its channel."""
        if not self._closed and self._transport is not None:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def close(self) -> None:
        """Close after what is written has gone out.

        The peer may still be sending.  Closing at once would reset the connection, and the last
        frame might never be read; so the rest is read and dropped for a moment.
        """
        if self._closed or self._transport is None:
            return
        self._closed = True
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
        if self._ended or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._read_on()
        self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _transport_close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def _write(self, frame: bytes) -> None:
        if not self._closed and self._transport is not None:
            self._transport.write(frame)

    def _hold_back(self) -> None:
        """Do not read on while what was read cannot be executed or stored."""
        scanner = self._scanner
        full = self._waiting and scanner.buffered_size > BUFFERED_SIZE_MAX
        if scanner.owed:
            pending_size = max(scanner.pending_size, self._broker.deferred.pending_size)
            full = full or pending_size > PENDING_SIZE_MAX
        if full and not self._held and not self._closed and self._transport is not None:
            self._held = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._held and self._transport is not None:
            self._held = False
            self._transport.resume_reading()

    # ---- executing

    def _greet(self, data: bytes) -> bytes:
        """Take the magic off the stream; what is left is the first commands."""
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
        self._waiting_since_ns = self._broker.clock.monotonic_ns()
        self._start_beating()
        return data

    def _run(self) -> None:
        """Execute what is complete, up to a command that has to wait."""
        clock = self._broker.clock
        scanner = self._scanner
        now_ns = clock.monotonic_ns()
        while not self._closed and not self._waiting:
            command = scanner.next(now_ns, clock.wall_ns())
            if command is None:
                break
            self._execute_after_owed(command)
        if scanner.progressed:
            scanner.progressed = False
            self._waiting_since_ns = now_ns
        if scanner.answered:
            scanner.answered = False
            if self.channel is not None and self.consumer is not None:
                self.channel.offer(self.consumer)

    def _execute_after_owed(self, command: Any) -> None:
        """Replies owed for earlier publishes come first, unless this is a publish as well."""
        publishes = isinstance(command, tuple) and command[0] in ("TOPIC", "DPUB")
        if self._scanner.owed and not publishes:
            self._waiting = True
            self._parked = command
        else:
            self._execute(command)

    def _wait(self, ticket: Ticket, then: Callable[[Ticket], None]) -> None:
        """Go on with ``then``, and with the commands behind it, when ``ticket`` is settled."""
        if ticket.done:
            then(ticket)
            return
        self._waiting = True

        def settled(ticket: Ticket) -> None:
            if not self._closed:
                then(ticket)
                self._go_on()

        ticket.add(settled)

    def _go_on(self) -> None:
        """What was waited for has come."""
        self._waiting = False
        if not self._closed:
            self._run()
        if not self._waiting:
            self._read_on()
            if self._ended and not self._scanner.owed:
                self._transport_close()

    def _execute(self, command: Any) -> None:
        if isinstance(command, ProtocolError):
            self._fail(command)
            return
        try:
            getattr(self, f"_do_{command[0].lower()}")(*command[1:])
        except ProtocolError as failure:
            self._fail(failure)

    def _fail(self, failure: ProtocolError) -> None:
        self._write(frames.error(failure))
        if failure.fatal:
            log.info("client=%s: %s", self.remote_address, failure)
            self.close()

    def _do_line_too_long(self) -> None:
        # nsqd closes without an error frame here.
        self.close()

    def _do_bad_name(self, code: str, what: str, name: bytes) -> None:
        raise ProtocolError(code, f"{what} {quote(name)} is not valid")

    # ---- publishing

    def _do_topic(self, command: str, name: str) -> None:
        """A publish names a topic that does not exist yet; the scanner then tries again."""
        if self._broker.exiting:
            raise ProtocolError(f"E_{command}_FAILED", f"{command} failed exiting")
        self._broker.create_topic(name)

    def _do_dpub(self, name: str, delay_ms: int, body: bytes) -> None:
        topic = self._broker.topics[name]
        ticket = self._broker.defer(topic, body, delay_ms * MS_NS)
        self._scanner.owe_ticket(ticket, "DPUB")

    def _owed(self, ticket: Ticket) -> None:
        ticket.add(self._settle)

    def _settle(self, _: Ticket) -> None:
        """Answer the publishes whose tickets are settled, in the order they came."""
        replies = b""
        while (owed := self._scanner.settle()) is not None:
            error = owed.ticket.error
            if error is not None:
                self._write(replies)
                command = owed.command
                self._fail(ProtocolError(f"E_{command}_FAILED", f"{command} failed {error}"))
                return
            replies += frames.OK * owed.count
        if replies:
            self._write(replies)
        if self._scanner.owed or self._closed:
            return
        parked, self._parked = self._parked, None
        if parked is not None:
            self._waiting = False
            self._execute(parked)
        if not self._waiting:
            self._go_on()

    # ---- the other commands

    def _do_identify(self, body: bytes) -> None:
        settings, reply = identify.negotiate(body, self._broker.options, self.settings)
        self.settings = settings
        self._scanner.msg_timeout_ns = settings.msg_timeout_ns
        if self._identified is None:
            # What concerns delivery stays as the first IDENTIFY set it, as in nsqd.
            self._identified = settings
            self._start_beating()
        self._write(frames.response(reply))

    def _do_auth(self, secret: bytes) -> None:
        raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    def _do_sub(self, params: list[bytes]) -> None:
        if not self.settings.heartbeat_interval_ns:
            raise ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise ProtocolError("E_INVALID", "SUB insufficient number of parameters")
        topic_name, channel_name = params
        if not is_valid_name(topic_name):
            raise ProtocolError("E_BAD_TOPIC", f"SUB topic name {quote(topic_name)} is not valid")
        if not is_valid_name(channel_name):
            raise ProtocolError(
                "E_BAD_CHANNEL", f"SUB channel name {quote(channel_name)} is not valid"
            )
        if self._broker.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        topic, _ = self._broker.create_topic(topic_name.decode())
        channel, ticket = topic.create_channel(channel_name.decode())
        limit = self._broker.options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed consumers for {topic.name}:{channel.name} exceeds limit of {limit}",
            )
        first = self._identified or self.settings
        self.consumer = Consumer(self, first.msg_timeout_ns, first.sample_rate)
        self.consumer.locality = locality(self._broker.options, self._identified)
        self.channel = channel
        channel.join(self.consumer)
        self._wait(ticket, self._subscribed)

    def _subscribed(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self._fail(ProtocolError("E_SUB_FAILED", f"SUB failed {ticket.error}"))
            return
        assert self.channel is not None
        self._scanner.window = self.channel.window
        self._scanner.consumer = self.consumer
        self._scanner.state = SUBSCRIBED
        self._write(frames.OK)

    def _do_cls(self) -> None:
        assert self.consumer is not None
        self.consumer.ready_count = 0
        self._scanner.state = CLOSING
        self._write(frames.CLOSE_WAIT)

    # ---- heartbeats and deadlines

    def _start_beating(self) -> None:
        """Heartbeats at each interval from now; the first IDENTIFY sets the period."""
        first = self._identified or self.settings
        self._beat_ns = self._broker.clock.monotonic_ns() + first.heartbeat_interval_ns
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = self._identified or self.settings
        if not first.heartbeat_interval_ns or self._closed:
            return
        now_ns = self._broker.clock.monotonic_ns()
        next_ns = min(self._beat_ns, self._deadline_ns())
        self._timer = self._loop.call_later(max(0, next_ns - now_ns) / 1e9, self._beat)

    def _deadline_ns(self) -> int:
        """When a client that completes no command is given up."""
        interval_ns = self.settings.heartbeat_interval_ns
        if not interval_ns or self._waiting or self._held:
            return NEVER_NS
        return self._waiting_since_ns + 2 * interval_ns

    def _beat(self) -> None:
        now_ns = self._broker.clock.monotonic_ns()
        interval_ns = self.settings.heartbeat_interval_ns
        stuck = self._blocked_ns and interval_ns and now_ns - self._blocked_ns >= interval_ns
        if stuck or now_ns >= self._deadline_ns():
            why = "stuck" if stuck else "silent"
            log.info("client=%s: gave up, it is %s", self.remote_address, why)
            self.abort()
            return
        if now_ns >= self._beat_ns:
            first = self._identified or self.settings
            self._beat_ns += first.heartbeat_interval_ns
            self._write(frames.HEARTBEAT)
        self._arm()


def peer_of(transport: asyncio.Transport) -> tuple[str, str]:
    """(host, address) of the other side; a unix socket has neither."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "", "@"
    host, port = str(peer[0]), peer[1]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_no_delay(transport: asyncio.Transport) -> None:
    """Small replies go out at once; a unix socket has no such setting."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
