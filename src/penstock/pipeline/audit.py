"""Proves that an archive holds every message once, or lists what is missing and what is twice.

For each topic and node, ``index`` orders the messages; it is dense but for gaps that only the
broker knows (a restart, a failed write).  If the broker counts as many messages from the archive's
first to its last as the archive has different ones there, all of them are there.  If not, it is
asked how many messages lie in each gap of the archive:

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
from penstock.pipeline.discovery import is_pattern
from penstock.pipeline.spec import Pipeline
from penstock.spark.broker import Access
from penstock.spark.cluster import Cluster
from penstock.spark.options import parse_brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_MAX = 1000  # gaps and repeats of one topic and node
GAPS_MAX = 100_000
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
    given = {
        "nsqdHttpAddresses": parameters.get("nsqd", ""),
        "lookupdHttpAddresses": parameters.get("lookupd", ""),
    }
    options = parse_brokers({name: text for name, text in given.items() if text})
    cluster = Cluster(options, Access.of(options))
    cluster.discover(strict=False, everywhere=True)
    findings += absent(findings, patterns, cluster)
    from_first = parameters.get("start", "earliest") != "archive"
    doubtful = [each for each in findings if not is_proven(each, cluster, from_first)]
    if doubtful:
        gaps = gaps_in(rows.filter(rows["topic"].isin([each.topic for each in doubtful])))
        for finding in doubtful:
            judge_gaps(finding, gaps.get((finding.topic, finding.node), []), cluster)
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
    for row in found.orderBy(*KEY, "start").limit(GAPS_MAX).collect():
        gaps.setdefault((row["topic"], row["node"]), []).append((row["start"], row["end"]))
    return gaps


def absent(findings: list[Finding], patterns: list[str], cluster: Cluster) -> list[Finding]:
    """Topics that were named, that a node has messages of, and the archive has none of."""
    known = {(each.topic, each.node) for each in findings}
    named = [topic for topic in patterns if not is_pattern(topic)]
    return [
        Finding(topic, node, log.end, log.end - 1, 0)
        for topic in named
        for node in cluster.nodes
        if (topic, node) not in known and (log := cluster.log_of(node, topic)) is not None
    ]


def is_proven(finding: Finding, cluster: Cluster, from_first: bool) -> bool:
    """Whether the broker counts what the archive has, so that there is nothing to look for.

    ``from_first``: what the broker has before the archive's first message is missing too.
    """
    if finding.node not in cluster.nodes:
        finding.unproven.append("the node does not answer")
        return True
    topic, node = finding.topic, finding.node
    try:
        log = cluster.log_of(node, topic)
        if log is None:
            finding.unproven.append("the topic is not there any more")
            return True
        behind = max(finding.last + 1, log.first)
        finding.not_read = cluster.count(node, topic, behind, log.end) if log.end > behind else 0
        if from_first and log.first < finding.first:
            before = cluster.count(node, topic, log.first, finding.first)
            finding.missing += [(log.first, finding.first, before)] if before else []
        if finding.first < log.whole_from:
            text = f"the broker has removed messages below {log.whole_from}"
            finding.unproven.append(text)
            return False
        finding.counted = cluster.count(node, topic, finding.first, finding.last + 1)
    except NodeError as error:
        finding.unproven.append(str(error))
        return True
    return finding.counted == finding.count


def judge_gaps(finding: Finding, gaps: list[tuple[int, int]], cluster: Cluster) -> None:
    """Each gap of the archive: the broker's own, or messages that are missing."""
    topic, node = finding.topic, finding.node
    try:
        log = cluster.log_of(node, topic)
        whole_from = 0 if log is None else log.whole_from
        for start, end in gaps:
            # What the broker has removed is told once, for all of it.
            count = (
                cluster.count(node, topic, max(start, whole_from), end) if end > whole_from else 0
            )
            if count:
                finding.missing.append((max(start, whole_from), end, count))
            if len(finding.missing) == LISTED_MAX:
                break
    except NodeError as error:
        finding.unproven.append(str(error))
        return
    missing = sum(count for start, _, count in finding.missing if start >= finding.first)
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
