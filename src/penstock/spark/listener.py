"""Commits finished batches on the nodes immediately, with a progress report.

    spark.streams.addListener(NsqListener({"nsqdHttpAddresses": "127.0.0.1:4151"}))

Spark notifies a source of a finished batch only when the next one starts, so without this listener
a query's channel, and its depth, are one batch behind.  Spark sends a progress event when the batch
is in the sink and in the checkpoint; the listener commits every offset of the source ``nsq`` in it,
with a ``Progress`` that /stats shows with the channel, and nsqadmin on its page Pipelines.

One listener serves all queries of a session.  A failure here never stops a query.
"""

from __future__ import annotations

import dataclasses
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
from penstock.progress import PipelineState, Progress
from penstock.spark.offsets import decode, identity_in, is_offset
from penstock.spark.reports import Reporter

log = logging.getLogger("penstock.spark")

# Lines of Java and Python stack traces, which are left out of error texts.
STACK_LINES = ("\tat ", "at ", "JVM stacktrace", "===", "Traceback", "  File ")


class NsqListener(StreamingQueryListener):
    """``options`` are those of the source; only the addresses are required.

    With ``channel`` and ``topic``, a query that fails before its first batch is reported too.
    ``sink`` replaces Spark's own description.  ``reporter`` is that of a caller that starts the
    queries, and reports their starts and ends itself.
    """

    def __init__(
        self, options: Mapping[str, str], *, sink: str = "", reporter: Reporter | None = None
    ) -> None:
        given = {name.lower(): text for name, text in options.items()}
        self._reporter = reporter or Reporter(options)
        self._reports_ends = reporter is None
        self._sink = sink
        self._last: dict[str, Progress] = {}  # by query
        self._channels: dict[str, set[str]] = {}
        self._given: tuple[str, list[str]] | None = None
        if given.get("channel") and given.get("topic"):
            names = [name.strip() for name in given["topic"].split(",")]
            self._given = (given["channel"], names)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        query = str(event.id)
        self._last[query] = Progress(query, event.name or "", PipelineState.STARTING)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        report = figures(progress, self._sink)
        self._last[report.query] = report
        for source in progress.sources:
            offset = offset_in(source.endOffset)
            if offset is not None:
                channel = offset["channel"]
                self._channels.setdefault(report.query, set()).add(channel)
                try:
                    self._reporter.commit(channel, decode(offset), report, identity_in(offset))
                except PenstockError as error:
                    log.warning("query=%s: %s", progress.name or progress.id, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark calls it every ten seconds while there is nothing to read."""
        self._report(str(event.id), PipelineState.WAITING)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query = str(event.id)
        if self._reports_ends:
            error = explained(event.exception) if event.exception else ""
            if self._given is not None and not self._channels.get(query):
                channel, topics = self._given
                self._reporter.find(channel, topics)
                self._channels[query] = {channel}
            self._report(query, PipelineState.FAILED if error else PipelineState.ENDED, error)
            self._last.pop(query, None)
            self._channels.pop(query, None)

    def last(self, query: str) -> Progress:
        """The latest report of a query."""
        return self._last.get(query, Progress(query))

    def _report(self, query: str, state: PipelineState, error: str = "") -> None:
        last = self.last(query)
        report = dataclasses.replace(
            last, state=state, error=error, input_rate=0.0, at_ms=int(time.time() * 1000)
        )
        self._last[query] = report
        try:
            self._reporter.report(self._channels.get(query, ()), report)
        except PenstockError as failed:
            log.warning("query=%s: %s", last.name or query, failed)


def offset_in(text: str | None) -> dict[str, Any] | None:
    """Decode an offset of the source nsq; None if it is another source's."""
    try:
        offset = json.loads(text or "")
    except ValueError:
        return None
    return offset if is_offset(offset) else None


def figures(progress: StreamingQueryProgress, sink: str = "") -> Progress:
    """The parts of Spark's progress that are shown with a channel."""
    return Progress(
        query=str(progress.id),
        name=progress.name or "",
        state=PipelineState.RUNNING if progress.numInputRows else PipelineState.WAITING,
        batch=progress.batchId,
        rows=progress.numInputRows,
        input_rate=progress.inputRowsPerSecond,
        processed_rate=progress.processedRowsPerSecond,
        batch_ms=dict(progress.durationMs).get("triggerExecution", 0),
        sink=sink or getattr(progress.sink, "description", ""),
        at_ms=int(time.time() * 1000),
    )


def explained(exception: str) -> str:
    """The message of an exception without stack traces; the last line of a Python worker's."""
    lines = [line for line in exception.splitlines() if line.strip()]
    messages = [line.strip() for line in lines if not line.startswith(STACK_LINES)]
    ours = [line for line in messages if line.startswith(("penstock.errors.", "pyspark.errors."))]
    return (ours or messages or [exception])[-1 if ours else 0]
