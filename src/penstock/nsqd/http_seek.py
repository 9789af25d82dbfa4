"""POST /channel/seek, and the start of POST /channel/create (R22, R23).

to, start      earliest, latest, -1h, RFC 3339, nanoseconds, index:n (settings/places.py)
dry_run=true   answer what a seek would do, and change nothing
partial=true   accept a place where messages are missing
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.core.ticket import Ticket, settled
from penstock.engine.base import BaseTopic
from penstock.engine.broker import Broker
from penstock.engine.catalog.seek import Search, Start, open_channel, search_start
from penstock.engine.channel import Channel
from penstock.engine.health import is_full
from penstock.engine.topic import Topic
from penstock.net.http_message import (
    EMPTY,
    INTERNAL_ERROR,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_response,
)
from penstock.net.http_router import Route, Router
from penstock.settings.places import INDEX, QUEUED, Place, parse_place

log = logging.getLogger(__name__)

_DISK_FULL = error_response(503, "DISK_FULL")


class Change(Ticket):
    """A change that follows a search; settled when it is durable, or refused."""

    __slots__ = ("answer", "refusal")

    def __init__(self) -> None:
        super().__init__()
        self.answer: dict[str, Any] | None = None
        self.refusal: HttpError | None = None

    def after(self, search: Ticket, change: Callable[[], Ticket]) -> Pending:
        """Call ``change`` in the turn in which the search ends."""

        def found(search: Ticket) -> None:
            if search.error is not None:
                self.settle(search.error)
                return
            try:
                done = change()
            except HttpError as refusal:
                self.refusal = refusal
                self.settle()
                return
            done.add(lambda done: self.settle(done.error))

        search.add(found)
        return Pending(self, lambda _: self._response())

    def _response(self) -> Response:
        if self.refusal is not None:
            raise self.refusal
        if self.error is not None:
            return _DISK_FULL if is_full(self.error) else INTERNAL_ERROR
        return EMPTY if self.answer is None else json_response(self.answer)


class SeekApi:
    """The two routes; NsqdApi registers the second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def add_routes(self, router: Router) -> None:
        router.add("POST", "/channel/seek", Route(self.seek, logged=True))

    def seek(self, request: Request) -> Pending:
        topic_name, name = request.names("topic", "channel")
        place = _place(request.argument("to"), "INVALID_TO")
        if place.kind == QUEUED:
            raise HttpError(400, "INVALID_TO")
        dry_run, partial = request.boolean("dry_run"), request.boolean("partial")
        topic, channel = self._channel(topic_name, name)
        _check_index(topic, place, "INVALID_TO")
        search, change = Search(topic, place), Change()

        def apply() -> Ticket:
            now_topic, now_channel = self._channel(topic_name, name)
            if now_channel is not channel:
                raise HttpError(404, "CHANNEL_NOT_FOUND")
            start = search.start()
            if not partial:
                _check_whole(now_topic, start, dry_run=dry_run)
            change.answer = _preview(now_topic, channel, start, dry_run=dry_run)
            if dry_run:
                return settled()
            if channel.moving:
                # Their origins name the channel by its id: they would be moved twice (R25).
                raise HttpError(409, "MESSAGES_MOVING", detail="try again in a moment")
            log.info(
                "topic=%s channel=%s: moved to index %d by a seek, %d messages are queued",
                *(topic_name, name, start.at, change.answer["messages"]),
            )
            return now_topic.rewind(channel, start.at)

        return change.after(search, apply)

    def _channel(self, topic_name: str, name: str) -> tuple[Topic, Channel]:
        topic = self._broker.topics.get(topic_name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if not isinstance(topic, Topic):
            raise HttpError(409, "EPHEMERAL_TOPIC")
        if channel.pulled:
            raise HttpError(409, "PULL_CHANNEL")
        return topic, channel

    def create(self, request: Request, topic: BaseTopic, name: str) -> Pending:
        """Create a channel; ``start`` is where, else the topic's policy decides."""
        text = request.query.get("start")
        if text is None:
            return self._create(topic, name, None, partial=True)
        place, partial = _place(text, "INVALID_START"), request.boolean("partial")
        if not isinstance(topic, Topic):
            raise HttpError(409, "EPHEMERAL_TOPIC")
        _check_index(topic, place, "INVALID_START")
        if name in topic.channels:
            raise HttpError(409, "CHANNEL_EXISTS")
        return self._create(topic, name, place, partial=partial)

    def _create(
        self, topic: BaseTopic, name: str, place: Place | None, *, partial: bool
    ) -> Pending:
        search = search_start(topic, name, place)

        def make() -> Ticket:
            if self._broker.topics.get(topic.name) is not topic:
                raise HttpError(404, "TOPIC_NOT_FOUND")
            if search is None or place is None:
                return open_channel(topic, name, search)[1]
            if name in topic.channels:
                raise HttpError(409, "CHANNEL_EXISTS")
            start = search.start()
            if not partial:
                _check_whole(search.topic, start)
            return topic.create_channel(name, start=start.at)[1]

        return Change().after(settled() if search is None else search, make)


def _place(text: str, refusal: str) -> Place:
    try:
        return parse_place(text)
    except ValueError:
        raise HttpError(400, refusal) from None


def _check_index(topic: Topic, place: Place, refusal: str) -> None:
    if place.kind == INDEX and place.number > topic.end:
        raise HttpError(400, refusal, end=topic.end)


def _check_whole(topic: Topic, start: Start, *, dry_run: bool = False) -> None:
    if not start.whole and not dry_run:
        raise HttpError(409, "NOT_WHOLE", whole_from=topic.safe_from)


def _preview(topic: Topic, channel: Channel, start: Start, *, dry_run: bool) -> dict[str, Any]:
    window, buried = channel.window, channel.window.buried
    return {
        "topic": topic.name,
        "channel": channel.name,
        "from": window.low,
        "to": start.at,
        "whole_from": topic.safe_from,
        "whole": start.whole,
        "messages": topic.log.count_between(start.at, topic.released),
        "in_flight": window.in_flight_count,
        "deferred": window.deferred_count,
        "buried": 0 if buried is None else buried.count_between(start.at, topic.end),
        "dry_run": dry_run,
    }
