"""What an audit finds, by topic and node and by file, and the verdict.

    whole          proven: every message exactly once
    wrong          faults: missing or duplicated messages or rows, by index; or wrong files
    not provable   doubts: messages from before the ledger, or of a node that does not respond

A fault has a short name derived from its contents.  ``accept=NAME`` records it in the ledger, and
later audits do not report it.  So a name works once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Generic, TypeVar

from penstock.pipeline.coverage import Log, Span
from penstock.pipeline.ledger_records import Accepted, DataFile
from penstock.spark.offsets import INDEX_MAX

FAULTS_MAX = 100_000  # stored per topic and node, and for files
WHOLE, WRONG, NOT_PROVABLE = "whole", "wrong", "not provable"

# Texts of faults in ranges.  They are stored in ledgers, so they must not change.
# The first four are the ledger's: once accepted, the range is covered.
GAP = "the ledger has a gap there"
PASSED = "the channel passed them, and the ledger does not have them"
EARLIER = "the broker has them from before the first message of the table"
NEVER_READ = "the broker has them, and the table has nothing of the topic"
# Once accepted, it is subtracted from the broker's count.
COUNTED = "the broker counts more messages than the ledger"
# Rows: once accepted, it is subtracted from the rows the table should have.
ROWS = "the table does not have them"
REPEAT = "more than once"
OUTSIDE = "rows that are in no range of the ledger"
OF_LEDGER = (GAP, PASSED, EARLIER, NEVER_READ)

# Faults of files.
MISSING = "is missing"
STRANGE = "is in no ledger of this folder"
CHANGED = "is not what was written"


def digest(*parts: object) -> str:
    """A short name for a finding, the same in each run."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Indexes ``start <= index < end`` of a log that are wrong."""

    kind: str
    log: Log
    start: int
    end: int
    count: int | None  # messages, or for REPEAT how often; None: not known
    detail: str = ""

    @property
    def name(self) -> str:
        # Without the end, which grows while the pipeline runs.
        return digest(self.kind, *self.log[:3], self.start, self.count)

    @property
    def span(self) -> Span:
        return Span(self.log, self.start, self.end, self.count)

    @property
    def covered(self) -> Span:
        """The range as the ledger records it once accepted: the table has none of its messages."""
        return self.span._replace(messages=0)

    def accepted(self, now_ms: int) -> Accepted:
        return Accepted(self.name, now_ms, self.span, self.kind)

    def __str__(self) -> str:
        if self.kind == REPEAT:
            return f"{self.count} times: index {self.start}"
        end = "on" if self.end >= INDEX_MAX else f"{self.end})"
        place = f"[{self.start}, {end}"
        count = "an unknown number" if self.count is None else f"{self.count:,}"
        if self.kind == OUTSIDE:
            return f"{count} {self.kind}: in {place}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"missing: {count} in {place}: {self.kind}{detail}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "instance": self.log.instance,
            "start": self.start,
            "end": self.end,
            "count": self.count,
            "detail": self.detail,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class FileFault:
    """A file that differs from its record in a ledger."""

    kind: str
    path: str
    detail: str = ""
    pipeline: str = ""  # whose ledger has the file; "" if none
    found: DataFile | None = None  # the file as it is now

    @property
    def name(self) -> str:
        return digest(self.kind, self.path, self.found and self.found.row())

    def __str__(self) -> str:
        return f"{self.path} {self.kind}" + (f": {self.detail}" if self.detail else "")

    def as_json(self) -> dict[str, Any]:
        fields = {"path": self.path, "kind": self.kind, "detail": self.detail}
        return {"name": self.name, **fields, "pipeline": self.pipeline}


AnyFault = TypeVar("AnyFault", Fault, FileFault)


@dataclasses.dataclass(slots=True, kw_only=True)
class FaultList(Generic[AnyFault]):
    """A list of faults, limited so that a report stays readable."""

    faults: list[AnyFault] = dataclasses.field(default_factory=list)
    left_out: int = 0  # faults beyond FAULTS_MAX

    def add_fault(self, fault: AnyFault) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(fault)
        else:
            self.left_out += 1


@dataclasses.dataclass(slots=True)
class Topic(FaultList[Fault]):
    """One topic on one node: all its instances, in all ledgers of the folder."""

    topic: str
    node: str
    count: int | None = None  # distinct messages, by rows if possible, else by ranges
    not_read: int = 0  # messages of the broker that the pipeline has not reached
    doubts: list[str] = dataclasses.field(default_factory=list)
    before: list[Span] = dataclasses.field(default_factory=list)  # not proven by the ledger
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.faults:
            return WRONG
        return NOT_PROVABLE if self.doubts or self.before else WHOLE

    @property
    def unproven(self) -> list[str]:
        before = [
            f"[{span.start}, {span.end}) is older than the ledger, and the broker cannot count it"
            for span in self.before
        ]
        return [*dict.fromkeys(self.doubts), *before]

    def doubt(self, text: str) -> None:
        if text not in self.doubts:
            self.doubts.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "node": self.node,
            "verdict": self.verdict,
            "count": self.count,
            "not_read": self.not_read,
            "faults": [fault.as_json() for fault in self.faults],
            "left_out": self.left_out,
            "not_provable": self.unproven,
            "notes": self.notes,
        }


class Topics:
    """All topics found, by topic and node."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, str], Topic] = {}

    def of(self, topic: str, node: str) -> Topic:
        return self._topics.setdefault((topic, node), Topic(topic, node))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._topics

    def all(self) -> list[Topic]:
        return [self._topics[key] for key in sorted(self._topics)]


@dataclasses.dataclass(slots=True)
class Files(FaultList[FileFault]):
    """The files of a table, compared with its ledgers."""

    count: int = 0
    size: int = 0
    unchecked: int = 0  # of these, compared by size only


@dataclasses.dataclass(slots=True)
class Report:
    """The result of an audit."""

    path: str
    topics: list[Topic]
    files: Files
    losses: list[Accepted]
    pipelines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)  # about the table as a whole

    @property
    def faults(self) -> list[Fault | FileFault]:
        return [*self.files.faults, *(fault for each in self.topics for fault in each.faults)]

    @property
    def verdict(self) -> str:
        if self.faults:
            return WRONG
        doubtful = self.doubts or any(each.verdict != WHOLE for each in self.topics)
        return NOT_PROVABLE if doubtful else WHOLE

    @property
    def name(self) -> str:
        """The name of all faults together."""
        return digest(sorted(fault.name for fault in self.faults))

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "verdict": self.verdict,
            "accept_all": self.name if self.faults else None,
            "pipelines": self.pipelines,
            "topics": [each.as_json() for each in self.topics],
            "files": {
                "count": self.files.count,
                "size": self.files.size,
                "size_only": self.files.unchecked,
                "faults": [fault.as_json() for fault in self.files.faults],
                "left_out": self.files.left_out,
            },
            "losses": [loss.as_json() for loss in self.losses],
            "not_provable": self.doubts,
            "notes": self.notes,
        }
