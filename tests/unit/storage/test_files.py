"""The file-system seam on a real disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.storage.files import BUFFER_SIZE, Files
from penstock.storage.topic_log import TopicLog
from tests.unit.storage.build import NODE_ID, append_many


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


class RecordingFiles(Files):
    """Stands between the log and the disk, and sees each write and sync."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, bytes] = {}
        self.synced: dict[str, int] = {}

    def append(self, path: str, parts: Sequence[bytes], offset: int = -1) -> int:
        size = super().append(path, parts, offset)
        self.written[path] = self.written.get(path, b"") + b"".join(parts)
        assert size == len(self.written[path])
        return size

    def sync(self, path: str) -> None:
        size = len(self.written[path])
        super().sync(path)
        self.synced[path] = size


def test_a_subclass_sees_every_write_and_sync_of_a_log(tmp_path: Path) -> None:
    files = RecordingFiles()
    log = TopicLog.create(files, f"{tmp_path}/t", 1, NODE_ID, 100, 20_000)
    for _ in range(60):
        if log.needs_roll():
            log.synced(log.roll())
        append_many(log, 5, 10)
    log.synced(log.sync())
    found = {str(path): path.read_bytes() for path in (tmp_path / "t").iterdir()}
    files.close()
    assert len(found) > 3 and files.written == found
    assert files.synced == {path: len(data) for path, data in found.items()}
