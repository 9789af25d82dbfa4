"""Publishes the stagings of a batch to the topic logs, all of them and once (R19).

    topics created -> intent (synced) -> parts appended -> logs synced -> published (synced)
                         |                    |
                         `----- crash or error: find the parts in the logs, append the others

Rule 1: nothing is appended before the intent is synced.  It lists the stagings, the instance of
        each topic, and the end of its log: no part can be below that.
Rule 2: a part is one log batch with (staging, part) as its origin, so that parts in a log can be
        identified.  Segments from the intent's end on stay until the batch is published, and so do
        slot files that got deferred rows.
Rule 3: the intent reserves stamps for deferred rows; they identify rows in slot files.
Rule 4: if a topic is deleted after the intent, its rows are dropped, like deferred messages (R17).
        If it was deleted before, it is created again.
Rule 5: other clients do not wait: reads run on disk threads, and a limited amount is in progress.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket, after, settled
from penstock.engine.staging.deferred_rows import StagedRows
from penstock.engine.staging.parts import DamagedPartError, Source, find_parts, read_parts
from penstock.engine.staging.staging import Staged
from penstock.engine.topic import Topic
from penstock.engine.writer import Part
from penstock.errors import StagingError
from penstock.record import record
from penstock.storage.damage import DamageKind
from penstock.storage.ledger import Bound, Intent, Member, Published
from penstock.storage.staging import Key, PartRecord
from penstock.storage.topic_log import TopicLog

if TYPE_CHECKING:
    from penstock.engine.staging.area import Staging

log = logging.getLogger(__name__)

# Limits of parts read at once, and of parts that wait for their writes.
READ_SIZE_MAX = 8 << 20
READ_COUNT_MAX = 32
WINDOW_SIZE_MAX = 16 << 20
WINDOW_COUNT_MAX = 32


@record
class Outcome:
    """The response to a client, once the publication's ticket is settled."""

    count: int
    already: bool
    old: bool = False


