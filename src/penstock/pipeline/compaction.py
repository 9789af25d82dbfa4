"""Merges small files of a table into large ones, a few at a time.

    ledger -> quiet folders -> groups of small files -> one file each, in the stage -> swap

The table swaps the files: `parquet.py` and `delta.py` each in their own way.

Rule 1: only files of this ledger are merged.  Other pipelines may write to the same folder.
Rule 2: after a folder was quiet for ``after_ms``, it has fewer than ``count_min`` files below
        ``file_size``.  While it grows, it is not touched: queries that have listed its files would
        fail for no benefit.
Rule 3: a byte is not rewritten again and again.  A folder that gets a small file now and then has
        one file that grows rarely and one that grows often, see ``groups``.
Rule 4: a batch waits for a step, so a step is limited in time and bytes, and followed by a pause.
Rule 5: a file that cannot be read, or is not what was written, is not touched: the audit finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger import Ledger, now_ms
from penstock.pipeline.ledger_records import MERGE, DataFile, Record
from penstock.pipeline.staged_files import Moves, staged_files

log = logging.getLogger("penstock.pipeline")

SCAN_INTERVAL_MS = 60_000  # between two scans of the ledger
STEP_SIZE_MAX = 256 * 10**6
STEP_S_MAX = 3.0
STEP_FILES_MAX = 5_000
GROUP_FILES_MAX = 1_000
PAUSE_FACTOR = 4  # merging uses at most a fifth of the time
FINISH_S_MAX = 60.0
STAGE = "merge"


@dataclass(frozen=True, slots=True)
class Merging:
    """When to merge: ``count_min`` files below ``file_size`` in a folder quiet for ``after_ms``."""

    after_ms: int
    count_min: int
    file_size: int


@dataclass(slots=True)
class Staged:
    """A step that is written and not visible yet."""

    stage: str
    name: str
    moves: Moves = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)

    def record(self, ledger: Ledger) -> Record:
        removed = tuple(file.path for file in self.removed)
        return ledger.record(MERGE, added=tuple(self.added), removed=removed, merge=self.name)

    @property
    def full(self) -> bool:
        size = sum(file.size for file in self.removed)
        return size >= STEP_SIZE_MAX or len(self.removed) >= STEP_FILES_MAX


def _everything() -> Collection[str] | None:
    return None


class Merger:
    """Merges the files of one table for one pipeline.

    ``rewrite(paths, stage)`` writes the rows of some files to one file in a new folder.
    ``swap`` makes a step visible, or returns False if the table has changed meanwhile.
    ``live`` returns the files in the table's own log; None: there is no such log.
    """

    def __init__(
        self,
        ledger: Ledger,
        merging: Merging | None,
        rewrite: Callable[[Sequence[str], str], None],
        swap: Callable[[Staged], bool],
        live: Callable[[], Collection[str] | None] = _everything,
    ) -> None:
        self._folder: Folder = ledger.folder
        self._ledger = ledger
        self._merging = merging
        self._rewrite = rewrite
        self._swap = swap
        self._live = live
        # When a file was last added to folders that may have too many; None: not scanned yet.
        self._touched_ms: dict[str, int] | None = None
        self._due: dict[str, list[DataFile]] = {}  # small files of folders to merge
        self._next_scan_ms = 0
        self._pause_until_s = 0.0

    def note(self, files: Iterable[DataFile]) -> None:
        """Files were added."""
        if self._touched_ms is None:
            return
        now = now_ms()
        for file in files:
            folder = folder_of(file.path)
            self._touched_ms[folder] = now
            self._due.pop(folder, None)

    def step(self, now_ms: int, *, hurry: bool = False) -> int:
        """Merge some of what is due; return how many files were replaced.  ``hurry``: no pauses."""
        began_s = time.monotonic()
        if self._merging is None or (began_s < self._pause_until_s and not hurry):
            return 0
        self._find_due(self._merging, now_ms, hurry)
        if not self._due:
            return 0
        staged = self._stage(self._merging, began_s + STEP_S_MAX)
        if staged.removed and not self._swap(staged):
            for folder in staged.folders:
                self._due.pop(folder, None)
            log.warning("%s: files changed while being merged; not replaced", self._folder.uri)
            staged.removed.clear()
        took_s = time.monotonic() - began_s
        self._pause_until_s = began_s + (1 + PAUSE_FACTOR) * took_s
        if staged.removed:
            counts = (len(staged.removed), len(staged.added), took_s)
            log.info("%s: merged %d files into %d in %.1f s", self._folder.uri, *counts)
        return len(staged.removed)

    def finish(self, wait: Callable[[float], bool]) -> None:
        """Before the end of a run: merge what is due, for at most FINISH_S_MAX.

        ``wait`` sleeps for that many seconds and returns True if the run must end now.
        """
        until_s = time.monotonic() + FINISH_S_MAX
        while time.monotonic() < until_s and not wait(0.0) and self.step(now_ms(), hurry=True):
            pass

    # What is due

    def _find_due(self, merging: Merging, now_ms: int, hurry: bool) -> None:
        if self._due:
            return
        if self._touched_ms is None:
            self._touched_ms = self._survey(merging, now_ms)
        elif now_ms < self._next_scan_ms and not hurry:
            return
        quiet = {
            folder
            for folder, last_ms in self._touched_ms.items()
            if last_ms <= now_ms - merging.after_ms
        }
        if not quiet:
            return
        self._next_scan_ms = now_ms + min(merging.after_ms, SCAN_INTERVAL_MS)
        self._due = self._crowded(merging, quiet)
        for folder in quiet:
            del self._touched_ms[folder]

    def _survey(self, merging: Merging, now_ms: int) -> dict[str, int]:
        """The first scan: folders with too many small files, and when the last one was added."""
        return {
            folder: min(now_ms, self._folder.modified_ms(small[-1].path) or 0)
            for folder, small in self._crowded(merging, None).items()
        }

    def _crowded(
        self, merging: Merging, folders: Collection[str] | None
    ) -> dict[str, list[DataFile]]:
        """The small files of folders that have too many, oldest first."""
        found: dict[str, dict[str, DataFile]] = {}
        for added, removed in self._ledger.files():
            for path in removed:
                found.get(folder_of(path), {}).pop(path, None)
            for file in added:
                folder = folder_of(file.path)
                if file.size < merging.file_size and (folders is None or folder in folders):
                    found.setdefault(folder, {})[file.path] = file
        live = self._live()
        crowded = {}
        for folder, members in found.items():
            small = [file for path, file in members.items() if live is None or path in live]
            if groups(small, merging):
                crowded[folder] = small
        return crowded

    # Writing

    def _stage(self, merging: Merging, until_s: float) -> Staged:
        """Write as much as fits into a step, at least one group."""
        seq = self._ledger.seq + 1
        staged = Staged(f"{self._ledger.path}/{STAGE}", f"merge-{seq:08d}")
        self._folder.remove(staged.stage)
        for folder in list(self._due):
            for group in groups(self._due[folder], merging):
                if staged.removed and (staged.full or time.monotonic() >= until_s):
                    return staged
                if not self._merge(staged, folder, group, merging):
                    del self._due[folder]
                    break
            if not groups(self._due.get(folder, ()), merging):
                self._due.pop(folder, None)
        return staged

    def _merge(
        self, staged: Staged, folder: str, group: Sequence[DataFile], merging: Merging
    ) -> bool:
        """Merge a group into one file; False if that fails."""
        number = len(staged.moves)
        inner = f"{staged.stage}/{number:05d}"
        try:
            row_count = self._checked_rows(group)
            self._rewrite([file.path for file in group], inner)
            prefix = f"{staged.name}-{number:05d}"
            identity = self._ledger.identity
            moves, added = staged_files(self._folder, inner, prefix, identity, folder)
            if sum(file.rows or 0 for file in added) != row_count:
                raise PipelineError(f"the merged file does not have their {row_count:,} rows")
        except _faults() as error:
            text = str(error).strip().partition("\n")[0]
            place = f"{self._folder.uri}/{folder}"
            log.warning("%s: %d files not merged: %s", place, len(group), text)
            return False
        staged.moves += moves
        staged.added += added
        staged.removed += group
        staged.folders.add(folder)
        small = [file for file in added if file.size < merging.file_size]
        self._due[folder] = [*(f for f in self._due[folder] if f not in group), *small]
        return True

    def _checked_rows(self, group: Sequence[DataFile]) -> int:
        """The number of rows in files, after checking that they are what was written (Rule 5)."""
        count = 0
        for file in group:
            if file.checksum is not None and self._folder.checksum(file.path) != file.checksum:
                raise PipelineError(f"{file.path} is not what was written; run the audit")
            count += self._folder.row_count(file.path) if file.rows is None else file.rows
        return count


def groups(small: Sequence[DataFile], merging: Merging) -> list[list[DataFile]]:
    """Which files below ``file_size`` are merged into one; none if there are few.

    If they reach the size together, each group does, and its file is not touched again.
    Otherwise the largest file is left out until the others together reach the geometric mean of
    the largest and the smallest.  With files of 10 KB that arrive one by one and a size of 128 MB,
    a byte is written 114 times on average; merging all of them each time makes that 3,200.
    """
    if len(small) < merging.count_min:
        return []
    if sum(file.size for file in small) < merging.file_size and len(small) <= GROUP_FILES_MAX:
        return [_without_largest(small, merging)]
    found: list[list[DataFile]] = [[]]
    size = 0
    for file in small:
        found[-1].append(file)
        size += file.size
        if size >= merging.file_size or len(found[-1]) >= GROUP_FILES_MAX:
            found.append([])
            size = 0
    return [group for group in found if len(group) > 1]


def _without_largest(small: Sequence[DataFile], merging: Merging) -> list[DataFile]:
    by_size = sorted(small, key=lambda file: file.size)
    others, largest = by_size[:-1], by_size[-1]
    size = sum(file.size for file in others)
    if merging.count_min > 2 and len(others) > 1 and size**2 < largest.size * others[0].size:
        return [file for file in small if file is not largest]
    return list(small)


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _faults() -> tuple[type[Exception], ...]:
    """What reading and writing raise for a damaged file."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (OSError, ValueError, PipelineError, PySparkException, Py4JError)
