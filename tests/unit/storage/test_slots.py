"""Slot files and their checkpoints: names, bytes, and what is left of damaged ones."""

from __future__ import annotations

import errno

import pytest

from penstock.core.slots import SlotBatch
from penstock.storage.slots import (
    HEADER_SIZE,
    SlotName,
    SlotStore,
    new_generation,
    pack_fired,
    pack_header,
    read_header,
    slot_name,
    unpack_fired,
)
from tests.crash.lossy import LOSE, LossyFiles

FOLDER = "/data/deferred"
NAME = SlotName(1_800_000_000_000, 60_000, 7)


@pytest.fixture
def store() -> SlotStore:
    files = LossyFiles()
    files.make_folder("/data")
    files.sync_folder("")
    store = SlotStore(files, FOLDER, 512)
    assert store.list() == []
    return store


def packed(name: SlotName, count: int) -> bytes:
    batch = SlotBatch(name.number)
    for ordinal in range(count):
        batch.add(ordinal, b"orders", 1, b"body %d" % ordinal, 0, name.start_ns, ordinal + 1)
    return batch.packed()


def ordinals(store: SlotStore, name: SlotName = NAME) -> list[int]:
    return [row[0] for piece in store.scan_all(name) for row in piece.rows()]


def test_a_name_holds_start_length_and_generation() -> None:
    """D-14: a change of the slot length strands nothing, since each file says its own."""
    assert NAME.slot_file == "1800000000000-60000-00000007.slot"
    assert slot_name(NAME.slot_file) == slot_name(NAME.fired_file) == NAME
    odd = SlotName(1_800_000_007_000, 1_234_567, 1 << 29)
    assert slot_name(odd.slot_file) == odd


@pytest.mark.parametrize(
    "file",
    [
        "x.slot",
        "1-2.slot",
        "1800000000000-60000-7.slot",
        "1800000000001-60000-00000007.slot",
        "1800000000000-60000-ffffffff.slot",
        "1800000000000-60000-00000007.slot.corrupt",
        "99999999999999000-1000-00000007.slot",
    ],
)
def test_other_names_are_not_slots(file: str) -> None:
    assert slot_name(file) is None


def test_numbers_are_positive_ordered_by_time_and_differ_by_generation() -> None:
    assert 0 < NAME.number < 1 << 63
    later = SlotName(NAME.start_ms + 60_000, 60_000, 0)
    assert SlotName(NAME.start_ms, 60_000, (1 << 30) - 1).number < later.number
    assert len({new_generation() for _ in range(100)}) == 100
    assert all(0 <= new_generation() < 1 << 30 for _ in range(100))


def test_slots_are_found_by_looking_into_the_folder(store: SlotStore) -> None:
    """S2-3, S2-4, D-3: there is no list that could be missing, damaged or behind."""
    other = SlotName(NAME.start_ms - 3_600_000, 3_600_000, 3)
    store.append(NAME, packed(NAME, 1), fresh=True)
    store.append(other, packed(other, 1), fresh=True)
    store.files.append(f"{FOLDER}/something else", [b"x"])
    assert store.list() == [other, NAME]


def test_what_a_crash_left_half_done_is_cleared_away(store: SlotStore) -> None:
    store.append_fired(NAME, [1], fresh=True)
    store.files.append(f"{FOLDER}/{NAME.slot_file}.00.tmp", [b"x"])
    assert store.list() == []
    assert store.files.list(FOLDER) == []


