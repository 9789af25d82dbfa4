"""Stagings in the engine: seals, limits, expiry, topics that go, disks that fill (R19)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.engine.disk import Lane
from penstock.engine.staging import area
from penstock.engine.staging.ledger import KNOWN_FOR_NS
from penstock.errors import StagingError
from penstock.storage.ledger import Coordinator, Decision, Winner
from penstock.storage.staging import Key
from tests.crash.lossy import KEEP, LossyFiles
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine
from tests.support.staging import ATTEMPT, Query, deferred, plain

OTHER = "f" * 32
NODE = "00000000-0000-0000-0000-000000000001"


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(StagingError) as caught:
        yield
    assert caught.value.code == code, caught.value


def started(**options: int) -> tuple[Engine, Query]:
    engine = Engine(**options)
    return engine, Query(engine)


def bodies(engine: Engine, topic: str) -> list[bytes]:
    return list(engine.logged(topic).values())


# Parts and seals


def test_a_part_that_comes_again_is_the_same_or_refused() -> None:
    engine, query = started()
    key = query.key()
    for _ in range(2):
        assert query.put(key, 0, "t", plain(b"a")) is None
    for topic, body, late in (
        ("t", plain(b"b"), False),
        ("u", plain(b"a"), False),
        ("t", deferred((5, b"a")), True),
    ):
        with refused("PART_DIFFERS"):
            query.put(key, 0, topic, body, late)
    engine.components.staging.check()


def test_parts_side_by_side_are_one_write_each_and_all_answered() -> None:
    engine, query = started()
    staging = engine.components.staging
    tickets = [
        staging.put_part(query.key(), part, "t", False, plain(b"%d" % part), 1)
        for part in (3, 0, 2, 1)
    ]
    again = staging.put_part(query.key(), 3, "t", False, plain(b"3"), 1)
    with refused("PART_DIFFERS"):
        staging.put_part(query.key(), 3, "t", False, plain(b"4"), 1)
    with refused("PARTS_COMING"):
        staging.seal(query.key(), 4, 4)
    engine.settle()
    assert all(ticket.done and ticket.error is None for ticket in (*tickets, again))
    assert query.seal(query.key(), 4, 4) is None
    assert query.publish(0, (0, ATTEMPT))[0] is None
    assert bodies(engine, "t") == [b"0", b"1", b"2", b"3"]


def test_a_seal_must_fit_what_is_there() -> None:
    engine, query = started()
    key = query.key()
    with refused("STAGING_NOT_FOUND"):
        query.seal(key, 1, 1)
    query.put(key, 0, "t", plain(b"a"))
    query.put(key, 2, "t", plain(b"c"))
    with refused("MISSING_PARTS"):
        query.seal(key, 3, 3)
    query.put(key, 1, "t", plain(b"b"))
    with refused("PARTS_DIFFER"):
        query.seal(key, 2, 2)
    with refused("COUNT_DIFFERS"):
        query.seal(key, 3, 4)
    assert query.seal(key, 3, 3) is None
    with refused("SEALED"):
        query.seal(key, 3, 4)
    with refused("SEALED"):
        query.put(key, 3, "t", plain(b"d"))
    assert query.put(key, 0, "t", plain(b"a")) is None, "the same part again is no harm"
    engine.components.staging.check()


def test_an_empty_staging_is_sealed_and_published() -> None:
    """A task without rows."""
    engine, query = started()
    assert query.seal(query.key(), 0, 0) is None
    error, outcome = query.publish(0, (0, ATTEMPT))
    assert error is None and (outcome.count, outcome.already) == (0, False)
    assert query.publish(1)[1].count == 0, "a batch without winners here"
    assert engine.components.staging.staging_count == 0


def test_an_unsealed_staging_goes_on_after_a_restart() -> None:
    """R19: the task need not begin anew when nsqd was killed."""
    engine, query = started()
    assert query.put(query.key(), 0, "t", plain(b"a")) is None
    engine.crash(KEEP)
    engine.start()
    assert query.put(query.key(), 1, "t", plain(b"b")) is None
    assert query.put(query.key(), 0, "t", plain(b"a")) is None
    assert query.seal(query.key(), 2, 2) is None
    assert query.publish(0, (0, ATTEMPT))[0] is None
    assert bodies(engine, "t") == [b"a", b"b"]


# Publishing


def test_only_sealed_stagings_that_are_here_are_published() -> None:
    _, query = started()
    with refused("STAGING_NOT_FOUND"):
        query.publish(0, (0, ATTEMPT))
    query.put(query.key(), 0, "t", plain(b"a"))
    with refused("NOT_SEALED"):
        query.publish(0, (0, ATTEMPT))


def test_publishes_of_one_batch_at_once_are_one() -> None:
    """R19."""
    engine, query = started()
    query.stage(query.key(), "t", [b"a"])
    staging = engine.components.staging
    tickets = [staging.publish("q", 0, [(0, ATTEMPT)])[0] for _ in range(3)]
    with refused("WINNERS_DIFFER"):
        staging.publish("q", 0, [(1, ATTEMPT)])
    with refused("BATCH_OPEN"):
        staging.publish("q", 1, [])
    engine.settle()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert bodies(engine, "t") == [b"a"]


def test_many_publications_take_turns() -> None:
    """R13: only so many at once are in memory."""
    engine = Engine(seed=3)
    queries = [Query(engine, f"q{number}") for number in range(20)]
    for query in queries:
        query.stage(query.key(), "t", [query.name.encode()])
    staging = engine.components.staging
    tickets = [staging.publish(query.name, 0, [(0, ATTEMPT)])[0] for query in queries]
    running = [publication.running for publication in staging.publications.values()]
    assert sum(running) == area.RUNNING_COUNT_MAX
    engine.settle()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert sorted(bodies(engine, "t")) == sorted(query.name.encode() for query in queries)


def test_a_large_part_lets_publishes_pass_between() -> None:
    """R9: it is written elsewhere, and what is published meanwhile goes before the next one."""
    engine, query = started()
    engine.publish("t", b"opens the file")
    engine.advance(10 * SECOND)
    row = bytes(100_000)
    query.stage(query.key(), "t", [row] * 3, [row] * 3)
    ticket, _ = engine.components.staging.publish("q", 0, [(0, ATTEMPT)])
    topic = engine.topic("t")
    published = []
    while not ticket.done:
        if engine.turns.calls:
            engine.turns.calls.popleft()()
        elif engine.disk.works:
            engine.disk.step()
            published.append(topic.publish([b"between"]))
    engine.settle()
    found = bodies(engine, "t")
    places = [place for place, body in enumerate(found) if body == row]
    assert len(places) == 6
    assert b"between" in found[places[0] : places[-1]]
    assert places[2] - places[0] == 2, "a part is one batch"


def test_consumed_segments_go_once_the_batch_is_published() -> None:
    """R5: the hold ends."""
    engine, query = started(max_bytes_per_file=1)
    client = Client(engine, "t", "c", 100)
    query.stage(query.key(), "t", [b"a"], [b"b"])
    assert query.publish(0, (0, ATTEMPT))[0] is None
    for received in client.take():
        client.finish(received.index)
    engine.publish("t", b"next")
    engine.advance(5 * SECOND)
    assert engine.topic("t").log.count == 1


# Topics that go


def test_a_topic_deleted_before_is_made_anew() -> None:
    """R19."""
    engine, query = started()
    engine.publish("t", b"old")
    query.stage(query.key(), "t", [b"a"])
    engine.done(engine.broker.delete_topic("t"))
    assert query.publish(0, (0, ATTEMPT))[0] is None
    assert bodies(engine, "t") == [b"a"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_deleted_after_the_intent_takes_its_rows_along(crash: bool) -> None:
    """R17, R19: what is bound for an instance never turns up in another one."""
    files = LossyFiles()
    engine = Engine(files)
    query = Query(engine)
    for part, topic in enumerate(("t", "u", "t", "u")):
        query.put(query.key(), part, topic, plain(b"%d" % part))
    query.seal(query.key(), 4, 4)
    engine.publish("t", b"x")
    engine.publish("u", b"x")
    files.fail("append", errno.EIO, 3)  # the intent, a note of it, a part, and then
    error, _ = query.publish(0, (0, ATTEMPT))
    assert isinstance(error, OSError)
    engine.done(engine.broker.delete_topic("t"))
    engine.publish("t", b"new")
    if crash:
        engine.crash(KEEP)
        engine.start()
    error, outcome = query.publish(0, (0, ATTEMPT))
    assert error is None and outcome.count == 4
    assert bodies(engine, "t") == [b"new"]
    assert bodies(engine, "u") == [b"x", b"1", b"3"]
    assert engine.components.staging.void_count == 2


# Limits and errors


def test_a_long_staging_is_synced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: dirty bytes are bounded; a part's answer waits for the sync."""
    monkeypatch.setattr(area, "DIRTY_SIZE_MAX", 1000)
    engine, query = started()
    for part in range(10):
        assert query.put(query.key(), part, "t", plain(bytes(300))) is None
    assert engine.files.trace.count(f"sync {engine.components.staging.number:016x}.staging") == 3
    engine.files.fail("sync", errno.EIO)
    assert query.put(query.key(), 10, "t", plain(bytes(300))) is None
    assert isinstance(query.put(query.key(), 11, "t", plain(bytes(300))), OSError)
    with refused("STAGING_FAILED"):
        query.put(query.key(), 12, "t", plain(b"a"))
    with refused("STAGING_FAILED"):
        query.seal(query.key(), 11, 11)


