"""Proves that a table has every message exactly once, or lists what is missing and duplicated.

    1. brokers   what they have of each topic, and the position of the channel
    2. ledgers   ranges without a gap, from the first index to the channel's position
    3. files     name, size, rows and checksum, as recorded in the ledgers
    4. rows      if they have topic, node and index: compared with the ranges
    5. brokers   again: their counts must equal the ledger's, where they still have the messages

Ledger and files are enough to prove a table.  Messages from before the ledger, or of a table
without one, can be proven only while the brokers still have them.

Rule 1: the verdict is "whole" only if everything is proven; "wrong" only with an index or a file.
Rule 2: pipelines may run meanwhile.  If something is wrong and a ledger has changed since, the
        audit starts over: it has compared two points in time.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import NotProvableError, PipelineError
from penstock.pipeline import audit_rows as rows_of
from penstock.pipeline.audit_acceptance import accept, locked
from penstock.pipeline.audit_brokers import BrokerLogs, ask_brokers, matches
from penstock.pipeline.audit_files import check_files, delta_paths, is_delta, table_files
from penstock.pipeline.audit_findings import NOT_PROVABLE, WRONG, Files, Report, Topic, Topics
from penstock.pipeline.audit_ledgers import OpenLedger, open_ledgers
from penstock.pipeline.audit_ranges import judge_ranges
from penstock.pipeline.audit_text import sentence, text
from penstock.pipeline.coverage import Coverage
from penstock.pipeline.folders import Folder, is_local, open_folder, open_local, spark_path
from penstock.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("penstock.pipeline")

ATTEMPTS_MAX = 3


def audit(spark: SparkSession, pipeline: Pipeline, show: Callable[[str], None]) -> None:
    """The job of the pipeline ``audit``; PipelineError if the table is wrong or not provable."""
    parameters = pipeline.parameters
    path = pipeline.resolve(parameters["path"])
    folder = existing_folder(spark, path)
    names = _words(parameters.get("accept", ""))
    with contextlib.ExitStack() as stack:
        if names:
            stack.enter_context(locked(folder, open_ledgers(folder)))
        report = examine(spark, folder, parameters)
        if names:
            accept(report, open_ledgers(folder), names)
            report = examine(spark, folder, parameters)
    show(text(report))
    if parameters.get("report"):
        target = Path(pipeline.resolve(parameters["report"]))
        target.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if report.verdict == WRONG:
        raise PipelineError(sentence(report))
    if report.verdict == NOT_PROVABLE:
        raise NotProvableError(sentence(report))


def existing_folder(spark: SparkSession, path: str) -> Folder:
    """The table's folder; an audit does not create it."""
    if is_local(path) and not Path(path.removeprefix("file://").removeprefix("file:")).is_dir():
        raise PipelineError(f"{path}: no such folder")
    return open_local(path) if is_local(path) else open_folder(spark, path)


