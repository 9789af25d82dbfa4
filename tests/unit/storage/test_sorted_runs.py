"""Sorting in files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage.files import Files
from penstock.storage.sorted_runs import BLOCK_COUNT, EntryFile, SortedRuns


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 29, 30, 31, 500])
def test_entries_come_out_sorted_and_the_files_go(tmp_path: Path, count: int) -> None:
    random.seed(count)
    entries = [random.randbytes(6) for _ in range(count)]
    runs = SortedRuns(Files(), str(tmp_path), 6, run_count_max=10, fan_in_max=3)
    for entry in entries:
        runs.add(entry)
    assert runs.count == count
    assert list(runs.merged()) == sorted(entries)
    assert len(list(tmp_path.iterdir())) <= 3
    runs.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_entry_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = EntryFile(Files(), f"{tmp_path}/e", 4)
    entries = [b"%04d" % i for i in range(2 * BLOCK_COUNT + 5)]
    file.extend(entries[:7])
    for entry in entries[7:]:
        file.add(entry)
    assert list(file) == entries
    assert file.count == len(entries)