def test_bytes_parts_and_stagings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, query = started(max_staging_bytes=500)
    staging = engine.components.staging
    assert query.put(query.key(), 0, "t", plain(bytes(300))) is None
    with refused("STAGING_FULL"):
        query.put(query.key(), 1, "t", plain(bytes(200)))
    assert staging.abort("q", 0, [(0, ATTEMPT)]) == 1
    engine.settle()
    assert query.put(query.key(), 1, "t", plain(bytes(200))) is None
    monkeypatch.setattr(area, "PART_COUNT_MAX", 1)
    with refused("STAGING_FULL"):
        query.put(query.key(), 2, "t", plain(b"a"))
    monkeypatch.setattr(area, "PART_COUNT_MAX", 100)
    monkeypatch.setattr(area, "STAGING_COUNT_MAX", 1)
    with refused("STAGING_FULL"):
        query.put(query.key(1), 0, "t", plain(b"a"))
    monkeypatch.setattr(area, "PENDING_SIZE_MAX", 10)
    staging.put_part(query.key(), 3, "t", False, plain(b"a"), 1)
    with refused("STAGING_BUSY"):
        staging.put_part(query.key(), 4, "t", False, plain(b"a"), 1)
    engine.settle()
    staging.check()


def test_untouched_stagings_expire_but_never_decided_ones() -> None:
    """R19: also those that an earlier process left."""
    engine, query = started(staging_timeout_ns=HOUR)
    for partition in range(3):
        query.stage(query.key(0, partition), "t", [b"x"])
    engine.advance(40 * MINUTE)
    engine.crash(KEEP)
    engine.start()
    node = engine.components.identity.uuid
    told = Decision(0, (Winner(node, 0, ATTEMPT, 1),))
    engine.done(engine.components.staging.ledger.decide("q", told)[2])
    engine.advance(40 * MINUTE)
    assert engine.components.staging.staging_count == 3, "a start counts as a visit"
    assert query.put(query.key(0, 2), 0, "t", plain(b"x")) is None
    engine.advance(30 * MINUTE)
    left = [staged.key.partition for staged in engine.components.staging.stagings()]
    assert left == [0, 2], "the decided one, and the one that was touched"
    assert engine.components.staging.expired_count == 1
    engine.advance(40 * MINUTE)
    assert engine.components.staging.staging_count == 1
    assert len(engine.files.list(engine.data.staging)) == 2
    assert query.publish(0, (0, ATTEMPT))[0] is None


