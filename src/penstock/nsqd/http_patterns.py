"""Patterns over HTTP (R47): topic names whose new topics get a reader's pull channel.

POST /channel/pattern            register or renew a pattern; returns the topics with the channel
GET  /channel/patterns           list all patterns
POST /channel/pattern/delete     for admins: delete one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.engine.pull.patterns import (
    EXCEPTION_COUNT_MAX,
    GLOB_COUNT_MAX,
    Pattern,
    PatternError,
)
from penstock.net.http_message import (
    EMPTY,
    INTERNAL_ERROR,
    JSON,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_object,
    json_response,
)
from penstock.net.http_router import Route, Router
from penstock.net.long_answers import gather_after
from penstock.nsqd.http_identity import body_identity, body_reader
from penstock.nsqd.http_log import ends_entry
from penstock.wire import gojson
from penstock.wire.names import is_ephemeral, is_valid_name

_GLOB = re.compile(r"[.a-zA-Z0-9_*?-]{1,64}")
_DISK_FULL = error_response(503, "DISK_FULL")


class PatternApi:
    """The routes."""

    def __init__(self, components: Components) -> None:
        self._broker = components.broker
        self._identity = components.identity
        self._patterns = components.patterns

    def add_routes(self, router: Router) -> None:
        # Not logged: readers renew their patterns every few seconds.
        limited = Route(self.register_limited)
        router.add("POST", "/channel/pattern", Route(self.register, limited=limited))
        router.add("GET", "/channel/patterns", Route(self.list))
        router.add("POST", "/channel/pattern/delete", Route(self.delete, logged=True))

    def register_limited(self, request: Request) -> Pending:
        """``register`` for the role read: without a take-over."""
        if json_object(request).get("take_over") is not None:
            raise HttpError(403, "FORBIDDEN")
        return self.register(request)

    def register(self, request: Request) -> Pending:
        body = json_object(request)
        channel, identity = _channel(body), body_identity(body)
        if identity is None:
            raise HttpError(400, "MISSING_IDENTITY", detail="identity must be given")
        topics = _texts(body, "topics", GLOB_COUNT_MAX, _is_glob)
        if not topics:
            raise HttpError(400, "INVALID_TOPICS", detail="topics must have at least one pattern")
        excepted = _texts(body, "except", EXCEPTION_COUNT_MAX, is_valid_name)
        old, reader = body_identity(body, "take_over"), body_reader(body)
        if self._broker.exiting:
            raise HttpError(503, "EXITING")
        try:
            pattern, ticket, made = self._patterns.register(
                channel, identity, reader, topics, excepted, old
            )
        except PatternError as error:
            raise _refusal(channel, error) from None
        return gather_after(ticket, self._pieces(pattern, made), (JSON, V1), _failed)

    def _pieces(self, pattern: Pattern, made: bool) -> Iterator[bytes]:
        """The topics that match and have the channel, in the format of POST /log/ends."""
        head = gojson.encode({"node": self._identity.uuid, "made": made, "topics": {}})
        yield head.removesuffix(b"}}")
        comma = b""
        for topic, channel in self._patterns.topics(pattern):
            if channel.admits(pattern.record.reader.identity):
                channel.visit()
            entry = gojson.encode({topic.name: ends_entry(topic, channel)})
            yield comma + entry[1:-1]
            comma = b","
        yield b"}}"

    def list(self, request: Request) -> Response:
        patterns = self._patterns.stats
        return json_response({"node": self._identity.uuid, "patterns": patterns})

    def delete(self, request: Request) -> Pending:
        channel = request.argument("channel")
        try:
            ticket = self._patterns.delete(channel)
        except KeyError:
            raise HttpError(404, "PATTERN_NOT_FOUND", channel=channel) from None
        return Pending(ticket, lambda done: EMPTY if done.error is None else _failed(done.error))


def _refusal(channel: str, error: PatternError) -> HttpError:
    reader = error.reader
    return HttpError(
        error.status,
        error.code,
        detail=str(error),
        channel=channel,
        identity=None if reader is None else reader.identity,
        since_ms=None if reader is None else reader.since_ms,
    )


def _failed(error: Exception) -> Response:
    return _DISK_FULL if is_full(error) else INTERNAL_ERROR


def _channel(body: Mapping[str, Any]) -> str:
    name = body.get("channel")
    if not isinstance(name, str) or not is_valid_name(name):
        raise HttpError(400, "INVALID_CHANNEL")
    if is_ephemeral(name):
        raise HttpError(400, "EPHEMERAL_CHANNEL")
    return name


def _is_glob(text: str) -> bool:
    return _GLOB.fullmatch(text) is not None


def _texts(
    body: Mapping[str, Any], name: str, count_max: int, valid: Callable[[str], bool]
) -> tuple[str, ...]:
    """A list of texts, each once, in order."""
    code, values = f"INVALID_{name.upper()}", body.get(name, [])
    if not isinstance(values, list):
        raise HttpError(400, code, detail=f"{name} must be a list")
    if len(values) > count_max:
        raise HttpError(400, code, detail=f"{name} has {len(values)} entries, over {count_max}")
    for value in values:
        if not isinstance(value, str) or not valid(value):
            detail = f"{name}: {str(value)[:100]!r} is not a name of letters, digits, ., _ and -"
            also = ", with * and ?" if name == "topics" else ""
            raise HttpError(400, code, detail=detail + also)
    return tuple(dict.fromkeys(values))
