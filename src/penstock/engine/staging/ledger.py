"""The state of queries that write here: coordinator, decision, intent, published batch.

    coordinator -> decision -> intent -> published         for the newest batch of each query

Rule 1: state is synced before it is returned to a client, also if it is repeated.
Rule 2: after a failed write the next one is a full snapshot (JournalKeeper), so state in memory
        that was never acknowledged may become durable or not: both are correct.
Rule 3: memory is limited by ``QUERY_COUNT_MAX``, ``WINNER_COUNT_MAX`` and ``NOTES_SIZE_MAX``; above
        them new queries are refused; known ones are never dropped before they expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.core.ticket import Ticket
from penstock.engine.catalog.journal import JournalKeeper
from penstock.engine.disk import Disk
from penstock.errors import StagingError
from penstock.storage.evidence import keep_evidence
from penstock.storage.files import Files
from penstock.storage.ledger import (
    ANY_WINNERS,
    Coordinator,
    Decision,
    GivenUp,
    Intent,
    LedgerState,
    Published,
    QueryState,
    Winner,
    encode_coordinator,
    encode_decision,
    encode_forgotten,
    encode_given_up,
    encode_intent,
    encode_published,
    queries_in,
    replay,
    snapshot,
)
from penstock.storage.staging_notes import NotedJournal, StagingNotes

log = logging.getLogger(__name__)

QUERY_COUNT_MAX = 100_000
WINNER_COUNT_MAX = 1_000_000
# Characters in the notes of all decisions: 64 of the largest notes, thousands of ordinary ones.
NOTES_SIZE_MAX = 64 << 20
# How long published batches are remembered: a driver that restarts within it repeats nothing.
KNOWN_FOR_NS = 30 * 24 * 3600 * 1_000_000_000
# A batch number may be this far above the newest known one, plus the rate for each second since
# then.  Spark counts by one, others use the clock; a number that is far too high would make all the
# query's later batches old.
BATCH_STEP_MAX = 1_000_000
BATCH_RATE_MAX = 1_000_000
# A batch this far below the newest published one is not a repeated old one: one of the two numbers
# is wrong.
BATCH_BACK_MAX = 1 << 40


class Ledger:
    """The queries by name; writes their state to the ledger's file."""

    def __init__(
        self,
        files: Files,
        path: str,
        disk: Disk,
        clock: Clock,
        health: Callable[[Exception | None], None],
        notes: StagingNotes,
        report: Callable[[str], None],
    ) -> None:
        self._files = files
        self._path = path
        self._disk = disk
        self._clock = clock
        self._health = health
        self._notes = notes
        self._report = report
        self._winner_count = 0
        self._notes_size = 0
        self._encoded: dict[str, bytes | None] = {}
        self._keeper: JournalKeeper | None = None
        self.queries: dict[str, QueryState] = {}
        self.corrupt_count = 0

    def open(self) -> None:
        """Read the file.  Blocking."""
        damaged = False
        if self._files.exists(self._path):
            data = self._files.read(self._path)
            found = replay(data)
            self.queries = found.queries
            damaged = self._judge(data, found)
            self.corrupt_count = found.corrupt_count
            self._encoded = dict.fromkeys(self.queries)
            for state in self.queries.values():
                self._count(state.decision, 1)
        elif self._notes.ledger_size:
            self._report(
                f"{self._path} is missing; {self._notes.ledger_size} bytes of it were synced: "
                "decided and published batches are unknown"
            )
            self._notes.ledger(0)
        journal = NotedJournal(self._files, self._path, self._notes)
        self._keeper = JournalKeeper(journal, self._disk, self._snapshot, self._health)
        self._keeper.open()
        if damaged:
            self._keeper.rewrite()
            return
        try:
            # A killed process may have left it only in the page cache; sync before relying on it.
            journal.sync()
        except OSError as error:
            self._health(error)
            self._keeper.rewrite()

    def _judge(self, data: bytes, found: LedgerState) -> bool:
        """Distinguish damaged from torn bytes; returns whether any are damaged."""
        synced_size = self._notes.ledger_size
        if found.torn_size and found.good_size >= synced_size:
            log.info("%s: torn, %d bytes cut off", self._path, found.torn_size)
            self._files.truncate(self._path, found.good_size)
        elif found.torn_size:
            found.bad.append((found.good_size, len(data)))
        if len(data) < synced_size:
            lost_size = synced_size - len(data)
            self._report(
                f"{self._path} ends at {len(data)}: the last {lost_size} bytes are missing, and "
                "with them what was decided or published last"
            )
        # Without notes the synced size is unknown: a power cut may leave holes in unsynced bytes.
        bad = [part for part in found.bad if not synced_size or part[0] < synced_size]
        for start, end in bad:
            self._report_bad(data, found, start, end, hold=bool(synced_size))
        return bool(bad) or len(data) < synced_size

    def _report_bad(
        self, data: bytes, found: LedgerState, start: int, end: int, *, hold: bool
    ) -> None:
        held = [
            query
            for query in sorted(queries_in(data[start:end]))
            if hold and found.published_at.get(query, -1) < start
        ]
        for query in held:
            state = self.queries.setdefault(query, QueryState(time_ns=self._clock.wall_ns()))
            state.damaged = f"a record of it was damaged, {self._path} at {start}"
        keep_evidence(self._files, self._path, start, end)
        names = f"; held back: {', '.join(held)}" if held else ""
        self._report(
            f"{self._path} at {start}, {end - start} bytes: records of decided or published "
            f"batches are damaged; kept as ledger.{start}.corrupt{names}"
        )

    def save(self) -> Ticket:
        """A ticket settled when the current state is durable."""
        assert self._keeper is not None
        return self._keeper.flush(sync=True)

    # State changes

    def coordinate(self, query: str, proposed: Coordinator) -> tuple[Coordinator, Ticket]:
        """The coordinator of ``query``: the first one reported."""
        state = self._state(query)
        if state.coordinator is None:
            state.coordinator = proposed
            self._add(query, encode_coordinator(query, self._now(state), proposed))
        return state.coordinator, self.save()

    def decide(self, query: str, proposed: Decision) -> tuple[Decision, bool, Ticket]:
        """The newest decision of ``query``, whether it is this one, and the ticket of the save.

        Only the first decision for a batch counts, and none for a batch below the newest.
        """
        self.refuse(query, proposed.batch)
        state = self._state(query)
        newest = state.decision
        if newest is not None and proposed.batch <= newest.batch:
            return newest, False, self.save()
        self._count(newest, -1)
        self._count(proposed, 1)
        if self._winner_count > WINNER_COUNT_MAX or self._notes_size > NOTES_SIZE_MAX:
            self._count(proposed, -1)
            self._count(newest, 1)
            raise StagingError("STAGING_FULL", "too many decisions are kept")
        state.decision = proposed
        self._add(query, encode_decision(query, self._now(state), proposed))
        return proposed, True, self.save()

    def intend(self, query: str, intent: Intent) -> Ticket:
        """Once the ticket is settled, the batch will be published."""
        state = self._state(query)
        state.intent = intent
        state.time_ns = intent.time_ns
        self._add(query, encode_intent(query, intent))
        return self.save()

    def drop_intent(self, query: str) -> None:
        """Drop an intent that could not be made durable; nothing was published."""
        self.queries[query].intent = None
        self._encoded[query] = None

    def publish(self, query: str, published: Published) -> Ticket:
        state = self._state(query)
        state.intent = None
        state.published = published
        state.damaged = ""
        self._add(query, encode_published(query, self._now(state), published))
        return self.save()

    def refuse(self, query: str, batch: int) -> None:
        """Raise StagingError if ``batch`` is not plausible for this query."""
        state = self.queries.get(query)
        if state is None:
            return
        if state.damaged:
            raise StagingError("LEDGER_DAMAGED", f"{state.damaged}; an admin may reset the query")
        newest = state.newest_batch
        if newest is None:
            return
        elapsed_s = max(0, self._clock.wall_ns() - state.time_ns) // 1_000_000_000
        limit = newest + BATCH_STEP_MAX + BATCH_RATE_MAX * elapsed_s
        published = state.published.batch if state.published is not None else 0
        if batch < published - BATCH_BACK_MAX:
            raise StagingError(
                "BATCH_TOO_FAR", f"{published} is published; if that is wrong, reset the query"
            )
        if batch > limit:
            raise StagingError(
                "BATCH_TOO_FAR",
                f"{newest} is the newest batch, {limit} the highest that may follow",
            )

    def give_up(self, query: str, given_up: GivenUp) -> Ticket:
        """Record that a batch is to be published without some of its stagings."""
        state = self._state(query)
        if state.given_up is not None and state.given_up.batch == given_up.batch:
            given_up = GivenUp(given_up.batch, given_up.members | state.given_up.members)
        state.given_up = given_up
        self._add(query, encode_given_up(query, self._now(state), given_up))
        return self.save()

    def given_up(self, query: str, batch: int) -> frozenset[tuple[int, str]]:
        """(partition, attempt) of the stagings that the batch is published without."""
        state = self.queries.get(query)
        given_up = state.given_up if state is not None else None
        return given_up.members if given_up is not None and given_up.batch == batch else frozenset()

    def reset(self, query: str, published: int | None) -> Ticket:
        """Forget a query; batches up to ``published`` count as published from now on."""
        known = self.queries.pop(query, None)
        if known is not None:
            self._count(known.decision, -1)
        self._encoded.pop(query, None)
        assert self._keeper is not None
        self._keeper.add(encode_forgotten(query, self._clock.wall_ns()))
        if published is not None:
            return self.publish(query, Published(published, 0, ANY_WINNERS))
        return self.save()

    def winners_here(self, query: str, batch: int, node: str) -> set[tuple[int, str]]:
        """(partition, attempt) of this node's winners in ``batch``, as far as known."""
        state = self.queries.get(query)
        if state is None or state.decision is None or state.decision.batch != batch:
            return set()
        return {_name(winner) for winner in state.decision.winners if winner.node == node}

    def expire(self) -> int:
        """Forget queries that were unused for KNOWN_FOR_NS; returns how many."""
        now_ns = self._clock.wall_ns()
        gone = [
            query
            for query, state in self.queries.items()
            if state.intent is None and now_ns - state.time_ns > KNOWN_FOR_NS
        ]
        for query in gone:
            self._count(self.queries.pop(query).decision, -1)
            self._encoded.pop(query, None)
            assert self._keeper is not None
            self._keeper.add(encode_forgotten(query, now_ns))
        if gone:
            self.save()
        return len(gone)

    # Internals

    def _count(self, decision: Decision | None, sign: int) -> None:
        """Add a decision's memory use to the totals, or subtract it."""
        if decision is not None:
            self._winner_count += sign * len(decision.winners)
            self._notes_size += sign * len(decision.note or "")

    def _state(self, query: str) -> QueryState:
        state = self.queries.get(query)
        if state is None:
            if len(self.queries) >= QUERY_COUNT_MAX:
                raise StagingError("STAGING_FULL", "too many queries are known")
            state = self.queries[query] = QueryState()
        return state

    def _now(self, state: QueryState) -> int:
        state.time_ns = max(state.time_ns, self._clock.wall_ns())
        return state.time_ns

    def _add(self, query: str, record: bytes) -> None:
        assert self._keeper is not None
        self._encoded[query] = None
        self._keeper.add(record)

    def _snapshot(self) -> list[bytes]:
        # Encode only what changed: 100,000 queries would block the loop for a second.
        for query in [query for query, known in self._encoded.items() if known is None]:
            self._encoded[query] = b"".join(snapshot([(query, self.queries[query])]))
        return [known for known in self._encoded.values() if known]


def _name(winner: Winner) -> tuple[int, str]:
    return winner.partition, winner.attempt