def test_queries_are_forgotten_after_a_month() -> None:
    engine, query = started()
    query.stage(query.key(), "t", [b"x"])
    assert query.publish(0, (0, ATTEMPT))[0] is None
    ledger = engine.components.staging.ledger
    engine.done(ledger.coordinate("other", Coordinator(NODE, ""))[1])
    engine.clock.step_wall(KNOWN_FOR_NS - MINUTE)
    assert query.publish(0, (0, ATTEMPT))[1].already
    engine.advance(2 * MINUTE)
    assert ledger.queries == {}
    engine.crash(KEEP)
    engine.start()
    assert engine.components.staging.ledger.queries == {}


def test_a_full_disk_refuses_parts_and_the_rest_goes_on() -> None:
    """R8: 507 while it is full; the same requests work when there is room."""
    files = LossyFiles()
    engine = Engine(files)
    query = Query(engine)
    query.stage(query.key(), "t", [b"a"] * 100)
    files.space = files._used(files._root) + 100
    error = query.put(query.key(0, 1), 0, "t", plain(bytes(1000)))
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    error, _ = query.publish(0, (0, ATTEMPT))
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    staging = engine.components.staging
    staging.check()
    assert staging.staging_count == 1, "nothing is left of what could not be written"
    files.space = 1 << 60
    engine.advance(3 * SECOND)
    error, outcome = query.publish(0, (0, ATTEMPT))
    assert error is None and outcome.count == 100
    assert len(bodies(engine, "t")) == 100


def test_while_the_reserve_is_freed_nothing_is_staged() -> None:
    """R8."""
    engine, query = started()
    engine.components.health.reserve.free()
    with refused("DISK_FULL"):
        query.put(query.key(), 0, "t", plain(b"a"))


