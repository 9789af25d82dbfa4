"""Accepting what an audit found: it becomes a record of the ledger, and is not found again.

    range that the ledger lacks     covered from then on, and listed as a loss
    rows that the table lacks       a loss: so many fewer are expected in that range
    file that is gone               removed from the ledger
    file that was changed, added    the ledger has it as it is now

Rule: one record for each ledger, so all of it counts or nothing.
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
    """No pipeline writes to these ledgers; AlreadyRunningError if one does."""
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
    """Record the faults of these names; PipelineError if one is not found."""
    selected = _named(report, names)
    if not ledgers:
        raise PipelineError(f"{report.path} has no ledger in which it could be accepted")
    for opened in ledgers:
        if opened.sealed is not None:
            raise PipelineError(
                f"{opened.ledger.uri} has a step that is not finished; start the pipeline "
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
            raise PipelineError(f"accept={name}: that was accepted before; accepting works once")
        if name not in faults:
            known = ", ".join(list(faults)[:20]) or "nothing"
            raise PipelineError(f"accept={name}: no fault has this name; found was {known}")
    return [faults[name] for name in names]


def _place(fault: Fault | FileFault, ledgers: Sequence[OpenLedger]) -> int:
    """Which ledger has to know."""
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
