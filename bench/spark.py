"""Spark on our nsqd compared with Spark's own sources, in one run, for docs/benchmarks.md.

    python -m bench.spark                           everything, about ten minutes
    python -m bench.spark --quick scan sink         a short run of two kinds of work
    python -m bench.spark --markdown docs/benchmarks.md --plots docs/images

Works are in `spark_works.py`.  They share a session with the settings of `penstock pipeline`, on
all cores; each has a new nsqd on an empty folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import spark_works as works
from bench.broker import Broker
from bench.flags import Parser, write_record
from bench.report import WORDS, write_page
from bench.run import describe_machine, find_makes
from penstock.spark.session import SessionPlan, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Metrics = dict[str, float]

MARKS = ("<!-- a run of Spark begins -->\n", "<!-- a run of Spark ends -->\n")
HEADER = ("", "Penstock", "to compare", "ratio", "target", "")
SETTINGS = {"spark.sql.streaming.numRecentProgressUpdates": "10000", "spark.driver.memory": "4g"}


@dataclass(frozen=True)
class Line:
    """A figure of a work: its metric, the metric it is compared with, and its target.

    With a metric to compare the target is for the ratio, otherwise for the figure.
    """

    metric: str
    title: str
    form: str
    other: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def ratio(self, found: Mapping[str, float]) -> float | None:
        return found[self.metric] / found[self.other] if self.other else None

    def met(self, found: Mapping[str, float]) -> bool | None:
        """Whether the target is met; None if there is none."""
        ratio = self.ratio(found)
        judged = found[self.metric] if ratio is None else ratio
        if self.at_least is not None:
            return judged >= self.at_least
        return judged <= self.at_most if self.at_most is not None else None

    def target(self) -> str:
        limit = self.at_most if self.at_least is None else self.at_least
        if limit is None:
            return ""
        return f"{'at most' if self.at_least is None else 'at least'} {limit:,g}"

    def cells(self, found: Mapping[str, float]) -> list[str]:
        other = self.form.format(found[self.other]) if self.other else ""
        ratio, met = self.ratio(found), self.met(found)
        return [
            self.title,
            self.form.format(found[self.metric]),
            other,
            "" if ratio is None else f"{ratio:.2f}",
            self.target(),
            "" if met is None else WORDS[met],
        ]


@dataclass(frozen=True)
class Work:
    """One thing to measure."""

    name: str
    title: str
    run: Callable[..., Metrics]
    full: dict[str, Any]
    quick: dict[str, Any]
    lines: tuple[Line, ...]
    needs_session: bool = True


WORKS = (
    Work(
        "scan",
        "batch read of 200-byte messages, beside Spark's scan of the same rows in Parquet files",
        works.scan,
        full={"messages": 5_000_000, "rounds": 5},
        quick={"messages": 500_000, "rounds": 2},
        lines=(
            Line("all", "all columns, rows/s", "{:,.0f}", "parquet_all", at_least=0.8),
            Line("few", "index, timestamp, body, rows/s", "{:,.0f}", "parquet_few", at_least=0.8),
            Line("cpu_us", "CPU of nsqd, us a message", "{:.3f}", at_most=0.15),
        ),
    ),
    Work(
        "micro-batch",
        "batches of 100 rows into nowhere, beside Spark's rate source",
        works.micro_batch,
        full={"batches": 150, "rows": 100, "rounds": 5},
        quick={"batches": 60, "rounds": 1},
        lines=(Line("p50_ours", "p50, ms", "{:.0f}", "p50_theirs", at_most=1.5),),
    ),
    Work(
        "end-to-end",
        "1,000 PUBs a second: from PUB to a committed row in Parquet files",
        works.end_to_end,
        full={"rate": 1000, "seconds": 30.0},
        quick={"seconds": 8.0},
        lines=(
            Line("p50_ms", "p50, ms", "{:.0f}", at_most=300),
            Line("p99_ms", "p99, ms", "{:.0f}"),
        ),
    ),
    Work(
        "sink",
        "rows of 200 bytes from Parquet files into a topic, exactly once",
        works.sink,
        full={"messages": 2_000_000, "rounds": 3},
        quick={"messages": 300_000, "rounds": 1},
        lines=(
            Line("rate", "rows/s", "{:,.0f}", at_least=500_000),
            Line("cpu_us", "CPU of nsqd, us a row", "{:.3f}"),
        ),
    ),
    Work(
        "beside",
        "ordinary clients while Spark reads a backlog, beside the same clients alone",
        works.beside,
        full={"messages": 6_000_000, "backlog": 2_000_000, "rounds": 5},
        quick={"messages": 300_000, "backlog": 300_000, "rounds": 1},
        lines=(
            Line("publish_beside", "published/s", "{:,.0f}", "publish_alone", at_least=0.8),
            Line("consume_beside", "consumed/s", "{:,.0f}", "consume_alone", at_least=0.8),
            Line("read_beside", "read by Spark meanwhile, rows/s", "{:,.0f}"),
        ),
        needs_session=False,
    ),
)


def measure(chosen: Sequence[Work], options: argparse.Namespace) -> dict[str, Metrics]:
    """The figures of each work, printed when each is done."""
    session: SparkSession | None = None
    results: dict[str, Metrics] = {}
    try:
        for work in chosen:
            if work.needs_session and session is None:
                session = open_session(SessionPlan(name="bench", conf=SETTINGS), show=drop)
            parameters = {**work.full, **(work.quick if options.quick else {})}
            results[work.name] = run(work, session, parameters, options.data_path)
            print(text(work, results[work.name]), flush=True)
    finally:
        if session is not None:
            session.stop()
    return results


def drop(line: str) -> None:
    """Discard Spark's log: it complains about queries that are stopped during a batch."""


