"""Power cuts at every step of everything that takes several."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.storage.datapath import DataPath
from penstock.storage.journal import (
    ChannelState,
    Journal,
    TopicState,
    encode_channel,
    encode_progress,
    encode_synced,
    encode_topic,
    snapshot,
)
from penstock.storage.node import load_node
from penstock.storage.recovery import RecoveredTopic, recover_topic
from penstock.storage.reserve import Reserve
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.logs import gaps
from tests.unit.storage.build import NODE_ID, append, append_many, batch, read_all

ROOT = "/data"
FOLDER = f"{ROOT}/penstock/topics/t~0000000000000001"
MODES = [LOSE, KEEP, PREFIX, HOLES]

Act = Callable[[LossyFiles, TopicLog], None]


def fresh() -> tuple[LossyFiles, TopicLog]:
    files = LossyFiles()
    files.make_folder(ROOT)
    files.put(f"{ROOT}/x", b"")
    paths = DataPath(files, ROOT)  # type: ignore[arg-type]
    paths.open()
    paths.create_topic("t", 1)
    log = TopicLog.create(files, FOLDER, 1, NODE_ID, 100, 2000)  # type: ignore[arg-type]
    journal = Journal(files, f"{FOLDER}/journal")  # type: ignore[arg-type]
    journal.write(encode_topic(100, False, False, 0) + encode_channel(1, 100, False, 0, "c"))
    journal.sync()
    return files, log


def recover(files: LossyFiles, floor: int = 0) -> RecoveredTopic:
    found = recover_topic(files, FOLDER, NODE_ID, floor, (), 2000)  # type: ignore[arg-type]
    found.log.check()
    return found


def crash_everywhere(
    prepare: Callable[[], tuple[LossyFiles, TopicLog]],
    act: Act,
    check: Callable[[RecoveredTopic, LossyFiles], None],
) -> None:
    """Do ``act`` again and again, stopped one step later each time, in every mode."""
    for mode in MODES:
        step = 0
        finished = False
        while not finished:
            files, log = prepare()
            files.crash_at = files.step_count + step
            try:
                act(files, log)
                finished = True
            except Crashed:
                step += 1
            files.crash(mode, seed=step)
            found = recover(files)
            check(found, files)
            there = read_all(found.log)
            # Recovering is idempotent, and a crash right after it is nothing new.
            again = recover(files)
            assert read_all(again.log) == there
            assert (again.torn_count, again.corrupt_count) == (0, 0), again.notes
            files.crash(mode, seed=step + 1000)
            again = recover(files)
            assert read_all(again.log) == there
            assert again.corrupt_count == 0, again.notes
            append(again.log, batch(again.log.end))
            assert len(read_all(again.log)) == len(there) + 1
        assert step > 0


def synced_log(count: int = 12) -> tuple[LossyFiles, TopicLog]:
    files, log = fresh()
    append_many(log, count, 2, body=b"x" * 100)
    log.synced(log.sync())
    return files, log


def holds(found: RecoveredTopic, *, at_least: range) -> None:
    assert found.corrupt_count == 0, found.notes
    assert set(at_least) <= set(read_all(found.log))


def test_a_crash_while_appending_keeps_what_was_synced() -> None:
    def act(files: LossyFiles, log: TopicLog) -> None:
        append_many(log, 3, 2)

    crash_everywhere(synced_log, act, lambda found, files: holds(found, at_least=range(100, 124)))


def test_a_crash_while_rolling_loses_nothing_synced() -> None:
    def act(files: LossyFiles, log: TopicLog) -> None:
        append_many(log, 2)
        log.synced(log.roll())
        append_many(log, 2)

    crash_everywhere(synced_log, act, lambda found, files: holds(found, at_least=range(100, 124)))


def test_the_first_append_after_a_start_never_loses_the_tail() -> None:
    def prepare() -> tuple[LossyFiles, TopicLog]:
        files, log = fresh()
        append_many(log, 5)
        files.crash(KEEP)  # killed: nothing was synced, everything is in the page cache
        return files, recover(files, 1000).log

    acked: list[int] = []

    def act(files: LossyFiles, log: TopicLog) -> None:
        acked.clear()
        append(log, batch(log.end))
        log.synced(log.sync())
        acked.append(1000)

    def check(found: RecoveredTopic, files: LossyFiles) -> None:
        there = set(read_all(found.log))
        if 1000 in there:  # a successor that exists means that its predecessor is synced
            assert set(range(100, 105)) <= there
        assert not acked or 1000 in there
        assert found.corrupt_count == 0

    crash_everywhere(prepare, act, check)


def rolled_log() -> tuple[LossyFiles, TopicLog]:
    files, log = fresh()
    for _ in range(3):
        append_many(log, 5, 2)
        log.synced(log.roll())
    return files, log


def test_a_crash_while_relocating_keeps_the_stragglers() -> None:
    def act(files: LossyFiles, log: TopicLog) -> None:
        for kept in ([101, 105, 107], [105, 107], []):
            base = log.segments()[0].base
            gone = log.relocated(log.relocate(base, kept))
            for path in gone:
                files.unlink(path)
            if kept:
                assert set(kept) <= set(read_all(log))

    def check(found: RecoveredTopic, files: LossyFiles) -> None:
        there = set(read_all(found.log))
        assert set(range(110, 130)) <= there and found.corrupt_count == 0
        assert found.log.count == len(there)

    crash_everywhere(rolled_log, act, check)


def test_stragglers_survive_a_crash_at_each_step_of_their_relocation() -> None:
    """R5: the side file is synced before the segment goes."""

    def act(files: LossyFiles, log: TopicLog) -> None:
        for path in log.relocated(log.relocate(100, [101, 105])):
            files.unlink(path)
        files.sync_folder(FOLDER)
        for path in log.relocated(log.relocate(100, [105])):
            files.unlink(path)
        files.sync_folder(FOLDER)

    crash_everywhere(rolled_log, act, lambda found, files: holds(found, at_least=range(105, 106)))


def test_a_crash_while_retiring_removes_whole_segments_only() -> None:
    def act(files: LossyFiles, log: TopicLog) -> None:
        for path in log.retire(120):
            files.unlink(path)
        files.sync_folder(FOLDER)

    def check(found: RecoveredTopic, files: LossyFiles) -> None:
        there = set(read_all(found.log))
        assert set(range(120, 130)) <= there and found.corrupt_count == 0
        for start in (100, 110):
            inside = there & set(range(start, start + 10))
            assert len(inside) in (0, 10)

    crash_everywhere(rolled_log, act, check)


def test_a_crash_while_compacting_keeps_the_old_or_the_new_journal() -> None:
    state = TopicState(released=150, channels={"c": ChannelState(1, "c", 100, low=140)})

    def act(files: LossyFiles, log: TopicLog) -> None:
        journal = Journal(files, f"{FOLDER}/journal")  # type: ignore[arg-type]
        journal.write(encode_progress(1, 130))
        journal.sync()
        journal.compact(snapshot(state))
        journal.write(encode_progress(1, 160))

    def check(found: RecoveredTopic, files: LossyFiles) -> None:
        assert found.state.channels["c"].low in (100, 130, 140, 160)
        assert not any(name.endswith(".new") for name in files.list(FOLDER))
        assert found.state.corrupt_count == 0

    crash_everywhere(synced_log, act, check)


def test_a_crash_while_creating_leaves_a_topic_or_nothing() -> None:
    for mode in MODES:
        for step in range(10):
            files = LossyFiles()
            files.make_folder(ROOT)
            files.put(f"{ROOT}/x", b"")
            paths = DataPath(files, ROOT)  # type: ignore[arg-type]
            paths.open()
            files.crash_at = files.step_count + step
            answered = False
            try:
                folder = paths.create_topic("new", 5)
                Journal(files, f"{folder}/journal").write(  # type: ignore[arg-type]
                    encode_topic(1, False, False, 0)
                )
                answered = True
            except Crashed:
                pass
            files.crash(mode, step)
            paths.open()
            topics = [found.topic for found in paths.topic_folders()]
            assert topics == ["new"] or not answered
            for found in paths.topic_folders():
                recover_topic(files, found.path, NODE_ID, 0)  # type: ignore[arg-type]


def test_a_crash_while_deleting_brings_back_all_or_nothing() -> None:
    for mode in MODES:
        for step in range(12):
            files, _ = rolled_log()
            paths = DataPath(files, ROOT)  # type: ignore[arg-type]
            files.crash_at = files.step_count + step
            answered = False
            try:
                gone = paths.delete_topic(FOLDER)
                answered = True
                paths.remove(gone)
            except Crashed:
                pass
            files.crash(mode, step)
            paths.open()
            there = paths.topic_folders()
            assert not (answered and there)
            if there:
                assert len(read_all(recover(files).log)) == 30
            for deleted in paths.deleted_topics():
                assert not files.list(deleted.path)
                paths.remove(deleted.path)
            assert not any(n.endswith(".deleted") for n in files.list(paths.topics))


# A failing disk (R8)


def test_a_full_disk_refuses_an_append_and_takes_the_next() -> None:
    files, log = synced_log()
    files.space = 0
    with pytest.raises(OSError) as caught:
        one = batch(124)
        log.write(one)
    assert caught.value.errno == errno.ENOSPC
    log.abandon(125)
    files.space = 1 << 30
    append(log, batch(125))
    assert gaps(log) == [(124, 125)]
    assert sorted(read_all(log)) == [*range(100, 124), 125]
    assert gaps(recover(files).log) == [(124, 125)]


def test_a_full_disk_at_the_first_append_leaves_no_file() -> None:
    files, log = fresh()
    files.space = 0
    with pytest.raises(OSError):
        append(log, batch(100))
    assert files.list(FOLDER) == ["journal"]


@pytest.mark.parametrize("synced_first", [False, True])
def test_a_failed_sync_writes_the_batches_again_into_a_new_file(synced_first: bool) -> None:
    files, log = fresh()
    append_many(log, 3)
    if synced_first:
        log.synced(log.sync())
    append_many(log, 3)
    files.fail("sync", errno.EIO)
    with pytest.raises(OSError):
        log.sync()
    assert log.extent.unsynced_count == (3 if synced_first else 6)
    assert sorted(read_all(log)) == list(range(100, 106))
    token = log.rewrite_unsynced()
    log.synced(token)
    assert log.extent.unsynced_count == 0 and log.synced_end == 106
    assert len(log.segments()) == 1 + synced_first
    append_many(log, 1)
    log.synced(log.sync())
    assert sorted(read_all(log)) == list(range(100, 107))
    files.crash(LOSE)
    found = recover(files)
    assert sorted(read_all(found.log)) == list(range(100, 107))
    assert found.corrupt_count == 0


def test_a_crash_while_writing_again_after_a_failed_sync() -> None:
    def act(files: LossyFiles, log: TopicLog) -> None:
        append_many(log, 3)
        files.fail("sync", errno.EIO)
        with pytest.raises(OSError):
            log.sync()
        append_many(log, 2)
        log.synced(log.sync())
        append_many(log, 2)
        log.synced(log.roll())

    crash_everywhere(synced_log, act, lambda found, files: holds(found, at_least=range(100, 124)))


def test_writes_go_on_when_the_new_file_cannot_be_made_at_once() -> None:
    files, log = synced_log()
    append_many(log, 2)
    files.fail("sync", errno.EIO)
    files.fail("rename", errno.EIO)
    with pytest.raises(OSError):
        log.sync()
    with pytest.raises(OSError):
        append_many(log, 1)
    assert not any(name.endswith(".new") for name in files.list(FOLDER))
    log.abandon(log.end + 1)
    append_many(log, 1)
    assert log.count == 27 and len(read_all(log)) == 27


def test_the_reserve_makes_room_for_a_journal_on_a_full_disk() -> None:
    files, _ = synced_log()
    files.space = 1 << 20
    reserve = Reserve(files, f"{ROOT}/penstock/reserve", 5000)  # type: ignore[arg-type]
    assert reserve.hold() and reserve.held
    files.space -= files.free_size(ROOT)
    journal = Journal(files, f"{FOLDER}/journal")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        journal.write(encode_progress(1, 120))
    reserve.free()
    assert not reserve.held
    journal.write(encode_progress(1, 120))
    assert not reserve.hold()
    assert not files.exists(f"{ROOT}/penstock/reserve")
    files.space = 1 << 30
    assert reserve.hold()


def test_a_node_keeps_its_identity_and_its_floor_never_sinks() -> None:
    for mode in MODES:
        for step in range(8):
            files = LossyFiles()
            files.put(f"{ROOT}/penstock/x", b"")
            node = load_node(files, f"{ROOT}/penstock/node.json")  # type: ignore[arg-type]
            node.raise_floor(files, 1000)  # type: ignore[arg-type]
            files.crash_at = files.step_count + step
            with suppress(Crashed):
                node.raise_floor(files, 2000)  # type: ignore[arg-type]
            files.crash(mode, step)
            again = load_node(files, f"{ROOT}/penstock/node.json")  # type: ignore[arg-type]
            assert again.uuid == node.uuid
            assert again.index_floor in (1000, 2000) and again.index_floor >= node.index_floor


def test_the_synced_record_of_an_old_segment_says_nothing_of_a_new_one() -> None:
    files, log = fresh()
    append_many(log, 2)
    token = log.sync()
    log.synced(token)
    files.append(f"{FOLDER}/journal", [encode_synced(token.base, token.offset)])
    log.synced(log.roll())
    append_many(log, 2)
    data = bytearray(files.read(f"{FOLDER}/00000000000000000102.log"))
    data[-1] ^= 1
    files.put(f"{FOLDER}/00000000000000000102.log", bytes(data))
    found = recover(files)
    assert (found.torn_count, found.corrupt_count) == (1, 0)
    assert sorted(read_all(found.log)) == [100, 101, 102]


def test_a_footer_never_survives_the_batches_it_stands_for() -> None:
    for seed in range(200):
        files, log = fresh()
        append_many(log, 12, 2, body=b"x" * 100)  # several blocks, none of them synced
        files.sync_folder(FOLDER)
        files.fail("sync", errno.EIO, after=1)  # the footer is written, its sync does not happen
        with pytest.raises(OSError):
            log.roll()
        files.crash(HOLES, seed)
        found = recover(files)
        assert sorted(read_all(found.log)) == list(range(100, 124))
        assert found.log.take_damage() == []
        assert found.corrupt_count == 0, found.notes
