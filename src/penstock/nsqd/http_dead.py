"""GET /channel/dead, POST /channel/kick and /channel/discard: buried messages (R24).

{"count":2,"messages":[{"id":"..","index":7,"reason":"attempts","text":"","attempts":5,
  "timestamp":ns,"buried":ns,"client":"worker-3 10.0.0.7:5123","size":5,"body":"aGVsbG8="}],
  "next":7,"running":[{"act":"kick","left":1000}]}       running: only while something is

{"kicked":1000,"left":41}      {"kicking":1000,"left":1041}, with a rate

Whoever kicks in batches says where the one before ended.  Otherwise messages that fail again
meanwhile would be the oldest again, and be kicked for ever.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.core.block import Block
from penstock.core.buried import REASONS
from penstock.core.ticket import Ticket
from penstock.engine.channel import REDELIVERY_SIZE, Channel
from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.engine.topic import Topic
from penstock.net.http_message import (
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
from penstock.wire import gojson
from penstock.wire.ids import INDEX_MAX, message_id, split_id

COUNT = 100
COUNT_MAX = 1000
SIZE = 4 * 1024
SIZE_MAX = 64 * 1024
# Bytes of bodies in one page: a page may have fewer messages than were asked for.
PAGE_SIZE_MAX = 8 << 20
# Pages that wait for the disk, and sweeps that are answered when they end, at once.
PAGE_COUNT_MAX = 4
SWEEP_COUNT_MAX = 4

ID_COUNT_MAX = 1000
KICK_COUNT_MAX = 100_000_000
RATE_MAX = 1_000_000

# Index, reason, text, attempts, buried_ns, client: a row of Buried.page().
Shown = tuple[int, str, str, int, int, str]

_HEADER = struct.Struct(">ii q H 16s")  # size, frame type, timestamp, attempts, id
_NAMES = {name: reason for reason, name in REASONS.items()}
_DONE = {Act.KICK: "kicked", Act.DISCARD: "discarded"}
_DOING = {Act.KICK: "kicking", Act.DISCARD: "discarding"}
_DISK_FULL = error_response(503, "DISK_FULL")


class DeadApi:
    """The routes."""

    def __init__(self, components: Components) -> None:
        self._disk = components.context.disk
        self._topics = components.broker.topics
        self._moves = components.moves
        self._page_count = self._sweep_count = 0

    def add_routes(self, router: Router) -> None:
        router.add("GET", "/channel/dead", Route(self.dead, logged=True))
        router.add("POST", "/channel/kick", Route(self.kick, logged=True))
        router.add("POST", "/channel/discard", Route(self.discard, logged=True))

    def dead(self, request: Request) -> Response | Pending:
        topic, channel = self.find(request)
        after = request.number("after", INDEX_MAX, absent=-1)
        count = request.number("count", COUNT_MAX, minimum=1, absent=COUNT)
        size_max = request.number("size_max", SIZE_MAX, minimum=1, absent=SIZE)
        reason = reason_of(request)
        buried = channel.window.buried
        if buried is None or topic is None:
            return json_response({"count": 0, "messages": [], "next": None})
        if self._page_count >= PAGE_COUNT_MAX:
            raise HttpError(503, "TOO_MANY_REQUESTS")
        self._page_count += 1
        found = buried.page(after, count, reason)
        head: dict[str, object] = {"count": buried.count_of(reason)}
        if running := self._running(channel):
            head["running"] = running
        ticket = Ticket()
        pages: list[bytes] = []

        def read(page: bytes | None, error: Exception | None) -> None:
            self._page_count -= 1
            if page is not None:
                pages.append(page)
            ticket.settle(error)

        work = partial(_page, topic, head, found, size_max, full=len(found) == count)
        self._disk.submit(work, read)
        return Pending(ticket, lambda done: _shown(done, pages))

    def kick(self, request: Request) -> Response | Pending:
        return self._sweep(request, Act.KICK)

    def discard(self, request: Request) -> Response | Pending:
        return self._sweep(request, Act.DISCARD)

    def find(self, request: Request) -> tuple[Topic | None, Channel]:
        """The channel and its topic; None for the topic if it has no log."""
        topic_name, name = request.names("topic", "channel")
        topic = self._topics.get(topic_name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if channel.pulled:
            raise HttpError(409, "PULL_CHANNEL")
        return topic if isinstance(topic, Topic) else None, channel

    def _running(self, channel: Channel) -> list[dict[str, object]]:
        """A kick or discard at a rate, and a move."""
        sweep, task = channel.sweep, self._moves.running(channel)
        running: list[dict[str, object]] = []
        if sweep is not None:
            running.append({"act": sweep.act.value, "left": sweep.left})
        if task is not None:
            running.append({"act": "move", "left": task.left, "to": task.to})
        return running

    def _sweep(self, request: Request, act: Act) -> Response | Pending:
        topic, channel = self.find(request)
        if request.boolean("stop"):
            return _stopped(channel, act)
        chosen = chosen_by(request, topic)
        rate = request.number("rate", RATE_MAX, minimum=1, absent=0)
        sweep = Sweep(channel, act, chosen, rate)
        if rate:
            kicking = sweep.left
            sweep.start()
            return json_response({_DOING[act]: kicking, "left": channel.window.buried_count})
        if self._sweep_count >= SWEEP_COUNT_MAX:
            raise HttpError(503, "TOO_MANY_REQUESTS")
        self._sweep_count += 1

        def ended(ticket: Ticket) -> Response:
            self._sweep_count -= 1
            if ticket.error is not None:
                return _DISK_FULL if is_full(ticket.error) else INTERNAL_ERROR
            return _counted(sweep, paged="after" in request.query)

        return Pending(sweep.start(), ended)


def reason_of(request: Request) -> int:
    """The reason asked for; 0: any."""
    name = request.query.get("reason")
    if name is None:
        return 0
    if name not in _NAMES:
        raise HttpError(400, "INVALID_ARG_REASON")
    return _NAMES[name]


def chosen_by(request: Request, topic: Topic | None) -> Chosen:
    """The messages that a request names: by id, the oldest so many, or all."""
    count = request.number("count", KICK_COUNT_MAX, minimum=1, absent=KICK_COUNT_MAX)
    reason = reason_of(request)
    ids = ids_of(request)
    after = request.number("after", INDEX_MAX, absent=-1)
    if ids is None:
        return Chosen(None, count, reason, after)
    if request.query.keys() & {"count", "reason", "rate", "after"}:
        raise HttpError(400, "INVALID_IDS")  # either, or
    indexes = []
    for node_id, index in ids if topic is not None else ():
        # A client may send all nodes the same ids.
        if topic is not None and node_id == _node_id(topic, index):
            indexes.append(index)
    return Chosen(indexes)


def _node_id(topic: Topic, index: int) -> int:
    """The node id in the id of a message; as it is shown, if its bytes are lost."""
    known = topic.log.node_id_at(index)
    return known if known >= 0 else topic.log.node_id


def ids_of(request: Request) -> list[tuple[int, int]] | None:
    """(node id, index) of the ids in a request's body; None without a body."""
    if not request.body:
        return None
    body: Mapping[str, Any] = json_object(request)
    ids = body.get("ids")
    if body.keys() != {"ids"} or not isinstance(ids, list) or not 0 < len(ids) <= ID_COUNT_MAX:
        raise HttpError(400, "INVALID_IDS")
    found = []
    for id in ids:
        parts = split_id(id.encode("utf-8", "replace")) if isinstance(id, str) else None
        if parts is None:
            raise HttpError(400, "INVALID_IDS")
        found.append(parts)
    return found


