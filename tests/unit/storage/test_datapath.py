"""The layout of a data path."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import LockedError, StorageError
from penstock.storage.datapath import DataPath, parse_folder
from penstock.storage.files import Files
from penstock.storage.reserve import Reserve


@pytest.fixture
def paths(tmp_path: Path) -> DataPath:
    found = DataPath(Files(), str(tmp_path))
    found.open()
    return found


@pytest.mark.parametrize("topic", [".", "..", "a", "A.b-c_9", "x" * 64])
def test_names_become_folders_and_come_back(paths: DataPath, topic: str) -> None:
    folder = paths.create_topic(topic, 0xABC)
    assert Path(folder).is_dir() and Path(folder).parent == Path(paths.topics)
    assert paths.topic_folders() == [(topic, 0xABC, folder)]


@pytest.mark.parametrize("topic", ["", "a/b", "../x", "a~b", "x" * 65, "a b", "a\n"])
def test_what_is_no_topic_gets_no_folder(paths: DataPath, topic: str) -> None:
    with pytest.raises(ValueError):
        paths.topic_folder(topic, 1)


@pytest.mark.parametrize("name", ["a", "a~1", "a~0000000000000ABC", "~0000000000000001", "journal"])
def test_what_is_no_topics_folder_is_left_out(name: str) -> None:
    assert parse_folder(f"/x/{name}") is None


def test_a_deleted_topic_is_gone_at_once_and_removed_later(paths: DataPath) -> None:
    folder = paths.create_topic("t", 1)
    Path(f"{folder}/journal").write_bytes(b"x")
    gone = paths.delete_topic(folder)
    assert paths.topic_folders() == []
    again = paths.create_topic("t", 2)
    assert [found.path for found in paths.topic_folders()] == [again]
    paths.remove(gone)
    assert not Path(gone).exists()


def test_opening_removes_what_a_crash_left(paths: DataPath) -> None:
    gone = paths.delete_topic(paths.create_topic("t", 1))
    Path(f"{gone}/0.log").write_bytes(b"x")
    for leftover in ("nsqd.dat.0123456789ab.tmp", "penstock/node.json.0123456789ab.tmp"):
        Path(f"{paths.root}/{leftover}").write_bytes(b"x")
    Path(f"{paths.root}/mine.tmp").write_bytes(b"x")
    paths.files.unlock(paths.root)
    paths.open()
    # The folder itself stays until nsqd.dat was written, to tell what was deleted.
    assert [(found.topic, found.path) for found in paths.deleted_topics()] == [("t", gone)]
    assert list(Path(gone).iterdir()) == []
    assert sorted(p.name for p in Path(paths.root).iterdir()) == ["mine.tmp", "penstock"]
    assert sorted(p.name for p in Path(paths.own).iterdir()) == ["deferred", "staging", "topics"]


def test_a_data_path_belongs_to_one_process(paths: DataPath) -> None:
    with pytest.raises(LockedError):
        DataPath(Files(), paths.root).open()


def test_the_reserve_takes_real_blocks(paths: DataPath) -> None:
    reserve = Reserve(paths.files, paths.reserve, 100_000)
    assert not reserve.held
    assert reserve.hold() and reserve.held
    assert Path(paths.reserve).stat().st_blocks * 512 >= 100_000
    assert Reserve(paths.files, paths.reserve, 100_000).hold()
    reserve.free()
    assert not Path(paths.reserve).exists()


def test_a_reserve_of_nothing_is_always_held(paths: DataPath) -> None:
    reserve = Reserve(paths.files, paths.reserve, 0)
    assert reserve.hold()
    reserve.free()
    assert reserve.held


@pytest.mark.parametrize("name", ["orders.diskqueue.000000.dat", "orders:a.diskqueue.meta.dat"])
def test_a_folder_with_queues_of_a_go_nsqd_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        DataPath(Files(), str(tmp_path)).open()
    assert f"`penstock import-nsqd --from {tmp_path} --to DIR`" in str(caught.value)
    assert name in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_queues_that_nsqd_gave_up_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "orders.diskqueue.000000.dat.bad").write_bytes(b"")
    DataPath(Files(), str(tmp_path)).open()
