# The ledger of published batches (R19): what was decided, what is being published, what is done.
#
#     magic "PL" | type u8 | zero u8 | payload size u32 | crc32c u32 of type..size and payload
#     | payload, a JSON object with the query and the time (ns) of the record
#
#     COORDINATOR  {"query","time","node","address"}            who decides; the first one stays
#     DECISION     {"query","time","batch","winners":[[node, partition, attempt, count]...],
#                   "note"}                                     the writer's, if it has one
#     INTENT       {"query","time","batch","count","members":[[number, partition, attempt]...],
#                   "topics":{name:[instance, end]...},"stamps":[[number, part, stamp]...]}
#     PUBLISHED    {"query","time","batch","count","digest"}    ends the intent
#     FORGOTTEN    {"query","time"}                             nothing of the query is known
#     GIVEN_UP     {"query","time","batch","members":[[partition, attempt]...]}    published without
#     DAMAGED      {"query","time","text"}    a record of the query was lost; PUBLISHED ends it
#
# The file is a history and is replaced by a snapshot when it grows.  Of each query only the newest
# of a kind counts.
#
# Rule 1: a record is synced before anybody relies on it.
# Rule 2: a torn tail is cut; a bad record in the middle is stepped over and counted.

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google_crc32c import value as crc32c

from penstock.record import record

MAGIC = b"PL"
COORDINATOR, DECISION, INTENT, PUBLISHED, FORGOTTEN, GIVEN_UP, DAMAGED = 1, 2, 3, 4, 5, 6, 7
NAMES = {
    1: "coordinator",
    2: "decision",
    3: "intent",
    4: "published",
    5: "forgotten",
    6: "given up",
    7: "damaged",
}
# As the digest of PUBLISHED: by an admin's word, whatever its winners were.
ANY_WINNERS = "*"

# The winners of 10,000 tasks on several nodes are a few megabytes.
PAYLOAD_SIZE_MAX = 64 << 20

_HEADER = struct.Struct(">2sBBII")
_HEAD_CRC = struct.Struct(">BBI")
_QUERY = re.compile(rb'"query":"([!#-\[\]-~]{1,200})"')


@record
class Winner:
    """A staging that was decided for."""

    node: str
    partition: int
    attempt: str
    count: int

    def as_json(self) -> dict[str, object]:
        """As clients are told it."""
        return {
            "node": self.node,
            "partition": self.partition,
            "attempt": self.attempt,
            "count": self.count,
        }

    def told(self) -> list[Any]:
        """As it stands in a record."""
        return [self.node, self.partition, self.attempt, self.count]


class Member(NamedTuple):
    """A staging of this node that is being published."""

    number: int
    partition: int
    attempt: str


class Bound(NamedTuple):
    """Where the rows for a topic go: its instance, and the index below which they cannot be."""

    instance: int
    end: int


@record
class Coordinator:
    node: str
    address: str


@record
class Decision:
    batch: int
    winners: tuple[Winner, ...]
    note: str | None = None  # the writer reads it back with its newest batch


@record
class Intent:
    """What will be published, whatever happens; its time is the timestamp of the messages."""

    batch: int
    time_ns: int
    count: int
    members: tuple[Member, ...]
    topics: dict[str, Bound]
    stamps: dict[tuple[int, int], int]  # of the first row of a deferred part, by number and part


@record
class Published:
    batch: int
    count: int
    digest: str  # of the winners, so that others are not taken for them


@record
class GivenUp:
    """Stagings of a batch that an admin has it published without."""

    batch: int
    members: frozenset[tuple[int, str]]


@dataclass
class QueryState:
    """What is known of a query."""

    time_ns: int = 0
    coordinator: Coordinator | None = None
    decision: Decision | None = None
    intent: Intent | None = None
    published: Published | None = None
    given_up: GivenUp | None = None
    damaged: str = ""  # what else was known of it is lost

    @property
    def newest_batch(self) -> int | None:
        """Of all that is known."""
        known = (self.decision, self.intent, self.published)
        return max((each.batch for each in known if each is not None), default=None)


@dataclass
class LedgerState:
    """What a whole file says."""

    queries: dict[str, QueryState] = field(default_factory=dict)
    bad: list[tuple[int, int]] = field(default_factory=list)  # (offset, end) of bad bytes
    published_at: dict[str, int] = field(default_factory=dict)  # offset of the newest PUBLISHED
    good_size: int = 0
    torn_size: int = 0
    corrupt_count: int = 0


def encode_coordinator(query: str, time_ns: int, told: Coordinator) -> bytes:
    return _record(COORDINATOR, query, time_ns, node=told.node, address=told.address)


def encode_decision(query: str, time_ns: int, told: Decision) -> bytes:
    more = {} if told.note is None else {"note": told.note}
    winners = [winner.told() for winner in told.winners]
    return _record(DECISION, query, time_ns, batch=told.batch, winners=winners, **more)


def encode_intent(query: str, told: Intent) -> bytes:
    return _record(
        INTENT,
        query,
        told.time_ns,
        batch=told.batch,
        count=told.count,
        members=told.members,
        topics=told.topics,
        stamps=[(number, part, stamp) for (number, part), stamp in told.stamps.items()],
    )


def encode_published(query: str, time_ns: int, told: Published) -> bytes:
    return _record(
        PUBLISHED, query, time_ns, batch=told.batch, count=told.count, digest=told.digest
    )


