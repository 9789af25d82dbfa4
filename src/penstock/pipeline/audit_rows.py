"""Compares the rows of a table with the ranges of its ledgers, if rows have topic, node and index.

    ledger     |---- a, 900 messages ----|     |--- b, 50 ---|      groups of ranges, none overlap
    rows       ..........................   .  ......:........      :  twice
                                            ^ outside

Spark counts rows by index, then by group, and returns one row per group.

Rule 1: if a table has one row per message (``plain``), a group has as many rows as messages.  If
        its SQL drops or multiplies rows, only their indexes are checked.
Rule 2: messages from before the ledger are compared with the broker's count, if it has all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.pipeline.audit_brokers import BrokerLogs, matches
from penstock.pipeline.audit_findings import EARLIER, OUTSIDE, REPEAT, ROWS, Fault, Topic, Topics
from penstock.pipeline.audit_ledgers import OpenLedger
from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.ledger_records import Accepted, Head
from penstock.pipeline.spec import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = ("topic", "node")
COLUMNS = (*KEY, "index")
LISTED_MAX = 1000  # repeats and gaps listed per table
GAPS_MAX = 100_000
NO_INSTANCE = "0" * 16
COUNTED = "topic string, node string, index bigint, times bigint, part bigint"

Gaps = dict[tuple[str, str], list[tuple[int, int]]]


@dataclasses.dataclass(slots=True)
class Group:
    """Overlapping ranges of a topic and node, usually one: two pipelines may write one message."""

    log: Log
    start: int
    end: int
    count: int | None  # messages of all ranges together
    plain: bool
    lost: int = 0  # accepted losses: messages without rows in the table
    depth: int = 1  # how many ranges overlap
    before: bool = False  # from before the ledger
    # Counts of the rows
    rows: int = 0
    different: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.log.topic, self.log.node


def message_rows(rows: DataFrame) -> DataFrame | None:
    """Only topic, node and index; None if the table does not have these columns."""
    from pyspark.sql import functions as F

    for prefix in ("", PREFIX):
        names = [f"{prefix}{name}" for name in COLUMNS]
        if set(names) <= set(rows.columns):
            columns = [F.col(f"`{name}`") for name in names]
            kinds = ("string", "string", "bigint")
            return rows.select(
                *(c.cast(k).alias(n) for c, k, n in zip(columns, kinds, COLUMNS, strict=True))
            )
    return None


def groups_of(ledgers: Sequence[OpenLedger], patterns: Sequence[str]) -> list[Group]:
    """What the ledgers cover, by topic, node and index."""
    groups = [
        group
        for opened in ledgers
        for lost in (opened.lost,)
        for span in opened.coverage
        if span.start < span.end and matches(span.log.topic, patterns)
        for group in _cut(span, opened.ledger.head, lost)
    ]
    groups.sort(key=lambda group: (group.key, group.start))
    joined: list[Group] = []
    for group in groups:
        last = joined[-1] if joined else None
        if last is None or last.key != group.key or last.end <= group.start:
            joined.append(group)
        else:
            _join(last, group)
    return joined


def _cut(span: Span, head: Head, lost_of: dict[Log, list[Accepted]]) -> Iterator[Group]:
    """Split a range into the part that the ledger recorded and the part from before it."""
    lost = sum(
        loss.span.messages or 0
        for loss in lost_of.get(span.log, ())
        if loss.what == ROWS and span.start <= loss.span.start < span.end
    )
    recorded = head.before.lacking(span) if head.before.of(span.log) else [span]
    if recorded == [span]:
        yield Group(span.log, span.start, span.end, span.messages, head.plain, lost)
        return
    for part in recorded:
        yield Group(span.log, part.start, part.end, None, head.plain)
    for part in Coverage(recorded).lacking(span) if recorded else [span]:
        yield Group(span.log, part.start, part.end, None, head.plain, before=True)


def _join(group: Group, other: Group) -> None:
    known = group.count is not None and other.count is not None
    group.count = (group.count or 0) + (other.count or 0) if known else None
    group.end = max(group.end, other.end)
    group.plain = group.plain and other.plain
    group.lost += other.lost
    group.depth += 1
    group.before = group.before or other.before


def count_rows(rows: DataFrame, groups: list[Group]) -> tuple[DataFrame, list[Any]]:
    """Fill in the groups' counts; also return the rows outside all groups, by topic and node."""
    from pyspark.sql import functions as F

    times = rows.groupBy(*COLUMNS).agg(F.count("*").alias("times"))
    places: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for number, group in enumerate(groups):
        starts, ends, numbers = places.setdefault("\0".join(group.key), ([], [], []))
        starts.append(group.start)
        ends.append(group.end)
        numbers.append(number)
    placed: Callable[..., Any] = partial(place, places)
    counted = times.mapInArrow(placed, COUNTED)
    found = counted.groupBy(*KEY, "part").agg(
        F.count("*").alias("different"),
        F.sum("times").alias("rows"),
        F.min("index").alias("first"),
        F.max("index").alias("last"),
    )
    outside = []
    for row in found.toLocalIterator():
        if row["part"] < 0:
            outside.append(row)
        else:
            group = groups[row["part"]]
            group.rows, group.different = row["rows"], row["different"]
            group.first, group.last = row["first"], row["last"]
    return times, outside


