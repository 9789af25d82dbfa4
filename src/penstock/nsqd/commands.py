"""Executes the commands of a client that the scanner does not execute.

The compiled Scanner executes what runs per message, and returns the other commands; the client
calls ``Commands`` with them (nsqd/client.pyx).  Commands of one client run strictly in order: while
a reply waits for the disk, later commands that are not publishes wait too.

If clients must AUTH, a client has a Permit, and its scanner a table of the topics that it may
publish to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.scanner import CLOSING, SUBSCRIBED
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer
from penstock.engine.catalog.seek import Search, open_channel, search_start
from penstock.engine.channel import Channel
from penstock.engine.topology import locality
from penstock.errors import ProtocolError
from penstock.nsqd.services import Services
from penstock.settings.places import NOUN, QUEUED, Place, parse_place
from penstock.wire import frames, identify
from penstock.wire.names import is_valid_name
from penstock.wire.quote import quote

if TYPE_CHECKING:
    from penstock.nsqd.client import Client

log = logging.getLogger(__name__)

MS_NS = 1_000_000


class Commands:
    """The commands of one client, and what it negotiated."""

    settings: identify.Settings

    def __init__(self, client: Client, services: Services) -> None:
        self._client = client
        self._broker = services.components.broker
        self._options = services.components.context.options
        self._security = services.security
        self._identified: identify.Settings | None = None  # by the first IDENTIFY
        self._start: Place | None = None  # of a new channel, by the first IDENTIFY
        auth = services.security.auth
        self.permit = None if auth is None else auth.permit(services.loop)
        self.appenders = self._broker.appenders if self.permit is None else self.permit.appenders

    def begin(self) -> None:
        """The client is connected."""
        client = self._client
        if self.permit is not None:
            self.permit.on_expired = client.scanner.forget_topic
        self._use(identify.initial(self._options, client.host))
        client.beat(self.settings.heartbeat_interval_ns)

    def end(self) -> None:
        """The client is gone."""
        if self.permit is not None:
            self.permit.close()

    def _use(self, settings: identify.Settings) -> None:
        self.settings = settings
        self._client.scanner.msg_timeout_ns = settings.msg_timeout_ns
        self._client.scanner.buries = settings.bury
        self._client.expect_within(settings.heartbeat_interval_ns)

    def is_publish(self, command: Any) -> bool:
        """Whether the command publishes, and nothing of it can be refused."""
        if not isinstance(command, tuple):
            return False
        # TOPIC may turn out to be forbidden, or refused: the error comes after the replies that
        # are owed, or the client would publish again what is stored.
        certain = self.permit is None and not self._broker.draining
        return command[0] == "DPUB" or (command[0] == "TOPIC" and certain)

    def forget_topics(self) -> None:
        """Look all topics up again before the next publish."""
        if self.permit is not None:
            self.permit.appenders.clear()
        self._client.scanner.forget_topic()

    def execute(self, command: Any) -> None:
        if isinstance(command, ProtocolError):
            self._client.fail(command)
            return
        # _do_topic, _do_dpub, _do_identify, _do_auth, _do_sub, _do_cls, _do_bad_name and
        # _do_line_too_long.
        try:
            getattr(self, f"_do_{command[0].lower()}")(*command[1:])
        except ProtocolError as failure:
            self._client.fail(failure)

    def _do_line_too_long(self) -> None:
        # nsqd closes without an error frame here.
        self._client.close()

    def _do_bad_name(self, code: str, what: str, name: bytes) -> None:
        raise ProtocolError(code, f"{what} {quote(name)} is not valid")

    # ---- publishing

    def _do_topic(self, command: str, name: str) -> None:
        """Create the topic of a publish; the scanner then retries the publish."""
        if self._broker.exiting:
            raise ProtocolError(f"E_{command}_FAILED", f"{command} failed exiting")
        self._permitted(command, name, "", partial(self._open_topic, command, name))

    def _open_topic(self, command: str, name: str) -> None:
        if self._broker.draining:
            # Fatal, as everything that ends a publish in NSQ: clients with several nsqds, or with a
            # load balancer before them, publish elsewhere.
            raise ProtocolError(f"E_{command}_FAILED", f"{command} failed draining")
        topic, _ = self._broker.create_topic(name)
        if self.permit is not None:
            self.permit.appenders[name.encode()] = topic.appender

    def _do_dpub(self, name: str, delay_ms: int, body: bytes) -> None:
        ticket = self._broker.topics[name].defer(body, delay_ms * MS_NS)
        self._client.scanner.owe_ticket(ticket, "DPUB")

    # ---- the other commands

    def _do_identify(self, body: bytes) -> None:
        offers = self._security.offers
        if self._client.upgrade is not None:
            # A second IDENTIFY may add only compression, and only to TLS.
            offers -= {"tls_v1"} if self._client.upgrade.packing is None else offers
        settings, reply = identify.negotiate(body, self._options, self.settings, offers)
        start = _place(settings.channel_start)
        self._use(settings)
        if self._identified is None:
            # As in nsqd, the first IDENTIFY sets the parameters of delivery.
            self._identified = settings
            self._start = start
            self._client.beat(settings.heartbeat_interval_ns)
        self._client.write(frames.response(reply))
        upgrades = settings.tls_v1 or settings.snappy or settings.deflate
        if settings.feature_negotiation and upgrades:
            self._client.start_upgrade(settings)

    def _do_auth(self, secret: bytes) -> None:
        permit = self.permit
        if permit is None:
            raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")
        if permit.authed:
            raise ProtocolError("E_INVALID", "AUTH already set")
        tls = self._client.upgrade.tls if self._client.upgrade is not None else None
        common_name = tls.common_name if tls is not None else ""
        ticket = permit.authenticate(secret, self._client.host, tls is not None, common_name)
        self._client.wait(ticket, self._authed)

    def _authed(self, ticket: Ticket) -> None:
        permit = self.permit
        assert permit is not None
        self._judge_answer(ticket)
        if not permit.authed:
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        self._client.write(frames.response(permit.reply()))

    def _permitted(self, command: str, topic: str, channel: str, then: Callable[[], None]) -> None:
        """Call ``then`` if the client may do this; this may query the auth servers again."""
        permit = self.permit
        if permit is None:
            then()
            return
        if not permit.authed:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")

        def judge(ticket: Ticket) -> None:
            self._judge_answer(ticket)
            permit.judge(command, topic, channel)
            then()

        self._client.wait(permit.renew(), judge)

    def _judge_answer(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            log.warning("client=%s: AUTH failed: %s", self._client.remote_address, ticket.error)
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
        if self._broker.draining and topic_name not in self._broker.topics:
            raise ProtocolError("E_SUB_FAILED", "SUB failed draining")
        topic, _ = self._broker.create_topic(topic_name)
        search = search_start(topic, channel_name, self._start)
        if search is None:
            self._join(*topic.create_channel(channel_name))
        else:
            self._client.wait(search, partial(self._start_found, topic_name, channel_name))

    def _start_found(self, topic_name: str, channel_name: str, search: Ticket) -> None:
        if search.error is not None:
            raise ProtocolError("E_SUB_FAILED", f"SUB failed {search.error}")
        if self._broker.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        assert isinstance(search, Search)
        topic, _ = self._broker.create_topic(topic_name)
        self._join(*open_channel(topic, channel_name, search))

    def _join(self, channel: Channel, ticket: Ticket) -> None:
        topic = channel.topic
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
        consumer = Consumer(self._client, first.msg_timeout_ns, first.sample_rate)
        consumer.locality = locality(self._options, self._identified)
        consumer.label = f"{first.client_id or first.hostname} {self._client.remote_address}"
        self._client.subscribe(channel, consumer)
        self._client.wait(ticket, self._subscribed)

    def _subscribed(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self._client.fail(ProtocolError("E_SUB_FAILED", f"SUB failed {ticket.error}"))
            return
        client = self._client
        assert client.channel is not None
        client.scanner.window = client.channel.window
        client.scanner.consumer = client.consumer
        client.scanner.state = SUBSCRIBED
        self._client.write(frames.OK)

    def _do_cls(self) -> None:
        assert self._client.consumer is not None
        self._client.consumer.ready_count = 0
        self._client.scanner.state = CLOSING
        self._client.write(frames.CLOSE_WAIT)


def _place(text: str) -> Place | None:
    """Where IDENTIFY says that new channels start."""
    if not text:
        return None
    try:
        return parse_place(text)
    except ValueError:
        wanted = f"channel_start must be {QUEUED}, {NOUN}"
        raise identify.bad_body(f"{wanted}, not {quote(text.encode())}") from None
