"""Streams: the methods that Spark calls on the driver and in tasks.

    initialOffset     once for a new query, and again when its first batch is planned
    latestOffset      the end of the next batch: a long poll, limited by maxMessagesPerTrigger
    partitions        a batch's ranges, split for the tasks; the same if it is repeated
    commit            the batch before this one is in its sink: advances the pull channel

All of these run in one Python process on the driver, ``read`` in others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.spark.batch import LogPartition
from penstock.spark.follower import Follower
from penstock.spark.node_client import Access
from penstock.spark.offsets import Positions, decode, encode, flat, identity_in
from penstock.spark.options import Options
from penstock.spark.ranges import Range, partitions
from penstock.spark.task_reader import Reading

if TYPE_CHECKING:
    import pyarrow


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream; pickled for the executors without the driver's state."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.reading = Reading(options, Access.of(options), columns)
        self._follower: Follower | None = None
        self._initial: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None, "_initial": None}

    @property
    def follower(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(self.options, self.reading.access)
        return self._follower

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        # Called twice, and must return the same: "latest" moves.
        if self._initial is None:
            positions = self.follower.start()
            self._initial = self._encode(positions, self.follower.channels.next_identity)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.follower.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        before, channels = decode(start), self.follower.channels
        self.follower.use_identity(identity_in(start))
        after = self.follower.newest(before, rows_max)
        if after == before and not channels.taken_over:
            return start
        offset = self._encode(after, channels.next_identity)
        if after == before:
            # An empty batch writes the identity that the channel is bound to to the checkpoint.
            offset["taken_over"] = self.options.take_over
        channels.taken_over = False
        if self._initial is not None and start == self._initial:
            # No other offset has it, and the channel may move later.
            offset["begin"] = start["nodes"]
        return offset

    def reportLatestOffset(self) -> dict[str, Any] | None:
        reached = self.follower.reached()
        return self._encode(reached, self.follower.channels.identity) if reached else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = decode(start), decode(end)
        self.follower.use_identity(identity_in(end))
        # The tasks check for losses: a sink that already has the batch reads nothing.
        self.follower.resume(before, judged=False)
        parts = partitions(
            self._ranges(before, after), self.options.min_partitions, self.follower.count
        )
        return [LogPartition(part) for part in parts]

    def commit(self, end: dict[str, Any]) -> None:
        self.follower.use_identity(identity_in(end))
        self.follower.commit(decode(end))

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _encode(self, positions: Positions, identity: str) -> dict[str, Any]:
        return encode(self.options.channel, positions, identity)

    def _ranges(self, before: Positions, after: Positions) -> list[Range]:
        nodes, identity = self.follower.cluster.nodes, self.follower.channels.identity
        ranges = []
        for uuid, topic, end in flat(after):
            # A log that is new in this offset enters without messages.
            start = before.get(uuid, {}).get(topic, end)
            if start.index >= end.index or start.instance != end.instance or end.is_deleted:
                continue
            address = nodes[uuid].address if uuid in nodes else ""
            place = (uuid, address, topic, end.instance)
            ranges.append(
                Range(*place, start.index, end.index, begin=start.index, identity=identity)
            )
        return ranges

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self.reading.read(partition.value)
