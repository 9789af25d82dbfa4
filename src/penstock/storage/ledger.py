# The ledger of published batches (R19): what was decided, what is being published, what is done.
#
# Records are framed as storage/records.py says; the payload is a JSON object with the query and the
# time (ns) of the record:
#
#     COORDINATOR  {"query","time","node","address"}            who decides; the first one stays
#     DECISION     {"query","time","batch","winners":[[node, partition, attempt, count]...],
#                   "note"}                                     of the writer, optional
#     INTENT       {"query","time","batch","count","members":[[number, partition, attempt]...],
#                   "topics":{name:[instance, end]...},"stamps":[[number, part, stamp]...]}
#     PUBLISHED    {"query","time","batch","count","digest"}    ends the intent
#     FORGOTTEN    {"query","time"}                             the query was deleted
#     GIVEN_UP     {"query","time","batch","members":[[partition, attempt]...]}
#                                                               the batch is published without them
#     DAMAGED      {"query","time","text"}                      a record was lost; PUBLISHED ends it
#
# The file is append-only and is replaced by a snapshot when it grows.  For each query, the newest
# record of a kind is valid.
#
# Rule 1: a record is synced before anything depends on it.
# Rule 2: a torn tail is truncated; a bad record in the middle is skipped and counted.

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
# A digest of PUBLISHED: set by an admin, matches any winners.
ANY_WINNERS = "*"

# The winners of 10,000 tasks on several nodes are a few megabytes.
FRAMING = Framing(b"PL", payload_size_max=64 << 20)
records = FRAMING.records

_QUERY = re.compile(rb'"query":"([!#-\[\]-~]{1,200})"')


@record
class Winner:
    """A staging that was chosen to be published."""

    node: str
    partition: int
    attempt: str
    count: int

    def as_json(self) -> dict[str, object]:
        """For clients."""
        return {
            "node": self.node,
            "partition": self.partition,
            "attempt": self.attempt,
            "count": self.count,
        }

    def as_list(self) -> list[Any]:
        """As in a record."""
        return [self.node, self.partition, self.attempt, self.count]


class Member(NamedTuple):
    """A staging of this node that is part of a publication."""

    number: int
    partition: int
    attempt: str


class Bound(NamedTuple):
    """The target of rows for a topic: its instance, and the end of its log at that time."""

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
    note: str | None = None  # returned to the writer with its newest batch


@record
class Intent:
    """A publication that will be completed; its time is the timestamp of the messages."""

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
    digest: str  # of the winners, to detect other ones


@record
class GivenUp:
    """Stagings that an admin has dropped from a batch."""

    batch: int
    members: frozenset[tuple[int, str]]


@dataclass
class QueryState:
    """The state of a query."""

    time_ns: int = 0
    coordinator: Coordinator | None = None
    decision: Decision | None = None
    intent: Intent | None = None
    published: Published | None = None
    given_up: GivenUp | None = None
    damaged: str = ""  # what was lost of this state

    @property
    def newest_batch(self) -> int | None:
        """The newest batch of any record."""
        known = (self.decision, self.intent, self.published)
        return max((each.batch for each in known if each is not None), default=None)


@dataclass
class LedgerState:
    """The contents of a file."""

    queries: dict[str, QueryState] = field(default_factory=dict)
    bad: list[tuple[int, int]] = field(default_factory=list)  # (offset, end) of bad bytes
    published_at: dict[str, int] = field(default_factory=dict)  # offset of the newest PUBLISHED
    good_size: int = 0
    torn_size: int = 0
    corrupt_count: int = 0


def encode_coordinator(query: str, time_ns: int, value: Coordinator) -> bytes:
    return _record(COORDINATOR, query, time_ns, node=value.node, address=value.address)


def encode_decision(query: str, time_ns: int, value: Decision) -> bytes:
    more = {} if value.note is None else {"note": value.note}
    winners = [winner.as_list() for winner in value.winners]
    return _record(DECISION, query, time_ns, batch=value.batch, winners=winners, **more)


def encode_intent(query: str, value: Intent) -> bytes:
    return _record(
        INTENT,
        query,
        value.time_ns,
        batch=value.batch,
        count=value.count,
        members=value.members,
        topics=value.topics,
        stamps=[(number, part, stamp) for (number, part), stamp in value.stamps.items()],
    )


def encode_published(query: str, time_ns: int, value: Published) -> bytes:
    return _record(
        PUBLISHED, query, time_ns, batch=value.batch, count=value.count, digest=value.digest
    )


def encode_forgotten(query: str, time_ns: int) -> bytes:
    return _record(FORGOTTEN, query, time_ns)


def encode_given_up(query: str, time_ns: int, value: GivenUp) -> bytes:
    return _record(GIVEN_UP, query, time_ns, batch=value.batch, members=sorted(value.members))


def encode_damaged(query: str, time_ns: int, text: str) -> bytes:
    return _record(DAMAGED, query, time_ns, text=text)


def encode_note(kind: int, query: str, time_ns: int, **fields: Any) -> bytes:
    """A record for staging_notes.py, which has the same framing."""
    return _record(kind, query, time_ns, **fields)


def snapshot(queries: Iterable[tuple[str, QueryState]]) -> list[bytes]:
    """The records that reproduce the state."""
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
    whole = {"query": query, "time": time_ns, **fields}
    payload = json.dumps(whole, separators=(",", ":")).encode()
    return FRAMING.encode(kind, payload)


def replay(data: bytes) -> LedgerState:
    """Replay a ledger; counts corrupt records and measures a torn end."""
    state = LedgerState()
    for found in records(data):
        if found.torn:
            state.torn_size = found.end - found.start
            continue
        try:
            fields = json.loads(found.payload or b"")  # bad bytes are no JSON either
            _apply(state.queries, found.kind, fields)
            if found.kind == PUBLISHED:
                state.published_at[fields["query"]] = found.start
        except (ValueError, TypeError, KeyError):
            state.corrupt_count += 1
            state.bad.append((found.start, found.end))
    state.good_size = len(data) - state.torn_size
    return state


def queries_in(data: bytes) -> set[str]:
    """The queries named in damaged bytes."""
    return {match[1].decode("ascii") for match in _QUERY.finditer(data)}


def _apply(queries: dict[str, QueryState], kind: int, fields: dict[str, Any]) -> None:
    query = str(fields["query"])
    if kind == FORGOTTEN:
        queries.pop(query, None)
        return
    state = queries.setdefault(query, QueryState())
    state.time_ns = max(state.time_ns, int(fields["time"]))
    if kind == COORDINATOR:
        state.coordinator = Coordinator(fields["node"], fields["address"])
    elif kind == DECISION:
        winners = tuple(Winner(*winner) for winner in fields["winners"])
        state.decision = Decision(fields["batch"], winners, fields.get("note"))
    elif kind == INTENT:
        state.intent = Intent(
            fields["batch"],
            fields["time"],
            fields["count"],
            tuple(Member(*member) for member in fields["members"]),
            {name: Bound(*bound) for name, bound in fields["topics"].items()},
            {(number, part): stamp for number, part, stamp in fields["stamps"]},
        )
    elif kind == PUBLISHED:
        state.published = Published(fields["batch"], fields["count"], fields["digest"])
        state.intent = None
        state.damaged = ""
    elif kind == GIVEN_UP:
        members = frozenset((partition, attempt) for partition, attempt in fields["members"])
        state.given_up = GivenUp(fields["batch"], members)
    elif kind == DAMAGED:
        state.damaged = str(fields["text"])
