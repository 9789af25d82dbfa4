"""storage/native_threads.pyx: every sync and write is told once, in the order they ended."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import UncutError
from penstock.storage.native_threads import NativeThreads


def drain_until(threads: NativeThreads, found: Sequence[object], count: int) -> None:
    give_up_s = time.monotonic() + 10
    while len(found) < count and time.monotonic() < give_up_s:
        select.select([threads.fd], [], [], 1)
        threads.drain()
    assert len(found) == count


def _append(found: list[tuple[int, OSError | None]], number: int, error: OSError | None) -> None:
    found.append((number, error))


def test_files_are_synced(tmp_path: Path) -> None:
    threads = NativeThreads()
    found: list[tuple[int, OSError | None]] = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(200):
            file.write(b"x")
            file.flush()
            threads.sync(file.fileno(), partial(_append, found, number))
        drain_until(threads, found, 200)
    assert sorted(found, key=lambda each: each[0]) == [(number, None) for number in range(200)]
    threads.close()


def test_an_error_is_told() -> None:
    threads = NativeThreads()
    found: list[OSError | None] = []
    reading, writing = os.pipe()
    try:
        threads.sync(reading, found.append)
        drain_until(threads, found, 1)
    finally:
        os.close(reading)
        os.close(writing)
    (error,) = found
    assert isinstance(error, OSError) and error.errno == errno.EINVAL
    threads.close()


def test_closing_waits_and_tells(tmp_path: Path) -> None:
    threads = NativeThreads()
    found: list[object] = []
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        for _ in range(5):
            threads.sync(file.fileno(), found.append)
        threads.close()
    assert found == [None] * 5
    threads.close()


def quick(threads: NativeThreads, fd: int) -> None:
    """Sync until the loop does it; on a busy machine even that one may be a slow one."""
    found: list[OSError | None] = []
    while not threads.sync_here(fd):
        assert len(found) < 20_000
        threads.sync(fd, found.append)
        drain_until(threads, found, len(found) + 1)


def test_the_loop_syncs_only_after_many_quick_syncs(tmp_path: Path) -> None:
    threads = NativeThreads()
    found: list[OSError | None] = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(63):
            assert not threads.sync_here(file.fileno())
            threads.sync(file.fileno(), found.append)
            drain_until(threads, found, number + 1)
        assert not threads.sync_here(file.fileno())
        quick(threads, file.fileno())
    threads.close()


def test_after_one_slow_sync_the_threads_sync_again(tmp_path: Path) -> None:
    threads = NativeThreads()
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
    threads = NativeThreads()
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


def test_files_are_written(tmp_path: Path) -> None:
    threads = NativeThreads()
    found: list[tuple[int, OSError | None]] = []
    size = 0
    with (tmp_path / "file").open("wb") as file:
        for number in range(100):
            parts = [b"%d" % number, b"", bytes(number)]
            threads.write(file.fileno(), parts, size, partial(_append, found, number))
            size += sum(map(len, parts))
        drain_until(threads, found, 100)
    assert sorted(found, key=lambda each: each[0]) == [(number, None) for number in range(100)]
    expected = b"".join(b"%d" % number + bytes(number) for number in range(100))
    assert (tmp_path / "file").read_bytes() == expected
    threads.close()


def test_a_write_that_fails_in_the_middle_is_cut_off(tmp_path: Path) -> None:
    threads = NativeThreads()
    found: list[OSError | None] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with (tmp_path / "file").open("wb") as file:
        threads.write(file.fileno(), [b"kept"], 0, found.append)
        drain_until(threads, found, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            threads.write(file.fileno(), [bytes(500), bytes(1000)], 4, found.append)
            drain_until(threads, found, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
    none, error = found
    assert none is None
    assert isinstance(error, OSError) and error.errno == errno.EFBIG
    assert (tmp_path / "file").read_bytes() == b"kept"
    threads.close()


def test_what_cannot_be_cut_off_is_told() -> None:
    threads = NativeThreads()
    found: list[Exception | None] = []
    reading, writing = os.pipe()
    try:
        threads.write(reading, [b"x"], 0, found.append)
        drain_until(threads, found, 1)
    finally:
        os.close(reading)
        os.close(writing)
    assert isinstance(found[0], UncutError)
    threads.close()


def test_a_callback_that_raises_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    threads = NativeThreads()
    ended: list[int] = []

    def done(number: int) -> None:
        ended.append(number)
        if number == 1:
            raise RuntimeError("broken")

    with (tmp_path / "file").open("wb") as file:
        for number in range(3):
            threads.sync(file.fileno(), lambda _, number=number: done(number))
        with pytest.raises(RuntimeError, match="broken"):
            threads.close()  # waits for all of them
    assert sorted(ended) == [0, 1, 2]
    threads.close()
