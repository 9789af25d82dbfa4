"""What is known of the queries that write here: who decides, what was decided, what is published.

    coordinator -> decision -> intent -> published         for the newest batch of each query

Rule 1: what is told to a client is synced first, also when it is told again.
Rule 2: after a failed write the next one is a whole snapshot (JournalKeeper), so what is in memory
        and was never answered may become durable or not: both are right.
Rule 3: memory is bounded by ``QUERY_COUNT_MAX``, ``WINNER_COUNT_MAX`` and ``NOTES_SIZE_MAX``; past
        them a query that is new is refused, never an old one forgotten before its time.
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
# What was published stays known for so long: a driver that comes back within it repeats nothing.
KNOWN_FOR_NS = 30 * 24 * 3600 * 1_000_000_000
# A batch may be so far above the newest that is known, and further by so many for each second since
# that was told.  Spark counts by one, others by the clock; a number that is far off would make all
# the query's later batches old.
BATCH_STEP_MAX = 1_000_000
BATCH_RATE_MAX = 1_000_000
# One that is further below the newest published batch is no old one that is repeated: one of the
# two numbers is wrong.
BATCH_BACK_MAX = 1 << 40


class Ledger:
    """The queries by name, and their way to disk."""

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
        """Read the file; blocking."""
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
                f"{self._path} is missing, of which {self._notes.ledger_size} bytes were synced: "
                "what was decided and published is not known"
            )
            self._notes.ledger(0)
        journal = NotedJournal(self._files, self._path, self._notes)
        self._keeper = JournalKeeper(journal, self._disk, self._snapshot, self._health)
        self._keeper.open()
        if damaged:
            self._keeper.rewrite()
            return
        try:
            # A killed process may have left it in the page cache only; from now on it counts.
            journal.sync()
        except OSError as error:
            self._health(error)
            self._keeper.rewrite()

    def _judge(self, data: bytes, found: LedgerState) -> bool:
        """Tell what is damaged from what is torn; returns whether anything is damaged."""
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
        # Without notes nobody knows what was synced: a power cut may leave holes in what was not.
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
        """Settled when all that is known is durable."""
        assert self._keeper is not None
        return self._keeper.flush(sync=True)

    # What is told

    def coordinate(self, query: str, told: Coordinator) -> tuple[Coordinator, Ticket]:
        """The coordinator of ``query``: the first one that was told."""
        state = self._state(query)
        if state.coordinator is None:
            state.coordinator = told
            self._add(query, encode_coordinator(query, self._now(state), told))
        return state.coordinator, self.save()

    def decide(self, query: str, told: Decision) -> tuple[Decision, bool, Ticket]:
        """The newest decision of ``query``, whether it is the one told now, and when it is durable.

        Of a batch only the first decision counts, and none of a batch below the newest.
        """
        self.refuse(query, told.batch)
        state = self._state(query)
        newest = state.decision
        if newest is not None and told.batch <= newest.batch:
            return newest, False, self.save()
        self._count(newest, -1)
        self._count(told, 1)
        if self._winner_count > WINNER_COUNT_MAX or self._notes_size > NOTES_SIZE_MAX:
            self._count(told, -1)
            self._count(newest, 1)
            raise StagingError("STAGING_FULL", "too many decisions are kept")
        state.decision = told
        self._add(query, encode_decision(query, self._now(state), told))
        return told, True, self.save()

    def intend(self, query: str, intent: Intent) -> Ticket:
        """From when the ticket is settled on, the batch will be published."""
        state = self._state(query)
        state.intent = intent
        state.time_ns = intent.time_ns
        self._add(query, encode_intent(query, intent))
        return self.save()

    def drop_intent(self, query: str) -> None:
        """It could not be made durable and nothing was published."""
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
        """Raise StagingError if ``batch`` cannot be one of this query, as far as is known."""
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

    def give_up(self, query: str, told: GivenUp) -> Ticket:
        """A batch is to be published without some of its stagings."""
        state = self._state(query)
        if state.given_up is not None and state.given_up.batch == told.batch:
            told = GivenUp(told.batch, told.members | state.given_up.members)
        state.given_up = told
        self._add(query, encode_given_up(query, self._now(state), told))
        return self.save()

    def given_up(self, query: str, batch: int) -> frozenset[tuple[int, str]]:
        """(partition, attempt) of the stagings that the batch goes without."""
        state = self.queries.get(query)
        told = state.given_up if state is not None else None
        return told.members if told is not None and told.batch == batch else frozenset()

    def reset(self, query: str, published: int | None) -> Ticket:
        """Forget all of a query; batches up to ``published`` count as published from now on."""
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
        """(partition, attempt) of this node's stagings that were decided for, as far as known."""
        state = self.queries.get(query)
        if state is None or state.decision is None or state.decision.batch != batch:
            return set()
        return {_name(winner) for winner in state.decision.winners if winner.node == node}

    def expire(self) -> int:
        """Forget queries that nobody has touched for long; returns how many."""
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

    # Inside

    def _count(self, decision: Decision | None, sign: int) -> None:
        """Add what a decision keeps in memory to the totals, or take it away."""
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
        # Only what changed is encoded anew: 100,000 queries would hold the loop for a second.
        for query in [query for query, known in self._encoded.items() if known is None]:
            self._encoded[query] = b"".join(snapshot([(query, self.queries[query])]))
        return [known for known in self._encoded.values() if known]


def _name(winner: Winner) -> tuple[int, str]:
    return winner.partition, winner.attempt