def run(
    work: Work, session: SparkSession | None, parameters: Mapping[str, Any], data_path: str | None
) -> Metrics:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=data_path))
    given = (session,) if work.needs_session else ()
    try:
        with Broker(find_makes("")["penstock"], folder) as broker:
            return work.run(*given, broker, **parameters)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def text(work: Work, found: Mapping[str, float]) -> str:
    """One work, formatted for a terminal."""
    table = [list(HEADER), *(line.cells(found) for line in work.lines)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    lines = ["", f"{work.title}  [{work.name}]"]
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(machine: Mapping[str, str], results: Mapping[str, Metrics]) -> str:
    """All works as one table."""
    lines = ["Measured on " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    lines += ["", "| " + " | ".join(HEADER) + " |", "|---|---:|---:|---:|---|---|"]
    for work in WORKS:
        if work.name in results:
            lines.append(f"| **{work.title}** |" + " |" * (len(HEADER) - 1))
            rows = (line.cells(results[work.name]) for line in work.lines)
            lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def verdicts(results: Mapping[str, Metrics]) -> list[bool]:
    found = [
        line.met(results[work.name])
        for work in WORKS
        if work.name in results
        for line in work.lines
    ]
    return [met for met in found if met is not None]


def write(options: argparse.Namespace, results: Mapping[str, Metrics]) -> None:
    from importlib.metadata import version

    machine = {**describe_machine({}), "PySpark": version("pyspark")}
    record = {"machine": machine, "quick": options.quick, "works": dict(results)}
    write_record(options, record, "spark-")
    write_page(options.markdown, markdown(machine, results), *MARKS)
    if options.plots:
        from bench import plots

        plots.draw_spark(Path(options.plots), results)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("bench.spark", __doc__, "work", {work.name: work.title for work in WORKS})
    parser.add_report()
    return parser.parsed(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    chosen = [work for work in WORKS if not options.works or work.name in options.works]
    start_s = time.monotonic()
    results = measure(chosen, options)
    judged = verdicts(results)
    print(
        f"\n{judged.count(True)} targets met, {judged.count(False)} missed; "
        f"{time.monotonic() - start_s:.0f} s"
        + (" (quick: too short for conclusions)" if options.quick else "")
    )
    write(options, results)
    return 1 if options.strict and False in judged else 0


if __name__ == "__main__":
    sys.exit(main())
