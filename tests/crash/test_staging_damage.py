"""Staged rows on a disk that damages, cuts and loses files: none is lost in silence (R19, R3).

Every byte of every file that holds staged rows or knows of them is flipped, every length is cut,
the file is emptied and removed, in each state of a batch.  Afterwards the batch is published with
all of its rows, or somebody is told: the driver by an error, an operator by a report.
"""

from __future__ import annotations

import copy
import errno
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from google_crc32c import value as crc32c

from penstock.errors import StagingError, StorageError
from penstock.storage.ledger import Decision, Winner
from penstock.storage.staging import VERSION, version_of
from tests.crash.lossy import KEEP, LOSE, LossyFiles
from tests.support.engine import SECOND, Engine
from tests.support.faults import Faults
from tests.support.staging import ATTEMPT, Query, deferred, plain

ROWS = [b"one", b"two", b"three", b"late"]
SILENT = ("STAGING_NOT_FOUND", "NOT_SEALED")


def staged(engine: Engine) -> None:
    """A batch that is sealed."""
    query = Query(engine)
    key = query.key()
    assert query.put(key, 0, "t", plain(*ROWS[:2])) is None
    assert query.put(key, 1, "u", plain(ROWS[2])) is None
    assert query.put(key, 2, "t", deferred((0, ROWS[3])), True) is None
    assert query.seal(key, 3, 4) is None


def decided(engine: Engine) -> None:
    """One whose winners are fixed."""
    staged(engine)
    winners = (Winner(engine.components.identity.uuid, 0, ATTEMPT, 4),)
    _, recorded, ticket = engine.components.staging.ledger.decide("q", Decision(0, winners))
    assert recorded and engine.done(ticket) is None


def begun(engine: Engine) -> None:
    """One that was being published when the disk failed: its intent is synced."""
    decided(engine)
    engine.files.faults.add("*/topics/*.log", errno.EIO, "append")
    error, _ = Query(engine).publish(0, (0, ATTEMPT))
    assert isinstance(error, OSError)
    engine.files.faults.heal()


STATES: dict[str, Callable[[Engine], None]] = {"staged": staged, "decided": decided, "begun": begun}


class Disk:
    """An nsqd in some state that has crashed, to be started any number of times."""

    def __init__(self, state: str, mode: str = KEEP) -> None:
        self.state = state
        self.engine = Engine(LossyFiles(), sync_every=1)
        STATES[state](self.engine)
        self.engine.crash(mode)
        self.files = self.engine.files

    def path(self, suffix: str) -> str:
        return path_of(self.engine, suffix)

    def start(self, change: Callable[[LossyFiles], None]) -> Engine:
        """Start on a disk that is changed so."""
        self.engine.files = copy.deepcopy(self.files)
        change(self.engine.files)
        self.engine.start()
        return self.engine


def path_of(engine: Engine, suffix: str) -> str:
    folder = engine.data.staging
    if suffix == "notes":
        return engine.data.staging_notes
    (name,) = (name for name in engine.files.list(folder) if name.endswith(suffix))
    return f"{folder}/{name}"


