"""Compares the files of a table with its ledgers: name, size, rows and checksum.

    ledgers, in parts ---> a temporary database on disk <--- files of the folder, or of Delta's log,
                           path, size, rows, checksum, seen     each looked up once

Rule 1: memory does not grow with the number of files: the database does, on disk.
Rule 2: a file with the recorded size and checksum has the recorded rows.  Rows are counted only
        where there is no checksum.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.errors import PipelineError
from penstock.pipeline.audit_findings import CHANGED, MISSING, STRANGE, FileFault, Files
from penstock.pipeline.audit_ledgers import OpenLedger
from penstock.pipeline.folders import File, Folder
from penstock.pipeline.ledger_records import DataFile

log = logging.getLogger("penstock.pipeline")

PART_COUNT = 512  # files compared at a time
PROGRESS_S = 5.0
WORKERS_MAX = 4
DELTA_LOG = "_delta_log"

TABLE = """CREATE TABLE files (path TEXT PRIMARY KEY, ledger INTEGER, size INTEGER, rows INTEGER,
checksum INTEGER, seen INTEGER DEFAULT 0) WITHOUT ROWID"""


class Progress:
    """Logs progress every few seconds."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._next_s = clock() + PROGRESS_S

    def report(self, done: str) -> None:
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + PROGRESS_S
            log.info("pipeline=audit: %s: %s", self._what, done)


def check_files(folder: Folder, ledgers: list[OpenLedger]) -> Files:
    """Compare all files; those of a merge or of an unfinished step are not faults."""
    found = Files()
    # SQLite opens "" as a private database in a temporary file.
    with (
        closing(sqlite3.connect("", isolation_level=None)) as known,
        ThreadPoolExecutor(min(WORKERS_MAX, os.cpu_count() or 1)) as workers,
    ):
        known.execute("PRAGMA journal_mode=OFF")
        known.execute(TABLE)
        known.execute("BEGIN")
        for number, opened in enumerate(ledgers):
            _fill(known, number, opened)
        may_exist = {path for opened in ledgers for path in opened.may_exist}
        checking = _Checking(folder, known, [each.pipeline for each in ledgers], found)
        progress = Progress("files")
        listed = table_files(folder)
        while part := list(islice(listed, PART_COUNT)):
            checking.compare_listed([file for file in part if file.path not in may_exist], workers)
            progress.report(f"{found.count:,} compared, {found.size >> 20:,} MiB")
        may_be_missing = {path for opened in ledgers for path in opened.may_be_missing | may_exist}
        checking.find_unseen(may_be_missing)
    return found


def _fill(known: sqlite3.Connection, number: int, opened: OpenLedger) -> None:
    progress, count = Progress(f"ledger of {opened.pipeline}"), 0
    for added, removed in opened.ledger.files():
        known.executemany("DELETE FROM files WHERE path = ?", ((path,) for path in removed))
        rows = ((file.path, number, file.size, file.rows, file.checksum) for file in added)
        known.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, 0)", rows)
        count += len(added)
        progress.report(f"{count:,} files read")


