"""The reports of a run to the nodes, for nsqadmin's page Pipelines and /stats.

    start      after each start of its query         starting
    batches    by the listener, as Spark reports     running, waiting
    end        by the run, which knows why           failed, ended, retrying, or waiting for the
                                                     next turn

A run that was killed reports nothing; nsqadmin shows that it does not read.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.pipeline.outputs import source_brokers
from penstock.pipeline.spec import ConsoleSink, Pipeline, TopicSink, channel_of
from penstock.progress import OVER, PipelineState
from penstock.spark.listener import NsqListener
from penstock.spark.reports import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 1.0
# Reported also to channels that had no report yet.
REPORTED_EVERYWHERE = (*OVER, PipelineState.RETRYING)


class RunReports:
    """The reports of one run."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._reporter: Reporter | None = None
        self._listener: NsqListener | None = None
        self._topics: dict[str, tuple[str, ...]] = {}  # by source
        self._query = ""
        self._start_reported = False
        self._next_poll_s = 0.0

    @contextmanager
    def listening(self, spark: SparkSession, reader: Mapping[str, str]) -> Iterator[None]:
        """Report the query's progress to the brokers after each batch, in this context only."""
        if all(source.format != "nsq" for source in self._pipeline.sources.values()):
            yield
            return
        brokers = {**source_brokers(self._pipeline), **reader}
        self._reporter = Reporter(brokers)
        self._listener = NsqListener(
            brokers, sink=described(self._pipeline), reporter=self._reporter
        )
        spark.streams.addListener(self._listener)
        try:
            yield
        finally:
            # From a session that has died nothing can or must be removed.
            with suppress(Exception):
                spark.streams.removeListener(self._listener)

    def started(self, query: StreamingQuery, topics: Mapping[str, tuple[str, ...]]) -> None:
        """A query was started; ``topics`` are those of its sources."""
        self._query = str(query.id)
        self._topics = dict(topics)
        self._start_reported = False
        self._next_poll_s = 0.0
        if self._reporter is not None:
            self._reporter.begin(self._channels())

    def poll(self) -> None:
        """Before the first batch: report the start, once the source has created its channels."""
        if self._start_reported or self._reporter is None or time.monotonic() < self._next_poll_s:
            return
        self._next_poll_s = time.monotonic() + POLL_S
        if self._listener is not None and self._listener.last(self._query).batch is not None:
            self._start_reported = True
        elif self._find():
            self._start_reported = True
            self._report(PipelineState.STARTING, "", end=False)

    def report(self, state: PipelineState, error: str = "") -> None:
        """Report why the query has ended, which Spark's progress does not contain."""
        if state in REPORTED_EVERYWHERE and self._reporter is not None:
            self._find()
        self._report(state, error, end=True)

    def _report(self, state: PipelineState, error: str, *, end: bool) -> None:
        if self._reporter is None or self._listener is None or not self._topics:
            return
        progress = dataclasses.replace(
            self._listener.last(self._query),
            name=self._pipeline.name,
            state=state,
            sink=described(self._pipeline),
            error=error,
            at_ms=int(time.time() * 1000),
        )
        self._reporter.report(self._channels(), progress, end=end)

    def _channels(self) -> set[str]:
        return {channel_of(self._pipeline, name) for name in self._topics}

    def _find(self) -> bool:
        assert self._reporter is not None
        found = [
            self._reporter.find(channel_of(self._pipeline, name), topics)
            for name, topics in self._topics.items()
        ]
        return all(found)


def described(pipeline: Pipeline) -> str:
    """What a pipeline writes to, in a few words."""
    parts = []
    for sink in pipeline.sinks:
        place = (
            ""
            if isinstance(sink, ConsoleSink)
            else (sink.topic if isinstance(sink, TopicSink) else sink.path)
        )
        parts.append(f"{sink.type} {place}".strip())
    return ", ".join(parts)