def changes(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """All that a disk may make of a file; None if it is gone."""
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        yield f"bit of byte {at}", bytes(flipped)
        yield f"cut at {at}", data[:at]
    yield "removed", None
    yield "zeros", bytes(len(data))


def all_rows(engine: Engine) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for topic in engine.broker.topics:
        found.update(engine.logged(topic).values())
    return found


def judge(engine: Engine, state: str, what: str) -> None:
    """The rows are published once, or the driver and an operator are told."""
    told = list(engine.components.damage.records)
    known = engine.components.staging.ledger.queries.get("q")
    if state != "staged" and not told:
        assert known is not None and known.decision is not None, f"{what}: a decision is gone"
    try:
        error, outcome = Query(engine).publish(0, (0, ATTEMPT))
    except StagingError as refused:
        error, outcome = refused, None
    engine.advance(10 * SECOND)
    told = told or engine.components.damage.records
    rows = all_rows(engine)
    if error is None:
        assert outcome is not None and outcome.count == 4, what
        assert set(rows) == set(ROWS), (what, rows)
    else:
        assert isinstance(error, StagingError) and error.code not in SILENT, (what, error)
        assert told, (what, error)
    if rows.total() > len(rows):
        assert any("ledger" in record.text for record in told), (what, rows)


def put(path: str, data: bytes | None) -> Callable[[LossyFiles], None]:
    return lambda files: files.unlink(path) if data is None else files.put(path, data)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("suffix", [".staging", "ledger", "notes"])
def test_no_damage_of_a_file_loses_acknowledged_rows_in_silence(state: str, suffix: str) -> None:
    disk = Disk(state)
    if suffix == "ledger" and state == "staged":
        return  # there is none yet
    path = disk.path(suffix)
    for what, changed in changes(disk.files.read(path)):
        judge(disk.start(put(path, changed)), state, f"{state}, {suffix}: {what}")


def test_a_header_or_seal_that_is_damaged_costs_no_row() -> None:
    """The notes know whose rows they are; the damaged bytes are kept for a person."""
    disk = Disk("decided")
    path = disk.path(".staging")
    data = disk.files.read(path)
    for at in (0, 9, 13, 30, 60, len(data) - 1):
        flipped = bytearray(data)
        flipped[at] ^= 4
        engine = disk.start(put(path, bytes(flipped)))
        (record,) = engine.components.damage.records
        assert "no row is lost" in record.text and record.messages == 0
        assert any(name.endswith(".corrupt") for name in engine.files.list(path.rpartition("/")[0]))
        error, outcome = Query(engine).publish(0, (0, ATTEMPT))
        assert error is None and outcome.count == 4
        assert all_rows(engine) == Counter(ROWS)


@pytest.mark.parametrize("noted", [False, True])
def test_a_damaged_staging_is_kept_aside_and_reported_once(noted: bool) -> None:
    disk = Disk("decided")
    path, notes = disk.path(".staging"), disk.path("notes")
    flipped = bytearray(disk.files.read(path))
    flipped[12 if not noted else 65] ^= 1  # its header; the head of its first part

    def change(files: LossyFiles) -> None:
        files.put(path, bytes(flipped))
        if not noted:
            files.unlink(notes)  # as a version without notes leaves it

    engine = disk.start(change)
    for _ in range(2):
        texts = [record.text for record in engine.components.damage.records]
        assert sum("kept as" in text for text in texts) == 1
        assert engine.files.read(f"{path}.corrupt") == bytes(flipped)
        assert not engine.files.exists(path)
        for _ in range(2):
            with pytest.raises(StagingError) as refused:
                Query(engine).publish(0, (0, ATTEMPT))
            assert refused.value.code == "STAGING_LOST"
        records = len(engine.components.damage.records)
        engine.crash(KEEP)
        engine.start()
        assert len(engine.components.damage.records) == records, "reported again"


def test_a_lost_staging_that_is_put_back_is_published() -> None:
    disk = Disk("begun")
    path = disk.path(".staging")
    good = disk.files.read(path)
    engine = disk.start(put(path, None))
    assert engine.components.staging.losses.lost
    for _ in range(2):
        engine.crash(KEEP)
        engine.files.put(path, good)
        engine.start()
        assert not engine.components.staging.losses.lost
    error, outcome = Query(engine).publish(0, (0, ATTEMPT))
    assert error is None and outcome.count == 4 and all_rows(engine) == Counter(ROWS)


def test_a_decided_staging_that_is_missing_is_reported_also_without_notes() -> None:
    disk = Disk("decided")
    path, notes = disk.path(".staging"), disk.path("notes")

    def change(files: LossyFiles) -> None:
        files.unlink(path)
        files.unlink(notes)

    engine = disk.start(change)
    (record,) = engine.components.damage.records
    assert "was decided for and is missing" in record.text
    with pytest.raises(StagingError, match="STAGING_LOST"):
        Query(engine).publish(0, (0, ATTEMPT))


@pytest.mark.parametrize("state", STATES)
def test_a_later_version_is_refused_untouched(state: str) -> None:
    disk = Disk(state)
    path = disk.path(".staging")
    later = bytearray(disk.files.read(path))
    later[12:14] = (VERSION + 1).to_bytes(2, "big")
    end = 60 + len("q")
    later[8:12] = crc32c(bytes(later[12:end])).to_bytes(4, "big")
    assert version_of(bytes(later)) == VERSION + 1
    before = {}

    def change(files: LossyFiles) -> None:
        files.put(path, bytes(later))
        before.update(contents(files, path.rpartition("/")[0]))

    with pytest.raises(StorageError, match=rf"{path}: written by a later version \(format 2\)"):
        disk.start(change)
    assert contents(disk.engine.files, path.rpartition("/")[0]) == before


def contents(files: LossyFiles, folder: str) -> dict[str, bytes]:
    return {name: files.read(f"{folder}/{name}") for name in files.list(folder)}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("suffix", [".staging", "ledger", "notes"])
def test_a_file_that_cannot_be_read_refuses_the_start_and_stays(suffix: str, code: int) -> None:
    disk = Disk("decided")
    path = disk.path(suffix)
    before = disk.files.read(path)

    def change(files: LossyFiles) -> None:
        files.faults = Faults()
        files.faults.add(path, code, "pread", "read", "size")

    with pytest.raises(StorageError, match=f"{path}: .*; nothing was removed"):
        disk.start(change)
    disk.engine.files.faults.heal()
    assert disk.engine.files.read(path) == before
    disk.engine.crash(KEEP)
    disk.engine.start()
    judge(disk.engine, "decided", "after the disk is back")
    assert not disk.engine.components.damage.records


def test_reads_that_fail_while_a_batch_is_published_show_in_health_and_are_tried_again() -> None:
    disk = Disk("decided")
    engine = disk.start(lambda files: None)
    engine.files.faults.add("*.staging", errno.EIO, "pread")
    error, _ = Query(engine).publish(0, (0, ATTEMPT))
    assert isinstance(error, OSError)
    assert engine.components.health.text.startswith("NOK - query=q: [Errno 5]")
    engine.advance(20 * SECOND)
    assert not engine.components.damage.records and not all_rows(engine)
    engine.files.faults.heal()
    engine.advance(10 * SECOND)
    assert engine.components.health.text == "OK" and all_rows(engine) == Counter(ROWS)


def test_a_seal_that_is_asked_for_again_drops_no_part_because_the_disk_fails() -> None:
    """A read error is no damage: the parts are not asked for again."""
    engine = Disk("staged").start(lambda files: None)
    engine.files.faults.add("*.staging", errno.EIO, "pread")
    assert isinstance(Query(engine).seal(Query(engine).key(), 3, 4), OSError)
    engine.files.faults.heal()
    assert Query(engine).seal(Query(engine).key(), 3, 4) is None
    assert Query(engine).publish(0, (0, ATTEMPT))[0] is None


def test_a_power_cut_before_the_seal_was_answered_is_no_damage() -> None:
    engine = Engine(LossyFiles(), sync_every=1)
    query = Query(engine)
    assert query.put(query.key(), 0, "t", plain(b"a")) is None
    engine.crash(LOSE)
    engine.start()
    assert not engine.components.damage.records and not engine.components.staging.staging_count


# What an admin does


def lost_engine(state: str) -> Engine:
    disk = Disk(state)
    return disk.start(put(disk.path(".staging"), None))


@pytest.mark.parametrize("state", ["decided", "begun"])
def test_a_batch_is_published_without_what_an_admin_gives_up(state: str) -> None:
    engine = lost_engine(state)
    query, other = Query(engine), "f" * 32
    losses = engine.components.staging.losses
    if state == "decided":
        query.stage(query.key(0, 1, other), "t", [b"other"])
    winners = [(0, ATTEMPT), (1, other)] if state == "decided" else [(0, ATTEMPT)]
    for _ in range(2):
        try:
            error, _ = query.publish(0, *winners)
        except StagingError as refused:
            error = refused
        assert isinstance(error, StagingError) and error.code == "STAGING_LOST"
    assert engine.done(losses.give_up("q", 0, [(0, ATTEMPT)])) is None
    engine.crash(KEEP)
    engine.start()
    error, outcome = query.publish(0, *winners)
    assert error is None and outcome.count == len(winners) - 1
    assert query.publish(0, *winners)[1].already
    engine.advance(10 * SECOND)
    assert set(all_rows(engine)) <= {b"other", b"late"}
    assert not engine.components.staging.losses.lost and not engine.components.staging.notes.sealed
    query.stage(query.key(1), "t", [b"next"])
    assert query.publish(1, (0, ATTEMPT))[0] is None


@pytest.mark.parametrize("state", STATES)
def test_a_query_that_is_reset_begins_anew(state: str) -> None:
    engine = lost_engine(state)
    staging = engine.components.staging
    count, ticket = staging.losses.reset("q", None)
    assert count == 0 and engine.done(ticket) is None
    for _ in range(2):
        assert "q" not in engine.components.staging.ledger.queries
        assert (
            not engine.components.staging.publications and not engine.components.staging.losses.lost
        )
        engine.crash(KEEP)
        engine.start()
    assert all(not topic.log.holds for topic in map(engine.topic, engine.broker.topics))
    query = Query(engine)
    query.stage(query.key(0, 0, "f" * 32), "t", [b"new"])
    error, outcome = query.publish(0, (0, "f" * 32))
    assert error is None and not outcome.already


def test_a_reset_may_tell_what_is_published() -> None:
    engine = Disk("decided").start(lambda files: None)
    count, ticket = engine.components.staging.losses.reset("q", 7)
    assert count == 1 and engine.done(ticket) is None
    query = Query(engine)
    for _ in range(2):
        for batch in (3, 7):
            assert query.publish(batch, (0, ATTEMPT))[1].already
        with pytest.raises(StagingError, match="BATCH_PUBLISHED"):
            query.put(query.key(7), 0, "t", plain(b"a"))
        engine.crash(KEEP)
        engine.start()
    query.stage(query.key(8), "t", [b"next"])
    assert query.publish(8, (0, ATTEMPT))[0] is None
