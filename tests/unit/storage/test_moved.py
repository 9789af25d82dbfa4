"""Where moved messages came from: how it is stored, and found again at a start (R25)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches import INDEX_MAX, MOVED, ORIGINS, scan
from penstock.core.buried import ATTEMPTS, Buried
from penstock.storage import segment_format
from penstock.storage.files import Files
from penstock.storage.journal import (
    ChannelState,
    encode_buried,
    encode_channel,
    encode_moved,
    finish_moved,
    replay,
)
from penstock.storage.moved import (
    encode_ordinals,
    indexes_from,
    origin_of,
    route_from,
    route_of,
)
from penstock.storage.recovery import RecoveredTopic, recover_topic
from penstock.storage.segment_format import TRAILER_SIZE
from penstock.storage.survey import decode_ordinals
from penstock.storage.topic_log import TopicLog
from tests.unit.storage.build import NODE_ID, append, append_many, batch, moved_batch, read_all

instances = st.integers(1, (1 << 63) - 1)
channel_ids = st.integers(1, (1 << 32) - 1)
SOURCE = 0x1234_5678_9ABC_DEF0
ROUTE = route_of(SOURCE, 3)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"{tmp_path}/dead~00000000000000ab"


def make(folder: str) -> TopicLog:
    return TopicLog.create(Files(), folder, 0xAB, NODE_ID, 100)


def recover(folder: str) -> RecoveredTopic:
    return recover_topic(Files(), folder, NODE_ID, 0)


def arrived(found: RecoveredTopic) -> dict[int, list[int]]:
    return {route: list(indexes) for route, indexes in found.moved.by_route.items()}


@given(instances, channel_ids, st.integers(0, INDEX_MAX - 1), st.integers(1, 5))
def test_an_origin_is_read_as_it_was_written(
    instance: int, channel_id: int, index: int, count: int
) -> None:
    indexes = [i for i in range(index, index + count) if i >> 32 == index >> 32]
    made = moved_batch(100, instance, channel_id, indexes)
    data = made.header() + made.payload
    (found,) = scan(data, 0, True).batches
    first, messages, _start, end, _append_ns, origin, flags = found
    assert (first, messages) == (100, len(indexes))
    assert flags & 0xFFFF == ORIGINS | MOVED and origin < 0
    assert route_from(origin, flags) == route_of(instance, channel_id)
    assert indexes_from(origin, decode_ordinals(data[end:])) == indexes


@given(instances, channel_ids, channel_ids)
def test_channels_of_a_topic_are_never_mistaken(instance: int, one: int, other: int) -> None:
    assert (route_of(instance, one) == route_of(instance, other)) == (one == other)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(0, 20))
def test_moved_messages_are_finished_once(finished: set[int], moved: set[int], low: int) -> None:
    state = ChannelState(3, "c", 0, low=low)
    finish_moved(state, finished)
    state.marks = dict.fromkeys(range(61), (1, 0))
    known = set(range(state.low)) | finished
    journaled = replay(encode_channel(3, 0, False, 0, "c") + finish_moved(state, moved))
    (other,) = journaled.channels.values()
    runs = {i for a, b in other.runs for i in range(a, b)} | set(range(other.low))
    assert runs == moved - known, "those that were not"
    known |= moved
    left = {i for a, b in state.runs for i in range(a, b)} | set(range(state.low))
    assert left & set(range(61)) == known & set(range(61))
    assert not state.marks.keys() & known


def test_a_buried_message_that_was_moved_is_neither_buried_nor_unfinished() -> None:
    """Also if the record that finishes it was torn off."""
    table = Buried()
    for index in (3, 5, 7):
        table.put(index, 1, ATTEMPTS, 0)
    made = encode_channel(3, 0, False, 0, "c")
    data = made + b"".join(encode_buried(3, body) for body in table.drain())
    (state,) = replay(data).channels.values()
    assert state.runs == [(3, 4), (5, 6), (7, 8)], "what is buried is not unfinished (R24)"
    record = finish_moved(state, [5, 9])
    assert state.buried is not None and state.buried.indexes() == [3, 7]
    (state,) = replay(data + record).channels.values()
    assert state.runs == [(3, 4), (5, 6), (7, 8), (9, 10)]
    assert state.buried is not None and state.buried.indexes() == [3, 7]


def test_the_journal_keeps_how_far_moves_are_settled() -> None:
    data = encode_moved(7) + encode_moved(20) + encode_moved(15)
    state = replay(data)
    assert (state.moves_settled_end, state.index_max) == (20, 20)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_start_finds_what_was_moved_to_a_log(folder: str, sealed: bool) -> None:
    """R25: beside origins of deferred messages, and with gaps."""
    log = make(folder)
    append_many(log, 3)
    append(log, moved_batch(103, SOURCE, 3, [7, 9]))
    append(log, batch(105, 1, slot=77, ordinals=[4]))
    log.abandon(110)
    append(log, moved_batch(110, SOURCE, 3, [1 << 40]))
    append(log, moved_batch(111, SOURCE, 4, [7]))
    if sealed:
        log.synced(log.roll())
    found = recover_topic(Files(), folder, NODE_ID, 0, [77])
    assert arrived(found) == {ROUTE: [7, 9, 1 << 40], route_of(SOURCE, 4): [7]}
    assert found.moved.first == 103 and found.fired == {77: [4]}
    assert found.corrupt_count == 0 and sorted(read_all(found.log)) == [*range(100, 106), 110, 111]
    (segment,) = found.log.files
    assert segment.slots == {77}, "moves are not slots"


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_settled_is_not_looked_for_again(folder: str, sealed: bool) -> None:
    log = make(folder)
    append(log, moved_batch(100, SOURCE, 3, [7, 9]))
    append(log, moved_batch(102, SOURCE, 3, [8]))
    if sealed:
        log.synced(log.roll())
    Path(f"{folder}/journal").write_bytes(encode_moved(102))
    found = recover(folder)
    assert arrived(found) == {ROUTE: [8]} and found.moved.first == 102
    Path(f"{folder}/journal").write_bytes(encode_moved(103))
    found = recover(folder)
    assert arrived(found) == {} and found.moved.first == 0
    assert not sealed or found.log.files[0].tables is None, "the footer was not read"


def test_a_segment_sealed_by_the_version_before_is_searched_too(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the origins for slots; its footer has zeros where this version counts moves."""
    log = make(folder)
    append(log, batch(100, 1, slot=77, ordinals=[4]))
    append(log, moved_batch(101, SOURCE, 3, [7]))
    log.synced(log.roll())
    path = Path(log.files[0].path)
    data = path.read_bytes()
    trailer = segment_format.decode_trailer(data[-TRAILER_SIZE:], len(data))
    assert trailer is not None and trailer.moved_count == 1 and trailer.slot_min == 77
    negative = origin_of(SOURCE, 3, 7).origin
    assert negative < 0
    before = dataclasses.replace(trailer, moved_count=0, slot_min=negative)
    fields = segment_format._TRAILER.pack(
        *(getattr(before, f) for f in before.__dataclass_fields__)
    )
    ending = segment_format.checked(segment_format.TRAILER_MAGIC, fields)
    path.write_bytes(data[:-TRAILER_SIZE] + ending)
    assert arrived(recover(folder)) == {ROUTE: [7]}


def test_open_slots_do_not_keep_a_segment_of_moved_messages(folder: str) -> None:
    log = make(folder)
    append(log, moved_batch(100, SOURCE, 3, [7]))
    log.synced(log.roll())
    Path(f"{folder}/journal").write_bytes(encode_moved(101))
    log = recover(folder).log
    log.pinned_slots = {1, 1_800_000_000_000_000_000}
    assert log.removable(100)


def test_every_cut_of_a_moved_batch_leaves_all_of_it_or_nothing(folder: str) -> None:
    log = make(folder)
    append_many(log, 1)
    whole_size = log.files[0].file_size
    append(log, moved_batch(101, SOURCE, 3, [7, 9]))
    path = Path(log.files[0].path)
    data = path.read_bytes()
    for size in range(whole_size, len(data) + 1):
        path.write_bytes(data[:size])
        found = recover(folder)
        whole = size == len(data)
        assert arrived(found) == ({ROUTE: [7, 9]} if whole else {}), size
        assert found.log.count == (3 if whole else 1), size


def test_ordinals_are_the_low_bits() -> None:
    assert encode_ordinals([(5 << 32) + 1, 2]) == bytes((0, 0, 0, 1, 0, 0, 0, 2))
