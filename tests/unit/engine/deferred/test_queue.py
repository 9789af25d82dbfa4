"""The deferred queue: accepted, fired on time, checkpointed, counted."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import google_crc32c
import pytest

from penstock.clock import ManualClock
from penstock.core.ticket import settled
from penstock.engine.deferred import writer
from penstock.engine.deferred.counts import Reports
from penstock.engine.deferred.queue import FOREVER, NEVER, DeferredQueue
from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.slots import HEADER_SIZE, SlotStore
from tests.crash.lossy import KEEP, LOSE
from tests.support.deferred_harness import FOLDER, HOUR, MINUTE, SECOND, World

MS = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


# Accepting


def test_messages_of_one_turn_and_slot_share_a_ticket_and_an_append(world: World) -> None:
    first, second = world.defer(SECOND), world.defer(SECOND)
    far = world.defer(5 * MINUTE)
    assert first is second and far is not first
    assert world.dirty_count == 1
    world.files.trace.clear()
    world.flush()
    assert first.done and first.error is None and far.done
    assert sum(line.startswith("append") for line in world.files.trace) == 2
    dirty_count = world.dirty_count
    world.defer(SECOND)
    assert world.dirty_count == dirty_count + 1


def test_a_message_is_on_disk_when_its_ticket_is_settled(world: World) -> None:
    """D-1: kill -9 right after the answer loses nothing."""
    ticket = world.defer(SECOND, b"kept")
    assert not ticket.done
    world.flush()
    assert ticket.done
    world.restart()
    world.clock.advance(SECOND)
    assert world.fire() == [b"kept"]


def test_with_sync_every_1_the_ticket_waits_for_the_sync() -> None:
    """D-1: what is answered survives a power cut, if so configured."""
    world = World(sync_every=1)
    ticket = world.defer(SECOND, b"kept")
    world.queue.writer.flush()
    assert not ticket.done
    world.disk.drain()
    assert ticket.done and world.queue.writer.syncing.unsynced_count == 0
    world.restart("lose")
    world.clock.advance(SECOND)
    assert world.fire() == [b"kept"]


def test_messages_accepted_while_a_slot_is_written_go_in_the_next_write() -> None:
    world = World(sync_every=1)
    first = world.defer(SECOND, b"1")
    world.queue.writer.flush()
    second = world.defer(SECOND, b"2")
    world.queue.writer.flush()
    assert second is not first
    world.disk.step()  # the write
    world.disk.step()  # the counts, which the second write does not wait for
    assert first.done and not second.done
    world.disk.drain()
    assert second.done
    world.clock.advance(SECOND)
    assert world.fire() == [b"1", b"2"]


def test_pending_size_is_what_is_not_written_yet(world: World) -> None:
    world.defer(SECOND, b"x" * 1000)
    assert world.queue.writer.pending_size > 1000
    world.flush()
    assert world.queue.writer.pending_size == 0
    assert world.queue.writer.syncing.unsynced_count == 1
    world.queue.writer.syncing.sync()
    world.disk.drain()
    assert world.queue.writer.syncing.unsynced_count == 0


@pytest.mark.parametrize(
    ("sync_every", "action"),
    # With 2500 nothing is synced before the answer, so a failing sync is not told.
    [(n, action) for n in (1, 2500) for action in ("append", "short", "uncut")] + [(1, "sync")],
)
def test_a_failed_write_is_told_and_leaves_nothing_to_fire(sync_every: int, action: str) -> None:
    """R8: the disk is full or fails; the publisher hears of it, and all goes on afterwards."""
    world = World(sync_every=sync_every)
    world.put(SECOND, b"before")
    world.files.fail(action, errno.ENOSPC)
    for _ in range(5):  # where half of a write stays, whole records stay
        ticket = world.defer(SECOND, b"refused")
    world.flush()
    assert ticket.done and ticket.error is not None
    world.put(SECOND, b"after")
    assert world.queue.tallies.total == 2 and world.queue.writer.pending_size == 0
    world.checkpoint()
    world.restart()
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"after", b"before"]
    world.checkpoint()
    assert world.file_names() == []


def test_a_first_write_that_fails_leaves_no_file(world: World) -> None:
    for delay_ns in (SECOND, 50 * HOUR):
        world.files.fail("append", errno.ENOSPC)
        ticket = world.defer(delay_ns)
        world.flush()
        assert isinstance(ticket.error, OSError)
    world.checkpoint()
    assert world.file_names() == [] and len(world.queue.table.files) == 0


def test_a_failed_background_sync_writes_the_file_anew(world: World) -> None:
    """R8: pages of a failed sync count as clean, so only a new file is safe."""
    world.put(SECOND, b"kept")
    world.files.fail("sync", errno.EIO)
    outcomes: list[BaseException | None] = []
    world.queue.writer.syncing.sync(outcomes.append)
    world.disk.drain()
    assert isinstance(outcomes[0], OSError) and world.queue.writer.syncing.unsynced_count == 1
    world.put(SECOND, b"later")
    world.files.trace.clear()
    world.queue.writer.syncing.sync(outcomes.append)
    world.disk.drain()
    assert outcomes[1] is None and world.queue.writer.syncing.unsynced_count == 0
    assert sum(line.startswith("rename") for line in world.files.trace) == 1
    world.restart("lose")
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"kept", b"later"]


def test_a_file_is_not_written_anew_while_something_is_on_its_way_into_it(world: World) -> None:
    """A copy made meanwhile would not hold it."""
    world.put(SECOND, b"a")
    world.files.fail("sync", errno.EIO)
    world.queue.writer.syncing.sync()
    world.defer(SECOND, b"b")
    world.disk.drain()
    world.queue.writer.syncing.sync()
    assert world.disk.queue == []
    world.queue.writer.flush()
    world.queue.writer.syncing.sync()
    world.disk.drain()
    assert world.queue.writer.syncing.unsynced_count == 0
    world.restart("lose")
    world.clock.advance(SECOND)
    assert world.fire() == [b"a", b"b"]


def test_a_slot_that_comes_near_before_its_first_write_is_done_needs_no_reading() -> None:
    world = World(sync_every=1)
    world.defer(5 * HOUR, b"x")
    world.queue.writer.flush()
    world.clock.step_wall(6 * HOUR)
    assert world.queue.take(world.now_ns, 10, 1000) == []
    world.disk.queue.reverse()
    assert world.fire() == [b"x"] and world.queue.table.error_count == 0


def test_slow_appends_move_to_another_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: a disk that makes the loop wait once does not make it wait again."""
    append = world.store.append

    def slow_append(*arguments: object, **options: object) -> int:
        world.clock.advance(50 * MS)
        return append(*arguments, **options)  # type: ignore[arg-type]

    world.put(SECOND)
    monkeypatch.setattr(world.store, "append", slow_append)
    inline = world.defer(SECOND)
    world.queue.writer.flush()
    assert inline.done and not world.disk.queue
    ticket = world.defer(SECOND)
    world.queue.writer.flush()
    assert not ticket.done and world.disk.queue
    world.disk.drain()
    assert ticket.done


