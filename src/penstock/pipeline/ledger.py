"""The ledger of a sink: which messages its table has, and in which files (R43).

    <table>/_penstock/ledger/<pipeline>/      of a table
    <checkpoint>.ledger/<sink>/               of a topic
        head.json                     whose it is, and the sum of all records up to ``rolled``
        000000000007.json             record 7: a batch, a merge or a loss; one step each
        000000000001-000000000256.json    files of these records, rolled up
        sealed.json                   the step that is decided and not finished

A sink makes a step as follows: ``seal`` the decision, carry it out, ``commit`` the record.  After a
crash ``sealed`` returns the decision, and the sink finishes or undoes it.

Rule 1: the ledger belongs to pipeline and sink.  Spark's query and batch number are stored only to
        recognise a batch that is repeated.
Rule 2: every line has a checksum.  A damaged or missing file is an error, never an empty ledger.
Rule 3: records are rolled up, so that a ledger has a few hundred files however old it is; files
        added and removed in the meantime are left out.
"""

from __future__ import annotations

import base64
import logging
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger_records import (
    BATCH,
    VERSION,
    Batch,
    Changes,
    DataFile,
    Head,
    Record,
    packed,
    unpacked,
)

log = logging.getLogger("penstock.pipeline")

HEAD = "head.json"
SEALED = "sealed.json"
ROLL_COUNT = 256  # records per roll, and small rolls per large one


