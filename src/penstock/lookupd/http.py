"""nsqlookupd's HTTP API.

Texts and the order of checks are NSQ's.  Where NSQ does not check a name (/channels, /lookup,
/topic/delete, /topic/tombstone) an invalid one is a name that no nsqd has; ``*`` is not a pattern
there, so ``/topic/delete?topic=*`` deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.clock import Clock
from penstock.lookupd.registry import NEVER_NS, Producer, Registry
from penstock.net.http_message import (
    EMPTY,
    JSON,
    TEXT,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    json_response,
)
from penstock.net.http_router import Route, Router
from penstock.net.long_answers import gather
from penstock.version import NSQ_VERSION
from penstock.wire import gojson

# Go's zero time in nanoseconds since 1970, wrapped to 64 bits.
GO_ZERO_NS = -6795364578871345152

_PING_OK = Response(200, b"OK", (TEXT,))


class LookupdApi:
    """The routes of one nsqlookupd."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.router = Router()
        self._registry = registry
        self._clock = clock
        for path, serve in (
            ("/ping", self.ping),
            ("/info", self.info),
            ("/topics", self.topics),
            ("/channels", self.channels),
            ("/lookup", self.lookup),
            ("/nodes", self.nodes),
            ("/debug", self.debug),
        ):
            self.router.add("GET", path, Route(serve))
        for path, change in (
            ("/topic/create", self.topic_create),
            ("/topic/delete", self.topic_delete),
            ("/topic/tombstone", self.topic_tombstone),
            ("/channel/create", self.channel_create),
            ("/channel/delete", self.channel_delete),
        ):
            self.router.add("POST", path, Route(_empty(change), logged=True))

    # Queries

    def ping(self, request: Request) -> Response:
        return _PING_OK

    def info(self, request: Request) -> Response:
        return json_response({"version": NSQ_VERSION})

    def topics(self, request: Request) -> Response:
        return json_response({"topics": self._registry.topics()})

    def channels(self, request: Request) -> Response:
        topic = request.argument("topic")
        return json_response({"channels": self._registry.channels(topic)})

    def lookup(self, request: Request) -> Response:
        topic = request.argument("topic")
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        producers = self._registry.producers(topic, self._clock.monotonic_ns())
        return json_response(
            {
                "channels": self._registry.channels(topic),
                "producers": [_as_json(producer) for producer in producers],
            }
        )

    def nodes(self, request: Request) -> Response | Pending:
        return gather(self._node_pieces(), (JSON, V1))

    def _node_pieces(self) -> Iterator[bytes]:
        """Yield one node at a time: each may have 100,000 topics."""
        now_ns = self._clock.monotonic_ns()
        before = b'{"producers":['
        for producer in self._registry.nodes(now_ns):
            topics = list(producer.topics)
            hidden = [self._registry.tombstoned(producer, topic, now_ns) for topic in topics]
            shown = {**_as_json(producer), "tombstones": hidden, "topics": topics}
            yield before + gojson.encode(shown)
            before = b","
        yield b"]}" if before == b"," else before + b"]}"

    def debug(self, request: Request) -> Response | Pending:
        return gather(self._debug_pieces(), (JSON, V1))

    def _debug_pieces(self) -> Iterator[bytes]:
        wall_offset_ns = self._clock.wall_ns() - self._clock.monotonic_ns()
        before = b"{"
        for key in self._registry.all_keys():
            producers = self._registry.producers_of(*key)
            if producers:
                shown = [self._debugged(each, key, wall_offset_ns) for each in producers]
                yield before + gojson.encode(":".join(key)) + b":" + gojson.encode(shown)
                before = b","
        yield b"}" if before == b"," else before + b"}"

    def _debugged(
        self, producer: Producer, key: tuple[str, str, str], wall_offset_ns: int
    ) -> dict[str, Any]:
        category, topic, _ = key
        at_ns = producer.topics.get(topic, NEVER_NS) if category == "topic" else NEVER_NS
        marked = at_ns != NEVER_NS
        identity = producer.identity
        return {
            "broadcast_address": identity.broadcast_address,
            "hostname": identity.hostname,
            "http_port": identity.http_port,
            "id": producer.address,
            "last_update": producer.updated_ns + wall_offset_ns,
            "tcp_port": identity.tcp_port,
            "tombstoned": marked,
            "tombstoned_at": at_ns + wall_offset_ns if marked else GO_ZERO_NS,
            "topology_region": identity.topology_region,
            "topology_zone": identity.topology_zone,
            "version": identity.version,
        }

    # Changes

    def topic_create(self, request: Request) -> None:
        topic = request.name("topic")
        if not self._registry.create_topic(topic, self._clock.monotonic_ns()):
            raise HttpError(503, "TOO_MANY_CREATED")

    def topic_delete(self, request: Request) -> None:
        self._registry.delete_topic(request.argument("topic"))

    def topic_tombstone(self, request: Request) -> None:
        topic, node = request.argument("topic"), request.argument("node")
        self._registry.tombstone(topic, node, self._clock.monotonic_ns())

    def channel_create(self, request: Request) -> None:
        topic, channel = request.name("topic"), request.name("channel")
        if not self._registry.create_channel(topic, channel, self._clock.monotonic_ns()):
            raise HttpError(503, "TOO_MANY_CREATED")

    def channel_delete(self, request: Request) -> None:
        topic, channel = request.name("topic"), request.name("channel")
        if not self._registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")


def _empty(change: Callable[[Request], None]) -> Callable[[Request], Response]:
    def handler(request: Request) -> Response:
        change(request)
        return EMPTY

    return handler


def _as_json(producer: Producer) -> dict[str, Any]:
    identity = producer.identity
    return {
        "remote_address": producer.address,
        "hostname": identity.hostname,
        "broadcast_address": identity.broadcast_address,
        "tcp_port": identity.tcp_port,
        "http_port": identity.http_port,
        "version": identity.version,
        "topology_zone": identity.topology_zone,
        "topology_region": identity.topology_region,
    }
