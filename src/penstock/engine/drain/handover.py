"""Hands deferred messages over to another nsqd, each once, through its staging (R19).

    here                                              the other node
    take messages that are not due
    PUT /staging/part, POST /staging/seal   ------->  staged: invisible, may expire
    intent synced in drain.json
    POST /staging/publish                   ------->  published: synced in its slot files
    the messages are done in .fired, synced
    the next intent replaces this one

Rule 1: nothing is asked to be published before the intent is durable, and while there is an intent
        its messages fire nowhere here.  They wait until the other node says whether it has them.
Rule 2: the other node publishes a batch once, however often it is asked, so after a crash of either
        node the intent is asked for again.  If it does not know the staging, it has not published
        it and never will: the messages stay here.
Rule 3: the name of a batch has a number that is never used again, and the intent names the node by
        its UUID: another node at the same address is not asked.
Rule 4: until there is an intent everything can be undone: the messages are given back, and the
        staging at the other node is discarded, now or by the next batch, and never published.
Rule 5: one batch at a time, bounded in messages and bytes; requests have timeouts, failures pauses.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from penstock.core.schedule import pack_runs
from penstock.core.slots import Due
from penstock.core.ticket import Ticket
from penstock.engine.deferred.transfer import Transfer
from penstock.storage.drain import HandoverIntent, Run

if TYPE_CHECKING:
    from penstock.engine.context import Context
    from penstock.storage.drain import DrainRecord

log = logging.getLogger(__name__)

BATCH_COUNT_MAX = 10_000
BATCH_SIZE_MAX = 8 << 20
# A part may have 8 MiB, and 16 MiB with the headers of its frames (nsqd/http_staging.py).
PART_SIZE_MAX = 4 << 20
PAUSE_NS = 500_000_000
PAUSE_NS_MAX = 10_000_000_000
# How soon to check again while there is nothing to hand over.
IDLE_NS = 200_000_000
# The other node has not published the batch, and never will.  Not STAGING_LOST: it may have a part.
UNKNOWN = frozenset({"STAGING_NOT_FOUND", "NOT_SEALED"})

# Called with a status and the fields of a JSON answer, or with 0 and {"message": what failed}.
Answered = Callable[[int, dict[str, Any]], None]
# Makes a request: method, address, target, body.
Send = Callable[[str, str, str, bytes, Answered], None]


class Home(Protocol):
    """The drain that the handover is part of."""

    @property
    def record(self) -> DrainRecord: ...
    def change(self, record: DrainRecord) -> Ticket:
        """Record a new state; the ticket is settled when it is durable."""


class Handover:
    """The handover of one node; ``send`` is set by nsqd."""

    def __init__(self, context: Context, transfer: Transfer, home: Home, uuid: Callable[[], str]):
        self._turns = context.turns
        self._supervisor = context.supervisor
        self._transfer = transfer
        self._home = home
        self._uuid = uuid  # of this node
        self.send: Send = _unsent
        self.error = ""  # why it makes no progress
        self._busy = False
        self._pause_ns = 0
        self._dues: list[Due] = []  # taken, of the open intent or of the next one
        self._expecting = False  # those of an earlier process's intent, whose slots are not read

    def resume(self) -> None:
        """There may be an intent of an earlier process; when the deferred queue has recovered."""
        intent = self._home.record.intent
        if intent is not None:
            self._expecting = True
            self._transfer.expect(intent.slots)

    @property
    def wanted(self) -> bool:
        record = self._home.record
        return record.intent is not None or (record.draining and bool(record.to))

    def poke(self) -> None:
        """Begin or continue, if there is something to do."""
        if self._busy or not self.wanted or self._supervisor.exiting:
            return
        self._busy = True
        record = self._home.record
        self._transfer.open(record.draining and bool(record.to))
        if record.intent is None:
            self._identify(record.to, self._chosen)
        elif self._expecting and not self._find_expected(record.intent):
            self._turns.after(IDLE_NS, self._again)
        else:
            self._identify(record.intent.address, partial(self._known, record.intent))

    def _find_expected(self, intent: HandoverIntent) -> bool:
        dues = self._transfer.expected(intent.slots)
        if dues is None:
            return False
        self._expecting, self._dues = False, dues
        return True

    def stop(self) -> None:
        """Nothing more is handed over, except what has an intent."""
        self._transfer.open(False)

    # Asking

    def _identify(self, address: str, then: Callable[[str], None]) -> None:
        """Call ``then`` with the UUID of the node at ``address``."""

        def answered(status: int, fields: dict[str, Any]) -> None:
            uuid = fields.get("node_uuid")
            if status != 200:
                self._fail(_text(address, status, fields))
            elif not isinstance(uuid, str):
                self._fail(f"{address} is not an nsqd of Penstock: it has no staging")
            elif uuid == self._uuid():
                self._fail(f"{address} is this node")
            else:
                then(uuid)

        self.send("GET", address, "/info", b"", answered)

    def _fail(self, error: str) -> None:
        """Try again after a pause."""
        if error != self.error:
            log.warning("NSQ: cannot hand over deferred messages: %s", error)
        self.error = error
        self._pause_ns = min(max(PAUSE_NS, 2 * self._pause_ns), PAUSE_NS_MAX)
        self._turns.after(self._pause_ns, self._again)

    def _again(self) -> None:
        self._busy = False
        self.poke()

    # A new batch

    def _chosen(self, node: str) -> None:
        self._transfer.take(BATCH_COUNT_MAX, BATCH_SIZE_MAX, partial(self._taken, node))

    def _taken(self, node: str, dues: list[Due]) -> None:
        self.error, self._pause_ns = "", 0
        if not dues:
            self._turns.after(IDLE_NS, self._again)
            return
        self._dues = dues
        record = self._home.record
        intent = HandoverIntent(
            record.to,
            node,
            f"drain/{self._uuid()}/{record.id}",
            record.batch,
            os.urandom(16).hex(),
            len(dues),
            _slots_of(dues),
        )
        self._put(intent, parts_of(dues), 0)

    def _put(self, intent: HandoverIntent, parts: Iterator[tuple[str, bytes]], number: int) -> None:
        topic, body = next(parts, ("", b""))
        if not body:
            self._seal(intent, number)
            return
        where = {**_key(intent), "part": number, "topic": topic, "deferred": "true"}
        then = partial(self._staged, intent, partial(self._put, intent, parts, number + 1))
        self.send("PUT", intent.address, f"/staging/part?{urlencode(where)}", body, then)

    def _staged(
        self, intent: HandoverIntent, then: Callable[[], None], status: int, fields: dict[str, Any]
    ) -> None:
        if status != 200:
            self._undo(intent, partial(self._fail, _text(intent.address, status, fields)))
        else:
            then()

    def _undo(self, intent: HandoverIntent, then: Callable[[], None]) -> None:
        """There is no intent yet: the messages stay here, and the staging is of no use.

        It would expire after a day.  Until then it would take room, and that node could not be
        drained.
        """
        dues, self._dues = self._dues, []
        self._transfer.give_back(dues)
        name = {"partition": 0, "attempt": intent.attempt}
        body = {"query": intent.query, "batch": intent.batch, "stagings": [name]}
        self.send(
            *("POST", intent.address, "/staging/abort", json.dumps(body).encode()),
            lambda _status, _fields: then(),
        )

    def _seal(self, intent: HandoverIntent, part_count: int) -> None:
        where = {**_key(intent), "parts": part_count, "count": intent.count}
        then = partial(self._staged, intent, partial(self._sealed, intent))
        self.send("POST", intent.address, f"/staging/seal?{urlencode(where)}", b"", then)

    def _sealed(self, intent: HandoverIntent) -> None:
        record = self._home.record
        current = record.draining and record.to == intent.address
        if not current or self._transfer.is_void(self._dues):
            # The drain was cancelled, or a topic deleted or emptied, while they were staged.
            self._undo(intent, self._again)
            return
        recorded = replace(record, intent=intent, batch=record.batch + 1)
        self._home.change(recorded).add(partial(self._intended, intent))

    def _intended(self, intent: HandoverIntent, ticket: Ticket) -> None:
        if ticket.error is not None:
            # It is in the file or will be: drain.json is written again until that works.
            self._fail(f"drain.json: {ticket.error}")
        else:
            self._publish(intent)

    # An intent

    def _known(self, intent: HandoverIntent, node: str) -> None:
        if node != intent.node:
            self._fail(
                f"{intent.address} is another node now; {intent.count} messages wait for node"
                f" {intent.node}"
            )
        else:
            # Durable: it is an earlier process's, or its write has failed before.
            self._home.change(self._home.record).add(partial(self._intended, intent))

    def _publish(self, intent: HandoverIntent) -> None:
        winner = {"partition": 0, "attempt": intent.attempt}
        body = {"query": intent.query, "batch": intent.batch, "winners": [winner]}
        then = partial(self._published, intent)
        self.send("POST", intent.address, "/staging/publish", json.dumps(body).encode(), then)

    def _published(self, intent: HandoverIntent, status: int, fields: dict[str, Any]) -> None:
        if status == 200:
            dues, self._dues = self._dues, []
            self._transfer.settle(dues, partial(self._done, intent, intent.count))
        elif status and fields.get("message") in UNKNOWN:
            log.warning(
                "NSQ: %s does not have batch %d of the handover any more: %d messages stay here",
                *(intent.address, intent.batch, intent.count),
            )
            dues, self._dues = self._dues, []
            self._transfer.give_back(dues)
            self._done(intent, 0)
        else:
            self._fail(_text(intent.address, status, fields))

    def _done(self, intent: HandoverIntent, count: int) -> None:
        """The messages are the other node's, or ours again."""
        record = self._home.record
        handed_over = record.handed_over + count
        # Durable with the next intent, at the latest: until then it is asked for again.
        self._home.change(replace(record, intent=None, handed_over=handed_over))
        self.error, self._pause_ns = "", 0
        self._again()


