"""Batch reads: ranges by offsets or timestamps, split into partitions on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.errors import QueryError
from penstock.spark.cluster import Cluster, LogState
from penstock.spark.loss import Loss, Losses
from penstock.spark.node_client import Access
from penstock.spark.offsets import EARLIEST, INDEX_MAX, LATEST, Places, Position
from penstock.spark.option_kinds import COLUMNS
from penstock.spark.options import Options
from penstock.spark.ranges import Range, partitions
from penstock.spark.task_reader import Reading

if TYPE_CHECKING:
    import pyarrow


class LogPartition(InputPartition):
    """Ranges that one task reads in order."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)


class NsqBatchReader(DataSourceReader):
    """Reads the messages that exist when the query is planned."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.reading = Reading(options, Access.of(options), columns)
        self.narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        cluster = Cluster(self.options, self.reading.access)
        cluster.discover(strict=True)
        ranges = self._ranges(cluster)

        def count(each: Range, start: int, end: int) -> int:
            return cluster.count(each.node, each.topic, start, end)

        parts = partitions(ranges, self.options.min_partitions, count)
        # An empty list would make Spark call read() with no partition at all.
        return [LogPartition(part) for part in parts] or [LogPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self.reading.read(partition.value)

    def _ranges(self, cluster: Cluster) -> list[Range]:
        topics = self.options.topic
        found = {
            (uuid, topic): cluster.log_of(uuid, topic) for topic in topics for uuid in cluster.nodes
        }
        for topic in topics:
            if all(found[uuid, topic] is None for uuid in cluster.nodes):
                nodes = ", ".join(node.address for node in cluster.nodes.values()) or "no node"
                raise QueryError(f"topic {topic} does not exist on any node ({nodes})")
        check_named(self.options.starting_offsets, "startingOffsets", cluster)
        check_named(self.options.ending_offsets, "endingOffsets", cluster)
        ranges = []
        for (uuid, topic), log in found.items():
            if log is not None and self.narrowed.takes(uuid, topic):
                ranges.append(self._range(cluster, uuid, topic, log))
        return ranges

    def _range(self, cluster: Cluster, uuid: str, topic: str, log: LogState) -> Range:
        options, address = self.options, cluster.nodes[uuid].address
        end = cluster.settled(uuid, topic, log)
        start = index_of(
            options.starting_offsets.of(uuid, address, topic, EARLIEST),
            cluster,
            *(uuid, topic, log, end),
        )
        if options.starting_timestamp is not None:
            start = cluster.seek(uuid, topic, options.starting_timestamp)
        if self.narrowed.time_ns > 0:
            start = max(start, cluster.seek(uuid, topic, self.narrowed.time_ns))
        place = options.ending_offsets.of(uuid, address, topic, LATEST)
        last = index_of(place, cluster, uuid, topic, log, end, ending=True)
        if options.ending_timestamp is not None:
            last = cluster.seek(uuid, topic, options.ending_timestamp)
        start = max(start, self.narrowed.start)
        last = min(last, end, self.narrowed.end)
        where = (uuid, address, topic, log.instance)
        return Range(*where, start, max(start, last), log.whole_from, begin=start)


def check_named(places: Places, option: str, cluster: Cluster) -> None:
    """Raise QueryError for offsets of a node or topic that is not read."""
    known = set(cluster.nodes) | {node.address for node in cluster.nodes.values()}
    for node, topic in places.named():
        if node not in known:
            nodes = ", ".join(sorted(known))
            raise QueryError(f"{option} has node {node}, but the nodes are {nodes}")
        if topic not in cluster.options.topic:
            topics = ", ".join(cluster.options.topic)
            raise QueryError(f"{option} has topic {topic}, but the topics are {topics}")


def index_of(
    place: str | Position,
    cluster: Cluster,
    uuid: str,
    topic: str,
    log: LogState,
    end: int,
    *,
    ending: bool = False,
) -> int:
    """Return the index of a place in a log; report a loss if its messages were removed."""
    if place == EARLIEST:
        return log.first
    if place == LATEST:
        return end
    assert isinstance(place, Position)
    where = (uuid, cluster.nodes[uuid].address, topic)
    losses = Losses(cluster.options)
    if place.instance and place.instance != log.instance:
        what = f"was deleted and created again: it is {log.instance}, not {place.instance}"
        losses.report(
            [Loss(*where, place.instance, min(place.index, INDEX_MAX - 1), INDEX_MAX, None, what)]
        )
        return log.first
    if not ending and place.index < log.whole_from:
        what = f"is complete only from index {log.whole_from} on"
        count_max = cluster.missing_count_max(uuid, topic, place.index, log.whole_from)
        losses.report(
            [Loss(*where, log.instance, place.index, log.whole_from, count_max, what)]
            if count_max
            else []
        )
    return place.index


class Narrowed:
    """The part of the ranges that the pushed filters of a query select."""

    def __init__(self) -> None:
        self.start = 0
        self.end = INDEX_MAX
        self.time_ns = 0
        self.topics: set[str] | None = None
        self.nodes: set[str] | None = None

    def takes(self, node: str, topic: str) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.nodes is None or node in self.nodes
        )

    def narrow(self, filter: Filter) -> bool:
        """Apply a filter; return whether all rows read satisfy it, so that Spark need not."""
        match filter:
            case IsNotNull(attribute=(column,)):
                return column in COLUMNS
            case EqualTo(attribute=("topic" | "node" as column,), value=str(value)):
                return self._one_of(column, {value})
            case EqualNullSafe(attribute=("topic" | "node" as column,), value=str(value)):
                return self._one_of(column, {value})
            case In(attribute=("topic" | "node" as column,), value=values):
                return self._one_of(column, set(values))
            case EqualTo(attribute=("index",), value=int(value)):
                return self._between(value, value + 1)
            case EqualNullSafe(attribute=("index",), value=int(value)):
                return self._between(value, value + 1)
            case GreaterThan(attribute=("index",), value=int(value)):
                return self._between(value + 1, INDEX_MAX)
            case GreaterThanOrEqual(attribute=("index",), value=int(value)):
                return self._between(value, INDEX_MAX)
            case LessThan(attribute=("index",), value=int(value)):
                return self._between(0, value)
            case LessThanOrEqual(attribute=("index",), value=int(value)):
                return self._between(0, value + 1)
            case GreaterThan(attribute=("timestamp",), value=value):
                return self._since(value)
            case GreaterThanOrEqual(attribute=("timestamp",), value=value):
                return self._since(value)
        return False

    def _one_of(self, column: str, values: set[Any]) -> bool:
        if column == "topic":
            self.topics = values if self.topics is None else self.topics & values
        else:
            self.nodes = values if self.nodes is None else self.nodes & values
        return True

    def _between(self, start: int, end: int) -> bool:
        self.start = min(max(self.start, start), INDEX_MAX)
        self.end = max(min(self.end, end), 0)
        return True

    def _since(self, value: Any) -> bool:
        # A message is stored at or after its timestamp, a deferred one much later.  So messages
        # stored before it can be skipped, but Spark must still apply the filter.
        self.time_ns = max(self.time_ns, int(value.timestamp()) * 1_000_000_000)
        return False


class NsqFilteringReader(NsqBatchReader):
    """Used with the option pushFilters: Spark refuses a reader with the method ``pushFilters``
    unless spark.sql.python.filterPushdown.enabled is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for filter in filters:
            if not self.narrowed.narrow(filter):
                yield filter
