"""What is known of the queries that write here: who decides, what was decided, what is published.

    coordinator -> decision -> intent -> published         for the newest batch of each query

Rule 1: what is told to a client is synced first, also when it is told again.
Rule 2: after a failed write the next one is a whole snapshot (JournalKeeper), so what is in memory
        and was never answered may become durable or not: both are right.
Rule 3: memory is bounded by ``QUERY_COUNT_MAX`` and ``WINNER_COUNT_MAX``; past them a query that is
        new is refused, never an old one forgotten before its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.core.ticket import Ticket
from penstock.engine.clock import Clock
from penstock.engine.disk import Disk
from penstock.engine.keeper import JournalKeeper
from penstock.errors import StagingError
from penstock.storage.files import Files
from penstock.storage.journal import Journal
from penstock.storage.ledger import (
    Coordinator,
    Decision,
    Intent,
    Published,
    QueryState,
    Winner,
    encode_coordinator,
    encode_decision,
    encode_forgotten,
    encode_intent,
    encode_published,
    replay,
    snapshot,
)

log = logging.getLogger(__name__)

QUERY_COUNT_MAX = 100_000
WINNER_COUNT_MAX = 1_000_000
# What was published stays known for so long: a driver that comes back within it repeats nothing.
KNOWN_FOR_NS = 30 * 24 * 3600 * 1_000_000_000


class Ledger:
    """The queries by name, and their way to disk."""

    def __init__(
        self,
        files: Files,
        path: str,
        disk: Disk,
        clock: Clock,
        health: Callable[[BaseException | None], None],
    ) -> None:
        self._files = files
        self._path = path
        self._disk = disk
        self._clock = clock
        self._health = health
        self._winner_count = 0
        self._encoded: dict[str, bytes | None] = {}
        self._keeper: JournalKeeper | None = None
        self.queries: dict[str, QueryState] = {}
        self.corrupt_count = 0

    def open(self) -> None:
        """Read the file; blocking."""
        if self._files.exists(self._path):
            found = replay(self._files.read(self._path))
            if found.torn_size:
                log.warning("%s: torn, %d bytes cut off", self._path, found.torn_size)
                self._files.truncate(self._path, found.good_size)
            if found.corrupt_count:
                log.error("%s: %d bad records stepped over", self._path, found.corrupt_count)
            self.corrupt_count = found.corrupt_count
            self.queries = found.queries
            self._encoded = dict.fromkeys(self.queries)
            self._winner_count = sum(_winner_count(state) for state in self.queries.values())
        journal = Journal(self._files, self._path)
        self._keeper = JournalKeeper(journal, self._disk, self._snapshot, self._health)
        self._keeper.open()
        try:
            # A killed process may have left it in the page cache only; from now on it counts.
            journal.sync()
        except OSError as error:
            self._health(error)
            self._keeper.rewrite()

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
        state = self._state(query)
        newest = state.decision
        if newest is not None and told.batch <= newest.batch:
            return newest, False, self.save()
        count = self._winner_count + len(told.winners) - _winner_count(state)
        if count > WINNER_COUNT_MAX:
            raise StagingError("STAGING_FULL", "too many decisions are kept")
        self._winner_count = count
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
        self._add(query, encode_published(query, self._now(state), published))
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
            self._winner_count -= _winner_count(self.queries.pop(query))
            self._encoded.pop(query, None)
            assert self._keeper is not None
            self._keeper.add(encode_forgotten(query, now_ns))
        if gone:
            self.save()
        return len(gone)

    # Inside

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


def _winner_count(state: QueryState) -> int:
    return len(state.decision.winners) if state.decision is not None else 0


def _name(winner: Winner) -> tuple[int, str]:
    return winner.partition, winner.attempt
