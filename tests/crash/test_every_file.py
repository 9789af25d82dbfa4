"""Every kind of file of a data path, damaged in every way, and failing in every way.

A data path is filled with everything there is, synced, and the machine stopped.  Then one file is
damaged, cut, emptied, removed or given a later version, and nsqd starts again.  What it
acknowledged is there, or its loss is reported; nothing else is lost.  A start that is refused names
the file, and changes nothing: with the file put back, everything is there.

The second half lets calls fail, kind by kind, while the broker works.
"""

from __future__ import annotations

import copy
import errno
import fnmatch
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from google_crc32c import value as crc32c

from penstock.engine.pull.channel import PullChannel
from penstock.errors import PenstockError, StorageError
from penstock.storage.ledger import Decision, Winner
from tests.crash.lossy import KEEP, LOSE, LossyFiles
from tests.support.engine import HOUR, MINUTE, SECOND, Client, Engine
from tests.support.faults import READS, WRITES
from tests.support.staging import ATTEMPT, Query, plain

SEGMENT_SIZE = 3_000
OPTIONS = {"max_bytes_per_file": SEGMENT_SIZE}

# What nsqd may have of every kind, by the pattern of its path.
KINDS = {
    "segment": "*/topics/a~*/*.log",
    "last segment": "*/topics/[bd]~*/*.log",
    "side file": "*/topics/a~*/*.side",
    "journal": "*/topics/*/journal",
    "slot": "*/deferred/*.slot",
    "fired": "*/deferred/*.fired",
    "deferred.counts": "*/penstock/deferred.counts",
    "staging": "*/staging/*.staging",
    "ledger": "*/staging/ledger",
    "nsqd.dat": "*/nsqd.dat",
    "staging.notes": "*/penstock/staging.notes",
    "node.json": "*node.json",
    "damage.json": "*/penstock/damage.json",
    "patterns.json": "*patterns.json",
    "drain.json": "*drain.json",
    "reserve": "*/penstock/reserve",
}
OLD_DAMAGE = "found long ago"
PATTERN = "1" * 32
IDENTITY = "1f" * 16


@dataclass(frozen=True)
class Promised:
    """Bodies that were acknowledged and not finished, by where they must be."""

    channels: dict[tuple[str, str], frozenset[bytes]]
    deferred: frozenset[bytes]
    staged: frozenset[bytes]


def fill(engine: Engine) -> Promised:
    """Some of everything: full and stray segments, deferred and fired, staged and decided."""
    _, kept_pattern, _ = engine.components.patterns.register("p", PATTERN, "me", ("p*",), ())
    assert engine.done(kept_pattern) is None
    first = Client(engine, "a", "x", ready_count=500)
    Client(engine, "a", "y", ready_count=500, msg_timeout_ns=HOUR).ready(0)
    Client(engine, "b", "z", ready_count=0)
    bodies = [b"a%03d" % number for number in range(120)]
    for body in bodies:
        assert engine.publish("a", body) is None
    taken = first.take()
    kept = {bodies[3], bodies[40]}
    for received in taken:
        if received.body not in kept:
            assert first.finish(received.index) == 0
    second = Client(engine, "a", "y", ready_count=500)
    engine.settle()
    for received in second.take():
        if received.body not in kept:
            assert second.finish(received.index) == 0
    engine.advance(12 * SECOND)  # stragglers move, segments go
    for number in range(12):
        assert engine.publish("b", b"b%03d" % number) is None
    read, ticket, _ = engine.components.pulls.open(
        engine.topic("b"), "read", engine.topic("b").log.first
    )
    assert engine.done(ticket) is None
    read.bind(IDENTITY, "pipeline archive")
    more = [b"c%03d" % number for number in range(60)]
    for client in (first, second):
        client.ready(0)
    for body in more:
        assert engine.publish("a", body) is None
    fired = [b"f%d" % number for number in range(3)]
    for body in fired:
        assert engine.defer("d", 2 * SECOND, body) is None
    deferred = [b"d%03d" % number for number in range(20)]
    for number, body in enumerate(deferred):
        assert engine.defer("d", (10 * MINUTE, 3 * HOUR)[number % 2], body) is None
    Client(engine, "d", "w", ready_count=0)
    engine.advance(4 * SECOND)
    query = Query(engine)
    query.stage(query.key(), "s", [b"s0", b"s1"], [b"s2"])
    winners = (Winner(engine.components.identity.uuid, 0, ATTEMPT, 3),)
    _, recorded, ticket = engine.components.staging.ledger.decide("q", Decision(0, winners))
    assert recorded and engine.done(ticket) is None
    engine.components.damage.report("log", OLD_DAMAGE, topic="a")
    assert engine.done(engine.components.drain.begin()) is None
    engine.advance(8 * SECOND)
    left = frozenset(kept | set(more))
    channels = {
        ("a", "x"): left,
        ("a", "y"): left,
        ("b", "z"): frozenset(b"b%03d" % number for number in range(12)),
        ("d", "w"): frozenset(fired),
    }
    return Promised(channels, frozenset(deferred), frozenset([b"s0", b"s1", b"s2"]))