class Ledger:
    """The ledger of one sink, in ``path`` of a folder.  Call ``load`` first."""

    def __init__(self, folder: Folder, path: str, pipeline: str, sink: str) -> None:
        self.folder = folder
        self.path = path
        self.exists = False
        self.plain = False  # as the pipeline is declared now; ``create`` stores it
        self.seq = 0  # number of the last record
        self.head = Head(pipeline, sink)
        self._unrolled: list[Record] = []

    @property
    def uri(self) -> str:
        return f"{self.folder.uri}/{self.path}" if self.path else self.folder.uri

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    # Reading

    def load(self) -> Ledger:
        """Read the ledger, if there is one."""
        while not self._load():
            pass
        return self

    def _load(self) -> bool:
        """False if its writer rolled up records meanwhile."""
        value = self._read(HEAD)
        names = self._names()
        if value is None:
            if names:
                raise PipelineError(
                    f"{self.uri}/{HEAD} is missing, and the ledger has records.  {RESTORE}"
                )
            return True
        if value.get("version") != VERSION:
            raise PipelineError(
                f"{self.uri}/{HEAD} has version {value.get('version')!r:.20}, written by a later "
                f"Penstock; this one supports {VERSION}"
            )
        try:
            self.head = Head.of_json(value)
        except (KeyError, ValueError, TypeError) as error:
            raise self._damaged(HEAD, error) from None
        self._unrolled = []
        self.seq = self.head.rolled
        numbers = sorted(number for number in names if number > self.head.rolled)
        for number in numbers:
            if number != self.seq + 1:
                missing = _name(self.seq + 1)
                if self._is_rolled_further():
                    return False
                raise PipelineError(
                    f"{self.uri}/{missing} is missing, and later records exist.  {RESTORE}"
                )
            value = self._read(_name(number))
            if value is None:
                return False
            try:
                record = Record.of_json(value)
            except (KeyError, ValueError, TypeError) as error:
                raise self._damaged(_name(number), error) from None
            self._take(record)
        self.exists = True
        return True

    def _is_rolled_further(self) -> bool:
        value = self._read(HEAD)
        return value is not None and int(value.get("rolled", 0)) > self.head.rolled

    def _take(self, record: Record) -> None:
        self.seq = record.seq
        self.head.take(record)
        self._unrolled.append(record)

    def _names(self) -> list[int]:
        prefix = self._at("")
        return [
            int(name)
            for file in self.folder.files(self.path)
            if (name := file.path.removeprefix(prefix).removesuffix(".json")).isdecimal()
        ]

    def _read(self, name: str) -> dict[str, Any] | None:
        data = self.folder.read(self._at(name))
        if data is None:
            return None
        try:
            return unpacked(data)
        except ValueError as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, error: Exception) -> PipelineError:
        return PipelineError(f"{self.uri}/{name} is damaged ({error}).  {RESTORE}")

    # Queries

    @property
    def identity(self) -> str:
        return self.head.identity

    @property
    def coverage(self) -> Coverage:
        return self.head.coverage

    def ends(self) -> dict[Log, int]:
        """Where each log resumes."""
        return self.coverage.ends()

    def to_write(self, batch: Batch) -> tuple[Span, ...] | None:
        """The ranges of a batch to write; None if the sink has the batch.

        Raises PipelineError if the batch has changed: the same number with other ranges.
        """
        last = self.head.last
        if last is not None and last.query == batch.query:
            if batch.number == last.number and _ranges(batch.spans) == _ranges(last.spans):
                return None
            if batch.number <= last.number:
                self._check_older(batch, last)
                return None
        if batch.numbered:
            return batch.spans
        return self._lacking(batch) or None

    def _check_older(self, batch: Batch, last: Batch) -> None:
        """Check that the sink has an older batch; if not, Spark's checkpoint was changed."""
        # The sink may have had a part of the last batch before.
        same = batch.number < last.number or _are_inside(last.spans, batch.spans)
        if same and not batch.numbered and not self._lacking(batch):
            return
        raise PipelineError(
            f"{self.uri}: batch {batch.number} is repeated with different messages; this table "
            f"has batch {last.number}.  The checkpoint was restored or changed while the "
            "pipeline ran, or a copy of it runs elsewhere.  Nothing was written; restart the "
            "pipeline, which compares the two and resumes from the table"
        )

    def _lacking(self, batch: Batch) -> tuple[Span, ...]:
        found = []
        for span in batch.spans:
            # Where the table began before its ledger is unknown: it has all up to there.
            known = self.head.before.start(span.log)
            if known is not None and span.start < known:
                span = Span(span.log, min(known, span.end), span.end)
            found += self.coverage.lacking(span)
        return tuple(found)

    def files(self) -> Iterator[Changes]:
        """Files added and removed, from the first record, in parts."""
        yield from self._rolled(self.head.rolls)
        for record in self._unrolled:
            yield list(record.added), list(record.removed)

    def live_files(self) -> dict[str, DataFile]:
        """The files that hold the table's rows now."""
        found: dict[str, DataFile] = {}
        for added, removed in self.files():
            for path in removed:
                found.pop(path, None)
            found.update((file.path, file) for file in added)
        return found

    # Writing

    def create(self, identity: str, sinks: Iterable[str], seq: int = 0) -> None:
        """Create it, or update its head; ``seq`` is the last step of a lost one."""
        names = list(sinks)
        plain = self.plain and (self.head.plain or not self.exists)
        head = self.head
        if self.exists and (head.identity, head.sinks, head.plain) == (identity, names, plain):
            return
        self.head.plain = plain
        self.head.began_ms = self.head.began_ms or now_ms()
        self.head.identity, self.head.sinks = identity, names
        if self.exists:
            self._roll()
        else:
            self.seq = self.head.rolled = seq
            self._write(HEAD, self.head.as_json())
        self.exists = True

    def seal(self, step: dict[str, Any]) -> None:
        """Decide a step: it will be finished even after a crash."""
        self._write(SEALED, {"seq": self.seq + 1, **step})

    def sealed(self) -> dict[str, Any] | None:
        """The step that is decided and has no record yet."""
        value = self._read(SEALED)
        if value is None:
            return None
        if value["seq"] <= self.seq:
            self.unseal()
            return None
        if value["seq"] != self.seq + 1:
            raise PipelineError(
                f"{self.uri}/{SEALED} is step {value['seq']}, and the last record is {self.seq}: "
                f"records are missing.  {RESTORE}"
            )
        return value

    def unseal(self) -> None:
        self.folder.remove(self._at(SEALED))

    def batch_record(
        self, batch: Batch, spans: Iterable[Span], added: Iterable[DataFile] = ()
    ) -> Record:
        """The next record, for a batch or the part of it that the sink lacked."""
        spans, added = tuple(spans), tuple(added)
        return Record(self.seq + 1, BATCH, now_ms(), batch.query, batch.number, spans, added)

    def record(self, kind: str, **fields: Any) -> Record:
        return Record(self.seq + 1, kind, now_ms(), **fields)

    def commit(self, record: Record) -> None:
        """Record a finished step: from now on it counts."""
        assert self.exists and record.seq == self.seq + 1
        self._write(_name(record.seq), record.as_json())
        self._take(record)
        if len(self._unrolled) >= ROLL_COUNT:
            self._roll()

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self.folder.write(self._at(name), packed(value))

    def _roll(self) -> None:
        """Rule 3.  It takes effect when the head is replaced; files are removed only after that."""
        records, replaced = self._unrolled, []
        if records:
            parts = [(list(each.added), list(each.removed)) for each in records]
            first, last = records[0].seq, records[-1].seq
            small = [roll for roll in self.head.rolls if _is_small(roll)]
            if len(small) >= ROLL_COUNT:
                parts = [*self._rolled(small), *parts]
                first, replaced = small[0][0], small
            added, removed = _summed(parts)
            name = _roll_name(first, last)
            rows = [file.row() for file in added]
            self._write(name, {"version": VERSION, "added": rows, "removed": removed})
            remaining = [roll for roll in self.head.rolls if roll not in replaced]
            self.head.rolls = [*remaining, (first, last)]
            self.head.rolled = last
        self._write(HEAD, self.head.as_json())
        self._unrolled = []
        for record in records:
            self.folder.remove(self._at(_name(record.seq)))
        for roll in replaced:
            self.folder.remove(self._at(_roll_name(*roll)))

    def _rolled(
        self, rolls: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[list[DataFile], list[str]]]:
        for roll in rolls:
            value = self._read(_roll_name(*roll))
            if value is None:
                raise PipelineError(f"{self.uri}/{_roll_name(*roll)} is missing.  {RESTORE}")
            yield [DataFile.of_row(row) for row in value["added"]], list(value["removed"])


