"""Staging files and the ledger, byte by byte: cuts, flipped bits, and what is found again (R19)."""

from __future__ import annotations

import pytest

from penstock.core.batches import STAGED
from penstock.core.crc32c import crc32c
from penstock.engine.staging.parts import find_parts
from penstock.errors import CorruptError
from penstock.storage import ledger
from penstock.storage.recovery import recover_topic
from penstock.storage.staging import (
    HEADER_SIZE,
    SEAL_SIZE,
    FoundStaging,
    Key,
    Seal,
    StagingStore,
    encode_header,
    encode_part,
    encode_seal,
    origin_of,
)
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import LossyFiles
from tests.support.staging import ATTEMPT, plain
from tests.unit.storage.build import NODE_ID, append, batch, read_all

FOLDER = "/data/staging"
NUMBER = 0x1A2B3C
KEY = Key("query", 3, 7, ATTEMPT)
BODIES = {0: plain(b"a", b"b"), 1: plain(b"c" * 50)}


@pytest.fixture
def store() -> StagingStore:
    files = LossyFiles()
    files.make_folder(FOLDER)
    return StagingStore(files, FOLDER)  # type: ignore[arg-type]


def parts(number: int = NUMBER) -> list[bytes]:
    pieces = [encode_header(number, KEY, 12345)]
    for part, body in BODIES.items():
        pieces += encode_part(number, part, "topic", part == 1, 2 - part, body, crc32c(body))
    return pieces


def walk(store: StagingStore) -> FoundStaging:
    found = store.walk(NUMBER)
    assert found is not None
    return found


def test_what_was_staged_is_found_again(store: StagingStore) -> None:
    size = store.append(NUMBER, [*parts(), encode_seal(NUMBER, Seal(2, 3))])
    assert store.numbers() == [NUMBER]
    found = walk(store)
    assert (found.key, found.created_ns, found.size) == (KEY, 12345, size)
    assert found.good_size == size
    assert found.seal == Seal(2, 3)
    for part, body in BODIES.items():
        record = found.parts[part]
        assert (record.topic, record.deferred, record.count) == ("topic", part == 1, 2 - part)
        assert store.read(NUMBER, record) == body
    assert sum(record.weight for record in found.parts.values()) + SEAL_SIZE == size - (
        HEADER_SIZE + len("query")
    )
    assert store.damaged(NUMBER, found.parts.values()) == []


def test_a_part_that_came_again_counts_as_it_came_last(store: StagingStore) -> None:
    store.append(NUMBER, parts())
    body = plain(b"new")
    store.append(NUMBER, encode_part(NUMBER, 0, "other", False, 1, body, crc32c(body)))
    assert store.read(NUMBER, walk(store).parts[0]) == body


def test_every_cut_of_a_file_leaves_whole_records(store: StagingStore) -> None:
    """R3: what is torn is not there; nothing before it is lost."""
    pieces = [*parts(), encode_seal(NUMBER, Seal(2, 3))]
    whole = b"".join(pieces)
    ends = [len(pieces[0])]
    ends += [ends[0] + sum(map(len, pieces[1:count])) for count in (3, 5, 6)]
    for size in range(len(whole)):
        store.files.put(store.path(NUMBER), whole[:size])  # type: ignore[attr-defined]
        found = store.walk(NUMBER)
        if size < ends[0]:
            assert found is None
            continue
        assert found is not None and found.seal is None
        assert found.good_size == max(end for end in ends if end <= size)
        assert len(found.parts) == ends.index(found.good_size)


def test_a_flipped_bit_is_noticed_wherever_it_is(store: StagingStore) -> None:
    """R3: in a head it ends the file, in a body the part cannot be read."""
    whole = b"".join([*parts(), encode_seal(NUMBER, Seal(2, 3))])
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        store.files.put(store.path(NUMBER), bytes(flipped))  # type: ignore[attr-defined]
        found = store.walk(NUMBER)
        if found is None or found.seal is None:
            continue
        (bad,) = store.damaged(NUMBER, found.parts.values())
        with pytest.raises(CorruptError, match=f"part {bad}"):
            store.read(NUMBER, found.parts[bad])


def test_bytes_of_another_staging_are_no_records(store: StagingStore) -> None:
    """A body may hold anything, also what looks like a record."""
    store.append(NUMBER, [*parts()[:3], *parts(NUMBER + 1)[3:]])
    assert set(walk(store).parts) == {0}