def test_the_loop_makes_and_opens_no_file(world: World) -> None:
    """R9: however many slots are published to, other threads make the files, a few at once."""
    tickets = [world.defer(hour * HOUR) for hour in range(2, 2002)]
    turns = 0
    for _ in range(2000):
        world.files.trace.clear()
        world.queue.writer.flush()
        turns += 1
        assert world.files.trace == [], "by the loop"
        assert len(world.disk.queue) <= writer.WORK_COUNT_MAX
        if not world.disk.step():
            break
        appends = sum(line.startswith("append") for line in world.files.trace)
        assert appends <= writer.WORK_FILE_MAX
    assert turns >= 2000 // writer.FLUSH_COUNT_MAX
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert world.queue.tallies.total == 2000 and world.queue.writer.idle
    world.files.is_open = lambda path: False  # type: ignore[method-assign]
    ticket = world.defer(2 * HOUR)
    world.files.trace.clear()
    world.queue.writer.flush()
    assert world.files.trace == [] and not ticket.done
    world.disk.drain()
    assert ticket.done


def test_an_end_waits_for_what_is_on_its_way(world: World) -> None:
    """What was accepted is written and synced before a clean stop ends."""
    tickets = [world.defer(hour * HOUR) for hour in range(2, 602)]
    finished = world.queue.finish(settled)
    assert not finished.done
    world.disk.drain()
    assert finished.done and finished.error is None and all(ticket.done for ticket in tickets)
    world.restart(LOSE)
    world.fire()
    assert world.queue.tallies.total == 600 and world.damages == []


