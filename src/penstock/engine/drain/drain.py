"""A drain: the node accepts nothing new, delivers what it has, and exits.

    POST /drain -> drain.json synced -> publishes refused -> ... -> nothing is left: drained
                                                                  -> 2 s later the process ends
    DELETE /drain, at any time before: publishes are accepted again

Rule 1: the state is durable before it is answered, and a restart continues it.  It ends with the
        process that has nothing left: the next start is an ordinary one.
Rule 2: consumers stay connected and the node stays registered with nsqlookupd until the end: that
        is how they find what is left.
Rule 3: what the broker itself appends is not refused: deferred messages that are due, moves to a
        dead-letter topic, and staged batches, which may be decided.  New stagings are refused.
Rule 4: what cannot leave by itself (a topic without channels, something paused) is never given up:
        it is shown, and the node waits.
Rule 5: that nothing is left is checked in the turn in which the end begins, over all topics.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.core.ticket import Ticket
from penstock.engine.broker import Broker
from penstock.engine.catalog.identity import Identity
from penstock.engine.catalog.saved_file import SavedFile
from penstock.engine.context import Context
from penstock.engine.damage import DamageLog
from penstock.engine.deferred.queue import DeferredQueue
from penstock.engine.deferred.transfer import Transfer
from penstock.engine.drain.handover import Handover
from penstock.engine.drain.survey import Left, Survey
from penstock.engine.health import Health
from penstock.engine.staging.area import Staging
from penstock.storage.damage import DamageKind
from penstock.storage.drain import DrainRecord, encode_drain, load_drain, write_drain

log = logging.getLogger(__name__)

MS_NS = 1_000_000
# How long a drained node answers before it exits, so that a client that waits for it sees the end.
SHOWN_NS = 2_000_000_000
LOG_INTERVAL_NS = 10_000_000_000


class Drain:
    """The drain of one node; ``on_drained`` is set by the daemon."""

    def __init__(
        self,
        context: Context,
        health: Health,
        damage: DamageLog,
        identity: Identity,
        broker: Broker,
        deferred: DeferredQueue,
        staging: Staging,
    ) -> None:
        self._context = context
        self._damage = damage
        self._broker = broker
        self._staging = staging
        self._record = DrainRecord()
        self._file = SavedFile(context, health, "drain.json", self._encode)
        self._survey = Survey(context, broker.topics, deferred, staging)
        transfer = Transfer(deferred, deferred.table, context.turns)
        self.handover = Handover(context, transfer, self, lambda: identity.uuid)
        self.on_drained: Callable[[], None] = lambda: None
        self.left: Left | None = None  # the last survey
        self.drained = False
        self._logged_ns = 0

    def open(self) -> None:
        """Load what an earlier process left.  Blocking; before topics are recovered."""
        data = self._context.data
        found = load_drain(self._context.files, data.drain, data.drain_copy)
        if found.problems:
            self._damage.report(DamageKind.NODE, "; ".join(found.problems), path=data.drain)
        self._record = found.record
        self._refuse(found.record.draining)
        if found.stale:
            self._file.save()
        if found.record.draining:
            log.info("NSQ: still draining: publishes are refused")

    # State

    @property
    def record(self) -> DrainRecord:
        return self._record

    @property
    def draining(self) -> bool:
        return self._record.draining

    @property
    def state(self) -> str:
        if self.drained:
            return "drained"
        if self._record.draining:
            return "draining"
        return "cancelling" if self._record.intent is not None else "off"

    def change(self, record: DrainRecord) -> Ticket:
        """Record a new state; the ticket is settled when it is durable."""
        self._record = replace(record, number=self._record.number + 1)
        return self._file.save()

    def begin(self, to: str = "") -> Ticket:
        """Start draining, or change where deferred messages go."""
        record = self._record
        if record.draining and record.to == to:
            return self._file.saved()
        if not record.draining:
            log.warning("NSQ: draining: publishes are refused from now on")
            since_ms = self._context.clock.wall_ns() // MS_NS
            # The names of batches are never used again.
            id = os.urandom(8).hex()
            record = replace(
                record, draining=True, id=id, since_ms=since_ms, batch=0, handed_over=0
            )
            self.left = None
            self._refuse(True)
        if to:
            log.info("NSQ: draining: deferred messages are handed over to %s", to)
        else:
            self.handover.stop()
        self.handover.error = ""  # of another node
        saved = self.change(replace(record, to=to))
        saved.add(lambda _: self.check())
        return saved

    def cancel(self) -> Ticket:
        """Accept publishes again."""
        if not self._record.draining:
            return self._file.saved()
        log.warning("NSQ: the drain is cancelled: publishes are accepted")
        self.drained = False
        self.handover.stop()
        self._refuse(False)
        return self.change(replace(self._record, draining=False, to=""))

    def _refuse(self, draining: bool) -> None:
        self._broker.refuse_publishes(draining)
        self._staging.draining = draining

    # Progress

    def check(self) -> None:
        """Find out what is left; called once a second."""
        self.handover.poke()
        if self._record.draining and not self.drained:
            self._survey.run(self._surveyed)

    def _surveyed(self, left: Left) -> None:
        if not self._record.draining or self.drained:
            return
        self.left = left
        if left.empty and self._is_empty():
            self.drained = True
            log.warning("NSQ: drained: nothing is left")
            self._context.turns.after(SHOWN_NS, self._end)
            return
        now_ns = self._context.clock.monotonic_ns()
        if not self._logged_ns or now_ns - self._logged_ns >= LOG_INTERVAL_NS:
            self._logged_ns = now_ns
            log.info("NSQ: draining: %s", _progress(left))

    def _is_empty(self) -> bool:
        return self._record.intent is None and self._survey.is_empty()

    def _end(self) -> None:
        if not self.drained or self._context.supervisor.exiting:
            return
        if self._is_empty():
            self.on_drained()
        else:
            # Messages were brought back meanwhile, by a kick or a seek.
            self.drained = False

    def progress(self) -> dict[str, Any]:
        """For GET /drain."""
        record = self._record
        answer: dict[str, Any] = {"state": self.state}
        if self.state == "off":
            return answer
        intent = record.intent
        answer |= {
            "since_ms": record.since_ms,
            "to": record.to or (intent.address if intent is not None else None),
            "handed_over": record.handed_over,
            "handing_over": 0 if intent is None else intent.count,
            "handover_error": self.handover.error or None if self.handover.wanted else None,
        }
        left = self.left
        answer["left"] = None if left is None else left.counts()
        answer["blocked"] = [] if left is None else left.blocked
        answer["blocked_count"] = 0 if left is None else left.blocked_count
        return answer

    # On disk

    def _encode(self) -> Callable[[], None]:
        data = self._context.data
        encoded = encode_drain(self._record)
        return partial(write_drain, self._context.files, data.drain, data.drain_copy, encoded)

    def forget(self) -> None:
        """A drained node has ended, with everything saved: the next start is an ordinary one.

        Blocking.
        """
        if self.drained and self._record.draining:
            ended = replace(self._record, number=self._record.number + 1, draining=False, to="")
            data = self._context.data
            write_drain(self._context.files, data.drain, data.drain_copy, encode_drain(ended))
            log.info("NSQ: the drain is over; the next start is an ordinary one")


def _progress(left: Left) -> str:
    text = f"{left.messages} messages left in {left.topics} topics"
    if left.deferred:
        text += f", {left.deferred} of them deferred"
    if left.stagings:
        text += f", {left.stagings} stagings of Spark queries"
    if left.blocked_count:
        first = left.blocked[0]
        where = f"{first['topic']}:{first['channel']}" if "channel" in first else first["topic"]
        more = f" and {left.blocked_count - 1} more" if left.blocked_count > 1 else ""
        text += f"; blocked: {where}{more}: {first['why']}"
    return text
