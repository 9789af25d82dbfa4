# staging.notes: what was acknowledged of staged rows, to detect files that are later truncated,
# damaged or missing (R19).
#
#     penstock/staging.notes: records as in the ledger
#     SEALED  {"query","time","number","batch","partition","attempt","parts","count","size"}
#                                                     the seal was synced; size of the file
#     GONE    {"query","time","number"}               its file is no longer needed
#     LOST    {"query","time","number","text"}        it was reported as damaged or missing
#     LEDGER  {"query","time","size"}                 synced bytes of the ledger
#
# Rule 1: SEALED and LEDGER are written after the sync, GONE before the removal: no note states more
#         than is there.
# Rule 2: notes are not synced.  They survive kill -9; a power cut may lose some, also a GONE whose
#         file was removed: then the ledger has its batch as published, or the notes were synced.
# Rule 3: nothing is concluded from notes with damage, nor from missing notes: earlier versions had
#         no such file.
# Rule 4: a failure to write notes is not an error.  The file is then removed, and rewritten
#         when that is possible.

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from penstock.record import record
from penstock.storage.files import Files
from penstock.storage.journal import Journal
from penstock.storage.ledger import encode_note, records
from penstock.storage.staging import Key, Seal

SEALED, GONE, LOST, LEDGER = 16, 17, 18, 19
NAMES = {16: "sealed", 17: "gone", 18: "lost", 19: "ledger"}

# Above this size the file is rewritten from memory.
SIZE_MAX = 1 << 20


@record
class Noted:
    """A staging that was sealed."""

    number: int
    key: Key
    seal: Seal
    size: int
    lost: str = ""  # why it cannot be published

    def record(self, time_ns: int) -> bytes:
        whole = encode_note(
            SEALED,
            self.key.query,
            time_ns,
            number=self.number,
            batch=self.key.batch,
            partition=self.key.partition,
            attempt=self.key.attempt,
            parts=self.seal.part_count,
            count=self.seal.count,
            size=self.size,
        )
        if self.lost:
            whole += encode_note(LOST, self.key.query, time_ns, number=self.number, text=self.lost)
        return whole


class StagingNotes:
    """The notes, in memory and on disk.  Every method but ``open`` may be called on any thread."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.sealed: dict[int, Noted] = {}
        self.ledger_size = 0
        self.whole = False  # there was a file, without damage
        self.damaged = False  # other than by a power cut, which leaves zeros or a short end
        self.problem: OSError | None = None  # of the last write
        self._lock = threading.Lock()
        self._size = 0
        self._on = True

    def open(self) -> None:
        """Read the notes of an earlier process; blocking."""
        if not self.files.exists(self.path):
            return
        data = self.files.read(self.path)
        self._size, self.whole = len(data), True
        for found in records(data):
            if found.payload is not None:
                self._apply(found.kind, json.loads(found.payload))
                continue
            self.whole = False
            # A power cut leaves a short end, or zeros.
            if not found.torn and bytes(16) not in data[found.start : found.end]:
                self.damaged = True
        if not self.whole:
            with self._lock:
                self._on = False
                self._add(b"")

    def _apply(self, kind: int, fields: dict[str, Any]) -> None:
        if kind == SEALED:
            key = Key(fields["query"], fields["batch"], fields["partition"], fields["attempt"])
            seal = Seal(fields["parts"], fields["count"])
            self.sealed[fields["number"]] = Noted(fields["number"], key, seal, fields["size"])
        elif kind == GONE:
            self.sealed.pop(fields["number"], None)
        elif kind == LOST and fields["number"] in self.sealed:
            self.mark_lost(fields["number"], fields["text"])
        elif kind == LEDGER:
            self.ledger_size = fields["size"]

    def mark_lost(self, number: int, text: str) -> None:
        known = self.sealed[number]
        self.sealed[number] = Noted(number, known.key, known.seal, known.size, text)

    # Writing

    def seal(self, noted: Noted, time_ns: int) -> None:
        """Record a staging whose seal is synced, before it is acknowledged."""
        with self._lock:
            self.sealed[noted.number] = noted
            self._add(noted.record(time_ns))

    def lose(self, number: int, text: str, time_ns: int) -> None:
        """Record that a sealed staging was reported as lost."""
        with self._lock:
            self.mark_lost(number, text)
            query = self.sealed[number].key.query
            self._add(encode_note(LOST, query, time_ns, number=number, text=text))

    def forget(self, numbers: Iterable[int], time_ns: int, *, sync: bool) -> None:
        """Record files to be removed; with ``sync`` unless the ledger has them as published."""
        with self._lock:
            known = [self.sealed.pop(number) for number in numbers if number in self.sealed]
            if known:
                self._add(
                    b"".join(
                        encode_note(GONE, each.key.query, time_ns, number=each.number)
                        for each in known
                    )
                )
                if sync and self._on:
                    self.files.sync(self.path)

    def ledger(self, size: int, time_ns: int = 0, *, sync: bool = False) -> None:
        """Record the synced size of the ledger; 0 before it is replaced."""
        with self._lock:
            self.ledger_size = size
            self._add(encode_note(LEDGER, "", time_ns, size=size))
            if sync and self._on:
                self.files.sync(self.path)

    def _add(self, record: bytes) -> None:
        try:
            if not self._on or self._size > SIZE_MAX:
                self._rewrite()
            else:
                self._size = self.files.append(self.path, [record])
        except OSError as error:
            self._on, self.problem = False, error
            self._drop()
        else:
            self.problem = None

    def mend(self) -> None:
        """Rewrite the file after a failure; blocking."""
        with self._lock:
            if not self._on:
                self._add(b"")

    def _rewrite(self) -> None:
        whole = b"".join(noted.record(0) for noted in self.sealed.values())
        whole += encode_note(LEDGER, "", 0, size=self.ledger_size)
        self.files.write_new(self.path, whole)
        self._size, self._on = len(whole), True

    def _drop(self) -> None:
        # The next start would take an incomplete file for a complete one.
        try:
            self.files.unlink(self.path)
        except OSError:
            return


class NotedJournal(Journal):
    """The file of the ledger; its synced size is recorded in the notes."""

    def __init__(self, files: Files, path: str, notes: StagingNotes) -> None:
        super().__init__(files, path)
        self._notes = notes
        self._generation = 0
        self._turn = threading.Lock()

    def sync(self) -> None:
        generation, size = self._generation, self.size
        super().sync()
        with self._turn:
            if size and generation == self._generation:
                self._notes.ledger(size)

    def compact(self, records: Iterable[bytes]) -> None:
        with self._turn:
            self._generation += 1
            self._notes.ledger(0, sync=True)
        super().compact(records)
        with self._turn:
            self._notes.ledger(self.size)