def test_every_cut_of_a_slot_file_keeps_the_records_before_it(store: SlotStore) -> None:
    """D-15, S2-4: whatever is left of a file, its whole records are found."""
    first = packed(NAME, 3)
    size = store.append(NAME, first, fresh=True)
    path = store.path(NAME.slot_file)
    whole = store.files.read(path)
    record_size = len(first) // 3
    for cut in range(size, -1, -1):
        store.files.truncate(path, cut)
        assert ordinals(store) == list(range(max(0, (cut - HEADER_SIZE) // record_size)))
        assert (store.header(NAME) is not None) == (cut >= HEADER_SIZE)
    assert len(whole) == HEADER_SIZE + 3 * record_size


def test_a_damaged_header_costs_no_record(store: SlotStore) -> None:
    store.append(NAME, packed(NAME, 3), fresh=True)
    for at in range(HEADER_SIZE):
        store.files.truncate(store.path(NAME.slot_file), 0)
        broken = bytearray(pack_header(NAME))
        broken[at] ^= 255
        assert read_header(bytes(broken)) is None
        store.files.append(store.path(NAME.slot_file), [bytes(broken), packed(NAME, 3)])
        assert ordinals(store) == [0, 1, 2]


def test_checkpoints_say_which_ordinals_are_done() -> None:
    data = pack_fired(5, [3, 1, 2, 9]) + pack_fired(5, [4])
    assert unpack_fired(5, data).runs == [(1, 3), (9, 1), (4, 1)]
    assert unpack_fired(6, data).runs == []


def test_every_cut_of_a_checkpoint_file_keeps_the_whole_ones() -> None:
    parts = [pack_fired(5, [1]), pack_fired(5, [2, 4]), pack_fired(5, [7])]
    data = b"".join(parts)
    for cut in range(len(data) + 1):
        whole, size = [], 0
        for part in parts:
            size += len(part)
            if size <= cut:
                whole += unpack_fired(5, part).runs
        assert unpack_fired(5, data[:cut]).runs == whole


def test_every_flipped_bit_of_a_checkpoint_file_costs_one_checkpoint() -> None:
    parts = [pack_fired(5, [1]), pack_fired(5, [2, 4]), pack_fired(5, [7])]
    data = b"".join(parts)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 16
        hit = 0 if at < len(parts[0]) else 1 if at < len(parts[0]) + len(parts[1]) else 2
        good = [
            run for i, part in enumerate(parts) if i != hit for run in unpack_fired(5, part).runs
        ]
        found = unpack_fired(5, bytes(broken))
        assert found.runs == good
        assert found.bad_size == len(parts[hit])


def test_a_checkpoint_goes_on_after_a_torn_one(store: SlotStore) -> None:
    store.append_fired(NAME, [1], fresh=True)
    store.files.append(store.path(NAME.fired_file), [pack_fired(NAME.number, [2])[:-3]])
    store.append_fired(NAME, [3], fresh=False)
    assert store.read_fired(NAME).runs == [(1, 1), (3, 1)]


def test_a_checkpoint_is_durable_when_it_returns(store: SlotStore) -> None:
    store.append(NAME, packed(NAME, 2), fresh=True)
    store.sync(NAME, fresh=True)
    store.append_fired(NAME, [1], fresh=True)
    store.files.crash(LOSE)  # type: ignore[attr-defined]
    assert store.list() == [NAME]
    assert store.read_fired(NAME).runs == [(1, 1)]


def test_checkpoints_go_only_after_their_slot_is_gone_for_good(store: SlotStore) -> None:
    """A slot file that a power cut brought back must find its checkpoints."""
    store.append(NAME, packed(NAME, 2), fresh=True)
    store.sync(NAME, fresh=True)
    store.append_fired(NAME, [0, 1], fresh=True)
    store.files.trace.clear()  # type: ignore[attr-defined]
    store.remove([NAME])
    store.remove_fired([NAME])
    assert store.files.trace == [  # type: ignore[attr-defined]
        f"unlink {NAME.slot_file}",
        "sync_folder deferred",
        f"unlink {NAME.fired_file}",
    ]


def test_a_damaged_file_is_kept_as_evidence(store: SlotStore) -> None:
    store.append(NAME, packed(NAME, 2), fresh=True)
    store.remove([NAME], evidence=[NAME])
    assert store.files.list(FOLDER) == [f"{NAME.slot_file}.corrupt"]
    assert store.list() == []


def test_a_file_is_written_again_with_the_same_bytes(store: SlotStore) -> None:
    """R8: after a failed sync only a new file is known to be written."""
    store.append(NAME, packed(NAME, 2), fresh=True)
    whole = store.files.read(store.path(NAME.slot_file))
    store.files.fail("sync", errno.EIO)  # type: ignore[attr-defined]
    with pytest.raises(OSError):
        store.sync(NAME, fresh=True)
    store.rewrite(NAME)
    store.files.crash(LOSE)  # type: ignore[attr-defined]
    assert store.files.read(store.path(NAME.slot_file)) == whole
