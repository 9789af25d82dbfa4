# External merge sort: sorted runs in files, then merged.
#
#     add, add, add ...  ->  run | run | run     each sorted in memory, then written
#     merged()           ->  one ascending stream, FAN_IN_MAX runs at a time
#
# Entries are bytes of one size and compare as bytes, so the key is first and big-endian.
#
# Memory: RUN_COUNT_MAX entries while adding (about 25 MB with entries of 46 bytes), and
# FAN_IN_MAX blocks while merging (about 20 MB).  Why not SQLite: it takes 3.6 s for a million
# entries, this 1.2 s.

from __future__ import annotations

import heapq
from collections.abc import Iterator

from penstock.storage.files import Files

RUN_COUNT_MAX = 200_000
FAN_IN_MAX = 128
BLOCK_COUNT = 1024


class EntryFile:
    """A file of entries of one size; written sequentially, then read from the start."""

    def __init__(self, files: Files, path: str, entry_size: int) -> None:
        self._files = files
        self._path = path
        self._entry_size = entry_size
        self._pending: list[bytes] = []
        self.count = 0

    def add(self, entry: bytes) -> None:
        self._pending.append(entry)
        if len(self._pending) >= BLOCK_COUNT:
            self.flush()

    def extend(self, entries: list[bytes]) -> None:
        self._pending.extend(entries)
        if len(self._pending) >= BLOCK_COUNT:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._files.append(self._path, [b"".join(self._pending)])
            self.count += len(self._pending)
            self._pending.clear()

    def __iter__(self) -> Iterator[bytes]:
        self.flush()
        size = self._entry_size
        block_size = size * BLOCK_COUNT
        for offset in range(0, self.count * size, block_size):
            block = self._files.pread(self._path, offset, block_size) or b""
            yield from [block[at : at + size] for at in range(0, len(block), size)]

    def remove(self) -> None:
        self._pending.clear()
        self.count = 0
        self._files.unlink(self._path)


class SortedRuns:
    """Sorts entries; the files are in ``folder``."""

    def __init__(
        self,
        files: Files,
        folder: str,
        entry_size: int,
        run_count_max: int = RUN_COUNT_MAX,
        fan_in_max: int = FAN_IN_MAX,
    ) -> None:
        assert fan_in_max >= 2
        self._files = files
        self._folder = folder
        self._entry_size = entry_size
        self._run_count_max = run_count_max
        self._fan_in_max = fan_in_max
        self._pending: list[bytes] = []
        self._runs: list[EntryFile] = []
        self._made = 0
        self.count = 0

    def add(self, entry: bytes) -> None:
        self._pending.append(entry)
        self.count += 1
        if len(self._pending) >= self._run_count_max:
            self._write_run()

    def merged(self) -> Iterator[bytes]:
        """All entries, ascending.  Nothing may be added afterwards."""
        if not self._runs:
            self._pending.sort()
            return iter(self._pending)
        if self._pending:
            self._write_run()
        while len(self._runs) > self._fan_in_max:
            self._merge_some()
        return heapq.merge(*self._runs)

    def remove(self) -> None:
        self._pending.clear()
        for run in self._runs:
            run.remove()
        self._runs.clear()

    def _write_run(self) -> None:
        self._pending.sort()
        run = self._new_run()
        for at in range(0, len(self._pending), BLOCK_COUNT):
            run.extend(self._pending[at : at + BLOCK_COUNT])
        run.flush()
        self._pending.clear()

    def _merge_some(self) -> None:
        some, self._runs = self._runs[: self._fan_in_max], self._runs[self._fan_in_max :]
        run = self._new_run()
        for entry in heapq.merge(*some):
            run.add(entry)
        run.flush()
        for merged in some:
            merged.remove()

    def _new_run(self) -> EntryFile:
        run = EntryFile(self._files, f"{self._folder}/run-{self._made}", self._entry_size)
        self._made += 1
        self._runs.append(run)
        return run