@cache
def template() -> tuple[LossyFiles, Promised, int]:
    files = LossyFiles()
    engine = Engine(files, **OPTIONS)
    promised = fill(engine)
    wall_ns = engine.clock.wall_ns()
    engine.crash(LOSE)
    return files, promised, wall_ns


def paths(files: LossyFiles, folder: str = "/data") -> Iterator[str]:
    for name in files.list(folder):
        path = f"{folder}/{name}"
        if files.is_folder(path):
            yield from paths(files, path)
        else:
            yield path


def found_in(engine: Engine, promised: Promised) -> tuple[set[bytes], set[bytes], set[bytes]]:
    """What is missing of each: in channels, of deferred messages, of staged rows."""
    missing: set[bytes] = set()
    for (topic, channel), bodies in promised.channels.items():
        held = engine.broker.topics.get(topic)
        if held is None or channel not in held.channels:
            missing |= bodies
        else:
            missing |= bodies - set(engine.unfinished(topic, channel))
    clients = [Client(engine, "d", "w", 500), Client(engine, "s", "v", 500)]
    try:
        error, _ = Query(engine).publish(0, (0, ATTEMPT))
    except PenstockError as refusal:
        error = refusal  # the query is told that its rows are lost
    engine.advance(SECOND)
    engine.sleep(4 * HOUR)
    engine.advance(3 * SECOND)
    bodies = {received.body for client in clients for received in client.take()}
    staged = set(promised.staged) - bodies if error is None else set(promised.staged)
    return missing, set(promised.deferred) - bodies, staged


def start(files: LossyFiles) -> Engine:
    return Engine.of(files, template()[2], **OPTIONS)


def test_the_data_path_has_a_file_of_every_kind() -> None:
    files, _, _ = template()
    there = list(paths(files))
    for kind, pattern in KINDS.items():
        assert any(fnmatch.fnmatchcase(path, pattern) for path in there), (kind, there)
    known = [path for path in there if any(fnmatch.fnmatchcase(path, p) for p in KINDS.values())]
    rest = [path for path in there if path not in known]
    assert not rest, f"no kind for {rest}"


def test_undamaged_everything_is_there_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    files, promised, _ = template()
    caplog.clear()  # of what filling it may have said
    with caplog.at_level(logging.WARNING):
        engine = start(copy.deepcopy(files))
    assert [record.getMessage() for record in caplog.records] == []
    assert found_in(engine, promised) == (set(), set(), set())
    assert len(engine.components.damage.records) == 1


def flip(place: float) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        if data:
            data[min(len(data) - 1, int(len(data) * place))] ^= 0x10

    return change


def cut(place: float) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        del data[int(len(data) * place) :]

    return change


def zero(place: float) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        at = int(len(data) * place)
        data[at:] = bytes(len(data) - at)

    return change


WAYS: dict[str, Callable[[bytearray], None]] = {
    **{f"bit {place}": flip(place) for place in (0.0, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)},
    **{f"cut {place}": cut(place) for place in (0.0, 0.05, 0.3, 0.6, 0.9)},
    **{f"zeros {place}": zero(place) for place in (0.0, 0.5, 0.9)},
}


def damaged(
    kind: str, damage: Callable[[LossyFiles, str], None]
) -> Iterator[tuple[str, LossyFiles]]:
    files, _, _ = template()
    for path in paths(files):
        if fnmatch.fnmatchcase(path, KINDS[kind]):
            fresh = copy.deepcopy(files)
            damage(fresh, path)
            yield path, fresh


