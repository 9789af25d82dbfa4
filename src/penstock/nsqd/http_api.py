"""nsqd's HTTP API, except publishing.

Texts and the order of checks are nsqd's.  Note its two spellings: topic routes and publishing use
INVALID_TOPIC, channel routes INVALID_ARG_TOPIC.  Routes that only find a topic return
TOPIC_NOT_FOUND for an invalid name.

Changes are answered when they are on disk.
"""

from __future__ import annotations

import time

from penstock.core.ticket import Ticket, after
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.damage import as_json
from penstock.engine.health import is_full
from penstock.engine.stats import report
from penstock.engine.stats.memory import Memory
from penstock.net import live_options
from penstock.net.http_message import (
    EMPTY,
    INTERNAL_ERROR,
    JSON,
    TEXT,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_response,
    text_response,
)
from penstock.net.http_router import Handler, Route, Router
from penstock.net.long_answers import gather
from penstock.nsqd.clients import Clients
from penstock.nsqd.http_identity import guard_channel, guard_topic
from penstock.nsqd.http_publish import DRAINING, PublishApi
from penstock.nsqd.http_seek import SeekApi
from penstock.settings.daemon import hostname
from penstock.settings.table import config_values
from penstock.version import NSQ_VERSION

_DISK_FULL = error_response(503, "DISK_FULL")
_PING_OK = Response(200, b"OK", (TEXT,))


