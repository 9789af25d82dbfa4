"""Reading topics by index over HTTP, as Spark does: /log and below, /channel/pull and /commit.

    pull     POST /channel/pull         create the query's channel, get its start
    ends     POST /log/ends             wait for more messages; get how far to read (R18)
    read     GET  /log/read             ranges, in batches as stored in the log
    commit   POST /channel/commit       finish everything below an index

Indexes and times are plain JSON numbers; an instance is 16 hex digits.  Every number of a request
is checked before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.core.batches import INDEX_MAX
from penstock.core.ticket import Ticket, after
from penstock.engine.components import Components
from penstock.engine.disk import report
from penstock.engine.pull.channel import (
    EARLIEST,
    LATEST,
    InUseError,
    PullChannel,
    TakeOverError,
    start_of,
)
from penstock.engine.pull.polls import Known, readable_end
from penstock.engine.pull.reads import BusyError, Read, UnsyncedError
from penstock.engine.topic import Topic
from penstock.net.http_message import (
    INTERNAL_ERROR,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_object,
    json_response,
)
from penstock.net.http_router import Handler, Route, Router
from penstock.nsqd.http_identity import (
    admit,
    argument_identity,
    body_identity,
    body_reader,
    refusal,
)
from penstock.wire import gojson
from penstock.wire.names import is_ephemeral, is_valid_name

MS_NS = 1_000_000
WAIT_MS_MAX = 30_000
READ_SIZE = 4 << 20
READ_SIZE_MAX = 16 << 20
TOPIC_COUNT_MAX = 1024
RANGE_COUNT_MAX = 1024
PROGRESS_SIZE_MAX = 8 << 10
PROGRESS_DEPTH_MAX = 16

_BYTES = ("Content-Type", "application/octet-stream")
_INSTANCE = re.compile(r"[0-9a-f]{16}")
_BUSY = error_response(503, "TOO_MANY_WAITING")
_UNSYNCED = error_response(503, "NOT_SYNCED")
_TIME_NS_MAX = (1 << 63) - 1


class LogApi:
    """The routes of a reader."""

    def __init__(self, components: Components) -> None:
        self._broker = components.broker
        self._disk = components.context.disk
        self._identity = components.identity
        self._patterns = components.patterns
        self._polls = components.polls
        self._pulls = components.pulls
        self._reads = components.reads

    def add_routes(self, router: Router) -> None:
        def add(method: str, path: str, handler: Handler) -> None:
            router.add(method, path, Route(handler))

        add("GET", "/log", self.show)
        add("POST", "/log/ends", self.ends)
        add("GET", "/log/seek", self.seek)
        add("GET", "/log/count", self.count)
        add("POST", "/log/counts", self.counts)
        add("GET", "/log/read", self.read)
        # Not logged: readers call these about once a second.
        limited = Route(self.pull_limited)
        router.add("POST", "/channel/pull", Route(self.pull, limited=limited))
        add("POST", "/channel/commit", self.commit)

    # Status

    def show(self, request: Request) -> Response:
        topic = self._topic(request)
        return json_response(
            {
                "node": self._identity.uuid,
                "topic": topic.name,
                **_place(topic),
                "end": topic.end,
                "synced_end": readable_end(topic, None),
                "released": topic.released,
                "message_count": topic.log.count,
                "channels": sorted(topic.channels),
                "pull_channels": _pull_channels(topic),
            }
        )

    def seek(self, request: Request) -> Pending:
        topic = self._topic(request)
        time_ns = request.number("timestamp", _TIME_NS_MAX, refusal="INVALID_TIMESTAMP")
        found = [topic.end]
        ticket = Ticket()

        def sought(index: int | None, error: Exception | None) -> None:
            if index is None:
                report(f"topic={topic.name}", error)
                ticket.settle(error if isinstance(error, Exception) else OSError(str(error)))
            else:
                found[0] = min(index, topic.end)
                ticket.settle()

        self._disk.submit(partial(topic.log.seek, time_ns), sought)
        return Pending(ticket, lambda done: _unless(done, lambda: {"index": found[0]}))

    def count(self, request: Request) -> Response:
        topic = self._topic(request)
        start, end = _index_argument(request, "start"), _index_argument(request, "end")
        if start > end:
            raise HttpError(400, "INVALID_RANGE")
        return json_response({"count": topic.log.count_between(start, min(end, topic.end))})

    def counts(self, request: Request) -> Response:
        """``count`` of many ranges; null for a log that does not exist."""
        ranges = json_object(request).get("ranges")
        if not isinstance(ranges, list) or not 1 <= len(ranges) <= RANGE_COUNT_MAX:
            raise HttpError(400, "INVALID_RANGES")
        counts = [self._count(_object(each, "INVALID_RANGES")) for each in ranges]
        return json_response({"node": self._identity.uuid, "counts": counts})

    def _count(self, entry: Mapping[str, Any]) -> int | None:
        name, instance = entry.get("topic"), _instance(entry.get("instance"))
        start, end = _index(entry.get("start")), _index(entry.get("end"))
        if not isinstance(name, str) or not is_valid_name(name):
            raise HttpError(400, "INVALID_RANGES")
        if start > end:
            raise HttpError(400, "INVALID_RANGE", topic=name)
        topic = self._broker.topics.get(name)
        if not isinstance(topic, Topic) or topic.instance != instance:
            return None
        return topic.log.count_between(start, min(end, topic.end))

    # Waiting

    def ends(self, request: Request) -> Pending:
        body = json_object(request)
        topics = {
            name: _known(_object(value, "INVALID_TOPICS")) for name, value in _topics(body).items()
        }
        channel = _channel_name(body) if "channel" in body else None
        identity = body_identity(body)
        wait_ms = body.get("wait_ms", 0)
        if type(wait_ms) is not int or not 0 <= wait_ms <= WAIT_MS_MAX:
            raise HttpError(400, "INVALID_WAIT_MS")
        for name in topics:
            if is_ephemeral(name):
                raise HttpError(400, "EPHEMERAL_TOPIC", topic=name)
        # Fail at once if the channel does not exist or has another reader.
        self._ends(topics, channel, identity)
        reader = _reader(request, channel)
        poll = self._polls.wait(topics, channel, wait_ms * MS_NS, reader, identity)
        return Pending(
            poll.ticket,
            lambda _: json_response(self._ends(topics, channel, identity)),
            hurry=partial(self._polls.answer, poll),
        )

    def _ends(
        self, topics: Mapping[str, Known], channel_name: str | None, identity: str | None
    ) -> dict[str, Any]:
        ends: dict[str, Any] = {}
        for name in topics:
            topic = self._broker.topics.get(name)
            if not isinstance(topic, Topic):
                ends[name] = None
                continue
            channel = None
            if channel_name is not None:
                channel = _visited(topic, channel_name, identity)
            ends[name] = ends_entry(topic, channel)
        if channel_name is not None:
            self._patterns.renew(channel_name, identity)
        return {"node": self._identity.uuid, "topics": ends}

    # Reading

    def read(self, request: Request) -> Pending:
        topic = self._topic(request)
        if _instance(request.argument("instance")) != topic.instance:
            raise HttpError(409, "INSTANCE_CHANGED")
        start, end = _index_argument(request, "start"), _index_argument(request, "end")
        if start > end or end > topic.end:
            raise HttpError(400, "INVALID_RANGE")
        size_max = request.number(
            "size_max", READ_SIZE_MAX, absent=READ_SIZE, refusal="INVALID_SIZE_MAX"
        )
        name, identity = request.query.get("channel"), argument_identity(request)
        if name is not None:
            _visited(topic, name, identity)
        raw, reads = request.boolean("raw"), self._reads
        reader = _reader(request, request.query.get("channel"))
        read = reads.read(topic, start, end, max(1, size_max), raw=raw, reader=reader)
        return Pending(read, lambda _: self._batches(read, name, identity))

    def _batches(self, read: Read, name: str | None, identity: str | None) -> Response:
        free = partial(self._reads.free, read)
        if read.error is not None or read.topic.closed:
            free()
            if read.topic.closed:
                raise HttpError(404, "TOPIC_NOT_FOUND", topic=read.topic.name)
            if isinstance(read.error, BusyError):
                return _BUSY
            return _UNSYNCED if isinstance(read.error, UnsyncedError) else INTERNAL_ERROR
        try:
            whole_from = _whole_from(read.topic, name, identity)
        except HttpError:
            free()
            raise
        pieces, next = read.range
        headers = [_BYTES, V1, ("X-Penstock-Next", str(next))]
        if read.start < whole_from:
            headers.append(("X-Penstock-Missing-Below", str(whole_from)))
            self._pulls.loss_count += 1
        return Response(200, b"", headers, pieces, free, read.file_slice)

    # Pull channels

    def pull_limited(self, request: Request) -> Pending:
        """``pull`` for the role read: of topics that exist, without force or take-over."""
        if request.boolean("force") or "take_over" in request.query:
            raise HttpError(403, "FORBIDDEN")
        name = request.argument("topic")
        if is_valid_name(name) and not is_ephemeral(name):
            self._named(name)
        return self.pull(request)

    def pull(self, request: Request) -> Pending:
        topic_name, name = request.names("topic", "channel")
        if is_ephemeral(topic_name):
            raise HttpError(400, "EPHEMERAL_TOPIC")
        if is_ephemeral(name):
            raise HttpError(400, "EPHEMERAL_CHANNEL")
        wanted, force = _start(request), request.boolean("force")
        identity, old = argument_identity(request), argument_identity(request, "take_over")
        if old is not None and identity is None:
            raise HttpError(400, "MISSING_ARG_IDENTITY")
        if self._broker.exiting:
            raise HttpError(503, "EXITING")
        tickets: list[Ticket] = []
        if old is not None and identity is not None:
            tickets.append(self._take_over(topic_name, name, identity, old))
        self._admit(topic_name, name, identity)
        if isinstance(wanted, int) and topic_name not in self._broker.topics:
            raise HttpError(400, "INVALID_START")
        topic, created = self._broker.create_topic(topic_name)
        assert isinstance(topic, Topic)
        start = topic.released if wanted is None else start_of(topic, wanted)
        if start > topic.end:
            raise HttpError(400, "INVALID_START")
        try:
            channel, ticket, made = self._pulls.open(
                topic, name, start, force=force, resumes=isinstance(wanted, int)
            )
        except InUseError:
            raise HttpError(409, "CHANNEL_IN_USE") from None
        # Sync too, so that its start is never above the readable end.
        tickets += [created, topic.channels_known, ticket]
        if readable_end(topic, None) < topic.end:
            tickets.append(topic.writer.sync())
        return Pending(
            after(*tickets),
            lambda done: _unless(done, lambda: self._pulled(channel, topic, made, identity)),
        )

    def _admit(self, topic_name: str, name: str, identity: str | None) -> None:
        """Before anything is created: refuse if the pull channel has another reader."""
        topic = self._broker.topics.get(topic_name)
        channel = None if topic is None else topic.channels.get(name)
        if isinstance(channel, PullChannel):
            admit(channel, identity)

    def _take_over(self, topic_name: str, name: str, identity: str, old: str) -> Ticket:
        channel = _pulled(self._named(topic_name), name)
        try:
            return channel.take_over(identity, old)
        except TakeOverError as error:
            raise refusal(error) from None

    def _pulled(
        self, channel: PullChannel, topic: Topic, made: bool, identity: str | None
    ) -> dict[str, Any]:
        admit(channel, identity)  # it may have been taken over meanwhile
        return {
            "node": self._identity.uuid,
            "topic": topic.name,
            "channel": channel.name,
            **_place(topic),
            "low": channel.low,
            "paused": channel.paused,
            "end": readable_end(topic, channel),
            "identity": None if channel.reader is None else channel.reader.identity,
            "made": made,
        }

    def commit(self, request: Request) -> Response:
        """All or nothing: all topics and channels are checked before any is committed."""
        body = json_object(request)
        channel_name = _channel_name(body)
        progress = _progress(body["progress"]) if body.get("progress") is not None else None
        identity, reader = body_identity(body), body_reader(body)
        moves: list[tuple[PullChannel, int]] = []
        for name, value in _topics(body).items():
            entry = _object(value, "INVALID_TOPICS")
            index, instance = _index(entry.get("index")), _instance(entry.get("instance"))
            topic = self._named(name)
            channel = _pulled(topic, channel_name)
            if instance != topic.instance:
                raise HttpError(409, "INSTANCE_CHANGED", topic=name)
            admit(channel, identity)
            moves.append((channel, index))
        for channel, index in moves:
            channel.commit(index)
            if identity is not None:
                channel.bind(identity, reader)
            if progress is not None:
                channel.report(progress)
        lows = {channel.topic.name: {"low": channel.low} for channel, _ in moves}
        return json_response({"node": self._identity.uuid, "topics": lows})

    # Topics

    def _topic(self, request: Request) -> Topic:
        return self._named(request.argument("topic"))

    def _named(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND", topic=name)
        if not isinstance(topic, Topic):
            raise HttpError(400, "EPHEMERAL_TOPIC", topic=name)
        return topic


def ends_entry(topic: Topic, channel: PullChannel | None) -> dict[str, Any]:
    """How far a reader may read in a log; with a channel, also its low-water mark."""
    entry = _place(topic)
    if channel is not None:
        entry |= {"low": channel.low, "paused": channel.paused}
    entry["end"] = readable_end(topic, channel)
    return entry


def _place(topic: Topic) -> dict[str, Any]:
    return {
        "instance": f"{topic.instance:016x}",
        "first": topic.log.first,
        "whole_from": topic.whole_from,
    }


def _pull_channels(topic: Topic) -> dict[str, Any]:
    pulled = [c for c in topic.channels.values() if isinstance(c, PullChannel)]
    return {
        channel.name: {
            "low": channel.low,
            "identity": None if channel.reader is None else channel.reader.identity,
            "reader": None if channel.reader is None else channel.reader.name,
            "since_ms": None if channel.reader is None else channel.reader.since_ms,
            "paused": channel.paused,
        }
        for channel in sorted(pulled, key=lambda channel: channel.name)
    }


def _whole_from(topic: Topic, name: str | None, identity: str | None) -> int:
    """The index at and above which nothing was removed before the reader of ``name`` had it."""
    if name is None:
        return topic.whole_from
    channel = _pulled(topic, name)
    admit(channel, identity)
    return channel.whole_from


def _visited(topic: Topic, name: str, identity: str | None) -> PullChannel:
    """The pull channel ``name``, for a call of its reader."""
    channel = _pulled(topic, name)
    admit(channel, identity)
    channel.visit()
    return channel


def _reader(request: Request, channel: str | None) -> tuple[str, bytes, str]:
    """Identifies a client program, to share resources fairly, as well as a request shows it."""
    host = request.remote_address.rpartition(":")[0]
    return host, request.headers.get(b"authorization", b""), channel or ""


def _pulled(topic: Topic, name: str) -> PullChannel:
    channel = topic.channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND", topic=topic.name, channel=name)
    if not isinstance(channel, PullChannel):
        raise HttpError(409, "NOT_A_PULL_CHANNEL", topic=topic.name, channel=name)
    return channel


def _unless(ticket: Ticket, answer: Callable[[], dict[str, Any]]) -> Response:
    return INTERNAL_ERROR if ticket.error is not None else json_response(answer())


# Query arguments


def _index_argument(request: Request, name: str) -> int:
    return request.number(name, INDEX_MAX, refusal=f"INVALID_{name.upper()}")


def _start(request: Request) -> str | int | None:
    text = request.query.get("start")
    if text is None or text in (EARLIEST, LATEST):
        return text
    return _index_argument(request, "start")


# Bodies


def _object(value: object, code: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, code)
    return value


def _topics(body: Mapping[str, Any]) -> dict[str, Any]:
    topics = _object(body.get("topics"), "INVALID_TOPICS")
    if not 1 <= len(topics) <= TOPIC_COUNT_MAX or not all(map(is_valid_name, topics)):
        raise HttpError(400, "INVALID_TOPICS")
    return topics


def _channel_name(body: Mapping[str, Any]) -> str:
    name = body.get("channel")
    if not isinstance(name, str) or not is_valid_name(name):
        raise HttpError(400, "INVALID_CHANNEL")
    return name


def _known(entry: Mapping[str, Any]) -> Known:
    instance, index = entry.get("instance"), entry.get("after")
    return Known(
        None if instance is None else _instance(instance),
        None if index is None else _index(index),
    )


def _index(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INDEX_MAX:
        raise HttpError(400, "INVALID_INDEX")
    return value


def _instance(value: object) -> int:
    if not isinstance(value, str) or not _INSTANCE.fullmatch(value):
        raise HttpError(400, "INVALID_INSTANCE")
    return int(value, 16)


def _progress(value: object) -> dict[str, Any]:
    progress = _object(value, "INVALID_PROGRESS")
    if _deeper_than(progress, PROGRESS_DEPTH_MAX) or len(gojson.encode(progress)) > (
        PROGRESS_SIZE_MAX
    ):
        raise HttpError(400, "INVALID_PROGRESS")
    return progress


def _deeper_than(value: object, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_deeper_than(item, depth - 1) for item in inside)