def _unsent(_method: str, _address: str, _target: str, _body: bytes, answered: Answered) -> None:
    answered(0, {"message": "nothing can be sent yet"})


def _key(intent: HandoverIntent) -> dict[str, Any]:
    return {
        "query": intent.query,
        "batch": intent.batch,
        "partition": 0,
        "attempt": intent.attempt,
    }


def _text(address: str, status: int, fields: dict[str, Any]) -> str:
    message, detail = fields.get("message", ""), fields.get("detail", "")
    text = f"{address} answers {status} {message}" if status else str(message)
    return f"{text}: {detail}" if detail else text


def _slots_of(dues: list[Due]) -> tuple[tuple[int, tuple[Run, ...]], ...]:
    ordinals: dict[int, list[int]] = {}
    for due in dues:
        ordinals.setdefault(due.slot, []).append(due.ordinal)
    return tuple(
        (number, tuple(struct.iter_unpack(">II", pack_runs(found))))
        for number, found in sorted(ordinals.items())
    )


def parts_of(dues: list[Due]) -> Iterator[tuple[str, bytes]]:
    """The messages as bodies of parts, each of one topic (core/parts.pyx)."""
    by_topic: dict[str, list[Due]] = {}
    for due in dues:
        by_topic.setdefault(due.topic, []).append(due)
    for topic, found in by_topic.items():
        rows: list[bytes] = []
        size = count = 0
        for due in found:
            if rows and size + len(due.body) > PART_SIZE_MAX:
                yield topic, struct.pack(">I", count) + b"".join(rows)
                rows, size, count = [], 0, 0
            rows += (struct.pack(">qI", due.due_ns, len(due.body)), due.body)
            size += 12 + len(due.body)
            count += 1
        yield topic, struct.pack(">I", count) + b"".join(rows)
