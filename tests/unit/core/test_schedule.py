"""The heap of near entries, its bounds, and sets of ordinals."""

from __future__ import annotations

import random
import struct

import pytest

from penstock.core.schedule import NEVER, Bits, Schedule, Slot, pack_runs
from penstock.core.slots import SlotBatch
from penstock.core.tally import Tallies


def records(number: int, dues: list[int]) -> SlotBatch:
    batch = SlotBatch(number)
    for ordinal, due_ns in enumerate(dues):
        batch.add(ordinal, b"t", 1, b"", 0, due_ns, ordinal + 1)
    return batch


def schedule_of(count_max: int, slots: dict[int, list[int]]) -> tuple[Schedule, dict[int, Slot]]:
    schedule = Schedule(Tallies(lambda instance: 0), count_max)
    made = {}
    for number, dues in slots.items():
        made[number] = Slot(number, NEVER)
        schedule.attach(made[number])
        schedule.index(made[number], records(number, dues))
    return schedule, made


def take_all(schedule: Schedule, until_ns: int) -> int:
    count = 0
    while schedule.top_ns <= until_ns:
        count += schedule.take(until_ns, 7, 1 << 30).count
        schedule.check()
    return count


def test_entries_come_out_by_due_time_up_to_the_time_given() -> None:
    schedule, _ = schedule_of(100, {5: [30, 10, 20], 6: [15]})
    assert schedule.top_ns == 10
    assert take_all(schedule, 14) == 1
    assert schedule.top_ns == 15
    assert take_all(schedule, 100) == 3
    assert schedule.top_ns == NEVER


def test_a_record_found_twice_is_indexed_once() -> None:
    schedule, slots = schedule_of(100, {5: [30, 10]})
    schedule.index(slots[5], records(5, [30, 10]))
    assert len(schedule) == 2 and schedule.tallies.total == 2


def test_past_its_bound_the_latest_fall_out_and_their_slots_know() -> None:
    """D-4: memory is bounded, whatever falls due in one slot."""
    chance = random.Random(1)
    for count in (5, 9, 40, 200):
        dues = [chance.randrange(1000) for _ in range(count)]
        schedule, slots = schedule_of(8, {5: dues[::2], 6: dues[1::2]})
        schedule.check()
        assert len(schedule) <= 8
        kept = sorted(dues)[: len(schedule)]
        if len(schedule) < count:
            assert min(slot.next_ns for slot in slots.values()) >= kept[-1]
            assert schedule.limited and schedule.fallen
        assert schedule.top_ns == kept[0]
        assert schedule.tallies.total == count


def test_a_limited_schedule_opens_again_when_half_empty() -> None:
    schedule, _ = schedule_of(8, {5: list(range(20))})
    assert schedule.limited and schedule.limit_ns == 5
    schedule.take(100, 3, 1 << 30)
    assert schedule.limited or len(schedule) < 4
    schedule.take(100, 3, 1 << 30)
    assert not schedule.limited


def test_equal_due_times_beyond_the_bound_are_kept_apart() -> None:
    schedule, slots = schedule_of(8, {5: [7] * 30})
    schedule.check()
    assert slots[5].next_ns == 7 and len(schedule) <= 8


def test_one_entry_may_be_larger_than_the_bytes_asked_for() -> None:
    schedule, _ = schedule_of(8, {5: [1, 2]})
    assert schedule.take(10, 5, 1).count == 1


def test_neighbours_in_a_file_are_one_range() -> None:
    schedule, slots = schedule_of(100, {5: [1, 2, 3], 6: [2]})
    taken = schedule.take(10, 100, 1 << 30)
    ranges = taken.ranges(0, 1 << 20)
    assert [(slot.number, offset, first, end) for slot, offset, _, first, end in ranges] == [
        (5, 0, 0, 3),
        (6, 0, 3, 4),
    ]
    size = records(5, [0]).size
    assert [part[2] for part in taken.ranges(0, size)] == [size] * 4
    assert slots[5].firing_count == 3


def test_a_slot_in_use_cannot_be_detached() -> None:
    schedule, slots = schedule_of(100, {5: [1]})
    with pytest.raises(AssertionError):
        schedule.detach(slots[5])


def test_misuse_is_refused() -> None:
    schedule, slots = schedule_of(100, {5: [1, 2]})
    stranger = Slot(9, NEVER)
    with pytest.raises(ValueError):
        schedule.index(stranger, records(9, [1]))
    with pytest.raises(ValueError):
        schedule.detach(stranger)
    taken = schedule.take(10, 10, 1 << 30)
    for first, end in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(ValueError):
            taken.parse(slots[5], b"", 0, first, end, [None, None])
        with pytest.raises(ValueError):
            schedule.put_back(taken, first, end, 0)
    with pytest.raises(ValueError):
        taken.parse(slots[5], b"", 0, 0, 2, [])
    assert taken.parse(slots[5], b"", 1 << 40, 0, 2, [None, None]) == (
        [],
        [(0, 0, 57), (1, 57, 57)],
    )


def test_bits_are_a_set_of_ordinals() -> None:
    bits = Bits()
    model = set()
    chance = random.Random(2)
    for _ in range(500):
        ordinal = chance.randrange(5000)
        bits.add(ordinal)
        model.add(ordinal)
    bits.add_run(4_000, 100)
    model.update(range(4_000, 4_100))
    assert len(bits) == len(model)
    assert all((ordinal in bits) == (ordinal in model) for ordinal in range(6000))


def test_runs_cover_their_ordinals_exactly() -> None:
    chance = random.Random(3)
    for _ in range(100):
        ordinals = [chance.randrange(40) for _ in range(chance.randrange(30))]
        runs = list(struct.iter_unpack(">II", pack_runs(ordinals)))
        found = [ordinal for start, count in runs for ordinal in range(start, start + count)]
        assert found == sorted(set(ordinals))
