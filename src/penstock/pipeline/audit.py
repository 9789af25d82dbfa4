"""Proves that an archive holds every message once, or lists what is missing and what is twice.

For each topic and node, ``index`` orders the messages; it is dense but for gaps that only the
broker knows (a restart, a failed write).  The archive is asked for its gaps and repeats, then the
broker is asked how many messages lie in each gap:

    archive      ...  17 18 19 |            | 40 41 41 42 ...
    broker               count [20, 40) = 0: a gap of its own.      repeat: 41
                         count [20, 40) = 3: three are missing

Rule 1: "whole" is said only if the broker still has the range and counts what the archive has.
Rule 2: what the broker has removed since cannot be counted any more: such a gap is "unproven", and
        so is the range of a node that is not there.  It is not "whole", and not "missing".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import NodeError, PipelineError
from penstock.pipeline.spec import Pipeline
from penstock.spark.broker import Access
from penstock.spark.cluster import Cluster
from penstock.spark.options import parse_brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_MAX = 1000  # gaps and repeats of one topic and node
KEY = ("topic", "node")


@dataclasses.dataclass(slots=True)
class Finding:
    """One topic of one node."""

    topic: str
    node: str
    first: int
    last: int
    count: int  # different messages
    repeats: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # index, times
    missing: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)  # from, to, n
    unproven: list[str] = dataclasses.field(default_factory=list)
    counted: int | None = None  # by the broker, from first to last
    not_read: int = 0  # behind the last: the archive has not come there yet

    @property
    def verdict(self) -> str:
        if self.missing or self.repeats:
            return "wrong"
        return "unproven" if self.unproven else "whole"


def audit(spark: SparkSession, pipeline: Pipeline, show: Callable[[str], None]) -> None:
    """The job of the pipeline ``audit``: PipelineError if something is missing or twice."""
    parameters = pipeline.parameters
    path = pipeline.resolve(parameters["path"])
    findings = find(spark, path, parameters)
    show(table(findings))
    if parameters.get("report"):
        report = Path(pipeline.resolve(parameters["report"]))
        report.write_text(json.dumps([as_json(each) for each in findings], indent=1) + "\n")
    wrong = [each for each in findings if each.verdict == "wrong"]
    if wrong:
        raise PipelineError(
            f"{path}: {sum(n for each in wrong for *_, n in each.missing):,} messages are missing, "
            f"{sum(len(each.repeats) for each in wrong):,} are there more than once"
        )


def as_json(finding: Finding) -> dict[str, Any]:
    return {**dataclasses.asdict(finding), "verdict": finding.verdict}


def find(spark: SparkSession, path: str, parameters: Mapping[str, str]) -> list[Finding]:
    """Look at the archive, then ask the brokers."""
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.parquet(path).select(*KEY, "index")
    except AnalysisException as error:
        raise PipelineError(f"{path} is no archive: {str(error).splitlines()[0]}") from None
    patterns = [word.strip() for word in parameters["topics"].split(",")]
    findings = [
        each
        for each in in_archive(rows)
        if any(fnmatchcase(each.topic, pattern) for pattern in patterns)
    ]
    gaps = gaps_in(rows)
    given = {
        "nsqdHttpAddresses": parameters.get("nsqd", ""),
        "lookupdHttpAddresses": parameters.get("lookupd", ""),
    }
    options = parse_brokers({name: text for name, text in given.items() if text})
    cluster = Cluster(options, Access.of(options))
    cluster.discover(strict=False, everywhere=True)
    for finding in findings:
        ask_broker(finding, gaps.get((finding.topic, finding.node), []), cluster)
    return findings


def in_archive(rows: DataFrame) -> list[Finding]:
    """What the archive itself tells: ranges, counts, repeats."""
    from pyspark.sql import functions as F

    times = rows.groupBy(*KEY, "index").agg(F.count("*").alias("times"))
    found = times.groupBy(*KEY).agg(
        F.min("index").alias("first"), F.max("index").alias("last"), F.count("*").alias("count")
    )
    findings = {
        (row["topic"], row["node"]): Finding(*(row[n] for n in (*KEY, "first", "last", "count")))
        for row in found.orderBy(*KEY).collect()
    }
    repeats = times.filter("times > 1").orderBy("index").limit(LISTED_MAX)
    for row in repeats.collect():
        findings[row["topic"], row["node"]].repeats.append((row["index"], row["times"]))
    return list(findings.values())


def gaps_in(rows: DataFrame) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Ranges [start, end) without a message between two that are there, by topic and node."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*KEY).orderBy("index")
    found = (
        rows.distinct()
        .withColumn("before", F.lag("index").over(window))
        .filter("index > before + 1")
        .select(*KEY, (F.col("before") + 1).alias("start"), F.col("index").alias("end"))
    )
    gaps: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in found.orderBy(*KEY, "start").collect():
        gaps.setdefault((row["topic"], row["node"]), []).append((row["start"], row["end"]))
    return gaps


def ask_broker(finding: Finding, gaps: list[tuple[int, int]], cluster: Cluster) -> None:
    """Judge each gap, and the whole range, by what the broker counts."""
    if finding.node not in cluster.nodes:
        finding.unproven.append("the node does not answer")
        return
    try:
        log = cluster.log_of(finding.node, finding.topic)
        if log is None:
            finding.unproven.append("the topic is not there any more")
            return
        for start, end in gaps:
            judge(finding, start, end, log.whole_from, cluster)
        if finding.first < log.whole_from:
            text = f"the broker has removed messages below {log.whole_from}"
            finding.unproven.append(text)
        else:
            finding.counted = cluster.count(
                finding.node, finding.topic, finding.first, finding.last + 1
            )
            _compare(finding)
        if log.end > finding.last + 1:
            finding.not_read = cluster.count(
                finding.node, finding.topic, max(finding.last + 1, log.first), log.end
            )
    except NodeError as error:
        finding.unproven.append(str(error))


def judge(finding: Finding, start: int, end: int, whole_from: int, cluster: Cluster) -> None:
    """A gap of the archive: the broker's own, or messages that are missing."""
    if end <= whole_from:
        return  # told once, for all of them
    known = max(start, whole_from)
    count = cluster.count(finding.node, finding.topic, known, end)
    if count and len(finding.missing) < LISTED_MAX:
        finding.missing.append((known, end, count))


def _compare(finding: Finding) -> None:
    """The same proven twice: by the gaps, and by the whole count."""
    missing = sum(count for *_, count in finding.missing)
    if finding.counted is not None and finding.counted != finding.count + missing:
        finding.unproven.append(
            f"the broker counts {finding.counted:,} messages, the archive has {finding.count:,}"
        )


def table(findings: list[Finding]) -> str:
    """For a person: a line each, then what is wrong."""
    if not findings:
        return "the archive has no messages of these topics"
    lines = [f"{'TOPIC':<24} {'NODE':<8} {'MESSAGES':>12} {'NOT READ':>9}  VERDICT"]
    for each in findings:
        lines.append(
            f"{each.topic:<24} {each.node[:8]:<8} {each.count:>12,} {each.not_read:>9,}  "
            f"{each.verdict}"
        )
        lines += [f"    missing: {n:,} in [{start}, {end})" for start, end, n in each.missing]
        lines += [f"    {times} times: index {index}" for index, times in each.repeats]
        lines += [f"    unproven: {text}" for text in each.unproven]
    return "\n".join(lines)
