"""`penstock import-nsqd --from DIR --to DIR`: imports the data path of a Go nsqd."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TextIO

TYPE_CHECKING = False  # as in typing, without its import
if TYPE_CHECKING:
    from penstock.storage.diskqueue import QueueDamage
    from penstock.storage.import_report import ImportReport, TopicReport

EPILOG = """\
Stop the Go nsqd first.  The --from folder is only read.  Every message is imported once, with its
body and timestamp; each channel keeps its messages and their attempts; paused topics and channels
stay paused.
The target may be new, or a data path that no nsqd uses, without topics of these names.  It gets
all topics, or none if anything fails.

examples:
  penstock import-nsqd --from /var/lib/nsqd --to /var/lib/penstock --dry-run
  penstock import-nsqd --from /var/lib/nsqd --to /var/lib/penstock

Exit status: 0 all imported, 1 nothing imported, 2 wrong usage, 3 imported without damaged records.
docs/migration.md describes the whole migration.
"""

BAR_WIDTH = 30
BAR_INTERVAL_S = 0.1
LINE_INTERVAL_S = 10.0
LIST_MAX = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = build_parser().parse_args(argv)
    from penstock.errors import PenstockError
    from penstock.storage.import_nsqd import import_nsqd

    meter = Meter(sys.stderr, quiet=options.quiet)
    try:
        report = import_nsqd(
            options.source,
            options.target,
            node_id=options.node_id,
            dry_run=options.dry_run,
            salvage=options.salvage,
            msg_size_max=options.max_msg_size,
            progress=meter.show,
        )
    except (PenstockError, OSError) as error:
        meter.clear()
        print(f"penstock import-nsqd: {error}; nothing was imported", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        meter.clear()
        print("penstock import-nsqd: interrupted; nothing was imported", file=sys.stderr)
        return 130
    meter.clear()
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print("\n".join(report_lines(report)))
    return 3 if report.damage else 0


def build_parser() -> argparse.ArgumentParser:
    from penstock.storage.diskqueue import MSG_SIZE_MAX

    parser = argparse.ArgumentParser(
        prog="penstock import-nsqd",
        description="Import the data path of a Go nsqd.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--from", dest="source", metavar="DIR", required=True, help="the Go nsqd's data path")
    add("--to", dest="target", metavar="DIR", required=True, help="the data path to write")
    add("--dry-run", action="store_true", help="read and report only; do not write to the target")
    add("--json", action="store_true", help="print the report as JSON")
    add("--quiet", action="store_true", help="no progress on standard error")
    add(
        "--no-salvage",
        dest="salvage",
        action="store_false",
        help="import only what the meta files list, not what a killed nsqd had accepted since",
    )
    add(
        "--max-msg-size",
        metavar="N",
        type=_size,
        default=MSG_SIZE_MAX,
        help=f"the Go nsqd's --max-msg-size; larger records are damage (default {MSG_SIZE_MAX})",
    )
    add(
        "--node-id",
        metavar="N",
        type=_node_id,
        default=_default_node_id(),
        help="the new nsqd's --node-id, 0..1023 (default: nsqd's, a hash of the hostname)",
    )
    return parser


def _size(text: str) -> int:
    # A record's length is a signed 32-bit integer that includes 26 bytes before the body.
    if not text.isdecimal() or not 1 <= int(text) <= (1 << 31) - 27:
        raise argparse.ArgumentTypeError(f"{text!r} is not in 1..{(1 << 31) - 27}")
    return int(text)


def _node_id(text: str) -> int:
    if not text.isdecimal() or int(text) > 1023:
        raise argparse.ArgumentTypeError(f"{text!r} is not in 0..1023")
    return int(text)


def _default_node_id() -> int:
    from penstock.engine.options import Options

    return Options().node_id


class Meter:
    """Progress: a bar on a terminal, otherwise a line every LINE_INTERVAL_S."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._bar = out.isatty()
        self._next_s = time.monotonic() + (0.0 if self._bar else LINE_INTERVAL_S)
        self._shown = 0

    def show(self, topic: str, step: str, done: int, total: int) -> None:
        """Show ``done`` of ``total``: bytes for "read", copies for "sort" and "write"."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return
        self._next_s = now_s + (BAR_INTERVAL_S if self._bar else LINE_INTERVAL_S)
        share = min(1.0, done / total) if total else 1.0
        amount = f"{done / 1e6:,.1f} MB" if step == "read" else f"{done:,} messages"
        if not self._bar:
            print(f"topic={topic}: {step} {share:.0%}, {amount}", file=self._out, flush=True)
            return
        filled = int(share * BAR_WIDTH)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        line = f"{step:<5} [{bar}] {share:4.0%}  {topic}: {amount}"[:110]
        print(f"\r{line:<{self._shown}}", end="", file=self._out, flush=True)
        self._shown = len(line)

    def clear(self) -> None:
        """Remove the bar, before anything else is printed."""
        if self._shown:
            print(f"\r{'':<{self._shown}}\r", end="", file=self._out, flush=True)
            self._shown = 0


def report_lines(report: ImportReport) -> list[str]:
    """The report, formatted for people."""
    lines = []
    for topic in report.topics:
        lines += _topic_lines(topic)
    lines += _listed("left out as damaged", [_damage_line(d) for d in report.damage])
    lines += _listed("notes", report.notes)
    rate = report.record_count / report.seconds if report.seconds else 0.0
    lines.append(
        f"{'would import' if report.dry_run else 'imported'} {report.message_count:,} messages in"
        f" {_counted(len(report.topics), 'topic')}, {_counted(report.channel_count, 'channel')},"
        f" from {report.record_count:,} copies ({report.salvaged_count:,} salvaged)"
        f" in {report.seconds:.1f} s, {rate:,.0f} copies/s"
    )
    if report.damage:
        lines.append(
            f"left out: {_counted(report.damaged_size, 'byte')}"
            f" in {_counted(len(report.damage), 'damaged place')}"
        )
    if report.dry_run:
        lines.append(f"dry run: {report.target} was not changed")
    else:
        lines.append(f"next: nsqd --data-path={report.target}")
    return lines


def _topic_lines(topic: TopicReport) -> list[str]:
    held = f", {topic.held_count:,} not yet in channels" if topic.held_count else ""
    lines = [
        f"topic={topic.name}{_paused(topic.paused)}: {topic.message_count:,} messages,"
        f" {topic.body_size:,} bytes{held}"
    ]
    lines += [
        f"  channel={channel.name}{_paused(channel.paused)}:"
        f" {channel.undelivered_count:,} undelivered ({channel.retried_count:,} with attempts),"
        f" {channel.finished_count:,} finished"
        for channel in topic.channels
    ]
    return lines


def _paused(paused: bool) -> str:
    return " paused" if paused else ""


def _listed(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    lines = [f"{title}:", *(f"  {item}" for item in items[:LIST_MAX])]
    if len(items) > LIST_MAX:
        lines.append(f"  and {len(items) - LIST_MAX:,} more; --json lists all")
    return lines


def _damage_line(damage: QueueDamage) -> str:
    size = f", {_counted(damage.size, 'byte')}" if damage.size else ""
    return f"{damage.path} at {damage.offset:,}{size}: {damage.what}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