class _Checking:
    """One comparison."""

    def __init__(
        self, folder: Folder, known: sqlite3.Connection, pipelines: list[str], found: Files
    ) -> None:
        self._folder = folder
        self._known = known
        self._pipelines = pipelines
        self._found = found

    def compare_listed(self, files: Iterable[File], workers: ThreadPoolExecutor) -> None:
        """Compare files in the folder with their records in the ledgers."""
        expected: list[tuple[File, DataFile, str]] = []
        for file in files:
            self._found.count += 1
            self._found.size += max(0, file.size)
            row = self._known.execute(
                "SELECT ledger, size, rows, checksum FROM files WHERE path = ?", (file.path,)
            ).fetchone()
            if row is None:
                self._add(self._strange(file))
                continue
            self._known.execute("UPDATE files SET seen = 1 WHERE path = ?", (file.path,))
            self._found.unchecked += row[2] is None and row[3] is None
            expected.append((file, DataFile(file.path, *row[1:]), self._pipelines[row[0]]))
        for fault in workers.map(lambda each: self._compare(*each), expected):
            self._add(fault)

    def find_unseen(self, may_be_missing: set[str]) -> None:
        query = "SELECT path, ledger, rows FROM files WHERE seen = 0 ORDER BY path"
        for path, ledger, rows in self._known.execute(query):
            if path not in may_be_missing:
                text = "" if rows is None else f"{rows:,} rows"
                self._add(FileFault(MISSING, path, text, self._pipelines[ledger]))

    def _add(self, fault: FileFault | None) -> None:
        if fault is not None:
            self._found.add_fault(fault)

    def _strange(self, file: File) -> FileFault | None:
        now = self._now(file)
        if now is None:
            return None  # removed since it was listed
        return FileFault(STRANGE, file.path, f"{file.size:,} bytes", "", now)

    def _compare(self, file: File, expected: DataFile, pipeline: str) -> FileFault | None:
        differences = []
        now: DataFile | None = None
        if file.size < 0:
            return FileFault(MISSING, file.path, "Delta's log lists it", pipeline)
        if file.size != expected.size:
            differences.append(f"{file.size:,} bytes instead of {expected.size:,}")
        elif expected.checksum is not None:
            found = self._read(self._folder.checksum, file.path)
            if found != expected.checksum:
                differences.append("wrong checksum" if found is not None else "cannot be read")
        if differences or expected.checksum is None:
            rows = self._rows(file.path) if differences or expected.rows is not None else None
            if expected.rows is not None and rows != expected.rows:
                count = "not a Parquet file" if rows is None else f"{rows:,} rows"
                differences.append(f"{count} instead of {expected.rows:,} rows")
        if not differences:
            return None
        now = self._now(file)
        if now is None:
            return FileFault(MISSING, file.path, "", pipeline)
        return FileFault(CHANGED, file.path, ", ".join(differences), pipeline, now)

    def _now(self, file: File) -> DataFile | None:
        """The file as it is on disk; None if it cannot be read."""
        checksum = self._read(self._folder.checksum, file.path)
        if checksum is None:
            return None
        return DataFile(file.path, file.size, self._rows(file.path), checksum)

    def _rows(self, path: str) -> int | None:
        return self._read(self._folder.row_count, path)

    @staticmethod
    def _read(call: Callable[[str], int], path: str) -> int | None:
        from py4j.protocol import Py4JError
        from pyarrow import ArrowException

        try:
            return call(path)
        except (OSError, ValueError, ArrowException, Py4JError) as error:
            log.debug("%s: %s", path, error)
            return None


def table_files(folder: Folder) -> Iterator[File]:
    """The files that readers of the table read."""
    if is_delta(folder):
        yield from delta_files(folder)
        return
    for file in folder.files():
        if is_visible(file.path):
            yield file


def is_visible(path: str) -> bool:
    """Whether Spark reads it: a name that starts with "_" is read only as a partition folder."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in path.split("/")
    )


def is_delta(folder: Folder) -> bool:
    return next(iter(folder.files(DELTA_LOG)), None) is not None


def delta_files(folder: Folder) -> Iterator[File]:
    """The files of the table's newest version; the size of a missing one is negative."""
    for path in delta_paths(folder):
        try:
            found = (Path(folder.uri) / path).stat()
        except FileNotFoundError:
            yield File(path, -1, 0)
            continue
        yield File(path, found.st_size, found.st_mtime_ns // 1_000_000)


def delta_paths(folder: Folder) -> Iterator[str]:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        actions: Any = pa.table(DeltaTable(folder.uri).get_add_actions())
    except DeltaError as error:
        raise PipelineError(f"{folder.uri}: Delta's log cannot be read: {error}") from None
    for path in actions["path"]:
        yield unquote(path.as_py())