def test_many_slots_are_synced_in_parts_with_one_sync_of_the_folder_each(world: World) -> None:
    for hour in range(2, 602):
        world.defer(hour * HOUR)
    world.flush()
    world.files.trace.clear()
    world.queue.writer.syncing.sync()
    world.disk.drain()
    assert world.queue.writer.syncing.unsynced_count == 0
    actions = [line.split()[0] for line in world.files.trace]
    assert actions.count("sync_folder") == 3
    assert actions.count("sync") <= 600 + 3


def test_a_busy_hour_goes_on_in_minutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-4: no file grows so large that reading it again and again is all there is to do."""
    monkeypatch.setattr(writer, "HOUR_COUNT_MAX", 10)
    for i in range(40):
        world.defer(30 * HOUR + i * MINUTE, b"%d" % i)
    world.flush()
    lengths = [name.split("-")[1] for name in world.file_names()]
    assert lengths.count("3600000") == 1 and lengths.count("60000") == 30
    world.clock.advance(31 * HOUR)
    assert world.fire() == [b"%d" % i for i in range(40)]


def test_a_file_beyond_its_size_is_followed_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE_MAX", 500)
    for i in range(20):
        world.put(SECOND, b"%d" % i)
    assert len(world.file_names()) == 3
    world.clock.advance(SECOND)
    assert sorted(world.fire(), key=int) == [b"%d" % i for i in range(20)]


# Firing


def test_never_early_and_due_to_the_millisecond(world: World) -> None:
    """R16, D-5, D-18, S4-6: short delays are as precise as long ones."""
    for delay_ms in (1, 2, 50, 999, 1000, 59_999, 60_001, 3_599_999, 3_600_001, 86_400_000):
        body = b"%d" % delay_ms
        world.put(delay_ms * MS, body)
        world.clock.advance(delay_ms * MS - 1)
        assert world.fire() == []
        world.clock.advance(1)
        assert world.queue.next_due_ns <= world.now_ns
        assert world.fire() == [body]


def test_next_due_is_when_the_soonest_is_due(world: World) -> None:
    assert world.queue.next_due_ns == NEVER
    world.put(50 * SECOND)
    world.put(20 * SECOND)
    assert world.queue.next_due_ns == world.now_ns + 20 * SECOND


def test_a_message_comes_with_all_that_it_was_published_with(world: World) -> None:
    now_ns = world.now_ns
    world.put(SECOND, b"body", instance=9)
    world.clock.advance(SECOND)
    (due,) = world.take()
    assert (due.topic, due.instance, due.body) == ("topic9", 9, b"body")
    assert (due.timestamp_ns, due.due_ns, due.stamp) == (now_ns, now_ns + SECOND, 1)
    assert due.slot > 0 and due.ordinal == 0


def test_ten_thousand_due_at_once_come_in_bounded_pieces(world: World) -> None:
    for i in range(10_000):
        world.defer(SECOND, b"%d" % i)
    world.flush()
    world.clock.advance(SECOND)
    seen = []
    while taken := world.take(300):
        assert len(taken) <= 300
        world.queue.fired(taken)
        seen += [int(due.body) for due in taken]
    assert seen == list(range(10_000))


def test_a_piece_is_bounded_in_bytes_too(world: World) -> None:
    for _ in range(10):
        world.defer(SECOND, b"x" * 1000)
    world.flush()
    world.clock.advance(SECOND)
    assert len(world.queue.take(world.now_ns, 100, 3500)) == 3
    assert len(world.queue.take(world.now_ns, 100, 1)) == 1


def test_what_failed_is_tried_again(world: World) -> None:
    """D-11: an error of the topic's log loses nothing, and is not tried in a tight loop."""
    world.put(SECOND, b"x")
    world.clock.advance(SECOND)
    for _ in range(3):
        taken = world.take()
        assert [due.body for due in taken] == [b"x"]
        world.queue.failed(taken)
        assert world.queue.next_due_ns > world.now_ns
        assert world.queue.tallies.total == 1
        world.clock.advance(SECOND)
    assert world.fire() == [b"x"]
    assert world.queue.tallies.total == 0