def _stopped(channel: Channel, act: Act) -> Response:
    sweep = channel.sweep
    if sweep is None or sweep.act is not act:
        return json_response({_DONE[act]: 0, "left": channel.window.buried_count})
    sweep.stop()
    return _counted(sweep)


def _counted(sweep: Sweep, *, paged: bool = False) -> Response:
    left = sweep.channel.window.buried_count
    place = {"next": sweep.next} if paged else {}
    return json_response({_DONE[sweep.act]: sweep.done_count, "left": left, **place})


def _shown(done: Ticket, pages: list[bytes]) -> Response:
    if done.error is not None:
        return INTERNAL_ERROR
    return Response(200, pages[0], (JSON, V1))


def _page(
    topic: Topic, head: dict[str, object], found: list[Shown], size_max: int, *, full: bool
) -> bytes:
    # On a disk thread.
    block: Block | None = None
    parts: list[bytes] = []
    size = 0
    last = None
    for burial in found:
        if size > PAGE_SIZE_MAX:
            full = True
            break
        index = burial[0]
        # Buried messages are often neighbours.
        if block is None or not block.first <= index < block.end:
            block = _block(topic, index)
        frame = block.frame(index) if block is not None else None
        shown = _message(topic, burial, frame or b"", size_max)
        parts.append(gojson.encode(shown))
        size += len(parts[-1])
        last = index
    tail = gojson.encode({"next": last if full else None})
    return gojson.encode(head)[:-1] + b',"messages":[' + b",".join(parts) + b"]," + tail[1:]


def _block(topic: Topic, index: int) -> Block | None:
    try:
        return topic.block_at(index, REDELIVERY_SIZE, wait=True)
    except OSError:
        return None  # a bad sector hides one body, not the page


def _message(topic: Topic, burial: Shown, frame: bytes, size_max: int) -> dict[str, object]:
    index, reason, text, attempts, buried_ns, client = burial
    shown: dict[str, object] = {
        "id": message_id(topic.log.node_id, index).decode(),
        "index": index,
        "reason": reason,
        "text": text,
        "attempts": attempts,
        "timestamp": 0,
        "buried": buried_ns,
        "client": client,
        "size": 0,
        "body": "",
    }
    if frame:
        _, _, timestamp_ns, _, id = _HEADER.unpack_from(frame)
        body = frame[_HEADER.size :]
        shown["id"], shown["timestamp"] = id.decode(), timestamp_ns
        shown["size"], shown["body"] = len(body), base64.b64encode(body[:size_max]).decode()
    else:
        shown["lost"] = True  # the log's bytes are damaged, or cannot be read
    return shown
