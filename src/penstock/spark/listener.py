"""Tells the nodes how far queries have come, exactly and at once.

    spark.streams.addListener(NsqListener({"nsqdHttpAddresses": "127.0.0.1:4151"}))

Spark tells a source of a finished batch only when the next one begins, so without this listener a
query's channel is one batch behind, and its depth too.  Spark's progress comes when the batch is in
the sink and in the checkpoint; every offset of the source ``nsq`` in it is committed here, with a
few figures that /stats shows as the channel's progress.

One listener serves all queries of a session.  Nothing that fails here stops a query.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from penstock.errors import PenstockError
from penstock.spark.broker import asked
from penstock.spark.cluster import Cluster
from penstock.spark.offsets import Positions, decode
from penstock.spark.options import parse_brokers

log = logging.getLogger("penstock.spark")

# Spark's progress waits for its listeners; a node that is away is looked for now and then.
DISCOVERY_S = 10.0


class NsqListener(StreamingQueryListener):
    """``options`` are those of the source; all but where the nodes are may be left out."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._cluster = Cluster(parse_brokers(options))
        self._committed: dict[tuple[str, str, str], int] = {}  # by channel, node and topic
        self._discover_s = 0.0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for source in progress.sources:
            offset = offset_in(source.endOffset)
            if offset is not None:
                try:
                    self._commit(offset["channel"], decode(offset), figures(progress))
                except PenstockError as error:
                    log.warning("query=%s: %s", progress.name or progress.id, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _commit(self, channel: str, positions: Positions, told: dict[str, Any]) -> None:
        now_s = time.monotonic()
        missing = any(uuid not in self._cluster.nodes for uuid in positions)
        if missing and now_s >= self._discover_s:
            self._discover_s = now_s + DISCOVERY_S
            self._cluster.discover(strict=False, everywhere=True)
        for uuid, topics in positions.items():
            node = self._cluster.nodes.get(uuid)
            new = {
                topic: {"instance": position.instance, "index": position.index}
                for topic, position in topics.items()
                if self._committed.get((channel, uuid, topic)) != position.index
            }
            if node is None or not new:
                continue
            body = {"channel": channel, "topics": new, "progress": told}
            try:
                node.brief().json(asked("POST", "/channel/commit", None, body), 0.0)
            except PenstockError as error:
                log.warning("channel=%s: %s", channel, error)
                continue
            for topic in new:
                self._committed[channel, uuid, topic] = topics[topic].index


def offset_in(text: str | None) -> dict[str, Any] | None:
    """An offset of the source nsq, or None for any other source's."""
    try:
        offset = json.loads(text or "")
    except ValueError:
        return None
    known = isinstance(offset, dict) and set(offset) == {"channel", "nodes"}
    return offset if known else None


def figures(progress: StreamingQueryProgress) -> dict[str, Any]:
    """What of a progress is worth showing beside a channel."""
    return {
        "query": progress.name or str(progress.id),
        "batch": progress.batchId,
        "time": progress.timestamp,
        "rows": progress.numInputRows,
        "rows_per_second": _number(progress.processedRowsPerSecond),
        "duration_ms": dict(progress.durationMs).get("triggerExecution", 0),
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return round(value, 1) if value == value and abs(value) != float("inf") else None
