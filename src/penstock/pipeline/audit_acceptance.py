"""Accepts the findings of an audit: records them in the ledger, so they are not reported again.

    range missing from the ledger   covered from then on, and listed as a loss
    rows missing from the table     a loss: that many fewer rows are expected in the range
    missing file                    removed from the ledger
    changed or added file           recorded in the ledger as it is now

Rule: one record per ledger, so that all of it takes effect or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.audit_findings import CHANGED, MISSING, OF_LEDGER, Fault, FileFault, Report
from penstock.pipeline.audit_ledgers import LEDGERS, OpenLedger, channels_of
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger import now_ms
from penstock.pipeline.ledger_records import LOSS, Accepted, DataFile
from penstock.pipeline.lock import NAME, Lock, Owner


@contextmanager
def locked(folder: Folder, ledgers: Sequence[OpenLedger]) -> Iterator[None]:
    """Lock these ledgers against pipelines; raises AlreadyRunningError if one is running."""
    locks: list[Lock] = []
    try:
        for opened in ledgers:
            path = f"{LEDGERS}/{opened.pipeline}/{NAME}"
            lock = Lock(folder, path, Owner.of_this_process("audit"))
            lock.take()
            locks.append(lock)
        yield
    finally:
        for lock in locks:
            lock.release()


def accept(report: Report, ledgers: Sequence[OpenLedger], names: Sequence[str]) -> None:
    """Record the faults of these names; raises PipelineError if one does not exist."""
    selected = _named(report, names)
    if not ledgers:
        raise PipelineError(f"{report.path} has no ledger to record the acceptance in")
    for opened in ledgers:
        if opened.sealed is not None:
            raise PipelineError(
                f"{opened.ledger.uri} has an unfinished step; start the pipeline "
                f"{opened.pipeline} once, then accept"
            )
    parts: dict[int, list[Fault | FileFault]] = {}
    for fault in selected:
        parts.setdefault(_place(fault, ledgers), []).append(fault)
    for place, faults in parts.items():
        opened = ledgers[place]
        opened.ledger.commit(opened.ledger.record(LOSS, **_fields(faults)))


def _named(report: Report, names: Sequence[str]) -> list[Fault | FileFault]:
    faults = {fault.name: fault for fault in report.faults}
    if list(names) == [report.name] and faults:
        return list(faults.values())
    accepted = {loss.name for loss in report.losses}
    for name in names:
        if name in accepted:
            raise PipelineError(f"accept={name}: already accepted; a name works once")
        if name not in faults:
            known = ", ".join(list(faults)[:20]) or "nothing"
            raise PipelineError(f"accept={name}: no fault has this name; found: {known}")
    return [faults[name] for name in names]


def _place(fault: Fault | FileFault, ledgers: Sequence[OpenLedger]) -> int:
    """The position of the ledger that records the fault."""
    for place, opened in enumerate(ledgers):
        if isinstance(fault, FileFault):
            if fault.pipeline == opened.pipeline:
                return place
        elif fault.log in opened.coverage.logs or fault.log.channel in channels_of(opened):
            return place
    return 0


def _fields(faults: Sequence[Fault | FileFault]) -> dict[str, Any]:
    losses: list[Accepted] = []
    added: list[DataFile] = []
    removed: list[str] = []
    at_ms = now_ms()
    for fault in faults:
        if isinstance(fault, Fault):
            losses.append(fault.accepted(at_ms))
            continue
        if fault.kind in (MISSING, CHANGED):
            removed.append(fault.path)
        if fault.found is not None:
            added.append(fault.found)
    ranges = [fault for fault in faults if isinstance(fault, Fault)]
    spans = [fault.covered for fault in ranges if fault.kind in OF_LEDGER]
    return {
        "spans": tuple(spans),
        "losses": tuple(losses),
        "added": tuple(added),
        "removed": tuple(removed),
    }