def place(
    places: dict[str, tuple[list[int], list[int], list[int]]], batches: Iterator[Any]
) -> Iterator[Any]:
    """On workers: add the number of the group that contains the index, or -1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = {key: tuple(np.array(part) for part in parts) for key, parts in places.items()}
    for batch in batches:
        index = batch.column("index").to_numpy(zero_copy_only=False)
        part = np.full(len(index), -1, dtype=np.int64)
        keys = pc.binary_join_element_wise(batch.column("topic"), batch.column("node"), "\0")
        coded = pc.dictionary_encode(pc.fill_null(keys, ""))
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for code, key in enumerate(coded.dictionary.to_pylist()):
            if key not in arrays:
                continue
            starts, ends, numbers = arrays[key]
            mine = np.flatnonzero(codes == code)
            at = np.searchsorted(starts, index[mine], side="right") - 1
            inside = (at >= 0) & (index[mine] < ends[at])
            part[mine[inside]] = numbers[at[inside]]
        names = [*batch.schema.names, "part"]
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(part)], names=names)


def repeats_in(times: DataFrame, depth: int) -> Iterator[tuple[str, str, int, int]]:
    """(topic, node, index, times) of indexes with too many rows."""
    found = times.filter(f"times > {depth}").orderBy(*COLUMNS).limit(LISTED_MAX)
    for row in found.collect():
        yield row["topic"], row["node"], row["index"], row["times"]


def gaps_in(rows: DataFrame) -> Gaps:
    """Ranges [start, end) without a row between two rows, by topic and node."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*KEY).orderBy("index")
    found = (
        rows.distinct()
        .withColumn("before", F.lag("index").over(window))
        .filter("index > before + 1")
        .select(*KEY, (F.col("before") + 1).alias("start"), F.col("index").alias("end"))
    )
    gaps: Gaps = {}
    for row in found.orderBy(*KEY, "start").limit(GAPS_MAX).collect():
        gaps.setdefault((row["topic"], row["node"]), []).append((row["start"], row["end"]))
    return gaps


# Verdicts, without Spark


def judge_groups(
    groups: Iterable[Group], brokers: BrokerLogs, topics: Topics, gaps_of: Callable[[Topic], Gaps]
) -> None:
    """Rules 1 and 2.  ``gaps_of`` finds the gaps in a topic's rows; called if rows are missing."""
    counted: set[tuple[str, str]] = set()
    for group in groups:
        topic = topics.of(*group.key)
        if group.key not in counted:
            counted.add(group.key)
            topic.count = 0
        topic.count = (topic.count or 0) + group.different
        if group.before:
            _judge_before(group, brokers, topic, gaps_of)
        elif group.plain:
            _judge_plain(group, brokers, topic, gaps_of)


def _judge_plain(
    group: Group, brokers: BrokerLogs, topic: Topic, gaps_of: Callable[[Topic], Gaps]
) -> None:
    expected = group.count
    if expected is None and group.depth == 1:
        # The broker's count is as good as the ledger's.
        expected = brokers.count(Span(group.log, group.start, group.end))
    missing = 0 if expected is None else expected - group.lost - group.rows
    if missing <= 0:
        return  # more rows than messages are repeats, see judge_repeats
    lacking = _lacking(group, brokers, gaps_of(topic).get(group.key, []))
    detail = f"no row in {', '.join(lacking)}" if lacking else ""
    topic.add_fault(Fault(ROWS, group.log, group.start, group.end, missing, detail))


def _lacking(group: Group, brokers: BrokerLogs, gaps: list[tuple[int, int]]) -> list[str]:
    """Where rows are missing, as far as known: between rows, before the first, after the last."""
    if group.first is None or group.last is None:
        return []
    inside = [(start, end) for start, end in gaps if group.first < start < group.last]
    places = [(group.start, group.first), *inside[:LISTED_MAX], (group.last + 1, group.end)]
    clipped = [Span(group.log, start, end) for start, end in places if start < end]
    counts = brokers.counts(clipped)
    return [
        f"[{span.start}, {span.end})"
        for span, count in zip(clipped, counts, strict=True)
        if count != 0
    ]