def test_leftovers_are_cleared_away_and_others_let_be(store: StagingStore) -> None:
    store.files.put(f"{FOLDER}/ledger", b"x")  # type: ignore[attr-defined]
    for name in ("ledger.0123.tmp", "ledger.new"):
        store.files.put(f"{FOLDER}/{name}", b"x")  # type: ignore[attr-defined]
    store.append(NUMBER, parts())
    assert store.numbers() == [NUMBER]
    assert store.files.list(FOLDER) == [f"{NUMBER:016x}.staging", "ledger"]
    store.remove([NUMBER, 99])
    assert store.numbers() == []


def test_an_origin_is_a_positive_64_bit_number() -> None:
    assert origin_of((1 << 47) - 1, 65535) == (1 << 63) - 1


@pytest.mark.parametrize("sealed", [False, True])
def test_a_staged_batch_is_not_taken_for_a_fired_one(store: StagingStore, sealed: bool) -> None:
    """R16, R19: though its origin is the number of a slot that is still there."""
    files, folder = store.files, "/data/topics/t~0000000000000001"
    log = TopicLog.create(files, folder, 1, NODE_ID, 100)
    origin = origin_of(NUMBER, 7)
    staged, fired = batch(100, 2), batch(102, 1, slot=55, ordinals=[9])
    staged.origin, staged.flags = origin, STAGED
    for made in (staged, fired):
        append(log, made)
    if sealed:
        log.synced(log.roll())
    found = recover_topic(files, folder, NODE_ID, 0, (origin, 55))
    assert found.fired == {55: [9]}
    assert set(read_all(found.log)) == {100, 101, 102}
    (segment,) = found.log.segments()
    assert (segment.slot_min, segment.slot_max) == (55, 55)
    assert find_parts(found.log, 100, 103, {NUMBER}) == {origin}
    assert find_parts(found.log, 102, 103, {NUMBER}) == set()
    assert find_parts(found.log, 100, 103, {NUMBER + 1, 55 >> 16}) == set()


# The ledger

WINNERS = (ledger.Winner("node-a", 0, ATTEMPT, 5), ledger.Winner("node-b", 1, ATTEMPT, 6))
INTENT = ledger.Intent(
    4,
    1000,
    11,
    (ledger.Member(NUMBER, 0, ATTEMPT),),
    {"t": ledger.Bound(1 << 62, 1 << 53)},
    {(NUMBER, 2): 1 << 60},
)


def history() -> list[bytes]:
    return [
        ledger.encode_coordinator("q", 1, ledger.Coordinator("node-a", "host:1")),
        ledger.encode_decision("q", 2, ledger.Decision(3, WINNERS[:1])),
        ledger.encode_published("q", 3, ledger.Published(3, 5, "digest")),
        ledger.encode_decision("q", 4, ledger.Decision(4, WINNERS)),
        ledger.encode_intent("q", INTENT),
        ledger.encode_coordinator("other", 5, ledger.Coordinator("node-b", "")),
        ledger.encode_forgotten("other", 6),
    ]


def test_the_newest_of_each_kind_counts() -> None:
    found = ledger.replay(b"".join(history()))
    assert (found.torn_size, found.corrupt_count) == (0, 0)
    assert set(found.queries) == {"q"}
    state = found.queries["q"]
    assert state.coordinator == ledger.Coordinator("node-a", "host:1")
    assert state.decision == ledger.Decision(4, WINNERS)
    assert state.published == ledger.Published(3, 5, "digest")
    assert state.intent == INTENT
    assert state.time_ns == 1000
    done = ledger.encode_published("q", 2000, ledger.Published(4, 11, "digest"))
    state = ledger.replay(b"".join([*history(), done])).queries["q"]
    assert state.intent is None and state.published == ledger.Published(4, 11, "digest")


def test_a_snapshot_says_the_same() -> None:
    found = ledger.replay(b"".join(history()))
    again = ledger.replay(b"".join(ledger.snapshot(found.queries.items())))
    assert again.queries == found.queries


def test_a_cut_ledger_loses_its_last_record_only() -> None:
    """R3: at every byte."""
    records = history()
    whole = b"".join(records)
    ends = [sum(map(len, records[:count])) for count in range(len(records) + 1)]
    for size in range(len(whole)):
        found = ledger.replay(whole[:size])
        assert found.corrupt_count == 0
        assert found.good_size == max(end for end in ends if end <= size)


def test_a_flipped_bit_costs_one_record() -> None:
    """R3: at every byte; it is counted, or torn if it is the last."""
    records = history()
    whole = b"".join(records)
    last = len(whole) - len(records[-1])
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        found = ledger.replay(bytes(flipped))
        assert (found.corrupt_count, found.torn_size > 0) == (
            (0, True) if at >= last else (1, False)
        )