def test_delays_around_slot_borders_all_arrive_once(world: World) -> None:
    """D-6, D-7, A-5: nothing is lost or doubled where one slot ends and the next begins."""
    border_ns = (world.now_ns // HOUR + 2) * HOUR
    expected = []
    while world.now_ns < border_ns + 3 * SECOND:
        for delay_ns in (1, SECOND, MINUTE, HOUR, HOUR + 1, border_ns - world.now_ns):
            if delay_ns > 0:
                body = b"%d" % len(expected)
                world.defer(delay_ns, body)
                expected.append(body)
        world.flush()
        if world.now_ns < border_ns - 3 * SECOND:
            world.clock.advance(min(10 * MINUTE, border_ns - 3 * SECOND - world.now_ns))
        else:
            world.clock.advance(250 * MS)
        world.fire()
        world.checkpoint()
    world.clock.advance(2 * HOUR)
    world.fire()
    assert sorted(world.bodies) == sorted(expected)
    world.checkpoint()
    assert world.file_names() == []


def test_a_message_accepted_while_its_slot_comes_to_an_end_is_kept(world: World) -> None:
    """D-6: all earlier records are done and checkpointed, and one more is on its way."""
    world.put(SECOND, b"first")
    world.clock.advance(SECOND)
    world.fire()
    ticket = world.defer(SECOND, b"second")
    world.checkpoint()
    world.flush()
    assert ticket.done and ticket.error is None
    world.restart()
    world.clock.advance(SECOND)
    assert world.fire() == [b"second"]


def test_a_number_in_use_is_not_given_again() -> None:
    world = World()
    world.generations = itertools.chain([7, 7, 7, 8], itertools.count(9))
    world.put(SECOND, b"a")
    world.restart()
    world.put(SECOND, b"b")
    assert [name[-7:] for name in world.file_names()] == ["07.slot", "08.slot"]
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"a", b"b"]


def test_a_message_for_a_slot_that_is_finished_gets_a_new_file(world: World) -> None:
    """D-6: what was known of the old file does not hide a record of the new one."""
    world.put(SECOND, b"first")
    old_names = world.file_names()
    world.clock.advance(SECOND)
    world.fire()
    world.checkpoint()
    assert world.file_names() == []
    world.clock.step_wall(-SECOND)
    world.put(SECOND, b"second")
    assert world.file_names() != old_names
    world.restart()  # the log still holds the origin of the first
    world.clock.advance(SECOND)
    assert world.fire() == [b"second"]


def test_bodies_on_a_cold_disk_are_read_in_the_background(world: World) -> None:
    """R9, D-16: the loop never waits for a body."""
    world.put(SECOND, b"a")
    world.put(SECOND, b"b")
    world.clock.advance(SECOND)
    world.files.cold = True
    assert world.queue.take(world.now_ns, 10, 1000) == []
    assert world.queue.next_due_ns == NEVER
    wakes = world.wake_count
    world.disk.drain()
    assert world.wake_count > wakes and world.queue.next_due_ns <= world.now_ns
    assert world.fire() == [b"a", b"b"]


def test_a_clock_that_steps_back_while_a_body_is_read_makes_it_wait(world: World) -> None:
    """D-5, D-17: not even then is a message early."""
    world.put(SECOND, b"x")
    world.clock.advance(SECOND)
    world.files.cold = True
    assert world.queue.take(world.now_ns, 10, 1000) == []
    world.disk.drain()
    world.clock.step_wall(-1)
    assert world.fire() == []
    world.clock.advance(1)
    assert world.fire() == [b"x"]


def test_a_body_that_cannot_be_read_is_tried_again_and_holds_nobody_up(world: World) -> None:
    world.put(SECOND, b"bad")
    world.put(SECOND + MINUTE, b"good")
    world.clock.advance(SECOND)
    world.files.cold = True
    world.files.fail("pread", errno.EIO, after=1)
    assert world.fire() == []
    assert world.queue.table.error_count == 1
    world.clock.advance(MINUTE)
    assert sorted(world.fire()) == [b"bad", b"good"]


def test_a_damaged_body_costs_one_message_and_is_counted(world: World) -> None:
    """D-15: corrupt records are isolated, and the file stays as evidence."""
    for i in range(3):
        world.defer(SECOND, b"body %d" % i)
    world.flush()
    path = f"{FOLDER}/{world.file_names()[0]}"
    at = world.files.read(path).index(b"body 1")

    def flip(data: bytearray) -> None:
        data[at] ^= 1

    world.files.edit(path, flip)
    world.clock.advance(SECOND)
    assert world.fire() == [b"body 0", b"body 2"]
    assert world.queue.table.corrupt_count == 1 and world.queue.tallies.total == 0
    world.checkpoint()
    world.checkpoint()
    slot = path.rpartition("/")[2]
    assert world.file_names() == [f"{slot}.{at - 62}.corrupt", f"{slot}.corrupt"]
    ((text, where, lost),) = world.damages
    assert (where, lost) == (path, 1) and "1 messages are damaged and lost" in text


# Clocks