class NsqdApi:
    """The routes of one nsqd.  The daemon sets the ports once it listens; -1: a unix socket.

    ``options`` are the current ones: PUT /config and SIGHUP change some of them.
    """

    def __init__(self, components: Components, clients: Clients, memory: Memory) -> None:
        self.options = components.context.options
        self.tcp_port = -1
        self.http_port = -1
        self.router = Router()
        self._components = components
        self._broker = components.broker
        self._source = report.StatsSource(components, clients.connected, memory)
        PublishApi(components.broker, self.options).add_routes(self.router)
        self._get("/ping", self.ping)
        self._get("/info", self.info)
        self._get("/stats", self.stats)
        self._get("/damage", self.damage)
        self._post("/damage/clear", self.damage_clear)
        for action in ("create", "delete", "empty", "pause", "unpause"):
            self._post(f"/topic/{action}", getattr(self, f"topic_{action}"))
            self._post(f"/channel/{action}", getattr(self, f"channel_{action}"))
        self._get("/config/:opt", self.get_config)
        self._seeks = SeekApi(components.broker)
        self._seeks.add_routes(self.router)
        put = Route(
            self.put_config,
            body_size_max=self.options.max_msg_size,
            judges_size=True,
            logged=True,
        )
        self.router.add("PUT", "/config/:opt", put)

    def _get(self, pattern: str, handler: Handler) -> None:
        self.router.add("GET", pattern, Route(handler))

    def _post(self, pattern: str, handler: Handler) -> None:
        self.router.add("POST", pattern, Route(handler, logged=True))

    # Status

    def ping(self, request: Request) -> Response:
        health = self._components.health
        if health.problem is None:
            return _PING_OK
        return Response(500, health.text.encode("utf-8", "replace"), (TEXT,))

    def info(self, request: Request) -> Response:
        options = self.options
        draining = {"draining": True} if self._broker.draining else {}
        return json_response(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": hostname(),
                "http_port": self.http_port,
                "tcp_port": self.tcp_port,
                "start_time": self._broker.start_time,
                "max_heartbeat_interval": options.max_heartbeat_interval_ns,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                "node_uuid": self._components.identity.uuid,
                **draining,
            }
        )

    def stats(self, request: Request) -> Response | Pending:
        query = request.query
        wanted = report.Selection(
            topic=query.get("topic", ""),
            channel=query.get("channel", ""),
            include_clients=request.flag("include_clients", absent=True),
            include_memory=request.flag("include_mem", absent=True),
            policies=request.flag("policies", absent=False),
        )
        if query.get("format") == "json":
            return gather(report.json_pieces(self._source, wanted), (JSON, V1))
        now_ns = time.time_ns()
        return gather(report.text_pieces(self._source, wanted, now_ns), (TEXT, V1))

    def damage(self, request: Request) -> Response:
        records = self._components.damage.records
        return json_response({"records": [as_json(record) for record in records]})

    def damage_clear(self, request: Request) -> Pending:
        return _when(self._components.damage.clear())

    # Topics

    def topic_create(self, request: Request) -> Response | Pending:
        name = request.name("topic", "INVALID_TOPIC")
        if self._broker.draining and name not in self._broker.topics:
            return DRAINING
        topic, created = self._broker.create_topic(name)
        # As in NSQ, the channels that nsqlookupd knows exist before the response.
        return _when(created if topic.channels_known.done else after(created, topic.channels_known))

    def topic_delete(self, request: Request) -> Pending:
        topic = self._topic(request)
        self._guard(request, guard_topic(topic, "deleted"))
        return _when(self._broker.delete_topic(topic.name))

    def topic_empty(self, request: Request) -> Pending:
        request.name("topic", "INVALID_TOPIC")
        topic = self._topic(request)
        self._guard(request, guard_topic(topic, "emptied"))
        return _when(topic.empty())

    def topic_pause(self, request: Request) -> Pending:
        return _when(self._topic(request).pause(True))

    def topic_unpause(self, request: Request) -> Pending:
        return _when(self._topic(request).pause(False))

    def _topic(self, request: Request) -> BaseTopic:
        topic = self._broker.topics.get(request.argument("topic"))
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    # Channels

    def channel_create(self, request: Request) -> Pending:
        return self._seeks.create(request, *self._channel_place(request))

    def channel_delete(self, request: Request) -> Pending:
        topic, channel = self._channel(request)
        self._guard(request, guard_channel(topic, channel, "deleted"))
        return _when(topic.delete_channel(channel.name))

    def channel_empty(self, request: Request) -> Pending:
        topic, channel = self._channel(request)
        self._guard(request, guard_channel(topic, channel, "emptied"))
        return _when(channel.empty())

    def channel_pause(self, request: Request) -> Pending:
        return _when(self._channel(request)[1].pause(True))

    def channel_unpause(self, request: Request) -> Pending:
        return _when(self._channel(request)[1].pause(False))

    def _channel_place(self, request: Request) -> tuple[BaseTopic, str]:
        """The topic, which must exist, and the channel's name."""
        request.name("topic")
        name = request.name("channel")
        return self._topic(request), name

    def _channel(self, request: Request) -> tuple[BaseTopic, Channel]:
        topic, name = self._channel_place(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic, channel

    def _guard(self, request: Request, refusal: HttpError | None) -> None:
        """Removing messages that a reader needs requires ``force`` (R45).

        Without pull channels ``force`` is ignored, like every parameter unknown to nsqd.
        """
        if refusal is None:
            return
        if not request.boolean("force"):
            self._components.pulls.refusal_counts["guard"] += 1
            raise refusal

    # Options

    def get_config(self, request: Request) -> Response:
        values = config_values(self.options)
        option = request.params["opt"]
        if option not in values:
            raise HttpError(400, "INVALID_OPTION")
        value = values[option]
        if option == "statsd_prefix":
            value = self.statsd_prefix()
        return text_response(value) if isinstance(value, str) else json_response(value)

    def put_config(self, request: Request) -> Response:
        """Change an option of the running daemon; a restart resets it."""
        if request.oversize or not request.body:
            raise HttpError(413, "INVALID_VALUE")
        option = request.params["opt"]
        if option not in live_options.LIVE:
            raise HttpError(400, "INVALID_OPTION")
        try:
            value = live_options.parse(option, request.body)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        live_options.change(self, option, value)
        return self.get_config(request)

    def statsd_prefix(self) -> str:
        """The prefix as sent: ``%s`` becomes this node, and a dot is added unless it is empty."""
        options = self.options
        port = options.broadcast_http_port or self.http_port
        node = f"{options.broadcast_address}:{port}".replace(".", "_").replace(":", "_")
        prefix = options.statsd_prefix.replace("%s", node)
        return prefix if not prefix or prefix.endswith(".") else prefix + "."


def _when(ticket: Ticket) -> Pending:
    return Pending(ticket, _done)


def _done(ticket: Ticket) -> Response:
    if ticket.error is None:
        return EMPTY
    return _DISK_FULL if is_full(ticket.error) else INTERNAL_ERROR
