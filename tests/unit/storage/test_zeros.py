"""Zeros ahead of the end of a log (Rule 4 of log_writer.pyx; R3)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.core.batches import HEADER_SIZE
from penstock.errors import UncutError
from penstock.storage.files import Files
from penstock.storage.journal import encode_synced
from penstock.storage.recovery import RecoveredTopic, recover_topic
from penstock.storage.segment_format import segment_path
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, LossyFiles
from tests.unit.storage.build import NODE_ID, append, append_many, batch

FOLDER = "/data/t~0000000000000001"
SEGMENT_SIZE = 64_000
BODY = b"x" * 100


def make(files: Files, folder: str = FOLDER, segment_size: int = SEGMENT_SIZE) -> TopicLog:
    """A log with messages up to 5,000 bytes, synced, and zeros after them."""
    if isinstance(files, LossyFiles):
        files.make_folder("/data")
        files.sync_folder("")
    log = TopicLog.create(files, folder, 1, NODE_ID, 100, segment_size)
    while log.size < 5_000:
        append(log, batch(log.end, body=BODY))
    log.synced(log.sync())
    log.write_zeros()
    return log


def recover(files: Files, folder: str = FOLDER) -> RecoveredTopic:
    return recover_topic(files, folder, NODE_ID, 0, segment_size_max=SEGMENT_SIZE)


def path_of(log: TopicLog) -> str:
    return segment_path(log.folder, 100)


def test_zeros_are_written_ahead_and_overwritten() -> None:
    files = LossyFiles()
    log = make(files)
    size = files.size(path_of(log))
    assert log.zeros_size == size - log.size == SEGMENT_SIZE // 16
    append(log, batch(log.end, body=BODY))
    assert files.size(path_of(log)) == size
    assert log.zeros_size == size - log.size
    # A batch that is larger than the zeros extends the file.
    append(log, batch(log.end, count=60, body=BODY))
    assert files.size(path_of(log)) == log.size > size
    assert log.zeros_size == 0
    log.write_zeros()
    assert log.zeros_size > 0
    log.cut_zeros()
    assert files.size(path_of(log)) == log.size
    assert log.zeros_size == 0


def test_there_are_none_beyond_the_size_of_a_segment_nor_for_a_small_one() -> None:
    files = LossyFiles()
    log = TopicLog.create(files, FOLDER, 1, NODE_ID, 100, SEGMENT_SIZE)
    log.write_zeros()
    append(log, batch(100, body=BODY))
    log.write_zeros()
    assert log.zeros_size == 0
    while log.size < SEGMENT_SIZE - 1000:
        append(log, batch(log.end, body=BODY))
        log.write_zeros()
        assert log.size + log.zeros_size <= SEGMENT_SIZE


def test_sealing_cuts_them_off() -> None:
    files = LossyFiles()
    log = make(files)
    data_size = log.size
    log.synced(log.roll())
    assert files.size(path_of(log)) == log.size > data_size
    assert log.zeros_size == 0
    log.write_zeros()
    assert files.size(path_of(log)) == log.size
    found = recover(files)
    assert (found.notes, found.zeros) == ([], [])


@pytest.mark.parametrize("action", ["append", "short"])
def test_a_failed_append_leaves_neither_bytes_nor_zeros(action: str) -> None:
    files = LossyFiles()
    log = make(files)
    size, end = log.size, log.end
    files.fail(action, errno.EIO)
    with pytest.raises(OSError):
        log.write(batch(end, body=BODY))
    log.abandon(end + 1)
    assert files.size(path_of(log)) == size
    assert log.zeros_size == 0
    log.write_zeros()
    append(log, batch(end + 1, body=BODY))
    found = recover(files)
    assert (found.log.end, found.log.count) == (end + 2, log.count)
    assert found.notes == []


def test_an_append_that_cannot_be_cut_back_closes_the_segment() -> None:
    files = LossyFiles()
    log = make(files)
    end = log.end
    files.fail("uncut", errno.EIO)
    with pytest.raises(UncutError):
        log.write(batch(end, body=BODY))
    log.abandon(end + 1)
    append(log, batch(end + 1, body=BODY))
    assert [segment.sealed for segment in log.segments()] == [True, False]
    log.write_zeros()
    found = recover(files)
    assert (found.log.end, found.log.count) == (end + 2, log.count)
    assert found.losses == []


@pytest.mark.parametrize("action", ["extend", "sync_size"])
def test_without_room_batches_are_appended_as_without_zeros(action: str) -> None:
    files = LossyFiles()
    log = make(files)
    append(log, batch(log.end, count=60, body=BODY))
    size = log.size
    files.fail(action, errno.ENOSPC)
    with pytest.raises(OSError):
        log.write_zeros()
    append(log, batch(log.end, body=BODY))
    log.write_zeros()
    assert log.zeros_size <= (0 if action == "extend" else SEGMENT_SIZE // 16)
    assert log.size > size
    log.synced(log.roll())
    # The next segment may have some again.
    while log.segment_count < 2 or log.segments()[-1].size < 5_000:
        append(log, batch(log.end, body=BODY))
    log.write_zeros()
    assert log.zeros_size > 0


def test_unused_zeros_are_not_torn_and_are_cut_off() -> None:
    files = LossyFiles()
    log = make(files)
    files.crash(LOSE)
    found = recover(files)
    assert found.zeros == [f"{path_of(log)}: zeros at {log.size}, {log.zeros_size} bytes, cut off"]
    assert (found.torn_count, found.losses) == (0, [])
    assert (found.log.end, found.log.count) == (log.end, log.count)
    assert files.size(path_of(log)) == log.size


@pytest.mark.parametrize("mode", [LOSE, KEEP, PREFIX, HOLES])
def test_what_is_synced_survives_a_power_cut_in_the_zeros(mode: str) -> None:
    for seed in range(40):
        files = LossyFiles()
        log = make(files)
        append_many(log, 3, 2)
        log.synced(log.sync())
        synced = log.end
        append_many(log, 3, 2)
        written = log.end
        files.crash(mode, seed)
        found = recover(files)
        assert synced <= found.log.end <= written, (mode, seed)
        assert found.log.count_between(0, synced) == log.count_between(0, synced) > 0
        assert found.losses == [] and found.corrupt_count == 0
        again = recover(files)
        assert again.notes == again.zeros == []
        assert (again.log.end, again.log.count) == (found.log.end, found.log.count)


def test_a_log_cut_into_zeros_at_every_byte_has_its_whole_batches() -> None:
    """As a kernel may leave it: zeros from a byte on where batches were."""
    files = LossyFiles()
    log = make(files)
    ends = [log.size]
    for _ in range(3):
        append(log, batch(log.end, body=BODY))
        ends.append(log.size)
    whole = files.read(path_of(log))
    count = log.count - 3
    for cut in range(ends[0], ends[-1] + 1):
        lossy = LossyFiles()
        lossy.put(path_of(log), whole[:cut] + bytes(len(whole) - cut))
        found = recover(lossy)
        there = sum(1 for end in ends[1:] if not any(whole[max(cut, 0) : end]))
        assert found.log.count == count + there, cut
        assert found.losses == []
        torn = lossy.size(path_of(log)) < len(whole[:cut].rstrip(b"\0"))
        assert found.torn_count == int(torn), cut
        assert lossy.size(path_of(log)) == ends[there]


def test_zeros_where_synced_messages_were_are_corrupt() -> None:
    files = LossyFiles()
    log = make(files)
    size = log.size
    path = path_of(log)
    files.edit(path, lambda data: data.__setitem__(slice(size - 130, size), bytes(130)))
    files.put(f"{FOLDER}/journal", encode_synced(100, size))
    found = recover(files)
    assert found.corrupt_count == 1
    assert len(found.losses) == 1


def test_on_the_real_disk(tmp_path: Path) -> None:
    files = Files(2)
    folder = f"{tmp_path}/t~0000000000000001"
    log = make(files, folder)
    for other in range(4):  # its descriptor is closed
        files.append(f"{tmp_path}/{other}", [b"x"])
    for _ in range(5):
        append(log, batch(log.end, body=BODY))
        log.write_zeros()
    log.synced(log.sync())
    path = Path(path_of(log))
    assert path.stat().st_size == log.size + log.zeros_size
    data = path.read_bytes()
    assert not any(data[log.size :]) and any(data[HEADER_SIZE:])
    files.close()
    files = Files()
    found = recover(files, folder)
    assert (found.log.count, len(found.zeros)) == (log.count, 1)
    assert path.stat().st_size == log.size
    files.close()
