"""NSQ's JSON API of nsqadmin, as tools use it: paths, fields, texts and statuses are NSQ's.

Every request queries the daemons.  If some fail, the response has the others' data and a
``message`` ``WARNING: ...``; if all fail, it is 502 ``UPSTREAM_ERROR: ...``.

Differences from NSQ: an unknown topic or channel is 404 instead of 502 or an empty 200; sums do
not overwrite the values of nodes; create also works without nsqlookupds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any

from penstock.admin import answers, api_objects, posted_actions
from penstock.admin.actions import Outcome
from penstock.admin.cluster import Known, NothingKnownError, Producer
from penstock.admin.jsontext import read_object
from penstock.net.http_message import HttpError, Request, Response
from penstock.net.http_router import Route, Router
from penstock.wire.names import is_valid_name
from penstock.wire.peer_answers import Object

if TYPE_CHECKING:
    from penstock.admin.app import Admin

log = logging.getLogger(__name__)

BODY_SIZE_MAX = 64 << 10
CHANGES = ("pause", "unpause", "empty")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Api:
    """The routes below /api."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._cluster = admin.cluster

    def add_routes(self, router: Router) -> None:
        topic, channel = "/api/topics/:topic", "/api/topics/:topic/:channel"
        for path, view in (
            ("/api/topics", self.topics),
            (topic, self.topic),
            (channel, self.channel),
            ("/api/nodes", self.nodes),
            ("/api/nodes/:node", self.node),
            ("/api/counter", self.counter),
        ):
            self._add(router, "GET", path, view)
        for method, path, change in (
            ("POST", "/api/topics", self.create),
            ("POST", topic, self.change),
            ("POST", channel, self.change),
            ("DELETE", topic, self.delete),
            ("DELETE", channel, self.delete),
            ("DELETE", "/api/nodes/:node", self.tombstone),
        ):
            self._add(router, method, path, self._guarded(change))
        self._add(router, "POST", "/api/action", self.action, posted_actions.BODY_SIZE_MAX)

    def _add(
        self,
        router: Router,
        method: str,
        path: str,
        handler: Handler,
        body_size_max: int = BODY_SIZE_MAX,
    ) -> None:
        route = Route(
            self._admin.tasks.handler(_with_upstream_errors(handler)),
            body_size_max=body_size_max,
            logged=method != "GET",
        )
        router.add(method, self._admin.url(path), route)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            self._admin.access.check_change(request)
            return await handler(request)

        return guarded

    # Reading

    async def topics(self, request: Request) -> Response:
        if request.query.get("inactive") == "true":
            inactive = await self._cluster.inactive()
            return _answer(request, {"topics": inactive.data}, inactive.warnings)
        known = await self._cluster.topics()
        return _answer(request, {"topics": known.data}, known.warnings)

    async def topic(self, request: Request) -> Response:
        name = request.params["topic"]
        producers = await self._producers(name)
        stats = await self._cluster.stats(producers.data, name)
        total = api_objects.topic_sum(name, stats.data)
        return _answer(request, total, producers.warnings + stats.warnings)

    async def channel(self, request: Request) -> Response:
        topic, name = request.params["topic"], request.params["channel"]
        producers = await self._producers(topic)
        stats = await self._cluster.stats(producers.data, topic, name, clients=True)
        parts = [
            channel
            for part in stats.data
            for channel in part["channels"]
            if channel["channel_name"] == name
        ]
        if not parts:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        total = api_objects.channel_sum(topic, parts)
        return _answer(request, total, producers.warnings + stats.warnings)

    async def nodes(self, request: Request) -> Response:
        known = await self._cluster.producers()
        nodes = [producer.as_object() for producer in known.data]
        return _answer(request, {"nodes": nodes}, known.warnings)

    async def node(self, request: Request) -> Response:
        name = request.params["node"]
        known = await self._cluster.producers()
        producer = next((p for p in known.data if p.node == name), None)
        if producer is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        stats = await self._cluster.stats([producer], clients=True)
        channels = [channel for topic in stats.data for channel in topic["channels"]]
        view = {
            "node": name,
            "topics": stats.data,
            "total_messages": sum(topic["message_count"] for topic in stats.data),
            "total_clients": sum(len(channel["clients"] or ()) for channel in channels),
        }
        return _answer(request, view, known.warnings + stats.warnings)

    async def counter(self, request: Request) -> Response:
        known = await self._cluster.producers()
        stats = await self._cluster.stats(known.data)
        counts: dict[str, Object] = {}
        for topic in stats.data:
            for channel in topic["channels"]:
                names = topic["topic_name"], channel["channel_name"], topic["node"]
                counts[":".join(names)] = {
                    "node": topic["node"],
                    "topic_name": topic["topic_name"],
                    "channel_name": channel["channel_name"],
                    "message_count": channel["message_count"],
                }
        view = {"stats": dict(sorted(counts.items()))}
        return _answer(request, view, known.warnings + stats.warnings)

    async def _producers(self, topic: str) -> Known[list[Producer]]:
        """The nodes of a topic; 404 if no daemon knows it."""
        try:
            known = await self._cluster.topic_producers(topic)
        except NothingKnownError as error:
            if error.statuses == {404}:
                raise HttpError(404, "TOPIC_NOT_FOUND") from None
            raise
        if not known.data and not known.warnings:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return known

    # Changing

    async def create(self, request: Request) -> Response:
        fields = read_object(request.body)
        topic, channel = fields.get("topic", ""), fields.get("channel", "")
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        outcome = await self._admin.actions.create(topic, channel)
        self._admin.notifier.notify("create_topic", request, topic)
        if channel:
            self._admin.notifier.notify("create_channel", request, topic, channel)
        return self._done(request, topic, outcome)

    async def change(self, request: Request) -> Response:
        topic, channel = request.params["topic"], request.params.get("channel", "")
        action = read_object(request.body).get("action", "")
        if action not in CHANGES:
            raise HttpError(400, "INVALID_ACTION")
        # As in NSQ: notify whether or not it succeeds.
        self._admin.notifier.notify(
            posted_actions.notice_of(action, channel), request, topic, channel
        )
        change = self._admin.actions.change(action, topic, channel, force=request.boolean("force"))
        return self._done(request, topic, await self._found(change))

    async def delete(self, request: Request) -> Response:
        topic, channel = request.params["topic"], request.params.get("channel", "")
        outcome = await self._found(
            self._admin.actions.delete(topic, channel, force=request.boolean("force"))
        )
        self._admin.notifier.notify(
            posted_actions.notice_of("delete", channel), request, topic, channel
        )
        return self._done(request, topic, outcome)

    async def tombstone(self, request: Request) -> Response:
        node = request.params["node"]
        try:
            topic = read_object(request.body).get("topic", "")
        except HttpError:
            raise HttpError(400, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        outcome = await self._admin.actions.tombstone(topic, node, force=request.boolean("force"))
        self._admin.notifier.notify("tombstone_topic_producer", request, topic, "", node)
        return self._done(request, topic, outcome)

    async def action(self, request: Request) -> Response:
        """Not in NSQ: see ``posted_actions``."""
        outcome = await self._admin.posted.object(request)
        return answers.json_object(request, posted_actions.answer(outcome))

    async def _found(self, doing: Coroutine[Any, Any, Outcome]) -> Outcome:
        try:
            return await doing
        except NothingKnownError as error:
            if error.statuses == {404}:
                raise HttpError(404, "TOPIC_NOT_FOUND") from None
            raise

    def _done(self, request: Request, topic: str, outcome: Outcome) -> Response:
        self._admin.sampler.refresh(topic)
        if outcome.warning:
            log.warning("%s %s: %s", request.method, request.path, outcome.warning)
        return answers.json_object(request, {"message": outcome.warning})


def _answer(request: Request, view: Object, warnings: list[str]) -> Response:
    message = "WARNING: " + "; ".join(dict.fromkeys(warnings)) if warnings else ""
    return answers.json_object(request, view | {"message": message})


def _with_upstream_errors(handler: Handler) -> Handler:
    """Answer 502 as NSQ does when no daemon responds."""

    @wraps(handler)
    async def wrapped(request: Request) -> Response:
        try:
            return await handler(request)
        except NothingKnownError as error:
            log.error("%s %s: %s", request.method, request.path, error)
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None

    return wrapped