RESTORE = (
    "Restore the table from a backup, with its folder _penstock, and restart; the pipeline "
    "then resumes from that table"
)


def summed(ledger: Ledger, record: Record) -> str:
    """A record and everything covered with it, for the sink's own log.

    It replaces the ledger if that is lost.
    """
    coverage = Coverage(ledger.coverage)
    for span in record.spans:
        coverage.add(span)
    value = {
        "version": VERSION,
        "identity": ledger.identity,
        "record": record.as_json(),
        "ranges": coverage.rows(),
        "before": ledger.head.before.rows(),
        "losses": [loss.as_json() for loss in (*ledger.head.losses, *record.losses)],
    }
    return base64.b64encode(zlib.compress(packed(value), 1)).decode()


def of_sum(text: str) -> dict[str, Any]:
    """The inverse of ``summed``; raises ValueError."""
    try:
        return unpacked(zlib.decompress(base64.b64decode(text, validate=True)))
    except zlib.error as error:
        raise ValueError(str(error)) from None


def now_ms() -> int:
    return int(time.time() * 1000)


def _name(seq: int) -> str:
    return f"{seq:012d}.json"


def _roll_name(first: int, last: int) -> str:
    return f"{first:012d}-{last:012d}.json"


def _is_small(roll: tuple[int, int]) -> bool:
    return roll[1] - roll[0] < ROLL_COUNT * ROLL_COUNT // 2


def _summed(
    parts: Iterable[Changes],
) -> Changes:
    """All files added and removed, without those added and removed in between."""
    added: dict[str, DataFile] = {}
    removed: dict[str, None] = {}
    for new, dropped in parts:
        for path in dropped:
            if added.pop(path, None) is None:
                removed[path] = None
        added.update((file.path, file) for file in new)
    return list(added.values()), list(removed)


def _ranges(spans: Iterable[Span]) -> list[tuple[Log, int, int]]:
    """Without counts, and without empty ranges."""
    return sorted((span.log, span.start, span.end) for span in spans if span.start < span.end)


def _are_inside(parts: Iterable[Span], spans: Iterable[Span]) -> bool:
    """Whether each of ``parts`` is inside one of ``spans``."""
    found = _ranges(spans)
    return all(
        any(log == of and start <= first and last <= end for of, start, end in found)
        for log, first, last in _ranges(parts)
    )
