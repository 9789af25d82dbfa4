"""GET and PUT /policy: the policy of a topic or channel (engine/policy).

    {"topic":"orders","channel":"email","policy":{"max_attempts":{"value":5,"origin":"set"},..}}

PUT takes an object of keys and values; null unsets a key.  It is answered when that is on disk.

400 INVALID_KEY, INVALID_VALUE       no such key here, or a wrong value; ``key`` and ``detail``
409 EPHEMERAL_TOPIC, EPHEMERAL_CHANNEL, PULL_CHANNEL    not for this topic or channel
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from penstock.core.ticket import Ticket, after
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.errors import PolicyError
from penstock.net.http_message import (
    INTERNAL_ERROR,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_response,
)
from penstock.net.http_router import Route, Router, refusing

# Many times the largest sensible body: every key with the longest value.
BODY_SIZE_MAX = 16 * 1024
_DISK_FULL = error_response(503, "DISK_FULL")
_FORBIDDEN = refusing(error_response(403, "FORBIDDEN"))


class PolicyApi:
    """The two routes."""

    def __init__(self, components: Components) -> None:
        self._policies = components.policies
        self._broker = components.broker

    def add_routes(self, router: Router) -> None:
        router.add("GET", "/policy", Route(self.get))
        put = Route(self.put, body_size_max=BODY_SIZE_MAX, logged=True, limited=_FORBIDDEN)
        router.add("PUT", "/policy", put)

    def get(self, request: Request) -> Response:
        return self._shown(*self._place(request))

    def put(self, request: Request) -> Pending:
        topic, channel = self._place(request)
        changes = _changes(request.body)
        if self._broker.exiting:
            raise HttpError(503, "EXITING")
        policies = self._policies
        try:
            if channel is None:
                saved, created = policies.set_topic(topic, changes), topic.created
            else:
                saved, created = policies.set_channel(channel, changes), channel.created
        except PolicyError as error:
            status = 409 if error.conflict else 400
            raise HttpError(status, error.code, key=error.key, detail=str(error)) from None

        def done(ticket: Ticket) -> Response:
            if ticket.error is None:
                return self._shown(topic, channel)
            return _DISK_FULL if is_full(ticket.error) else INTERNAL_ERROR

        # A policy must not outlive its topic or channel.
        return Pending(saved if created.done else after(created, saved), done)

    def _place(self, request: Request) -> tuple[BaseTopic, Channel | None]:
        topic = self._broker.topics.get(request.name("topic"))
        name = request.name("channel") if "channel" in request.query else ""
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if not name:
            return topic, None
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic, channel

    def _shown(self, topic: BaseTopic, channel: Channel | None) -> Response:
        shown: dict[str, Any] = {"topic": topic.name}
        if channel is None:
            shown["policy"] = self._policies.topic_shown(topic)
        else:
            shown |= {"channel": channel.name, "policy": self._policies.channel_shown(channel)}
        return json_response(shown)


def _changes(body: bytes) -> dict[str, object]:
    """The object of a PUT; a key that is there twice is refused."""
    try:
        value = json.loads(body, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "INVALID_BODY", detail=_reason(error)) from None
    if not isinstance(value, dict):
        raise HttpError(400, "INVALID_BODY", detail="the body must be a JSON object")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, _TwiceError):
        return str(error)
    return "the body is not valid JSON"


class _TwiceError(ValueError):
    """A key is there twice."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(f"{key[:80]!r} is there twice")
        found[key] = value
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
