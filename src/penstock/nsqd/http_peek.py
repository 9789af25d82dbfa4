"""GET /channel/peek and /deferred: waiting messages, for people (nsqadmin uses it).

    {"messages":[{"id":"..","timestamp":ns,"attempts":1,"state":"queued","size":5,"body":"aGVsbG8="}]}

A deferred message also has ``due``, in ns.  ``body`` is base64 of at most ``size_max`` bytes.

    {"total":3,"counted":true,"topics":[{"topic_name":"orders","count":3,
      "due":[{"start":1794718800,"length":3600,"count":2},{"start":1794787200,"length":86400,..}]}]}

Deferred publishes that are not due yet, by due time: by hour for two days, then by day.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping

from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.stats.peek import COUNT_MAX, Peeked, peek
from penstock.net.http_message import (
    INTERNAL_ERROR,
    JSON,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    json_response,
)
from penstock.net.http_router import Route, Router
from penstock.net.long_answers import gather
from penstock.wire import gojson

COUNT = 10
SIZE = 4 * 1024
SIZE_MAX = 64 * 1024
# Peeks that wait for the disk at once: they share its threads with everything else.
PEEK_COUNT_MAX = 4

HOUR_S = 3600
DAY_S = 24 * HOUR_S
HOURS_S = 2 * DAY_S


class PeekApi:
    """The two routes."""

    def __init__(self, components: Components) -> None:
        self._disk = components.context.disk
        self._topics = components.broker.topics
        self._deferred = components.deferred
        self._peek_count = 0

    def add_routes(self, router: Router) -> None:
        router.add("GET", "/channel/peek", Route(self.peek, logged=True))
        router.add("GET", "/deferred", Route(self.deferred))

    def peek(self, request: Request) -> Pending:
        channel = self._channel(request)
        count = request.number("count", COUNT_MAX, minimum=1, absent=COUNT)
        size_max = request.number("size_max", SIZE_MAX, minimum=1, absent=SIZE)
        if self._peek_count >= PEEK_COUNT_MAX:
            raise HttpError(503, "TOO_MANY_REQUESTS")
        self._peek_count += 1
        ticket = Ticket()
        found: list[Peeked] = []

        def done(peeked: list[Peeked] | None, error: Exception | None) -> None:
            self._peek_count -= 1
            found.extend(peeked or ())
            ticket.settle(error)

        peek(channel, count, size_max, self._disk, done)
        return Pending(ticket, lambda settled: _shown(settled, found))

    def _channel(self, request: Request) -> Channel:
        topic_name, name = request.names("topic", "channel")
        topic = self._topics.get(topic_name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    def deferred(self, request: Request) -> Response | Pending:
        return gather(self._pieces(int(time.time())), (JSON, V1))

    def _pieces(self, now_s: int) -> Iterator[bytes]:
        deferred = self._deferred
        counted = deferred.loader.counted
        head = gojson.encode({"total": deferred.tallies.total, "counted": counted})
        yield head[:-1] + b',"topics":['
        first = True
        for name in sorted(self._topics):
            topic = self._topics.get(name)
            hours = deferred.due_hours(topic.instance) if topic is not None else None
            if hours:
                due = due_periods(hours, now_s)
                shown = {"topic_name": name, "count": sum(hours.values()), "due": due}
                yield (b"" if first else b",") + gojson.encode(shown)
                first = False
        yield b"]}"


def due_periods(hours: Mapping[int, int], now_s: int) -> list[dict[str, int]]:
    """Counts by hour (Unix seconds of its start), those beyond two days by day."""
    near = {start: count for start, count in hours.items() if start < now_s + HOURS_S}
    days: dict[int, int] = {}
    for start, count in hours.items():
        if start not in near:
            day = start // DAY_S * DAY_S
            days[day] = days.get(day, 0) + count
    rows = [(start, HOUR_S, count) for start, count in near.items()]
    rows += [(start, DAY_S, count) for start, count in days.items()]
    return [
        {"start": start, "length": length, "count": count} for start, length, count in sorted(rows)
    ]


def _shown(ticket: Ticket, found: list[Peeked]) -> Response:
    if ticket.error is not None:
        return INTERNAL_ERROR
    return json_response({"messages": [_message(message) for message in found]})


def _message(message: Peeked) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": message.id,
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        "state": message.state,
        "size": message.size,
        "body": base64.b64encode(message.body).decode(),
    }
    if message.due_ns:
        shown["due"] = message.due_ns
    return shown
