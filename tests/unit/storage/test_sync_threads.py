"""storage/sync_threads.pyx: every sync is told once, in the order they ended."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from penstock.storage.sync_threads import SyncThreads


def drain_until(threads: SyncThreads, found: Sequence[object], count: int) -> None:
    give_up_s = time.monotonic() + 10
    while len(found) < count and time.monotonic() < give_up_s:
        select.select([threads.fd], [], [], 1)
        threads.drain()
    assert len(found) == count


def _append(found: list[tuple[int, OSError | None]], number: int, error: OSError | None) -> None:
    found.append((number, error))


def test_files_are_synced(tmp_path: Path) -> None:
    threads = SyncThreads()
    found: list[tuple[int, OSError | None]] = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(200):
            file.write(b"x")
            file.flush()
            threads.submit(file.fileno(), partial(_append, found, number))
        drain_until(threads, found, 200)
    assert sorted(found, key=lambda each: each[0]) == [(number, None) for number in range(200)]
    threads.close()


def test_an_error_is_told() -> None:
    threads = SyncThreads()
    found: list[OSError | None] = []
    reading, writing = os.pipe()
    try:
        threads.submit(reading, found.append)
        drain_until(threads, found, 1)
    finally:
        os.close(reading)
        os.close(writing)
    (error,) = found
    assert isinstance(error, OSError) and error.errno == errno.EINVAL
    threads.close()


def test_closing_waits_and_tells(tmp_path: Path) -> None:
    threads = SyncThreads()
    found: list[object] = []
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        for _ in range(5):
            threads.submit(file.fileno(), found.append)
        threads.close()
    assert found == [None] * 5
    threads.close()


def quick(threads: SyncThreads, fd: int) -> None:
    """Sync until the loop does it; on a busy machine even that one may be a slow one."""
    found: list[OSError | None] = []
    while not threads.sync_here(fd):
        assert len(found) < 20_000
        threads.submit(fd, found.append)
        drain_until(threads, found, len(found) + 1)


def test_the_loop_syncs_only_after_many_quick_syncs(tmp_path: Path) -> None:
    threads = SyncThreads()
    found: list[OSError | None] = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(63):
            assert not threads.sync_here(file.fileno())
            threads.submit(file.fileno(), found.append)
            drain_until(threads, found, number + 1)
        assert not threads.sync_here(file.fileno())
        quick(threads, file.fileno())
    threads.close()


def test_after_one_slow_sync_the_threads_sync_again(tmp_path: Path) -> None:
    threads = SyncThreads()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(10):
            quick(threads, file.fileno())
            file.write(bytes(64 << 20))
            file.flush()
            started_s = time.monotonic()
            if threads.sync_here(file.fileno()):
                break
        if time.monotonic() - started_s < 0.002:
            pytest.skip("this file system syncs 64 MiB in no time")
        assert not threads.sync_here(file.fileno())
    threads.close()


def test_an_error_on_the_loop_is_raised_and_ends_that(tmp_path: Path) -> None:
    threads = SyncThreads()
    reading, writing = os.pipe()
    try:
        with (tmp_path / "file").open("wb") as file:
            with pytest.raises(OSError) as raised:
                for _ in range(10):
                    quick(threads, file.fileno())
                    threads.sync_here(reading)
            assert raised.value.errno == errno.EINVAL
            assert not threads.sync_here(file.fileno())
    finally:
        os.close(reading)
        os.close(writing)
        threads.close()