def test_a_clock_that_steps_back_makes_messages_wait(world: World) -> None:
    """D-17, R4: never early by the wall clock, and nothing is stuck."""
    world.put(10 * SECOND, b"x")
    world.clock.advance(9 * SECOND)
    world.clock.step_wall(-HOUR)
    assert world.fire() == []
    world.put(SECOND, b"y")
    world.clock.advance(SECOND)
    assert world.fire() == [b"y"]
    world.clock.advance(HOUR)
    assert world.fire() == [b"x"]


def test_a_clock_that_steps_ahead_works_off_all_slots_in_order(world: World) -> None:
    """D-8: slots that were stepped over are not forgotten."""
    delays = [26 * HOUR, 3 * HOUR, 30 * MINUTE, SECOND, 5 * HOUR, 3 * HOUR + 1]
    for delay_ns in delays:
        world.put(delay_ns, b"%d" % delay_ns)
    world.clock.step_wall(48 * HOUR)
    assert world.fire(count_max=2) == [b"%d" % delay_ns for delay_ns in sorted(delays)]


# Restart


def test_a_restart_keeps_the_remaining_delay(world: World) -> None:
    """S2-1, A-4: neither lost nor delivered at once."""
    for delay_ns in (SECOND, MINUTE, 2 * HOUR, 300 * 24 * HOUR):
        world.put(delay_ns, b"%d" % delay_ns)
    for delay_ns in (SECOND, MINUTE, 2 * HOUR, 300 * 24 * HOUR):
        world.restart()
        start_ns = 1_800_000_000 * SECOND
        world.clock.advance(start_ns + delay_ns - 1 - world.now_ns)
        assert world.fire() == []
        world.restart()
        world.clock.advance(1)
        assert world.fire() == [b"%d" % delay_ns]


def test_a_start_reads_headers_and_far_slots_only_to_count_them(world: World) -> None:
    """S2-5, S2-2: records are read after listeners are open."""
    world.put(SECOND)
    world.put(50 * HOUR)
    reads: list[tuple[int, int]] = []
    pread = world.files.pread
    world.files.pread = lambda path, *rest: reads.append(rest[:2]) or pread(path, *rest)  # type: ignore
    world.restart()
    assert reads == [(0, HEADER_SIZE)] * 2
    assert not world.queue.loader.counted and world.queue.tallies.total == 0
    assert world.queue.next_due_ns <= world.now_ns
    world.fire()
    assert world.queue.loader.counted and world.queue.tallies.total == 2
    assert len(world.queue.table.schedule) == 1


def test_overdue_slots_at_start_are_fired_in_order_of_due_time(world: World) -> None:
    """D-8, D-15, R17: a long stop is worked off in order, in bounded pieces."""
    delays = [(i * 37 % 100) * 3 * MINUTE + SECOND for i in range(100)]
    for delay_ns in delays:
        world.defer(delay_ns, b"%d" % delay_ns)
    world.flush()
    world.clock.advance(24 * HOUR)
    world.restart()
    assert world.fire(count_max=7) == [b"%d" % delay_ns for delay_ns in sorted(delays)]


def test_what_is_still_to_be_read_goes_before_what_is_due_later(world: World) -> None:
    """D-8, R17: in order, though the new message is in the schedule and the old one is not."""
    world.put(SECOND, b"old")
    world.clock.advance(MINUTE)
    world.restart()
    world.defer(SECOND, b"new")
    world.flush()
    world.clock.advance(SECOND)
    assert world.queue.take(world.now_ns, 10, 1000) == []
    world.disk.drain()
    assert world.fire() == [b"old", b"new"]


def test_a_slot_that_cannot_be_read_is_tried_again_and_holds_nobody_up(world: World) -> None:
    world.put(SECOND, b"old")
    world.clock.advance(MINUTE)
    world.restart()
    world.put(SECOND, b"new")
    world.clock.advance(SECOND)
    world.files.fail("pread", errno.EIO)
    assert world.fire() == [b"new"]
    assert world.queue.table.error_count == 1 and not world.queue.loader.counted
    assert world.now_ns < world.queue.next_due_ns <= world.now_ns + SECOND
    world.clock.advance(SECOND)
    assert world.fire() == [b"old"]
    assert world.queue.loader.counted