def examine(spark: SparkSession, folder: Folder, parameters: Mapping[str, str]) -> Report:
    """Rule 2."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        examination = Examination(spark, folder, parameters)
        report = examination.run()
        if report.verdict != WRONG or not examination.changed:
            break
        if attempt < ATTEMPTS_MAX:
            log.info("pipeline=audit: %s was written to meanwhile; starting over", folder.uri)
        else:
            report.notes.append(
                "the table was written to throughout the audit; stop its pipelines, then "
                "audit it again to be sure"
            )
    return report


def _words(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


class Examination:
    """One pass over a table."""

    def __init__(self, spark: SparkSession, folder: Folder, parameters: Mapping[str, str]) -> None:
        self._spark = spark
        self._folder = folder
        self._patterns = _words(parameters["topics"])
        self._from_first = parameters.get("start", "earliest") != "archive"
        self._topics = Topics()
        self._notes: list[str] = []
        nsqd, lookupd = parameters.get("nsqd", ""), parameters.get("lookupd", "")
        self._brokers: BrokerLogs
        self._brokers, self._doubts = ask_brokers(nsqd, lookupd, self._patterns)
        self._ledgers: list[OpenLedger] = open_ledgers(folder)

    def run(self) -> Report:
        ledgers = self._ledgers
        files = check_files(self._folder, ledgers) if ledgers else self._unknown_files()
        if ledgers:
            self._judge_ranges()
        self._judge_rows(files)
        if not ledgers:
            self._judge_ranges()
        losses = [loss for opened in ledgers for loss in opened.ledger.head.losses]
        pipelines = [
            {
                "pipeline": opened.pipeline,
                "sink": opened.ledger.head.sink,
                "plain": opened.ledger.head.plain,
                "began_ms": opened.ledger.head.began_ms,
            }
            for opened in ledgers
        ]
        topics = self._topics.all()
        path = self._folder.uri
        return Report(path, topics, files, losses, pipelines, self._notes, self._doubts)

    @property
    def changed(self) -> bool:
        """Whether a ledger has changed since it was read."""
        return [each.state for each in self._ledgers] != [
            each.state for each in open_ledgers(self._folder)
        ]

    def _unknown_files(self) -> Files:
        found = Files()
        for file in table_files(self._folder):
            found.count += 1
            found.size += max(0, file.size)
        found.unchecked = found.count
        return found

    def _judge_ranges(self) -> None:
        judge_ranges(
            *(self._ledgers, self._brokers, self._patterns, self._topics),
            from_first=self._from_first,
        )

    def _judge_rows(self, files: Files) -> None:
        rows = self._rows(files) if files.count else None
        if rows is None and not self._ledgers:
            self._doubts.append("the table has no ledger, and no rows with topic, node and index")
        elif rows is None and files.count:
            self._notes.append(
                "the table has no columns topic, node and index: proven by files and ranges only"
            )
        elif rows is not None:
            self._count(rows)

    def _rows(self, files: Files) -> DataFrame | None:
        """Topic, node and index of all rows; of files being merged, only one copy is read."""
        from pyspark.sql import functions as F

        uri = spark_path(self._folder.uri)
        # A truncated file is reported as a fault; the other files are still compared.
        reader = self._spark.read.option("ignoreCorruptFiles", bool(files.faults))
        if is_delta(self._folder):
            paths = [f"{uri}/{path}" for path in delta_paths(self._folder) if self._exists(path)]
            return rows_of.message_rows(reader.option("basePath", uri).parquet(*paths))
        rows = reader.parquet(uri)
        hidden = {path for each in self._ledgers for path in each.hidden(self._folder)}
        if hidden:
            names = sorted(path.rpartition("/")[2] for path in hidden)
            rows = rows.filter(~F.col("_metadata.file_name").isin(names))
        return rows_of.message_rows(rows)

    def _exists(self, path: str) -> bool:
        return self._folder.modified_ms(path) is not None

    def _count(self, rows: DataFrame) -> None:
        log.info("pipeline=audit: counting rows of %s", self._folder.uri)
        groups = rows_of.groups_of(self._ledgers, self._patterns)
        times, outside = rows_of.count_rows(rows, groups)
        outside = [row for row in outside if matches(row["topic"] or "", self._patterns)]
        accepted = {loss.name for opened in self._ledgers for loss in opened.ledger.head.losses}
        if not self._ledgers:
            groups = rows_of.groups_without_ledger(outside, self._brokers)
            rows_of.judge_without_ledger(
                groups, self._brokers, self._topics, from_first=self._from_first
            )
        elif without := [each.pipeline for each in self._ledgers if not each.coverage]:
            self._notes.append(
                f"{', '.join(without)} has recorded no ranges: its rows are proven by files only"
            )
        else:
            heads = [each.ledger.head for each in self._ledgers]
            began = any(head.before or head.claimed for head in heads)
            rows_of.judge_outside(outside, self._later(), self._topics, accepted, began=began)
        gaps = _Gaps(rows)
        rows_of.judge_groups(groups, self._brokers, self._topics, gaps)
        if any(group.rows > group.different for group in groups):
            repeats = rows_of.repeats_in(times, min(group.depth for group in groups))
            rows_of.judge_repeats(repeats, groups, self._topics, accepted)

    def _later(self) -> Coverage:
        """What the ledgers cover now: rows may have been added since they were read."""
        return Coverage(span for opened in open_ledgers(self._folder) for span in opened.coverage)


class _Gaps:
    """The gaps in the rows of a topic, computed once."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._known: dict[str, rows_of.Gaps] = {}

    def __call__(self, topic: Topic) -> rows_of.Gaps:
        if topic.topic not in self._known:
            rows = self._rows.filter(self._rows["topic"] == topic.topic)
            self._known[topic.topic] = rows_of.gaps_in(rows)
        return self._known[topic.topic]