def _judge_before(
    group: Group, brokers: BrokerLogs, topic: Topic, gaps_of: Callable[[Topic], Gaps]
) -> None:
    """Proven if the broker's count is the table's; messages it still has without rows are wrong."""
    if not group.plain:
        return
    span = Span(group.log, group.start, group.end)
    count = brokers.count(span)
    if count is not None and count == group.different:
        proven = Coverage([span])
        topic.before = [part for each in topic.before for part in proven.lacking(each)]
        return
    found = brokers.log_of(group.log.node, group.log.topic)
    if found is None or found.instance != group.log.instance:
        return
    whole_from = found.whole_from
    gaps = [
        Span(group.log, max(start, group.start, whole_from), min(end, group.end))
        for start, end in gaps_of(topic).get(group.key, [])
        if max(start, group.start, whole_from) < min(end, group.end)
    ]
    missing = 0
    for gap, lost in zip(gaps, brokers.counts(gaps), strict=True):
        if lost and len(topic.faults) < LISTED_MAX:
            topic.add_fault(Fault(ROWS, gap.log, gap.start, gap.end, lost))
        missing += lost or 0
    if count is not None and count != group.different + missing:
        topic.doubt(f"the broker counts {count:,} messages, the table has {group.different:,}")


def judge_repeats(
    found: Iterable[tuple[str, str, int, int]],
    groups: Sequence[Group],
    topics: Topics,
    accepted: set[str],
) -> None:
    """An index with more rows than ranges is wrong, unless the SQL may make several from one."""
    by_key: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        by_key.setdefault(group.key, []).append(group)
    for name, node, index, times in found:
        topic = topics.of(name, node)
        inside = [each for each in by_key.get((name, node), ()) if each.start <= index < each.end]
        if inside and times <= inside[0].depth:
            continue
        if inside and not inside[0].plain:
            topic.note("some messages have several rows, which the pipeline's SQL may produce")
            continue
        log = inside[0].log if inside else Log("", node, name, NO_INSTANCE)
        fault = Fault(REPEAT, log, index, index + 1, times)
        if fault.name not in accepted:
            topic.add_fault(fault)


def judge_outside(
    found: Iterable[Any], later: Coverage, topics: Topics, accepted: set[str], *, began: bool
) -> None:
    """Rows in no range.  ``later``: ranges that were written while rows were counted.

    ``began``: the table is older than its ledger, so such rows may be too.
    """
    known: dict[tuple[str, str], list[Span]] = {}
    for span in later:
        known.setdefault((span.log.topic, span.log.node), []).append(span)
    for row in found:
        start, end = row["first"], row["last"] + 1
        name, node = row["topic"] or "", row["node"] or ""
        spans = known.get((name, node), [])
        if any(span.start <= start and end <= span.end for span in spans):
            continue
        log = spans[0].log if spans else Log("", node, name, NO_INSTANCE)
        fault = Fault(OUTSIDE, log, start, end, row["rows"])
        if began:
            topics.of(name, node).doubt(f"{row['rows']:,} rows in [{start}, {end}) are in no range")
        elif fault.name not in accepted:
            topics.of(name, node).add_fault(fault)


def groups_without_ledger(outside: Iterable[Any], brokers: BrokerLogs) -> list[Group]:
    """For a table without a ledger: all of it is unrecorded, and taken to be a plain copy."""
    groups = []
    for row in outside:
        found = brokers.log_of(row["node"], row["topic"])
        instance = NO_INSTANCE if found is None else found.instance
        log = Log("", row["node"], row["topic"], instance)
        start, end = row["first"], row["last"] + 1
        group = Group(log, start, end, None, plain=True, before=True)
        group.rows, group.different = row["rows"], row["different"]
        groups.append(group)
    return sorted(groups, key=lambda group: group.key)


def judge_without_ledger(
    groups: Iterable[Group], brokers: BrokerLogs, topics: Topics, *, from_first: bool
) -> None:
    """Compare both ends of such a table with the brokers."""
    for group in groups:
        topic, log = topics.of(*group.key), group.log
        topic.before.append(Span(log, group.start, group.end))
        found = brokers.log_of(log.node, log.topic)
        if found is None:
            topic.doubt(brokers.why_not(log.node) or "the topic no longer exists")
            continue
        if group.start < found.whole_from:
            topic.doubt(f"the broker has removed messages below {found.whole_from}")
        behind = max(group.end, found.whole_from)
        if found.end > behind:
            topic.not_read = brokers.count(Span(log, behind, found.end)) or 0
        first = max(found.first, found.whole_from)
        earlier = from_first and first < group.start
        if earlier and (count := brokers.count(Span(log, first, group.start))):
            topic.add_fault(Fault(EARLIER, log, first, group.start, count))
