"""Opening a topic's folder."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from penstock.core.tables import Tally
from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.journal import (
    encode_channel,
    encode_progress,
    encode_synced,
    encode_topic,
)
from penstock.storage.recovery import recover_topic
from penstock.storage.segment_format import encode_header, footer
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import KEEP, LOSE, LossyFiles
from tests.support.logs import gaps
from tests.unit.storage.build import NODE_ID, append, append_many, batch, frame, read_all


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"{tmp_path}/orders~00000000000000ab"


def make(folder: str, base: int = 100, node_id: int = NODE_ID) -> TopicLog:
    return TopicLog.create(Files(), folder, 0xAB, node_id, base, 20_000)


def test_an_empty_folder_is_an_empty_log_and_stays_empty(folder: str) -> None:
    Path(folder).mkdir()
    found = recover_topic(Files(), folder, NODE_ID, 777)
    assert (found.log.end, found.log.count, found.log.instance) == (777, 0, 0xAB)
    assert list(Path(folder).iterdir()) == []


def test_a_file_that_was_made_and_not_written_goes_without_a_word(folder: str) -> None:
    """Whoever is killed between the two leaves one behind."""
    append_many(make(folder), 5)
    empty = Path(f"{folder}/{200:020d}.log")
    empty.touch()
    found = recover_topic(Files(), folder, NODE_ID, 0)
    assert found.notes == [] and found.log.count == 5 and not empty.exists()
    empty.touch()
    Path(f"{folder}/journal").write_bytes(encode_synced(200, 500))
    found = recover_topic(Files(), folder, NODE_ID, 0)
    assert len(found.notes) == 1, "this one had been written and synced"


def test_the_next_index_is_above_everything_anybody_has_seen(folder: str) -> None:
    """R1: indexes never come back."""
    append_many(make(folder), 5)
    assert recover_topic(Files(), folder, NODE_ID, 0).log.end == 105
    assert recover_topic(Files(), folder, NODE_ID, 200).log.end == 200
    journal = encode_channel(1, 100, False, 0, "c") + encode_progress(1, 102, [(140, 150)])
    Path(f"{folder}/journal").write_bytes(journal)
    assert recover_topic(Files(), folder, NODE_ID, 0).log.end == 150
    Path(f"{folder}/journal").write_bytes(journal + encode_topic(170, False, False, 0))
    assert recover_topic(Files(), folder, NODE_ID, 0).log.end == 170


def test_every_start_opens_a_new_segment_at_its_first_append(folder: str) -> None:
    append_many(make(folder), 5)
    for start in (1000, 2000, 3000):
        log = recover_topic(Files(), folder, NODE_ID, start).log
        before = len(list(Path(folder).glob("*.log")))
        append(log, batch(start))
        assert len(list(Path(folder).glob("*.log"))) == before + 1
        assert [r.sealed for r in log.segments()][-2:] == [True, False]
    assert sorted(read_all(log)) == [*range(100, 105), 1000, 2000, 3000]
    assert gaps(log) == [(105, 1000), (1001, 2000), (2001, 3000)]


def test_blocks_carry_the_node_id_their_messages_were_given(folder: str) -> None:
    append(make(folder, node_id=3), batch(100, node_id=3))
    log = recover_topic(Files(), folder, 4, 0).log
    append(log, batch(101, node_id=4))
    first, second = log.read(100, 1, True), log.read(101, 1, True)
    assert first is not None and second is not None
    assert (first.node_id, second.node_id) == (3, 4)
    data = bytearray(Path(f"{folder}/{100:020d}.log").read_bytes())
    data[20] ^= 1  # the header: the frames still know
    Path(f"{folder}/{100:020d}.log").write_bytes(bytes(data))
    block = recover_topic(Files(), folder, 5, 0).log.read(100, 1, True)
    assert block is not None and block.node_id == 3


def test_gaps_inside_sealed_segments_are_known_at_start(folder: str) -> None:
    log = make(folder)
    append(log, batch(100, 2))
    log.abandon(110)
    append(log, batch(110, 2))
    log.synced(log.roll())
    again = recover_topic(Files(), folder, NODE_ID, 0).log
    assert (gaps(again), again.count) == ([(102, 110)], 4)


@pytest.mark.parametrize("sealed", [True, False])
def test_what_live_slots_fired_is_found(folder: str, sealed: bool) -> None:
    log = make(folder)
    append(log, batch(100, 2, slot=50, ordinals=[3, 9]))
    append(log, batch(102, 1))
    append(log, batch(103, 1, slot=60, ordinals=[1]))
    append(log, batch(104, 1, slot=50, ordinals=[10]))
    if sealed:
        log.synced(log.roll())
    found = recover_topic(Files(), folder, NODE_ID, 0, {50, 70})
    assert found.fired == {50: [3, 9, 10]}
    assert recover_topic(Files(), folder, NODE_ID, 0, {70}).fired == {}
    found.log.pinned_slots.add(60)
    if sealed:
        assert found.log.retire(1000) == []
        found.log.pinned_slots = {55}
        assert len(found.log.retire(1000)) == 1


def test_a_side_file_beside_its_segment_is_dropped(folder: str) -> None:
    log = make(folder)
    append_many(log, 10)
    log.synced(log.roll())
    log.relocate(100, [103])  # the crash comes before the segment goes
    found = recover_topic(Files(), folder, NODE_ID, 0)
    assert found.log.count == 10
    assert not list(Path(folder).glob("*.side"))


def test_of_two_side_files_of_one_segment_the_older_is_kept(folder: str) -> None:
    log = make(folder)
    append_many(log, 10)
    log.synced(log.roll())
    Path(log.relocated(log.relocate(100, [103, 105]))[0]).unlink()
    log.relocate(100, [105])
    assert len(list(Path(folder).glob("*.side"))) == 2
    found = recover_topic(Files(), folder, NODE_ID, 0)
    assert sorted(read_all(found.log)) == [103, 105]
    assert len(list(Path(folder).glob("*.side"))) == 1


def test_side_files_of_neighbours_stay_apart_however_often_they_move(folder: str) -> None:
    """R5: segments may hold one message each, and every move gives a side file another name."""
    log = make(folder)
    for first in range(100, 104):
        append(log, batch(first))
        log.synced(log.roll())
    for moves, base in ((4, 100), (2, 101), (1, 102)):
        for _ in range(moves):
            Path(log.relocated(log.relocate(base, [base]))[0]).unlink()
    Path(log.relocated(log.relocate(103, []))[0]).unlink()
    assert sorted(read_all(log)) == [100, 101, 102]
    Path(log.relocated(log.relocate(101, []))[0]).unlink()
    assert sorted(read_all(log)) == [100, 102]
    found = recover_topic(Files(), folder, NODE_ID, 0)
    assert sorted(read_all(found.log)) == [100, 102]
    assert len(list(Path(folder).glob("*.side"))) == 2


def test_side_files_with_names_of_the_older_kind_are_found(folder: str) -> None:
    log = make(folder)
    append_many(log, 10)
    log.synced(log.roll())
    Path(log.relocated(log.relocate(100, [103, 105, 107]))[0]).unlink()
    Path(log.relocated(log.relocate(100, [103, 105]))[0]).unlink()
    log.relocate(100, [105])
    Path(folder, f"{100:020d}-1.side").rename(Path(folder, f"{101:020d}.side"))
    Path(folder, f"{100:020d}-2.side").rename(Path(folder, f"{102:020d}.side"))
    again = recover_topic(Files(), folder, NODE_ID, 0).log
    assert sorted(read_all(again)) == [103, 105]
    Path(again.relocated(again.relocate(100, [103]))[0]).unlink()
    assert [path.name for path in Path(folder).glob("*.side")] == [f"{100:020d}-2.side"]
    assert sorted(read_all(recover_topic(Files(), folder, NODE_ID, 0).log)) == [103]


@pytest.mark.parametrize("kept", [[101], []])
def test_what_a_failed_sync_moved_stays_moved(kept: list[int]) -> None:
    """R8: it is cut off the old file, on the disk, before the file that it was moved to may go."""
    files = LossyFiles()
    log = TopicLog.create(files, "/t~00000000000000ab", 0xAB, NODE_ID, 100, 20_000)  # type: ignore[arg-type]
    append(log, batch(100))
    log.synced(log.sync())
    append(log, batch(101))
    files.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="told to fail"):
        log.sync()
    log.synced(log.roll())  # moves 101 to a file of its own
    assert [record.first for record in log.segments()] == [100, 101]
    assert not log.removable(101)
    for _ in range(2):  # the cut was not made, or the start made it
        files.crash(KEEP)
        log = recover_topic(files, log.folder, NODE_ID, 0).log  # type: ignore[arg-type]
        assert sorted(read_all(log)) == [100, 101]
    for path in log.relocated(log.relocate(101, kept)):
        files.unlink(path)
    files.sync_folder(log.folder)
    files.crash(LOSE)
    log = recover_topic(files, log.folder, NODE_ID, 0).log  # type: ignore[arg-type]
    assert sorted(read_all(log)) == [100, *kept]


def test_a_side_file_and_an_older_file_that_still_holds_its_message(folder: str) -> None:
    log = make(folder)
    append(log, batch(100))
    append(log, batch(101))
    whole = Path(log.segments()[0].path).read_bytes()
    Path(log.segments()[0].path).unlink()
    other = make(folder, 101)
    append(other, batch(101))
    other.synced(other.roll())
    Path(other.relocated(other.relocate(101, [101]))[0]).unlink()
    Path(log.segments()[0].path).write_bytes(whole)
    found = recover_topic(Files(), folder, NODE_ID, 0)
    found.log.check()
    assert sorted(read_all(found.log)) == [100, 101] and found.corrupt_count == 0


def test_leftovers_of_a_crash_are_removed_and_evidence_is_not(folder: str) -> None:
    append_many(make(folder), 1)
    for name in ("journal.new", "x.side.0123.tmp", "00000000000000000100.log.new", "a.corrupt"):
        Path(f"{folder}/{name}").write_bytes(b"half")
    recover_topic(Files(), folder, NODE_ID, 0)
    assert sorted(p.name for p in Path(folder).iterdir()) == [
        "00000000000000000100.log",
        "a.corrupt",
    ]


def test_a_later_format_is_refused_and_left_alone(folder: str) -> None:
    append_many(make(folder), 1)
    path = Path(f"{folder}/{100:020d}.log")
    header = bytearray(encode_header(NODE_ID, 100, 100, 0, 1))
    from google_crc32c import value as crc32c

    header[12:14] = b"\0\2"
    header[8:12] = crc32c(bytes(header[12:])).to_bytes(4, "big")
    data = bytes(header) + path.read_bytes()[64:]
    path.write_bytes(data)
    with pytest.raises(StorageError, match="later version"):
        recover_topic(Files(), folder, NODE_ID, 0)
    assert path.read_bytes() == data


def test_ten_gigabytes_of_backlog_open_in_a_moment(folder: str) -> None:
    # 160 sealed segments of 64 MB as sparse files: header, one batch, a hole, footer.
    Path(folder).mkdir()
    size, base = 64 << 20, 1000
    for place in range(160):
        first = base + place * 1000
        one = batch(first, 1000)
        tally = Tally(first)
        tally.note(64, first, 1000, size, 5, 0, 0)
        with Path(f"{folder}/{first:020d}.log").open("wb") as file:
            file.write(encode_header(NODE_ID, first, first, 5, 0xAB) + one.bytes)
            file.truncate(size)
            file.seek(size)
            file.write(footer(tally))
    started = time.perf_counter()
    found = recover_topic(Files(), folder, NODE_ID, 0)
    elapsed = time.perf_counter() - started
    assert found.log.count == 160_000 and found.notes == []
    assert elapsed < 1.0  # 10 ms on a slow machine
    assert found.log.frame(base + 5001, True) == frame(base + 5001)
