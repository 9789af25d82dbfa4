"""An audit's report as text: a line for each topic and node, then files and accepted losses."""

from __future__ import annotations

import datetime

from penstock.pipeline.audit_findings import OUTSIDE, REPEAT, WRONG, Fault, FileFault, Report, Topic
from penstock.pipeline.ledger_records import Accepted

SHOWN_MAX = 20  # faults per topic or for files; the JSON report has all


def text(report: Report) -> str:
    lines = _topics(report.topics) if report.topics else ["no messages of these topics found"]
    lines += _files(report)
    if report.losses:
        lines.append(f"ACCEPTED LOSSES  {len(report.losses):,}")
        lines += _shortened([f"    {_loss(loss)}" for loss in report.losses])
    lines += [f"not provable: {doubt}" for doubt in report.doubts]
    lines += [f"note: {note}" for note in report.notes]
    lines.append(f"VERDICT  {report.verdict}")
    if report.faults:
        lines.append(
            "If this is intended, record it in the ledger, once: --param accept=NAME with the "
            f"names in brackets, or accept={report.name} for everything"
        )
    return "\n".join(lines)


def _topics(topics: list[Topic]) -> list[str]:
    lines = [f"{'TOPIC':<24} {'NODE':<8} {'MESSAGES':>12} {'NOT READ':>9}  VERDICT"]
    for each in topics:
        count = "-" if each.count is None else f"{each.count:,}"
        lines.append(
            f"{each.topic:<24} {each.node[:8]:<8} {count:>12} {each.not_read:>9,}  {each.verdict}"
        )
        lines += _shortened([f"    {fault}  [{fault.name}]" for fault in each.faults])
        lines += _shortened([f"    not provable: {why}" for why in each.unproven])
        lines += [f"    note: {note}" for note in each.notes]
    return lines


def _files(report: Report) -> list[str]:
    files = report.files
    wrong = len(files.faults) + files.left_out
    verdict = f"{wrong:,} wrong" if wrong else "all match the ledger"
    if not report.pipelines:
        verdict = "no ledger to compare with"
    lines = [f"FILES  {files.count:,}, {files.size:,} bytes: {verdict}"]
    if files.unchecked:
        lines.append(f"    {files.unchecked:,} older than the ledger: compared by size only")
    return lines + _shortened([f"    {fault}  [{fault.name}]" for fault in files.faults])


def _loss(loss: Accepted) -> str:
    at = datetime.datetime.fromtimestamp(loss.at_ms / 1000, datetime.UTC)
    what = f" ({loss.what})" if loss.what else ""
    return f"{at:%Y-%m-%d %H:%M:%S} {loss.name}: {loss.span}{what}"


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= SHOWN_MAX:
        return lines
    return [*lines[:SHOWN_MAX], f"    and {len(lines) - SHOWN_MAX:,} more, see the JSON report"]


def sentence(report: Report) -> str:
    """The error that ends the run."""
    if report.verdict == WRONG:
        faults = [fault for fault in report.faults if isinstance(fault, Fault)]
        files = [fault for fault in report.faults if isinstance(fault, FileFault)]
        repeated = sum(fault.kind == REPEAT for fault in faults)
        outside = sum(fault.count or 0 for fault in faults if fault.kind == OUTSIDE)
        lost = [fault for fault in faults if fault.kind not in (REPEAT, OUTSIDE)]
        missing = sum(fault.count or 0 for fault in lost)
        more = "at least " if any(fault.count is None for fault in lost) else ""
        parts = [f"{more}{missing:,} messages are missing"] if lost else []
        parts += [f"{repeated:,} appear more than once"] if repeated else []
        parts += [f"{outside:,} rows are in no range of the ledger"] if outside else []
        wrong = len(files) + report.files.left_out
        parts += [f"{wrong:,} files are missing, changed or unknown"] if files else []
        return f"{report.path}: {', '.join(parts)}"
    places = [
        f"topic {each.topic} on node {each.node}: {'; '.join(each.unproven)}"
        for each in report.topics
        if each.unproven
    ]
    return f"{report.path}: not provable: {'; '.join([*report.doubts, *places[:SHOWN_MAX]])}"
