"""The ranges of a batch: from the checkpoint, with the brokers' counts (R43).

Rule 1: the offset of batch 0 contains where it begins.  An offset of an earlier version does not:
        then the batch begins at the positions of its channels, which have not moved yet, and this
        is made durable before anything is written.
Rule 2: a count that is not available now stays unknown.  No batch waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.errors import NodeError, PenstockError, PipelineError
from penstock.pipeline.coverage import Span
from penstock.pipeline.discovery import Brokers
from penstock.pipeline.offset_log import ByChannel, OffsetLog, between, missing_in
from penstock.pipeline.spec import Pipeline, channel_of
from penstock.spark.cluster import Cluster
from penstock.spark.offsets import Position

log = logging.getLogger("penstock.pipeline")

AT_ONCE_MAX = 1024  # topics in one request to /log/ends


class BatchRanges:
    """Which messages each batch of a query reads."""

    def __init__(self, pipeline: Pipeline, offsets: OffsetLog, identity: str) -> None:
        self._offsets = offsets
        self._identity = identity
        self._before: tuple[int, ByChannel] | None = None
        self._clusters: dict[str, Cluster] = {
            channel_of(pipeline, name): Brokers(pipeline, name).cluster()
            for name, source in pipeline.sources.items()
            if source.format == "nsq"
        }

    def of(self, batch: int) -> tuple[Span, ...]:
        """The ranges of a planned batch."""
        after = self._offsets.positions(batch)
        if after is None:
            raise PipelineError(f"{self._offsets.folder.uri}/offsets/{batch} is missing")
        before = self._positions_before(batch, after)
        self._before = (batch, after)
        spans = between(before, after)
        if batch == 0:
            # Spark purges this batch; then only the ledgers know where an idle log begins.
            moved = {span.log for span in spans}
            spans += [span for span in between({}, after) if span.log not in moved]
        return tuple(spans)

    def counted(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """The same ranges with their message counts, where the nodes know them."""
        found: list[Span] = list(spans)
        places: dict[tuple[str, str], list[int]] = {}
        for number, span in enumerate(spans):
            if span.messages is None:
                places.setdefault((span.log.channel, span.log.node), []).append(number)
        for (channel, node), numbers in places.items():
            counts = self._counts(channel, node, [spans[number] for number in numbers])
            for number, count in zip(numbers, counts, strict=True):
                found[number] = spans[number]._replace(messages=count)
        return tuple(found)

    def _counts(self, channel: str, node: str, spans: Sequence[Span]) -> list[int | None]:
        unknown: list[int | None] = [None] * len(spans)
        ranges = [(each.log.topic, each.log.instance, each.start, each.end) for each in spans]
        try:
            cluster = self._found(channel, {node})
            if node not in cluster.nodes:
                return unknown
            counts = cluster.counts(node, ranges, retry_s=0.0)
            return counts if len(counts) == len(spans) else unknown
        except (PenstockError, KeyError, TypeError) as error:
            log.warning("node %s: messages not counted: %s", node, error)
            return unknown

    def _found(self, channel: str, nodes: set[str]) -> Cluster:
        cluster = self._clusters[channel]
        if not nodes <= cluster.nodes.keys():
            cluster.discover(strict=False, everywhere=True)
        return cluster

    # Batch 0

    def _positions_before(self, batch: int, after: ByChannel) -> ByChannel:
        if batch == 0:
            return self._begin(after)
        if self._before is not None and self._before[0] == batch - 1:
            return self._before[1]
        before = self._offsets.positions(batch - 1)
        if before is None:
            raise PipelineError(
                f"{self._offsets.folder.uri}/offsets/{batch - 1} is missing, so what batch {batch} "
                "reads is unknown.  Restore the checkpoint from a backup, or remove it: the "
                "pipeline then resumes from its tables"
            )
        return before

    def _begin(self, after: ByChannel) -> ByChannel:
        """Rule 1."""
        begin = self._offsets.begin()
        missing = missing_in(begin, after)
        if not missing or self._offsets.begin_of_first() is not None:
            return begin
        unknown_begins: dict[tuple[str, str], list[str]] = {}
        for channel, node, topic in missing:
            unknown_begins.setdefault((channel, node), []).append(topic)
        for (channel, node), topics in unknown_begins.items():
            for at in range(0, len(topics), AT_ONCE_MAX):
                for topic, position in self._marks(channel, node, topics[at : at + AT_ONCE_MAX]):
                    begin.setdefault(channel, {}).setdefault(node, {})[topic] = position
        self._offsets.write_begin(begin)
        return begin

    def _marks(self, channel: str, node: str, topics: Sequence[str]) -> list[tuple[str, Position]]:
        cluster = self._found(channel, {node})
        if node not in cluster.nodes:
            raise NodeError(f"node {node}, which the first batch reads, was not found")
        body = {"topics": {topic: {} for topic in topics}, "channel": channel}
        answer = cluster.nodes[node].post("/log/ends", {**body, "identity": self._identity})
        return [
            (topic, Position(str(entry["instance"]), int(entry["low"])))
            for topic, entry in answer["topics"].items()
            if entry is not None
        ]
