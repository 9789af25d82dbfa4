"""The contract of Files, which the real ones and the lossy ones both keep."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import LockedError
from penstock.storage.files import Files
from tests.crash.lossy import LossyFiles
from tests.support.page_cache import must_forget, needs_cachestat


@pytest.fixture(params=["real", "lossy"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, str]]:
    files = Files(open_max=4) if request.param == "real" else LossyFiles()
    folder = f"{tmp_path}/in"
    files.make_folder(folder)
    yield files, folder  # type: ignore[misc]
    files.close()


def test_an_append_makes_the_file_and_returns_its_size(place: tuple[Files, str]) -> None:
    files, folder = place
    assert files.append(f"{folder}/a", [b"one", b"", b"two"]) == 6
    assert files.append(f"{folder}/a", [b"3"]) == 7
    assert files.read(f"{folder}/a") == b"onetwo3"
    assert files.size(f"{folder}/a") == 7


def test_an_append_takes_more_pieces_than_one_writev_does(place: tuple[Files, str]) -> None:
    files, folder = place
    assert files.append(f"{folder}/a", [b"ab"] * 3000) == 6000
    assert files.read(f"{folder}/a") == b"ab" * 3000


def test_pread_is_short_only_at_the_end(place: tuple[Files, str]) -> None:
    files, folder = place
    files.append(f"{folder}/a", [b"0123456789"])
    assert files.pread(f"{folder}/a", 2, 3) == b"234"
    assert files.pread(f"{folder}/a", 8, 100) == b"89"
    assert files.pread(f"{folder}/a", 10, 5) == b""
    assert files.pread(f"{folder}/a", 50, 5) == b""


def test_pread_without_waiting_gives_bytes_that_are_in_memory(place: tuple[Files, str]) -> None:
    files, folder = place
    files.append(f"{folder}/a", [b"0123456789"])
    found = files.pread(f"{folder}/a", 2, 3, wait=False)
    assert found in (b"234", None)  # None where the file system cannot tell


@pytest.mark.parametrize("call", ["pread", "read", "size", "sync", "truncate", "rename"])
def test_a_missing_file_is_an_error(place: tuple[Files, str], call: str) -> None:
    files, folder = place
    arguments: dict[str, list[object]] = {"pread": [0, 1], "truncate": [0], "rename": ["x"]}
    with pytest.raises(FileNotFoundError):
        getattr(files, call)(f"{folder}/none", *arguments.get(call, []))
    assert files.list(folder) == []


def test_truncate_is_seen_by_the_next_append(place: tuple[Files, str]) -> None:
    files, folder = place
    files.append(f"{folder}/a", [b"0123456789"])
    files.truncate(f"{folder}/a", 4)
    assert files.append(f"{folder}/a", [b"x"]) == 5
    assert files.read(f"{folder}/a") == b"0123x"


def test_the_files_of_a_renamed_folder_have_moved_with_it(place: tuple[Files, str]) -> None:
    """Also those that are open: a deleted topic would otherwise keep its bytes on the disk."""
    files, folder = place
    for name in ("topic", "topic-2"):
        files.make_folder(f"{folder}/{name}")
        files.append(f"{folder}/{name}/a", [b"one"])
    files.rename(f"{folder}/topic", f"{folder}/gone")
    with pytest.raises(FileNotFoundError):
        files.append(f"{folder}/topic/a", [b"two"])
    assert files.read(f"{folder}/gone/a") == b"one"
    assert files.read(f"{folder}/topic-2/a") == b"one"
    files.remove_tree(f"{folder}/gone")
    if not isinstance(files, LossyFiles):
        assert files.open_count == 1


def test_rename_replaces_and_later_appends_go_to_the_new_file(place: tuple[Files, str]) -> None:
    files, folder = place
    files.append(f"{folder}/a", [b"old"])
    files.append(f"{folder}/b", [b"new"])
    files.rename(f"{folder}/b", f"{folder}/a")
    files.append(f"{folder}/a", [b"er"])
    assert files.list(folder) == ["a"]
    assert files.read(f"{folder}/a") == b"newer"


def test_unlink_of_a_missing_file_is_fine(place: tuple[Files, str]) -> None:
    files, folder = place
    files.append(f"{folder}/a", [b"old"])
    files.unlink(f"{folder}/a")
    files.unlink(f"{folder}/a")
    assert not files.exists(f"{folder}/a")
    assert files.append(f"{folder}/a", [b"n"]) == 1


def test_write_new_replaces_whole_files(place: tuple[Files, str]) -> None:
    files, folder = place
    files.write_new(f"{folder}/a", b"one")
    files.write_new(f"{folder}/a", b"two two")
    assert files.read(f"{folder}/a") == b"two two"
    assert files.list(folder) == ["a"]


def test_remove_tree_removes_folders_in_folders(place: tuple[Files, str]) -> None:
    files, folder = place
    files.make_folder(f"{folder}/x/y")
    files.append(f"{folder}/x/y/a", [b"1"])
    files.append(f"{folder}/x/b", [b"1"])
    files.remove_tree(f"{folder}/x")
    files.remove_tree(f"{folder}/x")
    assert files.list(folder) == []
    assert files.list(f"{folder}/x") == []


def test_allocate_makes_a_file_of_that_size(place: tuple[Files, str]) -> None:
    files, folder = place
    files.allocate(f"{folder}/a", 10000)
    assert files.size(f"{folder}/a") == 10000
    assert files.free_size(folder) > 0


def test_a_second_lock_is_refused_in_nsqds_words(place: tuple[Files, str]) -> None:
    files, folder = place
    files.lock(folder)
    with pytest.raises(LockedError) as caught:
        files.lock(folder)
    assert str(caught.value) == (
        f"failed to lock data-path: cannot flock directory {folder} - resource temporarily"
        " unavailable (possibly in use by another instance of nsqd)"
    )
    files.unlock(folder)
    files.lock(folder)


def test_shared_locks_keep_owners_out_and_let_others_look(tmp_path: Path) -> None:
    first, second, owner = Files(), Files(read_only=True), Files()
    first.lock(str(tmp_path), shared=True)
    second.lock(str(tmp_path), shared=True)
    with pytest.raises(LockedError):
        owner.lock(str(tmp_path))
    first.close()
    second.close()
    owner.lock(str(tmp_path))
    with pytest.raises(LockedError):
        second.lock(str(tmp_path), shared=True)
    owner.close()


# Only the real ones


def test_files_are_private(tmp_path: Path) -> None:
    files = Files()
    files.append(f"{tmp_path}/a", [b"1"])
    files.write_new(f"{tmp_path}/b", b"1")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in "ab"} == {0o600}


def test_open_descriptors_are_bounded(tmp_path: Path) -> None:
    files = Files(open_max=3)
    for i in range(20):
        files.append(f"{tmp_path}/{i}", [b"1"])
        assert files.open_count <= 3
    for i in range(20):
        assert files.append(f"{tmp_path}/{i}", [b"2"]) == 2
    files.close()
    assert files.open_count == 0


def test_a_short_write_is_cut_back(tmp_path: Path) -> None:
    files = Files()
    files.append(f"{tmp_path}/a", [b"x" * 1000])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            files.append(f"{tmp_path}/a", [b"y" * 400, b"z" * 400])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"x" * 1000
    assert files.append(f"{tmp_path}/a", [b"w"]) == 1001


def test_a_reader_keeps_its_descriptor_while_the_file_goes(tmp_path: Path) -> None:
    files = Files(open_max=1)
    files.append(f"{tmp_path}/a", [b"x" * 100000])
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for i in range(300):
                data = files.pread(f"{tmp_path}/a", i, 1000)
                assert data == b"x" * 1000
        except FileNotFoundError:
            return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(100):
        files.append(f"{tmp_path}/{i % 5}", [b"1"])
    files.unlink(f"{tmp_path}/a")
    for thread in threads:
        thread.join()
    assert errors == []
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    files.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


@needs_cachestat
def test_a_file_is_lent_while_it_is_open_and_in_memory(tmp_path: Path) -> None:
    files, path = Files(), f"{tmp_path}/f"
    files.append(path, [b"x" * 10_000])
    fd = files.lend(path, 5000, 5000)
    assert fd is not None
    files.unlink(path)
    assert os.pread(fd, 10, 9995) == b"x" * 5
    os.close(fd)
    assert files.lend(path, 0, 1) is None, "it is not there"
    files.append(path, [b"y" * 10_000])
    files.sync(path)
    must_forget(path)
    assert files.lend(path, 0, 10_000) is None, "it is not in memory"
    files.read(path)
    fd = files.lend(path, 0, 10_000)
    assert fd is not None
    os.close(fd)
    files.close()


def test_appends_take_turns_while_descriptors_come_and_go(tmp_path: Path) -> None:
    """Whatever is closed and opened meanwhile, nothing is written over."""
    files = Files(open_max=2)
    count, workers = 400, 4

    def append(worker: int) -> None:
        for number in range(count):
            files.append(f"{tmp_path}/log", [b"%d %6d" % (worker, number), b"\n"])
            files.append(f"{tmp_path}/{worker}{number % 3}", [b"1"])

    threads = [threading.Thread(target=append, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == count * workers
    assert files.open_count <= 2 + workers
    files.close()
