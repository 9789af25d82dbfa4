"""The file-system seam on a real disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage.files import BUFFER_SIZE, Files


def test_the_loop_reads_only_what_is_small(tmp_path: Path) -> None:
    """Copying megabytes, even out of the page cache, would hold up every client."""
    files = Files()
    path = str(tmp_path / "file")
    data = random.Random(1).randbytes(BUFFER_SIZE + 1)
    files.append(path, [data])
    try:
        small = files.pread(path, 1, BUFFER_SIZE, False)
        if small is None:
            pytest.skip("this file system does not tell what is in the page cache")
        assert small == data[1:]
        assert files.pread(path, 0, BUFFER_SIZE + 1, False) is None
        assert files.pread(path, 0, BUFFER_SIZE + 1, True) == data
    finally:
        files.close()