def judge(path: str, files: LossyFiles, caplog: pytest.LogCaptureFixture) -> None:
    """Start on damaged files: everything is there, or reported, or the start is refused."""
    _, promised, _ = template()
    before = files.contents()
    caplog.clear()
    try:
        engine = start(files)
    except (PenstockError, OSError) as error:
        name = path.rpartition("/")[2]
        assert name in str(error), f"refused without naming {name}: {error}"
        assert lost_names(before, files) == set(), "a refused start removes nothing"
        return
    pattern_lost = not len(engine.components.patterns)
    read = engine.topic("b").channels["read"]
    assert isinstance(read, PullChannel) and not read.admits(None), f"{path}: not bound"
    assert read.admits(IDENTITY), f"{path}: its reader is shut out"
    missing = found_in(engine, promised)
    reports = [r for r in engine.components.damage.records if r.text != OLD_DAMAGE]
    assert reports or not pattern_lost, f"{path}: a pattern is lost and not reported"
    if "patterns.json" in path:
        assert reports and not pattern_lost, f"{path}: the other copy tells"
    assert engine.components.drain.draining, f"{path}: the other copy tells"
    if "drain.json" in path:
        assert reports, f"{path}: not reported"
    if any(missing):
        assert reports, f"{path}: {missing} is missing and not reported"
        errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert errors, f"{path}: {missing} is missing and not in the log"
    assert engine.components.health.problem is None, engine.components.health.text
    # Of other files nothing is lost.
    channels, deferred, staged = missing
    allowed = channels_of(path)
    if allowed is not None:
        for (topic, _), bodies in promised.channels.items():
            assert topic == allowed or not channels & bodies, f"{path}: lost in {topic}"
    if "/deferred/" not in path:
        assert not deferred, f"{path}: deferred messages are lost"
    if "/staging/" not in path:
        assert not staged, f"{path}: staged rows are lost"


def channels_of(path: str) -> str | None:
    """The only topic that may suffer."""
    for topic in "abds":
        if f"/topics/{topic}~" in path:
            return topic
    return ""


def lost_names(before: dict[str, bytes], files: LossyFiles) -> set[str]:
    after = files.contents()
    return {path for path in before if path not in after and not path.endswith((".tmp", ".new"))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_costs_at_most_what_is_in_it_and_is_reported(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for change in WAYS.values():
        for path, files in damaged(kind, lambda f, p, change=change: f.edit(p, change)):
            judge(path, files, caplog)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_reported(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    for path, files in damaged(kind, lambda f, p: f.unlink(p)):
        judge(path, files, caplog)


# Journal, ledger and notes are records without a version, those of unknown kinds are skipped;
# nsqd.dat is NSQ's; the other two hold nothing that a start reads a version of.
WITHOUT_VERSION = {"journal", "ledger", "staging.notes", "nsqd.dat", "fired", "reserve"}
HEADER_SIZE_MAX = 200


def give_later_version(data: bytearray) -> None:
    """What a later version would write: another number, and a checksum that is right."""
    if data.startswith(b"{"):
        data[:] = json.dumps(json.loads(data) | {"format": 2}).encode()
        return
    checksum = int.from_bytes(data[8:12], "big")
    ends = [end for end in range(14, HEADER_SIZE_MAX) if crc32c(bytes(data[12:end])) == checksum]
    assert len(ends) == 1 and data[12:14] == b"\0\1"
    data[13] = 2
    data[8:12] = crc32c(bytes(data[12 : ends[0]])).to_bytes(4, "big")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT_VERSION])
def test_a_file_of_a_later_version_refuses_the_start_and_nothing_changes(kind: str) -> None:
    """Of any file: whoever goes back to the later version finds all as it was."""
    for path, files in damaged(kind, lambda f, p: f.edit(p, give_later_version)):
        before = files.contents()
        name = path.rpartition("/")[2]
        with pytest.raises(StorageError, match=rf"{name}: written by a later .*\(format 2\)"):
            start(files)
        changed = {p for p, data in files.contents().items() if before.get(p) != data}
        assert changed | (before.keys() - files.contents().keys()) == set()


CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)
FAILING = {"reads": READS, "writes": WRITES}


