"""The log of a topic on real files."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.batches import HEADER_SIZE
from penstock.errors import UncutError
from penstock.storage.files import Files
from penstock.storage.log_records import SyncToken
from penstock.storage.recovery import recover_topic
from penstock.storage.segment_format import decode_header
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import LossyFiles
from tests.support.logs import gaps
from tests.unit.storage.build import NODE_ID, append, append_many, batch, frame, read_all

MEGABYTE = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TopicLog]:
    files = Files()
    yield TopicLog.create(files, f"{tmp_path}/t", 1, NODE_ID, 100, 20_000)
    files.close()


def rolled(log: TopicLog, count: int, **options: object) -> None:
    """Append ``count`` batches of two, rolling when it is time."""
    for _ in range(count):
        if log.needs_roll():
            log.synced(log.roll())
        append_many(log, 1, 2, **options)


def unlink(log: TopicLog, paths: list[str]) -> None:
    for path in paths:
        log._files.unlink(path)


def test_a_new_log_has_no_files(log: TopicLog) -> None:
    assert list(Path(log.folder).iterdir()) == []
    assert (log.first, log.end, log.count, log.size, gaps(log)) == (100, 100, 0, 0, [])
    block = log.read(0, 1000, True)
    assert block is not None and block.span_count == 0


def test_a_batch_is_seen_after_its_commit_and_not_before(log: TopicLog) -> None:
    one, two = batch(100, 2), batch(102, 3)
    log.write(one)
    log.write(two)  # the writer runs ahead of the loop
    assert (log.end, log.count, read_all(log)) == (100, 0, {})
    log.commit(one)
    assert sorted(read_all(log)) == [100, 101]
    log.commit(two)
    assert (log.end, log.count) == (105, 5)
    assert sorted(read_all(log)) == [100, 101, 102, 103, 104]


def test_a_segment_rolled_ahead_of_a_commit_does_not_go_with_it(log: TopicLog) -> None:
    append_many(log, 1)
    one = batch(101)
    log.write(one)
    token = log.roll()
    assert log.retire(101) == []  # the uncommitted message is in there
    log.commit(one)
    log.synced(token)
    assert sorted(read_all(log)) == [100, 101]
    assert len(log.retire(102)) == 1


def test_the_first_segment_declares_its_gap(log: TopicLog) -> None:
    append_many(log, 2)
    log.synced(log.roll())
    log.abandon(500)
    append(log, batch(500))
    data = Path(f"{log.folder}/{500:020d}.log").read_bytes()
    header = decode_header(data[:HEADER_SIZE])
    assert header is not None
    assert (header.base, header.previous_end, header.node_id, header.instance) == (
        500,
        102,
        NODE_ID,
        1,
    )
    assert gaps(log) == [(102, 500)]


def test_reads_give_whole_batches_and_about_the_size_asked_for(log: TopicLog) -> None:
    append_many(log, 100, 3, body=b"x" * 1000)
    block = log.read(151, 10_000, True)
    assert block is not None
    assert block.first == 151 - (151 - 100) % 3
    assert 10_000 <= len(block.data) <= 10_000 + 2 * 32 * 1024
    assert block.frame(152) == frame(152, b"x" * 1000)
    assert sorted(read_all(log, size_max=1)) == list(range(100, 400))


def test_a_batch_larger_than_the_size_asked_for_is_read_whole(tmp_path: Path) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 1, 10 * MEGABYTE)
    append(log, batch(1, 1, body=b"a" * MEGABYTE))
    append(log, batch(2, 1, body=b"b" * MEGABYTE))
    append(log, batch(3, 1))
    block = log.read(2, 100, True)
    assert block is not None
    assert block.frame(2) == frame(2, b"b" * MEGABYTE)
    assert sorted(read_all(log)) == [1, 2, 3]


def test_a_cold_read_says_so_instead_of_waiting() -> None:
    files = LossyFiles()
    log = TopicLog.create(files, "/t", 1, NODE_ID, 1, 10_000)  # type: ignore[arg-type]
    append_many(log, 10)
    files.cold = True
    assert log.read(1, 1000, False) is None
    assert log.frame(5, False) is None
    assert log.frame(5, True) == frame(5)
    files.cold = False
    assert log.frame(5, False) == frame(5)


def test_a_frame_that_is_in_the_page_cache_is_read_without_waiting(log: TopicLog) -> None:
    append_many(log, 10)
    assert log.frame(105, False) in (frame(105), None)  # None where the file system cannot tell
    assert log.frame(110, False) == b""
    assert log.frame(99, True) == b""


@pytest.mark.parametrize("segment_size_max", [20_000, 100_000])
def test_seek_finds_the_first_index_of_a_time(tmp_path: Path, segment_size_max: int) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 100, segment_size_max)
    for time_ns in range(0, 3000, 10):
        if log.needs_roll():
            log.synced(log.roll())
        append(log, batch(log.end, 2, append_ns=time_ns, body=b"x" * 400))
    assert len(log.segments()) > 2
    for time_ns in range(0, 2991, 3):
        assert log.seek(time_ns) == 100 + 2 * -(-time_ns // 10)
    assert log.seek(2991) == log.end


def test_retire_removes_sealed_segments_below_low_only(log: TopicLog) -> None:
    rolled(log, 400)
    records = log.segments()
    assert len(records) >= 3
    assert log.retire(records[1].end - 1) == [records[0].path]
    assert log.first == records[1].base
    assert log.count == log.end - records[1].base
    assert log.retire(log.end) == [r.path for r in records[1:-1]]
    assert not log.segments()[0].sealed
    log.synced(log.roll())
    assert log.retire(log.end) == [records[-1].path]
    assert (log.first, log.end, log.count, log.size) == (log.end, log.end, 0, 0)
    append_many(log, 1)
    assert list(read_all(log)) == [log.end - 1]


def test_a_held_segment_stays(log: TopicLog) -> None:
    rolled(log, 400)
    base = log.segments()[0].base
    log.holds["one"] = log.holds["other"] = base
    assert base not in {int(Path(p).stem) for p in log.retire(log.end)}
    del log.holds["one"]
    assert log.retire(log.end) == []
    del log.holds["other"]
    assert base in {int(Path(p).stem) for p in log.retire(log.end)}


def test_a_segment_with_a_pinned_origin_slot_stays(log: TopicLog) -> None:
    append(log, batch(100, 1, slot=77, ordinals=[4]))
    append(log, batch(101, 1))
    log.synced(log.roll())
    log.pinned_slots.add(77)
    assert log.retire(200) == []
    assert log.relocated(log.relocate(100, [])) == []
    assert log.segments()[0].slot_min == log.segments()[0].slot_max == 77
    log.pinned_slots.clear()
    assert len(log.retire(200)) == 1


def test_an_active_segment_that_is_finished_is_worth_rolling_when_large(tmp_path: Path) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 1)
    append_many(log, 3, body=b"x" * MEGABYTE)
    assert not log.needs_roll(log.end)
    append_many(log, 1, body=b"x" * MEGABYTE)
    assert log.needs_roll(log.end)
    assert not log.needs_roll(log.end - 1)


def test_stragglers_move_to_a_side_file_and_stay_readable(log: TopicLog) -> None:
    """R5: a few unfinished messages do not hold a segment."""
    rolled(log, 400)
    first = log.segments()[0]
    kept = [first.first + 3, first.first + 50, first.end - 1]
    size = log.size
    relocation = log.relocate(first.base, kept)
    unlink(log, log.relocated(relocation))
    log.check()
    assert log.size < size
    assert log.segments()[0].side and log.segments()[0].count == 3
    assert [i for a, b in log.existing(0, first.end) for i in range(a, b)] == kept
    assert all(log.frame(index, True) == frame(index) for index in kept)
    assert log.frame(kept[0] + 1, True) == b""
    assert sorted(read_all(log))[:4] == [*kept, first.end]

    side = log.segments()[0]
    unlink(log, log.relocated(log.relocate(side.base, kept[:1])))
    assert log.first == kept[0] and log.count_between(0, first.end) == 1
    assert log.frame(kept[1], True) == b""
    unlink(log, log.relocated(log.relocate(log.segments()[0].base, [])))
    assert log.first == first.end
    assert not list(Path(log.folder).glob("*.side"))


def test_a_relocation_of_a_segment_that_went_meanwhile_leaves_nothing(log: TopicLog) -> None:
    rolled(log, 400)
    first = log.segments()[0]
    relocation = log.relocate(first.base, [first.first])
    unlink(log, log.retire(first.end))
    unlink(log, log.relocated(relocation))
    assert not list(Path(log.folder).glob("*.side"))
    log.check()


def test_a_write_that_cannot_be_cut_back_seals_the_segment() -> None:
    files = LossyFiles()
    log = TopicLog.create(files, "/t", 1, NODE_ID, 1, 10_000)  # type: ignore[arg-type]
    append_many(log, 2)
    files.fail("uncut", 28)
    one = batch(3)
    with pytest.raises(UncutError):
        log.write(one)
    log.abandon(4)
    append(log, batch(4))
    assert [(r.base, r.sealed) for r in log.segments()] == [(1, True), (4, False)]
    assert sorted(read_all(log)) == [1, 2, 4]


def damage(log: TopicLog, index: int, place: int) -> None:
    """Flip a byte of the batch of ``index``; batches are of one message here."""
    path = Path(log.segments()[0].path)
    data = bytearray(path.read_bytes())
    size = len(batch(index).bytes)
    data[HEADER_SIZE + (index - log.first) * size + place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("place", [2, 20, 60])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_batch_becomes_a_gap(log: TopicLog, place: int, sealed: bool) -> None:
    append_many(log, 20)
    if sealed:
        log.synced(log.roll())
    for index in (100, 107, 119):
        damage(log, index, place)
    expected = [i for i in range(100, 120) if i not in (100, 107, 119)]
    assert sorted(read_all(log)) == expected
    found = log.take_damage()
    assert [(d.index_start, d.index_end) for d in found] == [(100, 101), (107, 108), (119, 120)]
    assert log.corrupt_count == 3
    assert log.count == 17 and log.first == 101
    assert log.next_index(107) == 108
    assert sorted(read_all(log)) == expected
    assert log.take_damage() == [] and log.corrupt_count == 3
    assert log.frame(107, True) == b""
    log.keep_evidence(found[0])
    assert len(list(Path(log.folder).glob("*.corrupt"))) == 1


def test_a_segment_that_vanished_is_damage_and_the_rest_is_read(log: TopicLog) -> None:
    rolled(log, 400)
    gone, second = log.segments()[:2]
    log._files.unlink(gone.path)
    assert min(read_all(log)) == second.first
    assert [(d.index_start, d.index_end) for d in log.take_damage()] == [(gone.first, gone.end)]
    assert log.first == second.first


def test_a_shortened_file_ends_the_read(log: TopicLog) -> None:
    append_many(log, 20)
    path = log.segments()[0].path
    log._files.truncate(path, log._files.size(path) - 300)
    there = read_all(log)
    assert 10 < len(there) < 20
    assert len(log.take_damage()) == 1
    assert log.count == len(there)


def test_readers_on_other_threads_see_every_message_while_segments_come_and_go(
    tmp_path: Path,
) -> None:
    files = Files(open_max=4)
    log = TopicLog.create(files, f"{tmp_path}/t", 1, NODE_ID, 0, 20_000)
    errors: list[BaseException] = []
    done = threading.Event()
    progress = [0, 0, 0]

    def consume(place: int) -> None:
        index = 0
        try:
            while index < 6000:
                block = log.read(index, 5000, True)
                assert block is not None
                if not block.span_count:
                    if done.is_set() and index >= log.end:
                        return
                    continue
                assert block.first <= index, f"{block.first} after {index}"
                assert block.frame(index) == frame(index)
                index = progress[place] = block.end
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=consume, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    while log.end < 6000 and not errors:
        rolled(log, 5)
        unlink(log, log.retire(min(progress)))
    done.set()
    for thread in threads:
        thread.join()
    assert errors == [] and progress == [6000] * 3
    assert log.take_damage() == []
    files.close()


class FlakyFiles(Files):
    """Every third sync of a file fails."""

    sync_count = 0

    def sync(self, path: str) -> None:
        self.sync_count += 1
        if self.sync_count % 3 == 0:
            raise OSError(errno.EIO, "told to fail")
        super().sync(path)


def test_syncs_that_fail_beside_writes_cost_nothing(tmp_path: Path) -> None:
    files = FlakyFiles()
    folder = f"{tmp_path}/t~0000000000000001"
    log = TopicLog.create(files, folder, 1, NODE_ID, 0, 50_000)
    tokens: queue.SimpleQueue[SyncToken] = queue.SimpleQueue()
    done = threading.Event()

    def sync() -> None:
        while not done.is_set():
            with suppress(OSError):
                tokens.put(log.sync())

    thread = threading.Thread(target=sync)
    thread.start()
    written: list[int] = []
    while files.sync_count < 60 and len(written) < 100_000:
        one = batch(log.end, 2, body=b"x" * 50)
        try:
            log.write(one)
        except OSError:  # the copy after a failed sync failed too
            log.abandon(one.first + 2)
            continue
        log.commit(one)
        written += (one.first, one.first + 1)
        while not tokens.empty():
            log.synced(tokens.get())
    done.set()
    thread.join()
    while not tokens.empty():
        log.synced(tokens.get())
    log.check()
    assert sorted(read_all(log)) == written
    assert log.take_damage() == []
    files.close()
    again = recover_topic(Files(), folder, NODE_ID, 0)
    assert sorted(read_all(again.log)) == written
    assert (again.corrupt_count, again.torn_count) == (0, 0), again.notes


def test_sync_counts_what_it_covered(log: TopicLog) -> None:
    append_many(log, 3, 2)
    assert (log.extent.unsynced_count, log.synced_end) == (6, 100)
    assert log.extent.unsynced_size == 3 * len(batch(0, 2).bytes)
    token = log.sync()
    append_many(log, 1)
    log.synced(token)
    assert (log.extent.unsynced_count, log.synced_end) == (1, 106)
    assert token.base == 100 and token.offset == HEADER_SIZE + 3 * len(batch(0, 2).bytes)
    log.synced(log.roll())
    assert (log.extent.unsynced_count, log.extent.unsynced_size, log.synced_end) == (0, 0, 107)
