"""Executes the commands of a client's TCP connection.

The compiled Scanner executes what runs per message, and returns the other commands to this module.
Commands of one connection run strictly in order: while a reply waits for the disk, later commands
that are not publishes wait too.

If clients must AUTH, a connection has a Permit, and its scanner a table of the topics that the
client may publish to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.core.scanner import CLOSING, SUBSCRIBED, Owed
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer
from penstock.engine.topology import locality
from penstock.errors import ProtocolError
from penstock.nsqd.stream import MS_NS, Stream
from penstock.wire import frames, identify
from penstock.wire.names import is_valid_name
from penstock.wire.quote import quote

log = logging.getLogger(__name__)


class Connection(Stream):
    """One client."""

    # ---- executing

    def _execute_after_owed(self, command: Any) -> None:
        """Send the replies of earlier publishes first, unless this is a publish too."""
        publishes = isinstance(command, tuple) and command[0] in ("TOPIC", "DPUB")
        if publishes and self._permit is not None:
            # TOPIC may turn out to be forbidden.
            publishes = command[0] == "DPUB"
        if self._scanner.owed and not publishes:
            self._waiting = True
            self._parked = command
        else:
            self._execute(command)

    def _wait(self, ticket: Ticket, then: Callable[[Ticket], None]) -> None:
        """Call ``then``, and continue with later commands, when ``ticket`` is settled."""
        if ticket.done:
            then(ticket)
            return
        self._waiting = True

        def settled(ticket: Ticket) -> None:
            if self._closed:
                return
            self._waiting = False
            try:
                then(ticket)
            except ProtocolError as failure:
                self._fail(failure)
            if not self._waiting:
                self._go_on()

        ticket.add(settled)

    def _go_on(self) -> None:
        """Continue with received commands."""
        self._waiting = False
        if not self._closed:
            self._run()
        if not self._stopped:
            self._read_on()
            if self._ended and not self._busy:
                self._end()

    def _execute(self, command: Any) -> None:
        if isinstance(command, ProtocolError):
            self._fail(command)
            return
        # _do_topic, _do_dpub, _do_identify, _do_auth, _do_sub, _do_cls, _do_bad_name and
        # _do_line_too_long.
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
        """Create the topic of a publish; the scanner then retries the publish."""
        if self._broker.exiting:
            raise ProtocolError(f"E_{command}_FAILED", f"{command} failed exiting")
        self._permitted(command, name, "", partial(self._open_topic, name))

    def _open_topic(self, name: str) -> None:
        topic, _ = self._broker.create_topic(name)
        if self._permit is not None:
            self._permit.appenders[name.encode()] = topic.appender

    def _do_dpub(self, name: str, delay_ms: int, body: bytes) -> None:
        ticket = self._broker.topics[name].defer(body, delay_ms * MS_NS)
        self._scanner.owe_ticket(ticket, "DPUB")

    def _settled(self, failed: Owed | None) -> None:
        if failed is not None:
            command, error = failed.command, failed.ticket.error
            self._fail(ProtocolError(f"E_{command}_FAILED", f"{command} failed {error}"))
            return
        if self._scanner.owed or self._closed:
            return
        parked, self._parked = self._parked, None
        if parked is not None:
            self._waiting = False
            self._execute(parked)
            if not self._waiting:
                self._go_on()
        elif not self._stopped and not self._running:
            self._go_on()

    # ---- the other commands

    def _do_identify(self, body: bytes) -> None:
        offers = self._security.offers
        if self._upgrade is not None:
            # A second IDENTIFY may add only compression, and only to TLS.
            offers -= {"tls_v1"} if self._upgrade.packing is None else offers
        settings, reply = identify.negotiate(body, self._options, self.settings, offers)
        self.settings = settings
        self._scanner.msg_timeout_ns = settings.msg_timeout_ns
        if self._identified is None:
            # As in nsqd, the first IDENTIFY sets the parameters of delivery.
            self._identified = settings
            self._start_beating()
        self._write(frames.response(reply))
        upgrades = settings.tls_v1 or settings.snappy or settings.deflate
        if settings.feature_negotiation and upgrades:
            self._start_upgrade(settings)

    def _do_auth(self, secret: bytes) -> None:
        permit = self._permit
        if permit is None:
            raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")
        if permit.authed:
            raise ProtocolError("E_INVALID", "AUTH already set")
        tls = self._upgrade.tls if self._upgrade is not None else None
        common_name = tls.common_name if tls is not None else ""
        ticket = permit.authenticate(secret, self._host, tls is not None, common_name)
        self._wait(ticket, self._authed)

    def _authed(self, ticket: Ticket) -> None:
        permit = self._permit
        assert permit is not None
        self._judge_answer(ticket)
        if not permit.authed:
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        self._write(frames.response(permit.reply()))

    def _permitted(self, command: str, topic: str, channel: str, then: Callable[[], None]) -> None:
        """Call ``then`` if the client may do this; this may query the auth servers again."""
        permit = self._permit
        if permit is None:
            then()
            return
        if not permit.authed:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")

        def judge(ticket: Ticket) -> None:
            self._judge_answer(ticket)
            permit.judge(command, topic, channel)
            then()

        self._wait(permit.renew(), judge)

    def _judge_answer(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            log.warning("client=%s: AUTH failed: %s", self.remote_address, ticket.error)
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")

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
        names = (topic_name.decode(), channel_name.decode())
        self._permitted("SUB", *names, partial(self._subscribe, *names))

    def _subscribe(self, topic_name: str, channel_name: str) -> None:
        if self._broker.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        topic, _ = self._broker.create_topic(topic_name)
        channel, ticket = topic.create_channel(channel_name)
        if channel.pulled:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed {topic.name}:{channel.name} is a pull channel, read over HTTP",
            )
        limit = self._options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed consumers for {topic.name}:{channel.name} exceeds limit of {limit}",
            )
        first = self._identified or self.settings
        self.consumer = Consumer(self, first.msg_timeout_ns, first.sample_rate)
        self.consumer.writable = not self._blocked and self._transport is not None
        self.consumer.locality = locality(self._options, self._identified)
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
