"""Staged rows (R19): tasks of a query write them here, its driver's commit publishes them, once.

    part, part, ... -> file -> seal (synced) ... decided ... -> publication -> topic logs

Rule 1: a staging is (query, batch, partition, attempt).  Its parts may arrive in any order, in
        parallel and repeatedly; a repeated part with other bytes is refused.
Rule 2: one write at a time per file, on a disk thread; parts that arrive meanwhile share the next.
Rule 3: stagings are limited in bytes on disk, in bytes being written, and in number.
Rule 4: a staging is removed when its batch is published, when it is aborted, or when it is unused
        for --staging-timeout.  One that is a known winner is removed only after publication.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from penstock.core.crc32c import crc32c
from penstock.core.ticket import Ticket, after, settled
from penstock.engine.base import BaseTopic
from penstock.engine.disk import Lane
from penstock.engine.shared import Shared
from penstock.engine.staging.ledger import Ledger
from penstock.engine.staging.losses import StagingLosses
from penstock.engine.staging.publication import Outcome, Publication
from penstock.engine.staging.staging import IncomingPart, Staged
from penstock.errors import StagingError, UncutError
from penstock.storage.damage import DamageKind
from penstock.storage.ledger import ANY_WINNERS
from penstock.storage.staging import SEAL_SIZE, Key, Seal, StagingStore, encode_seal
from penstock.storage.staging_notes import Noted, StagingNotes

log = logging.getLogger(__name__)

# Bytes being written to staging files; above it clients get STAGING_BUSY and retry.
PENDING_SIZE_MAX = 256 << 20
STAGING_COUNT_MAX = 100_000
# A part uses 200 bytes of memory, however small it is.
PART_COUNT_MAX = 1_000_000
# Disk threads for stagings, and as many for publications: other threads stay free, and publishing
# does not wait for seals.
WORK_COUNT_MAX = 2
# A staging is synced after this many unsynced bytes: the page cache is shared, and a seal should
# not take seconds.
DIRTY_SIZE_MAX = 32 << 20
# Publications that run at once; each has up to 32 MiB in memory.
RUNNING_COUNT_MAX = 4
UPKEEP_INTERVAL_NS = 5_000_000_000


class Staging:
    """All stagings of a node: accepts, seals, publishes and removes them."""

    def __init__(
        self,
        shared: Shared,
        topics: Mapping[str, BaseTopic],
        create_topic: Callable[[str], tuple[BaseTopic, Ticket]],
    ) -> None:
        context = self._context = shared.context
        self.shared = shared
        self.topics = topics
        self.create_topic = create_topic
        self._health = shared.health
        self._disk = Lane(context.disk, WORK_COUNT_MAX)
        self.publishing_disk = Lane(context.disk, WORK_COUNT_MAX)
        self.store = StagingStore(context.files, context.data.staging)
        self.notes = StagingNotes(context.files, context.data.staging_notes)
        self.ledger = Ledger(
            context.files,
            f"{context.data.staging}/ledger",
            context.disk,
            context.clock,
            self._record_write,
            self.notes,
            partial(shared.damage.report, DamageKind.LEDGER),
        )
        self.size = 0  # of all files, including pending writes
        self.pending_size = 0
        self.kept_part_count = 0  # in all stagings, including pending ones
        self.part_count = 0
        self.staged_count = 0  # messages
        self.published_count = 0  # messages
        self.void_count = 0  # messages whose topic was deleted while they were published
        self.expired_count = 0
        self.error_count = 0
        self.draining = False  # new stagings are refused
        self.publications: dict[str, Publication] = {}  # in progress, by query
        # Published, but not yet recorded in the ledger; with the stagings to remove afterwards.
        self.published: dict[Publication, list[Staged]] = {}
        self.recovered: Ticket = settled()
        self.losses = StagingLosses(self)
        self._staged: dict[Key, Staged] = {}
        self._by_query: dict[str, set[Staged]] = {}
        self.number = 0  # the highest so far

    # Start

    def find(self, key: Key) -> Staged | None:
        return self._staged.get(key)

    def resume(self) -> None:
        """Complete interrupted publications; topics are recovered already."""
        for query, state in self.ledger.queries.items():
            if state.intent is not None:
                publication = Publication.recovered(self, query, state.intent, self._numbered())
                self.publications[query] = publication
        tickets = [publication.run() for publication in self.publications.values()]
        self.recovered = after(*tickets)

    def start(self) -> None:
        """Start the periodic upkeep."""
        self._context.turns.after(UPKEEP_INTERVAL_NS, self._upkeep)

    def _numbered(self) -> dict[int, Staged]:
        return {staged.number: staged for staged in self._staged.values()}

    # Parts

    def put_part(
        self, key: Key, part: int, topic: str, deferred: bool, body: bytes, count: int
    ) -> Ticket:
        """Store a part; the ticket is settled when it is in its file."""
        self._refuse(key)
        incoming = IncomingPart(part, topic, deferred, count, body, crc32c(body))
        staged = self._staged.get(key)
        if staged is not None:
            staged.touched_ns = self._context.clock.monotonic_ns()
            known = staged.known(incoming)
            if known is not None:
                return known
            staged.refuse_parts()
        self._refuse_full(topic)
        self._refuse_size(incoming)
        if staged is None:
            staged = self._make(key)
        staged.incoming[part] = incoming
        self.pending_size += incoming.weight
        self._adjust_totals(staged, incoming.weight, 1)
        if not staged.writing:
            self._write(staged)
        return incoming.ticket

    def _refuse(self, key: Key) -> None:
        if self._context.supervisor.exiting:
            raise StagingError("EXITING")
        refusal = self._health.refusal()
        if refusal is not None:
            raise StagingError("DISK_FULL", str(refusal))
        self.ledger.refuse(key.query, key.batch)
        if self.is_published(key):
            raise StagingError("BATCH_PUBLISHED", "the batch, or a later one, is published")
        self.losses.refuse(key)

    def _refuse_full(self, name: str) -> None:
        """Rows for a topic at its bound are refused here, before anything is decided (R20)."""
        topic = self.topics.get(name)
        full = topic.appender.refuse() if topic is not None else None
        if full is not None:
            raise StagingError("TOPIC_FULL", f"{name}: {full.error}")

    def _refuse_size(self, incoming: IncomingPart) -> None:
        if self.size + incoming.weight > self._context.options.max_staging_bytes:
            raise StagingError("STAGING_FULL", "--max-staging-bytes are staged")
        if self.kept_part_count >= PART_COUNT_MAX:
            raise StagingError("STAGING_FULL", "too many parts")
        if self.pending_size and self.pending_size + incoming.weight > PENDING_SIZE_MAX:
            raise StagingError("STAGING_BUSY", "the disk does not keep up")

    def _make(self, key: Key) -> Staged:
        if self.draining:
            raise StagingError("DRAINING", "the node is being drained: stage on another one")
        if len(self._staged) >= STAGING_COUNT_MAX:
            raise StagingError("STAGING_FULL", "too many stagings")
        # Stamps ascend across restarts, so numbers do too.
        self.number = max(self.number + 1, self.shared.identity.stamp() // 1_000_000)
        clock = self._context.clock
        staged = Staged(self.number, key, clock.wall_ns(), clock.monotonic_ns())
        self.add(staged)
        return staged

    def add(self, staged: Staged) -> None:
        self._staged[staged.key] = staged
        self._by_query.setdefault(staged.key.query, set()).add(staged)
        self.size += staged.size
        self.kept_part_count += len(staged.parts)

    def _adjust_totals(self, staged: Staged, size: int, count: int) -> None:
        """Adjust the totals by size and count, unless the staging was discarded."""
        staged.size += size
        if self._is_kept(staged):
            self.size += size
            self.kept_part_count += count

    def _write(self, staged: Staged) -> None:
        batch = [incoming for incoming in staged.incoming.values() if not incoming.begun]
        if not batch:
            return
        staged.writing = True
        work = partial(self._append, staged, staged.take(batch))
        self._disk.submit(work, partial(self._written, staged, batch))

    def _append(self, staged: Staged, pieces: list[bytes]) -> int:
        # On a disk thread.
        size = self.store.append(staged.number, pieces)
        if size - staged.synced_size >= DIRTY_SIZE_MAX:
            self._sync(staged, size)
        return size

    def _sync(self, staged: Staged, size: int) -> None:
        try:
            self.store.sync(staged.number)
        except OSError as error:
            # After a failed sync the kernel may have dropped pages: do not use the file (R8).
            staged.error = error
            raise
        staged.synced_size = size

    def _written(
        self, staged: Staged, batch: list[IncomingPart], size: int | None, error: Exception | None
    ) -> None:
        staged.writing = False
        if size is None:
            failure = self._failed(error)
            if isinstance(failure, UncutError):
                staged.error = failure
            self._not_written(staged, batch, failure)
        else:
            staged.written(batch, size)
            self.part_count += len(batch)
            self.staged_count += sum(incoming.count for incoming in batch)
            self._end(staged, batch, None)
        if not self._is_kept(staged):
            self._not_written(staged, list(staged.incoming.values()), _discarded())
            if staged.gone:
                self._remove([staged])
        elif staged.incoming:
            self._write(staged)
        else:
            self._drop_empty(staged)

    def _not_written(self, staged: Staged, batch: list[IncomingPart], failure: Exception) -> None:
        self._adjust_totals(staged, -sum(incoming.weight for incoming in batch), -len(batch))
        self._end(staged, batch, failure)

    def _end(self, staged: Staged, batch: list[IncomingPart], failure: Exception | None) -> None:
        for incoming in batch:
            self.pending_size -= incoming.weight
            del staged.incoming[incoming.part]
        for incoming in batch:
            incoming.ticket.settle(failure)

    def _is_kept(self, staged: Staged) -> bool:
        return self._staged.get(staged.key) is staged

    def _drop_empty(self, staged: Staged) -> None:
        """Drop the staging if none of it could be written."""
        if not (staged.parts or staged.incoming or staged.seal) and self._is_kept(staged):
            self._drop([staged])

    def _failed(self, error: Exception | None) -> Exception:
        self.error_count += 1
        failure = error or OSError("not written")
        if not isinstance(failure, StagingError):
            self._health.record(failure)
        return failure

    # Sealing

    def seal(self, key: Key, part_count: int, count: int) -> Ticket:
        """Seal a complete staging; the ticket is settled when it is durable."""
        self._refuse(key)
        staged = self._staged.get(key)
        if staged is None:
            if part_count:
                raise StagingError("STAGING_NOT_FOUND", "no part of it is here")
            staged = self._make(key)
        staged.touched_ns = self._context.clock.monotonic_ns()
        seal = Seal(part_count, count)
        if staged.sealing is not None:
            if staged.pending_seal != seal:
                raise StagingError("SEALED", "with other parts or another count")
            return staged.sealing
        staged.refuse_seal(seal)
        if staged.seal is not None and (staged.checked or not self._undecided(staged)):
            return settled()
        staged.pending_seal = seal
        ticket = staged.sealing = Ticket()
        self._disk.submit(
            partial(self._seal, staged, seal, staged.checked), partial(self._sealed, staged, seal)
        )
        return ticket

    def _seal(self, staged: Staged, seal: Seal, checked: bool) -> list[int]:
        # On a disk thread; no write to the file is pending.
        bad = [] if checked else self.store.damaged(staged.number, staged.parts.values())
        if bad:
            if staged.seal is not None:
                # Its sync was never acknowledged: a power cut kept the seal and lost sealed parts.
                staged.file_size -= SEAL_SIZE
                self.notes.forget([staged.number], 0, sync=True)
                self.store.cut(staged.number, staged.file_size)
            return bad
        if staged.seal is None:
            pieces = [] if staged.file_size else [staged.header()]
            size = self.store.append(staged.number, [*pieces, encode_seal(staged.number, seal)])
            staged.file_size = size
        self._sync(staged, staged.file_size)
        noted = Noted(staged.number, staged.key, seal, staged.file_size)
        self.notes.seal(noted, staged.created_ns)
        return []

    def _sealed(
        self, staged: Staged, seal: Seal, bad: list[int] | None, error: Exception | None
    ) -> None:
        ticket, staged.sealing = staged.sealing, None
        assert ticket is not None
        failure: Exception | None = None
        if bad is None:
            failure = self._failed(error)
        elif bad:
            staged.seal = None
            for part in bad:
                self._adjust_totals(staged, -staged.parts.pop(part).weight, -1)
            failure = StagingError("MISSING_PARTS", f"parts {bad} were torn")
        else:
            staged.seal = seal
            staged.checked = True
        if staged.gone:
            self._remove([staged])
            failure = failure or _discarded()
        self._drop_empty(staged)
        ticket.settle(failure)

    # Publishing

    def publish(
        self, query: str, batch: int, winners: list[tuple[int, str]]
    ) -> tuple[Ticket, Outcome]:
        """Publish these stagings, once; the ticket is settled when they are synced in the logs."""
        state = self.ledger.queries.get(query)
        digest = Publication.digest_of(winners)
        done = state.published if state is not None else None
        self.ledger.refuse(query, batch)
        if done is not None and batch <= done.batch:
            if batch == done.batch and done.digest not in (digest, ANY_WINNERS):
                raise StagingError("WINNERS_DIFFER", "the batch was published with others")
            count = done.count if batch == done.batch else 0
            return settled(), Outcome(count, True, old=batch < done.batch)
        publication = self.publications.get(query)
        if publication is not None:
            if publication.batch != batch:
                raise StagingError("BATCH_OPEN", f"batch {publication.batch} is not finished")
            if publication.digest != digest:
                raise StagingError("WINNERS_DIFFER", "the batch is being published with others")
            return publication.run(), Outcome(publication.count, False)
        if self._context.supervisor.exiting:
            raise StagingError("EXITING")
        without = self.ledger.given_up(query, batch)
        kept = [winner for winner in sorted(winners) if winner not in without]
        members = [self._winner(Key(query, batch, *winner)) for winner in kept]
        publication = Publication(self, query, batch, members, digest)
        self.publications[query] = publication
        return publication.run(), Outcome(publication.count, False)

    def _winner(self, key: Key) -> Staged:
        staged = self._staged.get(key)
        what = f"partition {key.partition}, attempt {key.attempt}"
        if staged is None:
            raise self.losses.error(key)
        if staged.seal is None:
            raise StagingError("NOT_SEALED", what)
        if staged.error is not None:
            raise StagingError("STAGING_FAILED", f"{what}: {staged.error}")
        return staged

    def may_run(self, publication: Publication) -> bool:
        """Whether it may run now; otherwise it runs when another one ends."""
        running = sum(
            other.running and not other.without_room for other in self.publications.values()
        )
        return running < RUNNING_COUNT_MAX

    def ended(self) -> None:
        """A publication has ended or stopped: start those that wait."""
        for publication in list(self.publications.values()):
            if publication.waiting and self.may_run(publication):
                publication.start()

    def leave(self, publication: Publication) -> None:
        """It is published: drop its stagings and accept the next batch of the query."""
        del self.publications[publication.query]
        stagings = self._by_query.get(publication.query, ())
        old = [staged for staged in stagings if staged.key.batch <= publication.batch]
        self._forget(old)
        self.losses.forget(publication.query, publication.batch)
        self.published[publication] = old
        self.ended()

    def finished(self, publication: Publication) -> None:
        """The ledger has it as published: remove its stagings and all older ones."""
        self._remove(self.published.pop(publication))

    # Removing

    def abort(self, query: str, batch: int, names: Iterable[tuple[int, str]]) -> int:
        """Discard stagings that are not winners; returns how many."""
        wanted = (self._staged.get(Key(query, batch, *name)) for name in names)
        gone = [staged for staged in wanted if staged is not None and self._undecided(staged)]
        self._drop(gone)
        return len(gone)

    def discard(self, query: str) -> int:
        """Drop all stagings of a query, winners included; returns how many."""
        gone = list(self._by_query.get(query, ()))
        self._drop(gone)
        return len(gone)

    def _undecided(self, staged: Staged) -> bool:
        key = staged.key
        publication = self.publications.get(key.query)
        if self.is_published(key) or (publication is not None and staged in publication.members):
            return False
        winners = self.ledger.winners_here(key.query, key.batch, self.shared.identity.uuid)
        return (key.partition, key.attempt) not in winners

    def _drop(self, gone: list[Staged]) -> None:
        self._forget(gone)
        self._remove(gone)

    def _forget(self, gone: list[Staged]) -> None:
        for staged in gone:
            query = staged.key.query
            del self._staged[staged.key]
            self._by_query[query].discard(staged)
            if not self._by_query[query]:
                del self._by_query[query]
            self.size -= staged.size
            self.kept_part_count -= len(staged.parts) + len(staged.incoming)

    def _remove(self, gone: list[Staged]) -> None:
        for staged in gone:
            staged.gone = True
        # Pending writes are awaited first; then this is called again.
        idle = [staged for staged in gone if not staged.writing and staged.sealing is None]
        if idle:
            numbers = [staged.number for staged in idle]
            published = all(self.is_published(staged.key) for staged in idle)
            self._disk.submit(partial(self._unlink, numbers, published), self.removed)

    def _unlink(self, numbers: list[int], published: bool) -> None:
        # On a disk thread.
        self.notes.forget(numbers, 0, sync=not published)
        self.store.remove(numbers)

    def removed(self, _: None, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)

    def _upkeep(self) -> None:
        if self._context.supervisor.exiting:
            return
        try:
            self._expire()
            for publication in [*self.publications.values(), *self.published]:
                publication.run()  # retries one that failed
        except Exception:
            log.exception("staging: unexpected")
        self._context.turns.after(UPKEEP_INTERVAL_NS, self._upkeep)

    def _expire(self) -> None:
        limit_ns = self._context.clock.monotonic_ns() - self._context.options.staging_timeout_ns
        old = [
            staged
            for staged in self._staged.values()
            if staged.touched_ns < limit_ns and self._undecided(staged)
        ]
        for staged in old:
            log.warning("staging=%016x: expired %s", staged.number, staged.key)
        self.expired_count += len(old)
        self._drop(old)
        self.ledger.expire()

    # Status

    def stagings(self) -> Iterator[Staged]:
        return iter(self._staged.values())

    @property
    def staging_count(self) -> int:
        return len(self._staged)

    def is_published(self, key: Key) -> bool:
        state = self.ledger.queries.get(key.query)
        done = state.published if state is not None else None
        return done is not None and key.batch <= done.batch

    def _record_write(self, error: Exception | None) -> None:
        if error is not None:
            self.error_count += 1
            self._health.record(error)

    def check_notes(self) -> None:
        """While the notes cannot be written, report it and retry."""
        problem = self.notes.problem
        if problem is None:
            self._health.working("staging.notes")
        else:
            self._health.failing("staging.notes", problem)
            self._context.disk.submit(self.notes.mend, lambda _result, _error: None)

    def check(self) -> None:
        """Raise AssertionError if the counts disagree; tests call it."""
        assert self.size == sum(staged.size for staged in self._staged.values())
        assert sum(map(len, self._by_query.values())) == len(self._staged)
        kept = self._staged.values()
        assert self.kept_part_count == sum(len(s.parts) + len(s.incoming) for s in kept)
        assert self.pending_size >= 0


def _discarded() -> StagingError:
    return StagingError("STAGING_NOT_FOUND", "it was discarded meanwhile")
