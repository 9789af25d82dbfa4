"""The contents of a ledger: batches, files, losses, and the records of steps, as JSON (R43).

Every file of a ledger is one line: a checksum and an object.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from penstock.pipeline.coverage import Coverage, Span, spans_of_rows

VERSION = 1

BATCH, MERGE, LOSS, CARRIED = "batch", "merge", "loss", "carried over"
BEGUN = "begun"  # logs that are read from that position


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table.  For one older than the ledger only the size is known."""

    path: str
    size: int
    rows: int | None = None
    checksum: int | None = None

    def row(self) -> list[Any]:
        return [self.path, self.size, self.rows, self.checksum]

    @classmethod
    def of_row(cls, row: object) -> DataFile:
        match row:
            case [str() as path, int() as size, int() | None as rows, int() | None as checksum]:
                return cls(path, size, rows, checksum)
        raise ValueError(f"{row!r:.80} is not a file")


Changes = tuple[list[DataFile], list[str]]  # files added, and paths removed


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, identified by its ranges, and by its number within one query."""

    query: str
    number: int
    spans: tuple[Span, ...] = ()
    numbered: bool = False  # known by its number only: its rows may belong to no range


@dataclass(frozen=True, slots=True)
class Accepted:
    """A loss that a person has accepted."""

    name: str
    at_ms: int
    span: Span
    what: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "at_ms": self.at_ms, "what": self.what, "range": self.span.row()}

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Accepted:
        name, at_ms, what = value["name"], value["at_ms"], value["what"]
        return cls(str(name), int(at_ms), Span.of_row(value["range"]), str(what))


@dataclass(frozen=True, slots=True)
class Record:
    """One step.  The ranges of a loss will not be read again."""

    seq: int
    kind: str
    at_ms: int
    query: str = ""
    batch: int = -1
    spans: tuple[Span, ...] = ()
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    losses: tuple[Accepted, ...] = ()
    merge: str = ""
    claimed: str = ""  # the query, of a version without ledgers, that is taken over

    def as_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "kind": self.kind,
            "at_ms": self.at_ms,
            "query": self.query,
            "batch": self.batch,
            "ranges": [span.row() for span in self.spans],
            "added": [file.row() for file in self.added],
            "removed": list(self.removed),
            "losses": [loss.as_json() for loss in self.losses],
            "merge": self.merge,
            "claimed": self.claimed,
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Record:
        return cls(
            int(value["seq"]),
            str(value["kind"]),
            int(value["at_ms"]),
            str(value["query"]),
            int(value["batch"]),
            tuple(spans_of_rows(value["ranges"])),
            tuple(DataFile.of_row(row) for row in value["added"]),
            tuple(str(path) for path in value["removed"]),
            tuple(Accepted.of_json(loss) for loss in value["losses"]),
            str(value["merge"]),
            str(value["claimed"]),
        )


@dataclass(slots=True)
class Head:
    """The sum of all records up to ``rolled``, and the owner of the ledger."""

    pipeline: str
    sink: str
    identity: str = ""
    sinks: list[str] = field(default_factory=list)  # all of the pipeline's, at its last run
    rolled: int = 0
    rolls: list[tuple[int, int]] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)  # need not be written again
    before: Coverage = field(default_factory=Coverage)  # the part from before the ledger
    losses: list[Accepted] = field(default_factory=list)
    last: Batch | None = None
    merge: str = ""
    claimed: list[str] = field(default_factory=list)
    began_ms: int = 0
    plain: bool = False  # every message became one row: the audit may compare counts

    def as_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "version": VERSION,
            "pipeline": self.pipeline,
            "sink": self.sink,
            "identity": self.identity,
            "sinks": self.sinks,
            "rolled": self.rolled,
            "rolls": self.rolls,
            "ranges": self.coverage.rows(),
            "before": self.before.rows(),
            "losses": [loss.as_json() for loss in self.losses],
            "last": last and [last.query, last.number, [span.row() for span in last.spans]],
            "merge": self.merge,
            "claimed": self.claimed,
            "began_ms": self.began_ms,
            "plain": self.plain,
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Head:
        last = value["last"]
        return cls(
            str(value["pipeline"]),
            str(value["sink"]),
            str(value["identity"]),
            [str(sink) for sink in value["sinks"]],
            int(value["rolled"]),
            [(int(first), int(end)) for first, end in value["rolls"]],
            Coverage(spans_of_rows(value["ranges"])),
            Coverage(spans_of_rows(value["before"])),
            [Accepted.of_json(loss) for loss in value["losses"]],
            last and Batch(str(last[0]), int(last[1]), tuple(spans_of_rows(last[2]))),
            str(value["merge"]),
            [str(query) for query in value["claimed"]],
            int(value["began_ms"]),
            bool(value.get("plain", False)),
        )

    def take(self, record: Record) -> None:
        """Add a record to the sum."""
        self.coverage.add_all(record.spans)
        if record.kind == CARRIED:
            self.before.add_all(record.spans)
        self.losses += record.losses
        if record.kind == BATCH:
            self.last = Batch(record.query, record.batch, record.spans)
        self.merge = record.merge or self.merge
        if record.claimed:
            self.claimed.append(record.claimed)


def packed(value: dict[str, Any]) -> bytes:
    """A checksum and a line of JSON."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def unpacked(data: bytes) -> dict[str, Any]:
    """The inverse of ``packed``; raises ValueError."""
    checksum, _, text = data.partition(b" ")
    text = text.removesuffix(b"\n")
    if len(checksum) != 8 or b"%08x" % zlib.crc32(text) != checksum:
        raise ValueError("its checksum is wrong")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
