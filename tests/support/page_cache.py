"""What tests need of the kernel's page cache: that it tells what is in it, and that it forgets."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from penstock.page_cache import is_cached

FORGET_SECONDS_MAX = 2.0


def _tells() -> bool:
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        return is_cached(file.fileno(), 0, 1)


needs_cachestat = pytest.mark.skipif(
    not _tells(), reason="needs a kernel that tells what it has cached: Linux 6.5"
)


def must_forget(path: str | Path) -> None:
    """Have none of a file in memory, or skip the test."""
    if not forget(path):
        pytest.skip("needs a file system on a disk")


def forget(path: str | Path) -> bool:
    """Have none of a file in memory; False: its file system is memory itself."""
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
