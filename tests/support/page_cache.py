"""Drops files from the kernel's page cache, and checks whether the kernel reports its contents."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from penstock.page_cache import is_cached

FORGET_SECONDS_MAX = 2.0


def _has_cachestat() -> bool:
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        return is_cached(file.fileno(), 0, 1)


needs_cachestat = pytest.mark.skipif(not _has_cachestat(), reason="needs cachestat: Linux 6.5")


def must_forget(path: str | Path) -> None:
    """Drop a file from the page cache, or skip the test."""
    if not forget(path):
        pytest.skip("needs a file system on a disk")


def forget(path: str | Path) -> bool:
    """Drop a file from the page cache; False if its file system is in memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
        give_up_s = time.monotonic() + FORGET_SECONDS_MAX
        while True:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not is_cached(fd, 0, size):
                return True
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.05)
    finally:
        os.close(fd)