def test_a_publication_that_failed_completes_by_itself() -> None:
    """R19: it was decided; nobody need ask again."""
    files = LossyFiles()
    engine = Engine(files)
    query = Query(engine)
    query.stage(query.key(), "t", [b"a"], [b"b"])
    engine.publish("t", b"x")
    files.fail("append", errno.EIO, 3)  # the intent, a note of it, a part, and then
    assert isinstance(query.publish(0, (0, ATTEMPT))[0], OSError)
    engine.advance(10 * SECOND)
    assert bodies(engine, "t") == [b"x", b"a", b"b"]
    assert query.publish(0, (0, ATTEMPT))[1].already


def test_an_exit_in_the_middle_is_completed_by_the_next_start() -> None:
    """R19."""
    engine, query = started()
    parts = [[b"%d" % part] for part in range(100)]
    query.stage(query.key(), "t", *parts)
    ticket, _ = engine.components.staging.publish("q", 0, [(0, ATTEMPT)])
    while not (engine.broker.topics.get("t") and engine.topic("t").log.count):
        engine.turns.calls.popleft()() if engine.turns.calls else engine.disk.step()
    engine.exit()
    assert isinstance(ticket.error, StagingError) and ticket.error.code == "EXITING"
    with refused("EXITING"):
        query.put(query.key(1), 0, "t", plain(b"a"))
    engine.start()
    assert engine.components.staging.recovered.done
    assert bodies(engine, "t") == [part[0] for part in parts]
    assert query.publish(0, (0, ATTEMPT))[1].already


def test_discarding_a_staging_answers_those_who_wait_for_it() -> None:
    engine, query = started()
    staging = engine.components.staging
    tickets = [
        staging.put_part(query.key(), part, "t", False, plain(b"%d" % part), 1) for part in (0, 1)
    ]
    assert staging.abort("q", 0, [(0, ATTEMPT)]) == 1
    engine.settle()
    assert all(ticket.done for ticket in tickets)
    assert tickets[1].error is not None
    staging.check()
    assert engine.files.list(engine.data.staging) == []


def test_a_corrupt_part_holds_the_batch_back() -> None:
    """R3: rows that were sealed and are damaged are never passed over in silence."""
    files = LossyFiles()
    engine = Engine(files)
    query = Query(engine)
    query.stage(query.key(), "t", [b"good"], [b"damaged"])
    (name,) = (n for n in files.list(engine.data.staging) if n.endswith(".staging"))

    def damage(data: bytearray) -> None:
        data[data.index(b"damaged")] ^= 1

    files.edit(f"{engine.data.staging}/{name}", damage)
    for _ in range(2):
        error, _ = query.publish(0, (0, ATTEMPT))
        assert isinstance(error, StagingError) and error.code == "STAGING_CORRUPT"
    assert engine.components.staging.publications


def test_a_deferred_topic_emptied_after_the_publish_is_empty() -> None:
    """R17: a publication's rows are accepted at its intent."""
    engine, query = started()
    Client(engine, "t", "c").close()
    due_ns = engine.clock.wall_ns() + MINUTE
    query.put(query.key(), 0, "t", deferred((due_ns, b"a"), (0, b"b")), True)
    query.seal(query.key(), 1, 2)
    assert query.publish(0, (0, ATTEMPT))[0] is None
    assert engine.topic("t").deferred_pending(0) >= 1
    assert engine.done(engine.topic("t").empty()) is None
    engine.advance(2 * MINUTE)
    assert b"a" not in bodies(engine, "t")


# The lane


def test_a_lane_leaves_the_disk_to_others() -> None:
    """R9."""
    submitted: list[int] = []
    done: list[int] = []

    class Slow:
        def __init__(self) -> None:
            self.ends: list[object] = []

        def submit(self, work: object, end: object) -> None:
            submitted.append(work())  # type: ignore[operator]
            self.ends.append(end)

    slow = Slow()
    lane = Lane(slow, 2)  # type: ignore[arg-type]
    for number in range(4):
        lane.submit(lambda n=number: n, lambda result, error: done.append(result))  # type: ignore[misc]
    assert submitted == [0, 1]
    slow.ends[1](1, None)  # type: ignore[operator]
    assert (submitted, done) == ([0, 1, 2], [1])


def test_keys_tell_stagings_apart() -> None:
    engine, query = started()
    for key in (
        Key("q", 0, 0, ATTEMPT),
        Key("p", 0, 0, ATTEMPT),
        Key("q", 1, 0, ATTEMPT),
        Key("q", 0, 1, ATTEMPT),
        Key("q", 0, 0, OTHER),
    ):
        assert query.put(key, 0, "t", plain(repr(key).encode())) is None
    assert engine.components.staging.staging_count == 5
    engine.advance(MS)
    engine.components.staging.check()