class Publication:
    """One batch of a query that is being published."""

    def __init__(
        self, staging: Staging, query: str, batch: int, members: list[Staged], digest: str
    ) -> None:
        self.query = query
        self.batch = batch
        self.members = members
        self.count = sum(staged.count for staged in members)
        self.digest = digest  # of its winners, including those given up
        self.lost: list[Member] = []  # stagings that are missing: the batch is held back
        self.running = False
        self.waiting = False  # for its turn to run
        self.without_room = False  # it waits until a topic is not full (R20)
        self.void_count = 0
        self._staging = staging
        self._shared = staging.shared
        self._context = staging.shared.context
        self._ticket: Ticket | None = None
        self._intent: Intent | None = None
        self._published = False
        self._marking = False
        self._dropped = False  # by an admin
        self._syncing = False
        self._left: deque[Source] = deque()
        self._reading = False
        self._window_size = 0
        self._window_count = 0
        self._error: Exception | None = None
        self._logged_error = ""  # the last error logged
        self._rows = StagedRows(staging.shared)

    @staticmethod
    def digest_of(winners: Iterable[tuple[int, str]]) -> str:
        """A digest that identifies the winners."""
        names = "\n".join(f"{partition} {attempt}" for partition, attempt in sorted(winners))
        return hashlib.blake2b(names.encode(), digest_size=16).hexdigest()

    @staticmethod
    def recovered(
        staging: Staging, query: str, intent: Intent, numbered: Mapping[int, Staged]
    ) -> Publication:
        """A publication that an earlier process began; topics are recovered already."""
        without = staging.ledger.given_up(query, intent.batch)
        wanted = [member for member in intent.members if member[1:] not in without]
        members = [numbered[member.number] for member in wanted if member.number in numbered]
        digest = Publication.digest_of([member[1:] for member in intent.members])
        publication = Publication(staging, query, intent.batch, members, digest)
        publication.lost = [member for member in wanted if member.number not in numbered]
        if len(wanted) == len(intent.members):
            publication.count = intent.count
        publication._bind(intent)
        publication._report_lost()
        return publication

    # Running

    def run(self) -> Ticket:
        """Begin, or resume after a failure; the ticket is settled when it is published or fails."""
        if self._published:
            self._mark()
            return settled()
        if self._ticket is None:
            self._ticket = Ticket()
        ticket = self._ticket
        if not self.running and not self.waiting:
            self.waiting = True
            if self._staging.may_run(self):
                self.start()
        return ticket

    def start(self) -> None:
        """Start: it may run now."""
        self.waiting, self.running = False, True
        self._error = None
        if self.lost:
            self._stop(self._staging.losses.error(self._key(self.lost[0])))
        elif self._rows.stuck is not None:
            self._stop(self._rows.stuck)
        elif self._intent is None:
            self._make_topics()
        else:
            self._find_published()

    def give_up(self, names: set[tuple[int, str]]) -> None:
        """Continue without these stagings; it must not be running."""
        assert not self.running
        self.lost = [member for member in self.lost if member[1:] not in names]
        self.members = [staged for staged in self.members if staged.key[2:] not in names]
        self.count = sum(staged.count for staged in self.members)

    def drop(self) -> None:
        """An admin reset the query; it must not be running."""
        assert not self.running
        self._dropped = True
        self._report_error(None)
        if self._published:
            if not self._marking:
                self._finish()
            return
        if self._intent is not None:
            self._unbind()
        self.waiting = False
        del self._staging.publications[self.query]
        if self._ticket is not None:
            self._settle(StagingError("QUERY_RESET", "an admin reset the query"))

    def _key(self, member: Member) -> Key:
        return Key(self.query, self.batch, member.partition, member.attempt)

    def _report_lost(self) -> None:
        """Report missing stagings; those in the notes were reported one by one."""
        known = self._staging.losses.lost
        unknown = [member for member in self.lost if self._key(member) not in known]
        if unknown:
            self._shared.damage.report(
                DamageKind.STAGING,
                f"query={self.query} batch={self.batch}: {len(unknown)} of the stagings that were "
                "being published are missing; the batch is held back",
            )

    def _make_topics(self) -> None:
        made = [self._staging.create_topic(name)[1] for name in self._topic_names()]
        after(*made).add(self._topics_made)

    def _topic_names(self) -> set[str]:
        return {part.topic for staged in self.members for part in staged.parts.values()}

    def _topics_made(self, ticket: Ticket) -> None:
        topics = {name: self._staging.topics.get(name) for name in self._topic_names()}
        bounds = {
            name: Bound(topic.instance, topic.end)
            for name, topic in topics.items()
            if isinstance(topic, Topic)
        }
        if ticket.error is not None or len(bounds) < len(topics):
            self._give_up(ticket.error or OSError("a topic was deleted"))
            return
        members = tuple(Member(staged.number, *staged.key[2:]) for staged in self.members)
        intent = Intent(
            self.batch,
            self._context.clock.wall_ns(),
            self.count,
            members,
            bounds,
            self._reserve_stamps(),
        )
        self._bind(intent)
        self._staging.ledger.intend(self.query, intent).add(self._intended)

    def _reserve_stamps(self) -> dict[tuple[int, int], int]:
        stamps = {}
        for staged in self.members:
            for part in staged.parts.values():
                if part.deferred:
                    stamp = stamps[staged.number, part.part] = self._shared.identity.stamp()
                    self._shared.identity.raise_stamp(stamp + part.count)
        return stamps

    def _bind(self, intent: Intent) -> None:
        """Pin the segments that show which parts are published, until the batch is."""
        self._intent = intent
        for name, bound in intent.topics.items():
            topic = self._topic(name)
            if topic is not None:
                topic.log.holds[self] = bound.end

    def _unbind(self) -> None:
        assert self._intent is not None
        for name in self._intent.topics:
            topic = self._topic(name)
            if topic is not None:
                topic.log.holds.pop(self, None)
        self._rows.release()

    def _topic(self, name: str) -> Topic | None:
        """The topic of the intent; None if it was deleted since."""
        assert self._intent is not None
        topic = self._staging.topics.get(name)
        if not isinstance(topic, Topic) or topic.instance != self._intent.topics[name].instance:
            return None
        return topic

    def _intended(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self._unbind()
            self._intent = None
            self._staging.ledger.drop_intent(self.query)
            self._give_up(ticket.error)
            return
        self._begin(set())

    # Finding what is already published

    def _find_published(self) -> None:
        """Find the parts already in the logs, and the rows already in slot files."""
        assert self._intent is not None
        logs = []
        for name, bound in self._intent.topics.items():
            topic = self._topic(name)
            if topic is not None:
                logs.append((topic.log, bound.end, topic.log.end))
        deferred = [source for source in self._sources() if source.record.deferred]
        expected = {
            self._intent.stamps[source.staged.number, source.record.part]: source.record.count
            for source in deferred
        }
        self._rows.expect(expected)
        work = partial(self._find, logs)
        self._staging.publishing_disk.submit(work, self._found)

    def _find(self, logs: list[tuple[TopicLog, int, int]]) -> set[int]:
        # On a disk thread.
        numbers = {staged.number for staged in self.members}
        found: set[int] = set()
        for topic_log, start, end in logs:
            found |= find_parts(topic_log, start, end, numbers)
        self._rows.find()
        return found

    def _found(self, found: set[int] | None, error: Exception | None) -> None:
        if found is None:
            self._stop(error or OSError("not read"))
        else:
            self._begin(found)

    def _begin(self, found: set[int]) -> None:
        self._left = deque(source for source in self._sources() if source.origin not in found)
        self._continue()

    def _sources(self) -> list[Source]:
        """All parts, in the order of (partition, part)."""
        return [
            Source(staged, staged.parts[part])
            for staged in sorted(self.members, key=_partition_of)
            for part in sorted(staged.parts)
        ]

    # Appending

    def _continue(self) -> None:
        if self._context.supervisor.exiting and self._error is None:
            self._error = StagingError("EXITING")
        if self._reading or self._syncing or not self.running:
            return
        if self._error is not None:
            if not self._window_count:
                self._stop(self._error)
        elif self._left and self._waits_for_room():
            return
        elif self._left:
            if self._window_count < WINDOW_COUNT_MAX and self._window_size < WINDOW_SIZE_MAX:
                self._read()
        elif not self._window_count:
            self._sync()

    def _waits_for_room(self) -> bool:
        """Whether the topic of the next part is full: a decided batch waits, and is not refused."""
        topic = self._topic(self._left[0].record.topic)
        if topic is None or not topic.appender.bounded:
            return False
        if self._window_count:
            return True  # one part at a time, so that no more than one passes the bound
        if topic.room(1):
            return False
        if not self.without_room:
            self.without_room = True
            log.warning(
                "query=%s batch=%d: waits for room in topic %s", self.query, self.batch, topic.name
            )
            topic.bound.wait(self._find_room)
            self._staging.ended()  # another publication may run meanwhile
        return True

    def _find_room(self) -> None:
        self.without_room = False
        self._context.turns.soon(self._continue)

    def _read(self) -> None:
        self._reading = True
        batch: list[Source] = []
        size = 0
        first = self._topic(self._left[0].record.topic)
        count_max = 1 if first is not None and first.appender.bounded else READ_COUNT_MAX
        while self._left and len(batch) < count_max:
            size += self._left[0].record.size
            if batch and size > READ_SIZE_MAX:
                break
            batch.append(self._left.popleft())
        read = partial(read_parts, self._staging.store, batch)
        self._staging.publishing_disk.submit(read, partial(self._have_read, batch))

    def _have_read(
        self, batch: list[Source], bodies: list[bytes] | None, error: Exception | None
    ) -> None:
        if bodies is None:
            self._reading = False
            self._error = error or OSError("not read")
            self._continue()
            return
        touched: set[Topic] = set()
        for source, body in zip(batch, bodies, strict=True):
            topic = self._topic(source.record.topic)
            if topic is None:
                self.void_count += source.record.count
            else:
                self._append(topic, source, body)
                touched.add(topic)
        for topic in touched:
            topic.flush()
        self._reading = False
        self._continue()

    def _append(self, topic: Topic, source: Source, body: bytes) -> None:
        assert self._intent is not None
        record = source.record
        self._window_count += 1
        self._window_size += record.size
        if record.deferred:
            stamp = self._intent.stamps[source.staged.number, record.part]
            ticket = self._rows.put(topic, body, self._intent.time_ns, stamp)
        else:
            ticket = Ticket()
            topic.writer.stage(
                Part(body, record.count, source.origin, self._intent.time_ns, ticket)
            )
        ticket.add(partial(self._appended, topic, record))

    def _appended(self, topic: Topic, record: PartRecord, ticket: Ticket) -> None:
        self._window_count -= 1
        self._window_size -= record.size
        if ticket.error is not None:
            if topic.closed and not self._context.supervisor.exiting:
                self.void_count += record.count
            elif self._error is None:
                self._error = ticket.error
        # Not directly: this may be called from within the topic's flush.
        self._context.turns.soon(self._continue)

    # Finishing

    def _sync(self) -> None:
        assert self._intent is not None
        self._syncing = True
        topics = [self._topic(name) for name in self._intent.topics]
        syncs = [topic.writer.sync() for topic in topics if topic is not None]
        after(*syncs, self._rows.sync()).add(self._synced)

    def _synced(self, ticket: Ticket) -> None:
        self._syncing = False
        if ticket.error is not None:
            self._stop(ticket.error)
            return
        self.running = False
        self._published = True
        self._report_error(None)
        staging = self._staging
        staging.published_count += self.count - self.void_count
        staging.void_count += self.void_count
        log.info(
            "query=%s batch=%d: published %d messages of %d stagings%s",
            self.query,
            self.batch,
            self.count - self.void_count,
            len(self.members),
            f", {self.void_count} were for deleted topics" if self.void_count else "",
        )
        # Answered before the ledger has it: after a crash now, a start finds the intent, and all
        # parts in the logs.
        staging.leave(self)
        self._mark()
        self._settle(None)

    def _mark(self) -> None:
        if self._marking:
            return
        self._marking = True
        published = Published(self.batch, self.count, self.digest)
        self._staging.ledger.publish(self.query, published).add(self._marked)

    def _marked(self, ticket: Ticket) -> None:
        self._marking = False
        if ticket.error is None or self._dropped:
            self._finish()
        # Otherwise the next upkeep retries.

    def _finish(self) -> None:
        self._unbind()
        self._staging.finished(self)

    def _settle(self, error: Exception | None) -> None:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        ticket.settle(error)

    def _stop(self, error: Exception) -> None:
        """It cannot continue now; parts in the logs stay there, and the next run finds them."""
        if str(error) != self._logged_error:
            self._logged_error = str(error)
            log.error("query=%s batch=%d: not published yet: %s", self.query, self.batch, error)
        self._staging.error_count += 1
        self._report_error(error)
        self.running = False
        self._left.clear()
        self.void_count = 0
        self._settle(error)
        self._staging.ended()

    def _report_error(self, error: Exception | None) -> None:
        """Report damage once; show failures of the disk in /ping."""
        health, source = self._shared.health, f"query={self.query}"
        if isinstance(error, OSError):
            if not self._context.supervisor.exiting:
                health.failing(source, error)
            return
        health.working(source)
        if isinstance(error, DamagedPartError):
            self._shared.damage.report(
                DamageKind.STAGING, error.text, path=error.path, messages=error.count
            )

    def _give_up(self, error: Exception) -> None:
        """Fail before anything was published."""
        self.running = False
        del self._staging.publications[self.query]
        self._staging.error_count += 1
        self._settle(error)
        self._staging.ended()


def _partition_of(staged: Staged) -> tuple[int, str]:
    return staged.key.partition, staged.key.attempt
