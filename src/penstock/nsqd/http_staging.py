"""Staging over HTTP (R19): rows of a Spark query arrive in parts and are published as a batch.

    PUT  /staging/part        a part of the rows of one task
    POST /staging/seal        all parts are sent: make them durable
    POST /staging/decide      record the winners of a batch, at the query's coordinator
    GET  /staging/decision    the newest decision of a query
    POST /staging/publish     publish the winners on this node
    POST /staging/abort       discard stagings
    POST /staging/give-up     for admins: publish a batch without lost stagings
    POST /staging/reset       for admins: forget a query
    POST, GET /staging/coordinator   which node decides for a query
    GET  /staging             what is staged

Errors have a second field: {"message":"MISSING_PARTS","detail":"parts [3, 4]"}.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from penstock.core.batches import FRAME_SIZE_MIN
from penstock.core.parts import measure
from penstock.core.ticket import Ticket, settled
from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.errors import StagingError
from penstock.net.http_message import (
    INTERNAL_ERROR,
    JSON,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
    json_object,
    json_response,
)
from penstock.net.http_router import Handler, Route, Router
from penstock.storage.ledger import Coordinator, Decision, Winner
from penstock.storage.staging import Key
from penstock.wire import gojson
from penstock.wire.names import is_ephemeral, is_valid_name

PART_SIZE_MAX = 8 << 20
# Frames make small messages larger: 8 MiB of one-byte rows would be a log batch of 58 MiB.
FRAMES_SIZE_MAX = 16 << 20
# The winners of 10,000 tasks.
BODY_SIZE_MAX = 2 << 20
WINNER_COUNT_MAX = 20_000
# With a note, in which every character may be escaped.
DECIDE_SIZE_MAX = 8 << 20
NOTE_SIZE_MAX = 1 << 20
LISTED_COUNT_MAX = 1000

_STATUS = {
    "STAGING_NOT_FOUND": 404,
    "STAGING_LOST": 410,
    "STAGING_FULL": 507,
    "DISK_FULL": 507,
    "TOPIC_FULL": 507,
    "STAGING_BUSY": 503,
    "EXITING": 503,
    "DRAINING": 503,
    "STAGING_FAILED": 500,
    "STAGING_CORRUPT": 500,
    "STAGING_STUCK": 500,
}
_QUERY = re.compile(r"[!-~]{1,200}")
_ADDRESS = re.compile(r"[ -~]{0,300}")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_INT64_MAX = (1 << 63) - 1
# Exact in every JSON parser.
_BATCH_MAX = (1 << 53) - 1
_PARTITION_MAX = (1 << 31) - 1
_PART_MAX = (1 << 16) - 1

_DAMAGE = {"MSG_TOO_BIG": 413}


class StagingApi:
    """The routes."""

    def __init__(self, components: Components) -> None:
        self._options = components.context.options
        self._clock = components.context.clock
        self._identity = components.identity
        self._staging = components.staging

    def add_routes(self, router: Router) -> None:
        part = Route(_guarded(self.part), body_size_max=PART_SIZE_MAX, publishes=True)
        router.add("PUT", "/staging/part", part)
        decide = Route(_guarded(self.decide), body_size_max=DECIDE_SIZE_MAX)
        router.add("POST", "/staging/decide", decide)
        router.add("GET", "/staging/decision", Route(_guarded(self.decision)))
        for name in ("seal", "publish", "abort", "coordinator"):
            handler = _guarded(getattr(self, name))
            router.add("POST", f"/staging/{name}", Route(handler, body_size_max=BODY_SIZE_MAX))
        for name, repair in (("give-up", self.give_up), ("reset", self.reset)):
            route = Route(_guarded(repair), body_size_max=BODY_SIZE_MAX, logged=True)
            router.add("POST", f"/staging/{name}", route)
        router.add("GET", "/staging/coordinator", Route(_guarded(self.get_coordinator)))
        router.add("GET", "/staging", Route(self.list))

    def part(self, request: Request) -> Pending:
        key = _key(request)
        part = request.number("part", _PART_MAX)
        topic = request.argument("topic")
        if not is_valid_name(topic) or is_ephemeral(topic):
            raise HttpError(400, "INVALID_TOPIC")
        deferred = request.flag("deferred", absent=False)
        options = self._options
        due_max_ns = self._clock.wall_ns() + options.max_defer_ns
        try:
            count, size = measure(request.body, deferred, options.max_msg_size, due_max_ns)
        except ValueError as error:
            raise HttpError(_DAMAGE.get(str(error), 400), str(error)) from None
        if size + FRAME_SIZE_MIN * count > FRAMES_SIZE_MAX:
            raise HttpError(413, "PART_TOO_BIG")
        ticket = self._staging.put_part(key, part, topic, deferred, request.body, count)
        return _pending(ticket, {"part": part, "count": count})

    def seal(self, request: Request) -> Pending:
        key = _key(request)
        part_count = request.number("parts", _PART_MAX + 1)
        count = request.number("count", _INT64_MAX)
        ticket = self._staging.seal(key, part_count, count)
        return _pending(ticket, {"node": self._identity.uuid, "count": count})

    def decide(self, request: Request) -> Pending:
        body = json_object(request)
        query, batch = _query(body), _integer(body, "batch", _BATCH_MAX)
        winners = tuple(_winner(winner) for winner in _list(body, "winners"))
        if len({(winner.node, winner.partition) for winner in winners}) < len(winners):
            raise HttpError(400, "INVALID_WINNERS")
        state = self._staging.ledger.queries.get(query)
        coordinator = state.coordinator if state is not None else None
        if coordinator is not None and coordinator.node != self._identity.uuid:
            raise StagingError("NOT_COORDINATOR", f"{coordinator.node} decides")
        decision = Decision(batch, winners, _note(body))
        newest, recorded, ticket = self._staging.ledger.decide(query, decision)
        if newest.batch > batch:
            return _pending(ticket, {"winners": [], "recorded": False, "old": True})
        shown = [winner.as_json() for winner in newest.winners]
        return _pending(ticket, {"winners": shown, "recorded": recorded})

    def decision(self, request: Request) -> Pending:
        query = _checked_query(request.argument("query"))
        state = self._staging.ledger.queries.get(query)
        if state is None or state.decision is None:
            raise HttpError(404, "NO_DECISION")
        decision, done = state.decision, state.published
        # This node does not know what other nodes have published.
        elsewhere = any(winner.node != self._identity.uuid for winner in decision.winners)
        done_batch = done.batch if done is not None else -1
        here = done_batch == decision.batch and not elsewhere
        published = not decision.winners or here or done_batch > decision.batch
        answer = {
            "query": query,
            "batch": decision.batch,
            "note": decision.note,
            "published": published,
            "winners": [winner.as_json() for winner in decision.winners],
        }
        return _pending(self._staging.ledger.save(), answer)

    def publish(self, request: Request) -> Pending:
        body = json_object(request)
        query, batch = _query(body), _integer(body, "batch", _BATCH_MAX)
        winners = [_name(winner) for winner in _list(body, "winners")]
        if len({partition for partition, _ in winners}) < len(winners):
            raise HttpError(400, "INVALID_WINNERS")
        ticket, outcome = self._staging.publish(query, batch, winners)
        answer: dict[str, Any] = {"count": outcome.count, "already": outcome.already}
        if outcome.old:
            answer["old"] = True
        return _pending(ticket, answer)

    def abort(self, request: Request) -> Pending:
        body = json_object(request)
        query, batch = _query(body), _integer(body, "batch", _BATCH_MAX)
        names = [_name(name) for name in _list(body, "stagings")]
        return _pending(settled(), {"discarded": self._staging.abort(query, batch, names)})

    def give_up(self, request: Request) -> Pending:
        body = json_object(request)
        query, batch = _query(body), _integer(body, "batch", _BATCH_MAX)
        names = [_name(name) for name in _list(body, "stagings")]
        ticket = self._staging.losses.give_up(query, batch, names)
        return _pending(ticket, {"given_up": len(names)})

    def reset(self, request: Request) -> Pending:
        body = json_object(request)
        query, published = _query(body), None
        if "published" in body:
            published = _integer(body, "published", _BATCH_MAX)
        count, ticket = self._staging.losses.reset(query, published)
        return _pending(ticket, {"discarded": count, "published": published})

    def coordinator(self, request: Request) -> Pending:
        body = json_object(request)
        query = _query(body)
        address = body.get("address", "")
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            raise HttpError(400, "INVALID_ADDRESS")
        named = Coordinator(_node(body.get("coordinator"), "INVALID_COORDINATOR"), address)
        return _coordinator(*self._staging.ledger.coordinate(query, named))

    def get_coordinator(self, request: Request) -> Pending:
        query = _checked_query(request.argument("query"))
        state = self._staging.ledger.queries.get(query)
        if state is None or state.coordinator is None:
            raise HttpError(404, "COORDINATOR_NOT_FOUND")
        return _coordinator(state.coordinator, self._staging.ledger.save())

    def list(self, request: Request) -> Response:
        now_ns = self._clock.wall_ns()
        return json_response(
            [
                {
                    **staged.key._asdict(),
                    "size": staged.size,
                    "count": staged.count,
                    "sealed": staged.seal is not None,
                    "age_ms": max(0, now_ns - staged.created_ns) // 1_000_000,
                }
                for staged in islice(self._staging.stagings(), LISTED_COUNT_MAX)
            ]
        )


# Responses


def _guarded(handler: Handler) -> Handler:
    """Turn a StagingError into a response."""

    def guarded(request: Request) -> Response | Pending:
        try:
            return handler(request)
        except StagingError as error:
            return _refusal(error)

    return guarded


def _refusal(error: Exception) -> Response:
    if isinstance(error, StagingError):
        body = {"message": error.code, "detail": error.text}
        return Response(_STATUS.get(error.code, 409), gojson.encode(body), (JSON, V1))
    if is_full(error):
        return Response(507, gojson.encode({"message": "DISK_FULL", "detail": ""}), (JSON, V1))
    return INTERNAL_ERROR


def _pending(ticket: Ticket, answer: object) -> Pending:
    def then(settled: Ticket) -> Response:
        return json_response(answer) if settled.error is None else _refusal(settled.error)

    return Pending(ticket, then)


def _coordinator(known: Coordinator, ticket: Ticket) -> Pending:
    return _pending(ticket, {"coordinator": known.node, "address": known.address})


# Requests


def _key(request: Request) -> Key:
    attempt = request.argument("attempt").lower()
    if not _ATTEMPT.fullmatch(attempt):
        raise HttpError(400, "INVALID_ARG_ATTEMPT")
    return Key(
        _checked_query(request.argument("query"), "INVALID_ARG_QUERY"),
        request.number("batch", _BATCH_MAX),
        request.number("partition", _PARTITION_MAX),
        attempt,
    )


def _checked_query(query: object, code: str = "INVALID_QUERY") -> str:
    if not isinstance(query, str) or not _QUERY.fullmatch(query):
        raise HttpError(400, code)
    return query


def _query(body: dict[str, Any]) -> str:
    return _checked_query(body.get("query"))


def _integer(body: dict[str, Any], name: str, maximum: int) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value <= maximum:
        raise HttpError(400, f"INVALID_{name.upper()}")
    return value


def _list(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = body.get(name)
    if not isinstance(values, list) or len(values) > WINNER_COUNT_MAX:
        raise HttpError(400, f"INVALID_{name.upper()}")
    if not all(isinstance(value, dict) for value in values):
        raise HttpError(400, f"INVALID_{name.upper()}")
    return values


def _name(body: dict[str, Any]) -> tuple[int, str]:
    partition = _integer(body, "partition", _PARTITION_MAX)
    attempt = body.get("attempt")
    if not isinstance(attempt, str) or not _ATTEMPT.fullmatch(attempt.lower()):
        raise HttpError(400, "INVALID_ATTEMPT")
    return partition, attempt.lower()


def _note(body: dict[str, Any]) -> str | None:
    note = body.get("note")
    if note is None:
        return None
    try:
        size = len(note.encode()) if isinstance(note, str) else NOTE_SIZE_MAX + 1
    except UnicodeEncodeError:  # half of a surrogate pair
        size = NOTE_SIZE_MAX + 1
    if size > NOTE_SIZE_MAX:
        raise HttpError(400, "INVALID_NOTE", detail=f"a text of up to {NOTE_SIZE_MAX} bytes")
    return str(note)


def _winner(body: dict[str, Any]) -> Winner:
    node = _node(body.get("node"), "INVALID_NODE")
    return Winner(node, *_name(body), _integer(body, "count", _INT64_MAX))


def _node(value: object, code: str) -> str:
    if not isinstance(value, str):
        raise HttpError(400, code)
    import uuid  # takes 2 ms to load, not needed without staged writes

    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise HttpError(400, code) from None