def test_what_is_in_a_log_is_not_fired_again(world: World) -> None:
    """R16, D-2: not even once, whether or not a checkpoint came in between."""
    for i in range(9):
        world.defer(SECOND * (i // 3 + 1), b"%d" % i)
    world.flush()
    world.clock.advance(SECOND)
    world.fire()
    world.checkpoint()
    world.forget_origins()
    world.clock.advance(SECOND)
    world.fire()
    world.restart()
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"6", b"7", b"8"]
    assert len(world.bodies) == 9
    world.checkpoint()
    assert world.file_names() == []


def test_equal_ids_cannot_be_confused_since_records_are_known_by_place(world: World) -> None:
    """D-9: two topics in one slot have ordinals of their own."""
    world.put(SECOND, b"a", instance=1)
    world.put(SECOND, b"b", instance=2)
    world.clock.advance(SECOND)
    taken = world.take()
    assert len({(due.slot, due.ordinal) for due in taken}) == 2


def test_an_old_file_is_never_appended_to(world: World) -> None:
    """A power cut may have taken its tail while the logs hold messages fired from there."""
    world.put(30 * SECOND, b"old")
    names = world.file_names()
    sizes = [world.files.size(f"{FOLDER}/{name}") for name in names]
    world.restart()
    world.put(30 * SECOND, b"new")
    assert [world.files.size(f"{FOLDER}/{name}") for name in names] == sizes
    assert len(world.file_names()) == 2


def test_real_files_and_threads_do_the_same(tmp_path: Path) -> None:
    """The same life on a disk, with work on other threads and answers in any turn of the loop."""
    done: Queue[Callable[[], None]] = Queue()
    pool = ThreadPoolExecutor(4)

    class ThreadDisk:
        def submit(self, work: Callable[[], Any], done_with: Callable[..., None]) -> None:
            def run() -> None:
                try:
                    result = work()
                except Exception as error:
                    done.put(partial(done_with, None, error))
                else:
                    done.put(partial(done_with, result, None))

            pool.submit(run)

    clock = ManualClock()
    queue = DeferredQueue(
        SlotStore(Files(open_max=4), str(tmp_path / "deferred")),
        ThreadDisk(),
        clock,
        void_before=lambda instance: 0,
        health=lambda error: None,
        reports=Reports(lambda *_: None, lambda *_: None, lambda _: None),
        dirty=lambda: None,
        wake=lambda: None,
        sync_every=1,
        near_count_max=100,
    )
    queue.recover({})
    seen: list[bytes] = []
    for turn in range(2_000_000):
        if turn < 100:
            for i in range(10):
                now_ns = clock.wall_ns()
                delay_ns = (turn * 10 + i) * 7 % 200 * SECOND
                body = b"%d %d" % (turn, i)
                queue.writer.defer("topic", 1, body, now_ns, now_ns + delay_ns, turn * 10 + i + 1)
            queue.writer.flush()
        clock.advance(10 * MS if turn < 100 else SECOND)
        taken = queue.take(clock.wall_ns(), 7, 1 << 20)
        seen += [due.body for due in taken]
        queue.fired(taken)
        queue.checkpoints.write(queue.checkpoints.due())
        if turn > 100 and len(seen) == 1000 and not len(queue.table.files):
            break
        with suppress(Empty):
            done.get(timeout=0.001)()
            while True:
                done.get_nowait()()
    pool.shutdown()
    assert sorted(seen) == sorted(b"%d %d" % (turn, i) for turn in range(100) for i in range(10))
    assert queue.table.error_count == 0


@pytest.mark.parametrize("readable", [True, False], ids=["at start", "when it is read"])
def test_a_slot_of_a_later_version_refuses_the_start_untouched(
    world: World, readable: bool
) -> None:
    """Its version is told; a header that could not be read then is found when it can."""
    world.put(SECOND)
    (name,) = world.file_names()
    path = f"{FOLDER}/{name}"
    header = bytearray(world.files.read(path)[:40])
    header[13] = 2
    header[8:12] = google_crc32c.value(bytes(header[12:40])).to_bytes(4, "big")

    def change(data: bytearray) -> None:
        data[:40] = header

    world.files.edit(path, change)
    whole = world.files.read(path)
    world.files.crash(KEEP)
    if readable:
        with pytest.raises(StorageError, match=rf"{name}: written by a later version \(format 2\)"):
            world.start()
        assert world.files.read(path) == whole and world.file_names() == [name]
        return
    world.files.fail("pread", errno.EIO)
    world.start()
    world.clock.advance(MINUTE)
    assert world.fire() == []
    assert "later version (format 2)" in world.failing[path]
    world.put(SECOND, b"other")
    world.clock.advance(SECOND)
    assert world.fire() == [b"other"]
    assert world.files.read(path) == whole and world.damages == []


# Checkpoints


def test_a_slot_goes_only_after_its_logs_are_synced_and_its_checkpoint_written(
    world: World,
) -> None:
    """R16: log synced, then .fired, then the slot file."""
    world.put(SECOND, instance=3)
    world.clock.advance(SECOND)
    world.fire()
    (name,) = world.file_names()
    (fired,) = world.queue.checkpoints.due()
    assert (fired.topic, fired.instance, list(fired.ordinals)) == ("topic3", 3, [0])
    assert world.queue.checkpoints.open_slots() == {fired.slot}
    world.queue.checkpoints.write([])  # no log was synced
    world.disk.drain()
    assert world.file_names() == [name]
    world.files.trace.clear()
    assert world.checkpoint() == [fired]
    assert [line.split()[0] for line in world.files.trace] == [
        "append",
        "sync",
        "sync_folder",
        "unlink",
        "sync_folder",
        "unlink",
    ]
    assert world.queue.checkpoints.open_slots() == set() and world.file_names() == []


def test_a_checkpoint_that_fails_is_offered_again(world: World) -> None:
    world.put(SECOND)
    world.clock.advance(SECOND)
    world.fire()
    world.files.fail("append", errno.ENOSPC)
    (fired,) = world.checkpoint()
    assert world.queue.checkpoints.due() == [fired] and world.queue.checkpoints.open_slots() == {
        fired.slot
    }
    world.checkpoint()
    assert world.file_names() == []


def test_a_file_that_cannot_be_unlinked_is_tried_again(world: World) -> None:
    world.put(SECOND)
    world.clock.advance(SECOND)
    world.fire()
    world.files.fail("unlink", errno.EIO)
    world.files.fail("unlink", errno.EIO)
    world.checkpoint()
    assert len(world.file_names()) == 2 and world.queue.checkpoints.wanted
    world.checkpoint()
    assert world.file_names() == [] and not world.queue.checkpoints.wanted


def test_origins_stay_pinned_after_a_restart_until_they_are_checkpointed(world: World) -> None:
    world.put(SECOND)
    world.put(30 * SECOND)
    world.clock.advance(SECOND)
    world.fire()
    world.restart()
    slot = world.log[0].due.slot
    assert world.queue.checkpoints.open_slots() == {slot}
    world.fire()
    (fired,) = world.queue.checkpoints.due()
    assert (fired.slot, fired.topic, list(fired.ordinals)) == (slot, "topic1", [0])
    assert world.queue.checkpoints.open_slots() == {slot}
    world.checkpoint()
    assert world.queue.checkpoints.open_slots() == set() and len(world.file_names()) == 2


# Counts and purges


def test_counts_are_by_instance_hour_and_stamp(world: World) -> None:
    """D-12, R17: what statistics need, before and after a restart."""
    world.put(SECOND, instance=1)
    world.put(5 * HOUR, instance=1)
    world.queue.cut(1, next(world.stamps))
    cut = 3
    world.put(5 * HOUR, instance=1)
    world.put(2 * HOUR, instance=2)
    hour = world.now_ns // HOUR * 3600
    for _ in range(2):
        assert world.queue.tallies.total == 4
        assert [world.queue.tallies.count(i) for i in (1, 2, 3)] == [3, 1, 0]
        assert world.queue.tallies.before(1, cut) == 2
        assert world.queue.due_hours(2) == {hour + 7200: 1}
        assert world.queue.due_hours(1) == {hour: 1, hour + 18000: 2}
        assert world.queue.due_hours(3) == {}
        world.restart()
        world.queue.cut(1, cut)
        world.fire()
        assert world.queue.loader.counted
    world.clock.advance(SECOND)
    world.fire()
    assert world.queue.tallies.before(1, cut) == 1 and world.queue.tallies.total == 3


def test_a_purge_drops_the_counts_at_once_and_the_messages_when_due(world: World) -> None:
    """R17, D-10, D-12: topic empty and topic delete reach what is pending."""
    world.put(SECOND, b"old", instance=1)
    world.put(SECOND, b"other", instance=2)
    world.void[1] = next(world.stamps)
    assert world.queue.purge(1, world.void[1]) == 1
    assert (world.queue.tallies.total, world.queue.tallies.count(1)) == (1, 0)
    world.put(SECOND, b"new", instance=1)
    for _ in range(2):
        assert world.queue.tallies.count(1) == 1
        world.restart()
        world.fire()
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"new", b"other"]
    assert world.queue.table.void_count == 1 and world.queue.tallies.total == 0
    world.checkpoint()
    assert world.file_names() == []


