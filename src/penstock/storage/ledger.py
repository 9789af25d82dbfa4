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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.record import record
from penstock.storage.records import Framing

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
FRAMING = Framing(b"PL", payload_size_max=64 << 20)
records = FRAMING.records

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
    return FRAMING.encode(kind, payload)


def replay(data: bytes) -> LedgerState:
    """What a ledger says; bad records are counted, bad bytes at the end measured."""
    state = LedgerState()
    for found in records(data):
        if found.torn:
            state.torn_size = found.end - found.start
            continue
        try:
            told = json.loads(found.payload or b"")  # bad bytes are no JSON either
            _apply(state.queries, found.kind, told)
            if found.kind == PUBLISHED:
                state.published_at[told["query"]] = found.start
        except (ValueError, TypeError, KeyError):
            state.corrupt_count += 1
            state.bad.append((found.start, found.end))
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