def encode_forgotten(query: str, time_ns: int) -> bytes:
    return _record(FORGOTTEN, query, time_ns)


def encode_given_up(query: str, time_ns: int, told: GivenUp) -> bytes:
    return _record(GIVEN_UP, query, time_ns, batch=told.batch, members=sorted(told.members))


def encode_damaged(query: str, time_ns: int, text: str) -> bytes:
    return _record(DAMAGED, query, time_ns, text=text)


def encode_note(kind: int, query: str, time_ns: int, **fields: Any) -> bytes:
    """A record for staging_notes.py, which has the same form."""
    return _record(kind, query, time_ns, **fields)


def snapshot(queries: Iterable[tuple[str, QueryState]]) -> list[bytes]:
    """The records that say what is known and nothing more."""
    whole: list[bytes] = []
    for query, state in queries:
        if state.coordinator is not None:
            whole.append(encode_coordinator(query, state.time_ns, state.coordinator))
        if state.decision is not None:
            whole.append(encode_decision(query, state.time_ns, state.decision))
        if state.published is not None:
            whole.append(encode_published(query, state.time_ns, state.published))
        if state.intent is not None:
            whole.append(encode_intent(query, state.intent))
        if state.given_up is not None:
            whole.append(encode_given_up(query, state.time_ns, state.given_up))
        if state.damaged:
            whole.append(encode_damaged(query, state.time_ns, state.damaged))
    return whole


def _record(kind: int, query: str, time_ns: int, **fields: Any) -> bytes:
    told = {"query": query, "time": time_ns, **fields}
    payload = json.dumps(told, separators=(",", ":")).encode()
    assert len(payload) <= PAYLOAD_SIZE_MAX
    crc = crc32c(_HEAD_CRC.pack(kind, 0, len(payload)) + payload)
    return _HEADER.pack(MAGIC, kind, 0, len(payload), crc) + payload


def records(data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """(offset, type, payload) of each record; a payload of None stands for bad bytes."""
    at, bad_at = 0, -1
    while at < len(data):
        payload = _payload_at(data, at)
        if payload is None:
            bad_at = at if bad_at < 0 else bad_at
            at = data.find(MAGIC, at + 1)
            if at < 0:
                break
            continue
        if bad_at >= 0:
            yield bad_at, 0, None
            bad_at = -1
        yield at, data[at + 2], payload
        at += _HEADER.size + len(payload)
    if bad_at >= 0:
        yield bad_at, 0, None


def _payload_at(data: bytes, at: int) -> bytes | None:
    if data[at : at + 2] != MAGIC or at + _HEADER.size > len(data):
        return None
    _, _, _, size, crc = _HEADER.unpack_from(data, at)
    start = at + _HEADER.size
    if size > PAYLOAD_SIZE_MAX or start + size > len(data):
        return None
    payload = data[start : start + size]
    return payload if crc32c(data[at + 2 : at + 8] + payload) == crc else None


def replay(data: bytes) -> LedgerState:
    """What a ledger says; bad records are counted, bad bytes at the end measured."""
    state = LedgerState()
    for at, kind, payload in records(data):
        if payload is None:
            state.corrupt_count += 1
            state.torn_size = len(data) - at
            state.bad.append((at, len(data)))
            continue
        if state.torn_size:
            start, _ = state.bad.pop()
            state.bad.append((start, at))
        state.torn_size = 0
        try:
            told = json.loads(payload)
            _apply(state.queries, kind, told)
            if kind == PUBLISHED:
                state.published_at[told["query"]] = at
        except (ValueError, TypeError, KeyError):
            state.corrupt_count += 1
            state.bad.append((at, at + _HEADER.size + len(payload)))
    if state.torn_size:
        state.corrupt_count -= 1
        state.bad.pop()
    state.good_size = len(data) - state.torn_size
    return state


def queries_in(data: bytes) -> set[str]:
    """The queries that damaged bytes still name."""
    return {match[1].decode("ascii") for match in _QUERY.finditer(data)}


def _apply(queries: dict[str, QueryState], kind: int, told: dict[str, Any]) -> None:
    query = str(told["query"])
    if kind == FORGOTTEN:
        queries.pop(query, None)
        return
    state = queries.setdefault(query, QueryState())
    state.time_ns = max(state.time_ns, int(told["time"]))
    if kind == COORDINATOR:
        state.coordinator = Coordinator(told["node"], told["address"])
    elif kind == DECISION:
        winners = tuple(Winner(*winner) for winner in told["winners"])
        state.decision = Decision(told["batch"], winners, told.get("note"))
    elif kind == INTENT:
        state.intent = Intent(
            told["batch"],
            told["time"],
            told["count"],
            tuple(Member(*member) for member in told["members"]),
            {name: Bound(*bound) for name, bound in told["topics"].items()},
            {(number, part): stamp for number, part, stamp in told["stamps"]},
        )
    elif kind == PUBLISHED:
        state.published = Published(told["batch"], told["count"], told["digest"])
        state.intent = None
        state.damaged = ""
    elif kind == GIVEN_UP:
        members = frozenset((partition, attempt) for partition, attempt in told["members"])
        state.given_up = GivenUp(told["batch"], members)
    elif kind == DAMAGED:
        state.damaged = str(told["text"])