def test_messages_of_a_deleted_topic_are_void_and_counted(world: World) -> None:
    """S2-6, D-10, R17: a topic made again under the same name does not get them."""
    world.put(SECOND, b"deleted", instance=1)
    world.put(SECOND, b"made again", instance=2)
    world.void[1] = FOREVER
    world.queue.purge(1, FOREVER)
    world.clock.advance(SECOND)
    assert world.fire() == [b"made again"]
    assert world.queue.table.void_count == 1


def test_the_engine_may_void_what_it_took(world: World) -> None:
    world.put(SECOND)
    world.clock.advance(SECOND)
    world.queue.void(world.take())
    assert (world.queue.table.void_count, world.queue.tallies.total) == (1, 0)
    assert world.queue.checkpoints.due() == [] and world.queue.checkpoints.wanted
    world.checkpoint()
    assert world.file_names() == []


def test_a_purge_reaches_bodies_that_were_just_read(world: World) -> None:
    world.put(SECOND)
    world.clock.advance(SECOND)
    world.files.cold = True
    assert world.queue.take(world.now_ns, 10, 1000) == []
    world.disk.drain()
    world.void[1] = next(world.stamps)
    world.queue.purge(1, world.void[1])
    assert (
        world.fire() == [] and world.queue.table.void_count == 1 and world.queue.tallies.total == 0
    )


