"""The ledgers of a folder, read by an audit; it changes nothing, and pipelines may run meanwhile.

<table>/_penstock/ledger/<pipeline>/head.json     there is a ledger
.../sealed.json     a decided step: its files may already be added or removed
.../merging.json    {"removed": [path, ...]}: files that a merge has replaced, kept for readers that
                    have listed them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.coverage import Coverage, Log
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger import HEAD, RESTORE, SEALED, Ledger
from penstock.pipeline.ledger_records import MERGE, Accepted, Record, unpacked
from penstock.pipeline.places import STATE

LEDGERS = f"{STATE}/ledger"
MERGING = "merging.json"


@dataclass(slots=True)
class OpenLedger:
    """A ledger and its unfinished step."""

    ledger: Ledger
    sealed: Record | None = None
    replaced: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)  # including the unfinished step

    @property
    def pipeline(self) -> str:
        return self.ledger.head.pipeline

    @property
    def lost(self) -> dict[Log, list[Accepted]]:
        """The accepted losses, by log."""
        found: dict[Log, list[Accepted]] = {}
        for loss in self.ledger.head.losses:
            found.setdefault(loss.span.log, []).append(loss)
        return found

    @property
    def state(self) -> tuple[int, object, object]:
        """Changes with every write to the ledger."""
        return self.ledger.seq, self.sealed and self.sealed.seq, tuple(self.replaced)

    @property
    def may_exist(self) -> set[str]:
        """Files outside the ledger that may be in the folder."""
        added = self.sealed.added if self.sealed is not None else ()
        return {*self.replaced, *(file.path for file in added)}

    @property
    def may_be_missing(self) -> set[str]:
        return set(self.sealed.removed) if self.sealed is not None else set()

    def hidden(self, folder: Folder) -> set[str]:
        """Files whose rows are also in other files: of a merge only one copy is read."""
        found = set(self.replaced)
        if self.sealed is not None and self.sealed.kind == MERGE:
            added = {file.path for file in self.sealed.added}
            moved = all(folder.modified_ms(path) is not None for path in added)
            found |= set(self.sealed.removed) if moved else added
        return found


def channels_of(opened: OpenLedger) -> list[str]:
    """The channels that a pipeline reads; before its first range, one named like the pipeline."""
    return list(dict.fromkeys(log.channel for log in opened.coverage.logs)) or [opened.pipeline]


def open_ledgers(folder: Folder) -> list[OpenLedger]:
    """All ledgers of a folder, loaded; raises PipelineError if one is damaged."""
    names = set()
    for file in folder.files(LEDGERS):
        pipeline, _, name = file.path.removeprefix(f"{LEDGERS}/").partition("/")
        if name == HEAD or (name[:1].isdecimal() and name.endswith(".json")):
            names.add(pipeline)
    return [open_ledger(folder, name) for name in sorted(names)]


def open_ledger(folder: Folder, pipeline: str) -> OpenLedger:
    path = f"{LEDGERS}/{pipeline}"
    # Read before the ledger: a step that finishes in between is then in the ledger.
    step, merging = _read(folder, f"{path}/{SEALED}"), _read(folder, f"{path}/{MERGING}")
    ledger = Ledger(folder, path, pipeline, "").load()
    if not ledger.exists:
        raise PipelineError(
            f"{ledger.uri}/{HEAD} is missing, and the ledger was rolled up.  {RESTORE}"
        )
    opened = OpenLedger(ledger)
    if step is not None and isinstance(step.get("record"), dict):
        try:
            record = Record.of_json(step["record"])
        except (KeyError, ValueError, TypeError) as error:
            raise PipelineError(f"{folder.uri}/{path}/{SEALED} is damaged ({error})") from None
        opened.sealed = record if record.seq > ledger.seq else None
    opened.coverage = ledger.coverage
    for span in opened.sealed.spans if opened.sealed is not None else ():
        opened.coverage.add(span)
    if merging is not None:
        opened.replaced = [str(each) for each in merging.get("removed", ())]
    return opened


def _read(folder: Folder, path: str) -> dict[str, Any] | None:
    data = folder.read(path)
    try:
        return None if data is None else unpacked(data)
    except ValueError as error:
        raise PipelineError(f"{folder.uri}/{path} is damaged ({error})") from None