@dataclass
class Load:
    """Work of every kind, and what of it was acknowledged."""

    engine: Engine
    number: int = 0

    def __post_init__(self) -> None:
        self.acked: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.staged: list[tuple[int, frozenset[bytes]]] = []
        self.clients = [Client(self.engine, topic, "load", 0) for topic in ("a", "b", "n")]
        self.engine.settle()

    def step(self) -> None:
        """Publish, publish to a new topic, defer, stage, consume."""
        engine = self.engine
        self.number += 1
        for topic in ("a", "b", "n"):
            body = b"%s load %d" % (topic.encode(), self.number)
            if engine.publish(topic, body) is None:
                self.acked.add(body)
        body = b"deferred load %d" % self.number
        if engine.defer("n", 30 * SECOND, body) is None:
            self.acked.add(body)
        for client in self.clients[:2]:
            client.ready(1)
            engine.settle()
            client.ready(0)
            for received in client.take():
                if client.finish(received.index) == 0:
                    self.finished.add(received.body)
        self.stage()

    def stage(self) -> None:
        query = Query(self.engine, f"q{self.number}")
        body = b"staged load %d" % self.number
        try:
            failed = query.put(query.key(), 0, "n", plain(body)) or query.seal(query.key(), 1, 1)
            if failed is None and query.publish(0, (0, ATTEMPT))[0] is None:
                self.acked.add(body)
        except (PenstockError, OSError):
            return  # refused: nothing is promised

    def lost(self, engine: Engine) -> set[bytes]:
        """What was acknowledged and is neither finished nor there."""
        clients = [Client(engine, topic, "load", 2500) for topic in ("a", "b", "n")]
        engine.advance(2 * SECOND)
        engine.sleep(MINUTE)
        engine.advance(3 * SECOND)
        there = {received.body for client in clients for received in client.take()}
        return self.acked - self.finished - there


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("group", FAILING)
@pytest.mark.parametrize("kind", [*KINDS, "everything"])
def test_calls_that_fail_for_a_while_lose_nothing_and_are_told(
    kind: str, group: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole, promised, _ = template()
    files = copy.deepcopy(whole)
    engine = start(files)
    load = Load(engine)
    load.step()
    files.faults.add(running(kind), code, *FAILING[group])
    Client(engine, "a", "x", 500, HOUR)  # reads what is long out of memory
    unhealthy = False
    for _ in range(4):
        load.step()
        unhealthy = unhealthy or engine.components.health.problem is not None
        engine.advance(SECOND)
        unhealthy = unhealthy or engine.components.health.problem is not None
    hit = files.faults.hit_count
    files.faults.heal()
    load.step()
    engine.advance(45 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text
    load.step()
    reports = [r.text for r in engine.components.damage.records if r.text != OLD_DAMAGE]
    assert reports == [], "an error of the disk is not damage"
    if hit:
        assert unhealthy, "/ping did not tell"
        assert any(r.levelno == logging.ERROR for r in caplog.records), "not a word about it"
    engine.advance(8 * SECOND)
    engine.crash(LOSE)
    again = Engine.of(files, engine.clock.wall_ns(), **OPTIONS)
    assert load.lost(again) == set()
    missing = found_in(again, promised)
    assert missing[:2] == (set(), set())
    assert [r.text for r in again.components.damage.records if r.text != OLD_DAMAGE] == []


def running(kind: str) -> str:
    """The pattern of a kind's files, with those that are on their way to become one."""
    if kind == "everything":
        return "/data/*"
    return KINDS[kind] + "*"


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("group", FAILING)
@pytest.mark.parametrize("kind", [*KINDS, "everything"])
def test_a_start_while_calls_fail_is_refused_or_loses_nothing(
    kind: str, group: str, code: int
) -> None:
    whole, promised, wall_ns = template()
    files = copy.deepcopy(whole)
    files.faults.add(running(kind), code, *FAILING[group])
    try:
        engine = start(files)
    except (PenstockError, OSError) as error:
        assert "/data" in str(error), f"does not name a file: {error}"
    else:
        engine.advance(3 * SECOND)
        wall_ns = engine.clock.wall_ns()
    files.faults.heal()
    files.crash(KEEP)
    engine = Engine.of(files, wall_ns + SECOND, **OPTIONS)
    assert found_in(engine, promised) == (set(), set(), set())
    assert [r.text for r in engine.components.damage.records if r.text != OLD_DAMAGE] == []
    assert engine.components.health.problem is None, engine.components.health.text