# In memory


def test_ephemeral_topics_defer_in_memory_and_within_bounds() -> None:
    """R17: same way out, no file, no survival; a full memory refuses."""
    world = World(memory_count_max=3, memory_size_max=100)
    queue, now_ns = world.queue, world.now_ns

    def defer(delay_ns: int, body: bytes) -> bool:
        stamp = next(world.stamps)
        return queue.defer_memory("t#ephemeral", 5, body, now_ns, now_ns + delay_ns, stamp)

    assert defer(2 * SECOND, b"2") and defer(SECOND, b"1")
    assert not defer(SECOND, b"x" * 99)
    assert defer(SECOND, b"3") and not defer(SECOND, b"4")
    assert queue.next_due_ns == now_ns + SECOND and queue.tallies.count(5) == 3
    world.clock.advance(SECOND)
    taken = world.take(1)
    assert [due.body for due in taken] == [b"1"] and taken[0].slot == 0
    queue.failed(taken)
    assert queue.tallies.count(5) == 3
    world.clock.advance(SECOND)
    assert sorted(world.fire()) == [b"1", b"2", b"3"]
    assert queue.tallies.total == 0 and world.file_names() == [] and queue.checkpoints.due() == []
    assert defer(SECOND, b"5")
    world.void[5] = FOREVER
    assert queue.purge(5, FOREVER) == 1
    assert queue.next_due_ns == NEVER and queue.table.void_count == 1


# Memory


@pytest.mark.parametrize("near_count_max", [4, 5, 16, 64])
def test_more_messages_than_the_schedule_holds_all_fire_in_order(near_count_max: int) -> None:
    """D-4: memory is bounded by a setting, not by how many fall due together."""
    world = World(near_count_max=near_count_max, piece_size=600)
    delays = [(i * 7919 % 300) * 100 * MS + SECOND for i in range(300)]
    for i, delay_ns in enumerate(delays):
        world.defer(delay_ns, b"%d" % delay_ns)
        if i % 10 == 0:
            world.flush()
    world.flush()
    for _ in range(40):
        world.clock.advance(SECOND)
        world.fire(count_max=5)
        assert len(world.queue.table.schedule) <= near_count_max
        world.queue.check()
    assert world.bodies == [b"%d" % delay_ns for delay_ns in sorted(delays)]
    world.checkpoint()
    assert world.file_names() == []


def test_failing_logs_and_a_full_schedule_do_not_block_each_other() -> None:
    """D-11: messages that are tried again later do not wait for those there is no room for."""
    world = World(near_count_max=16)
    for i in range(40):
        world.defer(SECOND + i, b"%d" % i)
    world.flush()
    world.clock.advance(SECOND + 100)
    for _ in range(50):
        world.queue.failed(world.take(1))
        world.clock.advance(1 * MS)
    for _ in range(100):
        world.fire(1)
        world.clock.advance(50 * MS)
    assert sorted(world.bodies, key=int) == [b"%d" % i for i in range(40)]
