"""Damage to slot files: detected, kept as evidence, reported once with the messages it cost.

Rule 1: what was synced must exist (deferred.counts has how much).  Bad or missing bytes of it are
        damage.  Unsynced bytes may be torn by a power cut: that is only logged.
Rule 2: a file from before there were counts is judged by its contents: bad bytes before good
        records are damage, bad bytes at the end are torn.
Rule 3: evidence is copied before the report, and the file stays until then.
Rule 4: a failed read is neither (engine/deferred/loader.py retries it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.storage.slot_counts import SlotCount
from penstock.storage.slots import HEADER_SIZE

log = logging.getLogger(__name__)

# Bytes before the end of a truncated file that are kept as evidence.
TAIL_SIZE = 64 * 1024


class _Bodies:
    """Records of one file whose bodies, or headers, were found damaged when they were due."""

    def __init__(self, file: SlotFile) -> None:
        self.file = file
        self.count = 0
        self.offset = file.size
        self.end = 0


class SlotDamage:
    """Finds damage to slot files and reports it."""

    def __init__(self, table: SlotTable, changed: Callable[[SlotFile], None]) -> None:
        self._table = table
        self._changed = changed
        self._bodies: dict[int, _Bodies] = {}
        self._copying_count = 0
        self._finished: list[Callable[[], None]] = []

    @property
    def wanted(self) -> bool:
        return bool(self._bodies)

    def judge(self, file: SlotFile) -> None:
        """Check ``file``, found at start, after all of it was read for the first time."""
        stated = file.stated
        if stated is None:
            corrupt = file.uncounted and (
                0 <= file.bad_offset < file.good_end
                or (file.bad_header and file.good_end > HEADER_SIZE)
            )
            lost, is_cut = None if file.bad_offset >= 0 else 0, False
        else:
            is_cut = file.size < stated.size
            fresh = file.bad_size > stated.bad_size
            corrupt = fresh and (file.bad_header or 0 <= file.bad_offset < stated.size)
            there = file.sure_count + file.sure_done_total - file.sure_done_count
            lost = max(0, stated.record_count - there)
        if lost or corrupt or is_cut:
            self._table.corrupt_count += lost or 1
            self._report_file(file, stated, lost)
        elif file.bad_offset >= 0 and not (stated and file.bad_size <= stated.bad_size):
            self._torn(file, f"{file.bad_size} bytes at {file.bad_offset}")

    def _report_file(self, file: SlotFile, stated: SlotCount | None, lost: int | None) -> None:
        parts: list[str] = []
        offset, end = 0, min(HEADER_SIZE, file.size)
        if stated is not None and file.size < stated.size:
            parts.append(f"cut at {file.size} of {stated.size} bytes")
            offset, end = max(0, file.size - TAIL_SIZE), file.size
        if file.bad_header:
            parts.append("the header is damaged")
        if file.bad_offset >= 0:
            offset, end = file.bad_offset, file.bad_end
            parts.append(f"corrupt from {offset} to {end}")
        if stated is not None:
            cost = f"{lost} of {stated.record_count} messages are lost"
        else:
            cost = "how many messages are lost is unknown" if lost is None else "no message is lost"
        self.report(file, "; ".join([*parts, cost]), lost, offset, end)

    def _torn(self, file: SlotFile, what: str) -> None:
        self._table.torn_count += 1
        path = self._table.store.path(file.name.slot_file)
        log.warning("%s: torn, %s, not synced before the crash", path, what)

    def report(
        self, file: SlotFile, what: str, lost: int | None, offset: int = 0, end: int = 0
    ) -> None:
        """Report damage to ``file``, after copying the bytes from ``offset`` to ``end``."""
        file.damaged = True
        if offset >= end:
            self._reported(file, what, lost, None)
            return
        file.pin_count += 1
        self._copying_count += 1
        keep = partial(self._table.store.keep_evidence, file.name.slot_file, offset, end)
        self._table.disk.submit(keep, partial(self._kept, file, what, lost))

    def _kept(
        self,
        file: SlotFile,
        what: str,
        lost: int | None,
        kept: str | None,
        _error: Exception | None,
    ) -> None:
        file.pin_count -= 1
        self._copying_count -= 1
        self._reported(file, what, lost, kept)
        self._changed(file)
        self._check_finished()

    def _reported(self, file: SlotFile, what: str, lost: int | None, kept: str | None) -> None:
        path = self._table.store.path(file.name.slot_file)
        copied = f"; copied to {kept}" if kept else ""
        self._table.reports.damage(f"{path}: {what}{copied}", path, lost)

    def missing(self, file: SlotFile, lost: int) -> None:
        """The file is gone, with ``lost`` undelivered messages."""
        self._table.corrupt_count += lost or 1
        self.report(file, f"missing; {lost} messages are lost", lost)

    def fired(self, file: SlotFile, what: str) -> None:
        """The checkpoints of ``file`` are damaged or missing."""
        self._table.corrupt_count += 1
        path = self._table.store.path(file.name.fired_file)
        self._table.reports.damage(f"{path}: {what}", path, 0)

    def bodies(self, file: SlotFile, damaged: list[tuple[int, int, int]]) -> None:
        """These records, (ordinal, offset, size) each, were found bad when they were due."""
        sure = [row for row in damaged if not file.found or row[1] < file.whole_size]
        if len(sure) < len(damaged):
            self._torn(file, f"{len(damaged) - len(sure)} messages at {damaged[0][1]}")
        if sure:
            self._table.corrupt_count += len(sure)
            bodies = self._bodies.setdefault(file.number, _Bodies(file))
            bodies.count += len(sure)
            bodies.offset = min([bodies.offset, *(offset for _, offset, _ in sure)])
            bodies.end = max([bodies.end, *(offset + size for _, offset, size in sure)])
            file.damaged = True

    def finish(self, done: Callable[[], None]) -> None:
        """Report all damage found; ``done`` is called after the last report."""
        self._finished.append(done)
        self.flush()
        self._check_finished()

    def _check_finished(self) -> None:
        if not self._copying_count:
            finished, self._finished = self._finished, []
            for done in finished:
                done()

    def flush(self) -> None:
        """Report records found damaged when due: once a second, not once per message."""
        found, self._bodies = self._bodies, {}
        for bodies in found.values():
            what = f"{bodies.count} messages are damaged and lost, from {bodies.offset}"
            self.report(
                bodies.file, f"{what} to {bodies.end}", bodies.count, bodies.offset, bodies.end
            )
