# What was promised of staged rows, noted beside their files: what is cut, damaged or missing later
# is noticed by it (R19).
#
#     penstock/staging.notes: records as in the ledger
#     SEALED  {"query","time","number","batch","partition","attempt","parts","count","size"}
#                                                     the seal was synced, the file was so long
#     GONE    {"query","time","number"}               its file is no longer needed
#     LOST    {"query","time","number","text"}        it was found damaged or missing, and reported
#     LEDGER  {"query","time","size"}                 so many bytes of the ledger are synced
#
# Rule 1: SEALED and LEDGER follow the sync, GONE comes before the removal: no note says more than
#         is true.
# Rule 2: a note costs no sync.  kill -9 does not take it; after a power cut some may be missing,
#         and so may GONE where its file is: only for a batch that the ledger has as published, or
#         after a sync of the notes.
# Rule 3: nothing is concluded from notes that have holes, nor where there are none: the version
#         before had no such file.
# Rule 4: notes are worth no failure.  If one cannot be written, the file goes, and is written anew
#         when that works again.

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

# Beyond this the file is written anew.
SIZE_MAX = 1 << 20


@record
class Noted:
    """A staging that was sealed."""

    number: int
    key: Key
    seal: Seal
    size: int
    lost: str = ""  # what was found of it, if it cannot be published

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
        self.whole = False  # there were notes, and none was damaged
        self.damaged = False  # other than by a power cut, which leaves zeros and short ends
        self.problem: OSError | None = None  # why they could not be written
        self._lock = threading.Lock()
        self._size = 0
        self._on = True

    def open(self) -> None:
        """Read what an earlier process noted; blocking."""
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

    def _apply(self, kind: int, told: dict[str, Any]) -> None:
        if kind == SEALED:
            key = Key(told["query"], told["batch"], told["partition"], told["attempt"])
            seal = Seal(told["parts"], told["count"])
            self.sealed[told["number"]] = Noted(told["number"], key, seal, told["size"])
        elif kind == GONE:
            self.sealed.pop(told["number"], None)
        elif kind == LOST and told["number"] in self.sealed:
            self.mark_lost(told["number"], told["text"])
        elif kind == LEDGER:
            self.ledger_size = told["size"]

    def mark_lost(self, number: int, text: str) -> None:
        known = self.sealed[number]
        self.sealed[number] = Noted(number, known.key, known.seal, known.size, text)

    # Noting

    def seal(self, noted: Noted, time_ns: int) -> None:
        """A staging is sealed, synced and may be answered."""
        with self._lock:
            self.sealed[noted.number] = noted
            self._add(noted.record(time_ns))

    def lose(self, number: int, text: str, time_ns: int) -> None:
        """It was reported that a sealed staging cannot be published."""
        with self._lock:
            self.mark_lost(number, text)
            query = self.sealed[number].key.query
            self._add(encode_note(LOST, query, time_ns, number=number, text=text))

    def forget(self, numbers: Iterable[int], time_ns: int, *, sync: bool) -> None:
        """These files are about to be removed; ``sync`` unless the ledger has them published."""
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
        """So much of the ledger is synced; 0 before it is replaced."""
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
        """Write them anew after a failure; blocking."""
        with self._lock:
            if not self._on:
                self._add(b"")

    def _rewrite(self) -> None:
        whole = b"".join(noted.record(0) for noted in self.sealed.values())
        whole += encode_note(LEDGER, "", 0, size=self.ledger_size)
        self.files.write_new(self.path, whole)
        self._size, self._on = len(whole), True

    def _drop(self) -> None:
        # Half of the truth would be taken for all of it by the next start.
        try:
            self.files.unlink(self.path)
        except OSError:
            return


class NotedJournal(Journal):
    """The ledger's file; how much of it is synced is noted."""

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
