"""POST /pub and /mpub.

The order of checks is nsqd's: /pub checks its body before its topic, /mpub its declared size first
and its contents last, and both create the topic before anything else can fail.
"""

from __future__ import annotations

import re

from penstock.core.ticket import Ticket, after
from penstock.engine.base import BaseTopic
from penstock.engine.broker import Broker
from penstock.engine.options import Options
from penstock.errors import StorageError, TopicFullError
from penstock.net.http_exchange import EXITING
from penstock.net.http_message import (
    OK,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
)
from penstock.net.http_router import Handler, Route, Router
from penstock.wire.names import is_valid_name

MS_NS = 1_000_000
# The node does not come back soon: publish elsewhere.
DRAINING = error_response(503, "DRAINING", ("Retry-After", "30"))

# A full topic (R20): the publisher should try again, after a while.
FULL_RETRY_S = 1
_FULL = error_response(507, "TOPIC_FULL", ("Retry-After", str(FULL_RETRY_S)))

_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")


class PublishApi:
    """The two routes for messages."""

    def __init__(self, broker: Broker, options: Options) -> None:
        self._broker = broker
        self._options = options

    def add_routes(self, router: Router) -> None:
        options = self._options

        def add(path: str, handler: Handler, size_max: int) -> None:
            route = Route(handler, body_size_max=size_max, judges_size=True, publishes=True)
            router.add("POST", path, route)

        add("/pub", self.pub, options.max_msg_size)
        add("/mpub", self.mpub, options.max_body_size)

    def pub(self, request: Request) -> Response | Pending:
        body = request.body
        if request.oversize:
            raise HttpError(413, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        if self._broker.draining:
            return DRAINING
        topic, created = self._topic(request)
        delay_ns = self._delay_ns(request)
        try:
            ticket = topic.defer(body, delay_ns) if delay_ns else topic.publish([body])
        except (OSError, StorageError):
            return EXITING
        return _pending(created, ticket)

    def mpub(self, request: Request) -> Response | Pending:
        if request.oversize and request.content_size is not None:
            raise HttpError(413, "BODY_TOO_BIG")
        if self._broker.draining:
            return DRAINING
        topic, created = self._topic(request)
        if request.oversize:
            raise HttpError(413, "BODY_TOO_BIG")
        binary = request.flag("binary", absent=False)
        try:
            # As in nsqd, a CR belongs to its line, and every error is a 413.
            publish = topic.publish_multi if binary else topic.publish_lines
            ticket = publish(request.body)
        except ValueError as error:
            raise HttpError(413, str(error)) from None
        except (OSError, StorageError):
            return EXITING
        return _pending(created, ticket)

    def _topic(self, request: Request) -> tuple[BaseTopic, Ticket | None]:
        """The topic to publish to, and a ticket if it was created."""
        name = request.argument("topic")
        topic = self._broker.topics.get(name)
        if topic is not None:
            return topic, None
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        return self._broker.create_topic(name)

    def _delay_ns(self, request: Request) -> int:
        text = request.query.get("defer")
        if text is None:
            return 0
        if _DECIMAL.fullmatch(text):
            delay_ns = int(text) * MS_NS
            if 0 <= delay_ns <= self._options.max_defer_ns:
                return delay_ns
        raise HttpError(400, "INVALID_DEFER")


def _pending(created: Ticket | None, published: Ticket) -> Pending:
    """Respond when both the message and, if it is new, its topic are durable."""
    return Pending(published if created is None else after(created, published), _published)


def _published(ticket: Ticket) -> Response:
    if ticket.error is None:
        return OK
    return _FULL if isinstance(ticket.error, TopicFullError) else EXITING
