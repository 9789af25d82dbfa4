"""Staged batches through every crash point and error: each row once, whatever stops when (R19)."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from penstock.errors import StagingError, UncutError
from penstock.storage.ledger import Decision, Winner
from penstock.storage.staging import Key
from tests.crash.lossy import HOLES, KEEP, KILL, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.engine import MINUTE, SECOND, Client, Engine
from tests.support.staging import ATTEMPT, Query, deferred, plain

LOSER = "f" * 32
MODES = [KEEP, LOSE, PREFIX, HOLES]
TRY_COUNT_MAX = 20

Which = tuple[int, int, bool]  # batch, partition, whether it wins


class Writer:
    """A query whose tasks and driver repeat every request until it is answered.

    Each staging has parts for two topics, and deferred rows.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.query = Query(engine)
        self.rows: set[bytes] = set()
        self.due_ns = engine.clock.wall_ns()
        self.steps: list[Callable[[], None]] = []
        self.place = 0
        self.attempts: dict[tuple[int, int, bool], str] = {}
        self.after_error: Callable[[Exception], None] = lambda error: None

    # What is asked

    def plan(self, batch: int) -> None:
        """A batch of two partitions; one of them is staged by another attempt too."""
        self.plan_staging(batch, 0, wins=False)
        self.plan_staging(batch, 1)
        self.plan_staging(batch, 0)
        self.plan_end(batch)

    def plan_end(self, batch: int) -> None:
        self.steps.append(lambda: self.decide(batch))
        self.steps.append(lambda: self.publish(batch))

    def plan_staging(self, batch: int, partition: int, wins: bool = True) -> None:
        name = f"{batch}.{partition}".encode()
        many = [b"%s t %d" % (name, i) + bytes(700 * i) for i in range(3)]
        late = [(self.due_ns + i // 3 * MINUTE, b"%s late %d" % (name, i)) for i in range(4)]
        parts = [
            ("t", plain(*many), False),
            ("u", plain(b"%s u" % name), False),
            ("t", deferred(*late), True),
            ("t", plain(b"%s last" % name), False),
        ]
        if wins:
            self.rows.update([*many, b"%s u" % name, b"%s last" % name, *(row[1] for row in late)])
        self.attempts[batch, partition, wins] = ATTEMPT if wins else LOSER
        first = len(self.steps)
        for number, part in enumerate(parts):
            self.steps.append(partial(self.put, (batch, partition, wins), first, number, *part))
        self.steps.append(partial(self.seal, (batch, partition, wins), first))

    def put(
        self, which: Which, first: int, number: int, topic: str, body: bytes, late: bool
    ) -> None:
        with self.task(which, first):
            raise_if(self.query.put(self.key(which), number, topic, body, late))

    def seal(self, which: Which, first: int) -> None:
        with self.task(which, first):
            raise_if(self.query.seal(self.key(which), 4, 9))

    def key(self, which: Which) -> Key:
        return self.query.key(*which[:2], self.attempts[which])

    @contextmanager
    def task(self, which: Which, first: int) -> Iterator[None]:
        try:
            yield
        except StagingError as error:
            if error.code == "STAGING_FAILED":
                # What is on the disk is not to be trusted: Spark tries the task again.
                self.attempts[which] = f"{int(self.attempts[which], 16) - 1:032x}"
            else:
                # A power cut took parts that were answered: the task puts them again.
                assert error.code in ("MISSING_PARTS", "STAGING_NOT_FOUND"), error
            self.place = first - 1

    def decide(self, batch: int) -> None:
        node = self.engine.components.identity.uuid
        winners = tuple(Winner(node, *winner, 9) for winner in self.winners(batch))
        told = Decision(batch, winners)
        newest, _, ticket = self.engine.components.staging.ledger.decide("q", told)
        raise_if(self.engine.done(ticket))
        assert newest == told

    def publish(self, batch: int) -> None:
        winners = self.winners(batch)
        error, outcome = self.query.publish(batch, *winners)
        raise_if(error)
        assert outcome.count == 9 * len(winners)

    def winners(self, batch: int) -> list[tuple[int, str]]:
        return [
            (p, attempt) for (b, p, wins), attempt in self.attempts.items() if b == batch and wins
        ]

    # Asking

    def run(self, restart: Callable[[], None]) -> None:
        """Do all that is planned; ``restart`` brings the machine back after a crash."""
        for _ in range(TRY_COUNT_MAX * len(self.steps)):
            if self.place == len(self.steps):
                return
            try:
                self.steps[self.place]()
            except Crashed:
                restart()
            except (OSError, UncutError, StagingError) as error:
                self.after_error(error)
            else:
                self.place += 1
        raise AssertionError("the query never comes to its end")

    # Judging

    def check(self) -> None:
        """A power cut takes nothing of it; every row is in a log once, and nothing else is left."""
        self.engine.crash(LOSE)
        self.engine.start()
        self.engine.advance(2 * MINUTE)
        bodies: Counter[bytes] = Counter()
        for topic in ("t", "u"):
            bodies.update(self.engine.logged(topic).values())
        assert bodies == Counter(self.rows)
        # A power cut may take a segment that was never synced as a whole; that is told.
        reports = [record.text for record in self.engine.components.damage.records]
        assert all("a power cut may have taken" in text for text in reports), "a crash is no damage"
        check_rest(self.engine)


def raise_if(error: Exception | None) -> None:
    if error is not None:
        raise error


def check_rest(engine: Engine) -> None:
    """Nothing is left of stagings but the ledger."""
    staging = engine.components.staging
    staging.check()
    engine.check()
    assert staging.size == staging.pending_size == staging.staging_count == 0
    assert not staging.publications and not staging.published
    assert engine.files.list(engine.data.staging) == ["ledger"]
    assert all(not topic.log.holds for topic in map(engine.topic, engine.broker.topics))
    assert len(engine.components.deferred.table.files) == 0
    left = engine.files.list(engine.data.deferred)
    assert [name for name in left if not name.endswith(".corrupt")] == []


def play(
    plan: Callable[[Writer], None],
    crash_at: int,
    modes: list[str],
    again_after: int = 0,
    **options: Any,
) -> Writer:
    """What is planned with a crash at a step, and one more for each mode, so many steps later."""
    files = LossyFiles()
    engine = Engine(files, **options)
    writer = Writer(engine)
    plan(writer)
    files.crash_at = crash_at
    left = list(modes)

    def restart() -> None:
        while True:
            engine.crash(left.pop(0), seed=crash_at)
            files.crash_at = files.step_count + again_after if left else -1
            try:
                engine.start()
            except Crashed:
                continue
            return

    writer.run(restart)
    files.crash_at = -1
    return writer


def two_batches(writer: Writer) -> None:
    writer.plan(0)
    writer.plan(1)


def one_batch(writer: Writer) -> None:
    writer.plan(0)


def one_staging(writer: Writer) -> None:
    writer.plan_staging(0, 0)
    writer.plan_end(0)


def steps_of(plan: Callable[[Writer], None], **options: Any) -> range:
    begun = Engine(LossyFiles(), **options).files.step_count
    return range(begun, play(plan, -1, [], **options).engine.files.step_count + 1)


@pytest.mark.parametrize("sync_every", [1, 2500])
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_any_step_publishes_every_row_once(mode: str, sync_every: int) -> None:
    """R19, R16: staging, sealing, deciding, publishing; recovery; and the requests again."""
    plan = two_batches if mode in (KEEP, LOSE) else one_batch
    for crash_at in steps_of(plan, sync_every=sync_every):
        seed = crash_at if crash_at % 2 else 0
        writer = play(plan, crash_at, [mode], sync_every=sync_every, seed=seed)
        try:
            writer.check()
        except AssertionError as error:
            raise AssertionError(f"crash at {crash_at}") from error


@pytest.mark.parametrize(
    ("modes", "stride"), [([KILL, LOSE], 3), ([LOSE, KILL], 9), ([KILL, HOLES, PREFIX], 9)]
)
def test_crashes_in_a_row_publish_every_row_once(modes: list[str], stride: int) -> None:
    """R19: what a recovery relies on is durable before it goes on."""
    for crash_at in steps_of(one_staging):
        for again_after in range(crash_at % stride, 45, stride):
            writer = play(one_staging, crash_at, modes, again_after)
            try:
                writer.check()
            except AssertionError as error:
                raise AssertionError(f"crash at {crash_at}, then {again_after}") from error


# Errors of the disk


class Readers:
    """Consumers that finish what they get; which indexes each body had, over all lives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.indexes: dict[bytes, set[int]] = defaultdict(set)
        self.clients: list[Client] = []

    def attach(self) -> None:
        self.clients = [Client(self.engine, topic, "c", 100) for topic in ("t", "u")]
        self.engine.settle()

    def advance(self, duration_ns: int) -> None:
        self.engine.advance(duration_ns, self.take)

    def take(self) -> None:
        for client in self.clients:
            for received in client.take():
                self.indexes[received.body].add(received.index)
                client.finish(received.index)


class StubbornFiles(LossyFiles):
    """After a sync that failed, the next append fails too: what was written cannot be moved."""

    def sync(self, path: str) -> None:
        try:
            super().sync(path)
        except OSError:
            self.fail("append", errno.EIO)
            raise


def play_errors(
    files: LossyFiles, action: str, code: int, after: int, crash: bool, **options: Any
) -> tuple[Writer, Readers]:
    """One batch, an error on the way, time for the upkeep, maybe a crash, and the request again."""
    engine = Engine(files, **options)
    writer = Writer(engine)
    writer.plan(0)
    readers = Readers(engine)
    readers.attach()
    readers.advance(3 * SECOND)
    files.fail(action, code, after)

    def after_error(error: Exception) -> None:
        readers.advance(3 * SECOND)
        is_stuck = isinstance(error, StagingError) and error.code == "STAGING_STUCK"
        if crash or is_stuck:
            engine.crash(KILL)
            engine.start()
            readers.attach()

    writer.after_error = after_error
    writer.run(lambda: None)
    readers.advance(2 * MINUTE)
    return writer, readers


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("append", errno.ENOSPC),
        ("sync", errno.EIO),
        ("sync_folder", errno.EIO),
        ("uncut", errno.EIO),
        ("pread", errno.EIO),
        ("unlink", errno.EIO),
    ],
)
def test_an_error_anywhere_can_be_followed_by_the_request_again(
    action: str, code: int, crash: bool
) -> None:
    """R19, R8: also when segments and slots are finished and gone before the machine stops."""
    for after in range(60):
        files = LossyFiles()
        writer, readers = play_errors(files, action, code, after, crash, max_bytes_per_file=1)
        check_readers(writer, readers, after)
        if files.failures:
            assert after > 3, "the error never happened"
            return


@pytest.mark.parametrize("crash", [False, True])
def test_a_part_that_can_be_neither_synced_nor_moved_comes_once(crash: bool) -> None:
    """R19, R8: it is in the log, so it is shown to consumers, and synced before the answer."""
    for after in range(30):
        files = StubbornFiles()
        writer, readers = play_errors(files, "sync", errno.EIO, after, crash, sync_every=1)
        check_readers(writer, readers, after)
        if files.failures:
            assert after > 3, "the error never happened"
            return


def check_readers(writer: Writer, readers: Readers, after: int) -> None:
    """All rows came, and each with one index."""
    twice = {body: found for body, found in readers.indexes.items() if len(found) > 1}
    assert set(readers.indexes) == writer.rows, f"after {after}"
    assert twice == {}, f"after {after}"
    assert not writer.engine.components.staging.publications, f"after {after}"
