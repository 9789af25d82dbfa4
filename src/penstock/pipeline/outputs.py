"""Where the rows of a batch go: one object for each sink, made once a run.

Rule: ``write`` may be called again for the same batch, after any crash, and the sink has it once.
Console and plot are for eyes: a repeated batch is printed again, and drawn over itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PipelineError
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.draw import History
from penstock.pipeline.folders import open_folder
from penstock.pipeline.parquet import Merging, ParquetTable
from penstock.pipeline.plan import broker_options, run_sql
from penstock.pipeline.spec import (
    INPUT,
    ConsoleSink,
    DeltaSink,
    ParquetSink,
    Pipeline,
    PlotSink,
    Sink,
    TopicSink,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NS_PER_MS = 1_000_000
MERGE_INTERVAL_MS = 60_000
CELL_SIZE_MAX = 60
ROUTING = ("topic", "defer")
TIMES = ("nsq_timestamp", "timestamp")


class Output(Protocol):
    """A sink at work."""

    def write(self, rows: DataFrame, query: str, batch: int) -> None: ...

    def rest(self) -> None:
        """Between batches: time for tidying up."""


class ParquetOutput:
    def __init__(self, spark: SparkSession, pipeline: Pipeline, sink: ParquetSink) -> None:
        self._spark = spark
        self._sink = sink
        self._folder = open_folder(spark, pipeline.resolve(sink.path))
        self._table: ParquetTable | None = None
        self._merged_ms = 0

    def write(self, rows: DataFrame, query: str, batch: int) -> None:
        by = self._sink.partition_by
        self._table = ParquetTable(self._spark, self._folder, by, query)
        self._table.write(with_times(rows, by), batch)

    def rest(self) -> None:
        sink, now_ms = self._sink, int(time.time() * 1000)
        after_ms = sink.compact_after_ns // NS_PER_MS
        # To look for small files means to list all of them.
        due = now_ms >= self._merged_ms + min(after_ms, MERGE_INTERVAL_MS)
        if after_ms and due and self._table is not None:
            self._merged_ms = now_ms
            self._table.merge(Merging(after_ms, sink.compact_files, sink.file_size), now_ms)


class DeltaOutput:
    def __init__(self, pipeline: Pipeline, sink: DeltaSink) -> None:
        self._path = pipeline.resolve(sink.path)
        self._by = sink.partition_by

    def write(self, rows: DataFrame, query: str, batch: int) -> None:
        DeltaSinkTable(self._path, self._by, query).write(with_times(rows, self._by), batch)

    def rest(self) -> None:
        pass


class ConsoleOutput:
    def __init__(self, sink: ConsoleSink, show: Callable[[str], None]) -> None:
        self._sink = sink
        self._show = show

    def write(self, rows: DataFrame, query: str, batch: int) -> None:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        readable = [
            F.col(f"`{field.name}`").cast("string").alias(field.name)
            if isinstance(field.dataType, BinaryType)
            else F.col(f"`{field.name}`")
            for field in rows.schema.fields
        ]
        found = rows.select(*readable).limit(self._sink.rows + 1)
        frame: Any = found._jdf
        text = str(frame.showString(self._sink.rows, CELL_SIZE_MAX, False)).rstrip()
        if text.count("\n") > 3:  # more than the frame and the names of columns
            self._show(f"batch {batch}\n{text}")

    def rest(self) -> None:
        pass


class PlotOutput:
    def __init__(self, pipeline: Pipeline, sink: PlotSink, show: Callable[[str], None]) -> None:
        self._sink = sink
        self._show = show
        self._history = History(pipeline.resolve(sink.path), pipeline.name, sink)

    def write(self, rows: DataFrame, query: str, batch: int) -> None:
        sink = self._sink
        columns = [sink.time, *([sink.series] if sink.series else []), *sink.values]
        missing = [name for name in columns if name not in rows.columns]
        if missing:
            raise PipelineError(f"[sink] (plot) there is no column {missing[0]} in the rows")
        if self._history.add(row.asDict() for row in rows.select(*columns).collect()):
            self._history.draw()
            if sink.terminal:
                self._show(self._history.text())

    def rest(self) -> None:
        pass


def make_output(
    spark: SparkSession, pipeline: Pipeline, sink: Sink, show: Callable[[str], None]
) -> Output:
    match sink:
        case ParquetSink():
            return ParquetOutput(spark, pipeline, sink)
        case DeltaSink():
            return DeltaOutput(pipeline, sink)
        case ConsoleSink():
            return ConsoleOutput(sink, show)
        case PlotSink():
            return PlotOutput(pipeline, sink, show)
        case TopicSink():
            raise AssertionError("topics are published together")


def rows_for(sink: Sink, rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rows as the sink's own SQL makes them."""
    if not sink.sql:
        return rows
    rows.createOrReplaceTempView(INPUT)
    steps = pipeline.queries
    if steps and steps[-1].name:
        rows.createOrReplaceTempView(steps[-1].name)
    return run_sql(rows.sparkSession, sink.sql, pipeline.parameters, f"[sink] ({sink.type})")


def with_times(rows: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    """Add ``date`` and ``hour`` of the message's time where they are asked for and not there."""
    from pyspark.sql import functions as F

    wanted = [name for name in ("date", "hour") if name in columns and name not in rows.columns]
    time = next((name for name in TIMES if name in rows.columns), None)
    missing = [name for name in columns if name not in rows.columns and name not in wanted]
    if missing or (wanted and time is None):
        name = missing[0] if missing else wanted[0]
        raise PipelineError(f"partition_by: there is no column {name} among {rows.columns}")
    for name in wanted:
        form = "yyyy-MM-dd" if name == "date" else "HH"
        rows = rows.withColumn(name, F.date_format(F.col(str(time)), form))
    return rows


def topic_messages(sink: TopicSink, rows: DataFrame) -> DataFrame:
    """Rows as messages: ``topic``, ``body`` and ``defer``."""
    topic, body, defer = message_columns(sink, rows.columns)
    return rows.select(topic.alias("topic"), body.alias("body"), defer.alias("defer"))


def message_columns(
    sink: TopicSink, columns: list[str], prefix: str = ""
) -> tuple[Column, Column, Column]:
    """What becomes a message's topic, body and delay; the rows' columns stand behind a prefix."""
    from pyspark.sql import functions as F

    if not sink.topic and "topic" not in columns:
        raise PipelineError("[sink] (topic) topic must be given, or be a column of the rows")
    topic = F.lit(sink.topic) if sink.topic else F.col(f"{prefix}topic")
    if "body" in columns:
        body = F.col(f"{prefix}body").cast("binary")
    else:
        fields = [F.col(f"{prefix}`{name}`") for name in columns if name not in ROUTING]
        body = F.to_json(F.struct(*fields)).cast("binary")
    defer = F.col(f"{prefix}defer") if "defer" in columns else F.lit(None).cast("bigint")
    return topic, body, defer


def sink_options(sink: TopicSink, pipeline: Pipeline) -> dict[str, str]:
    """Of the data source ``nsq``: the sink's brokers, or those of the first source."""
    own = broker_options(sink)
    if own:
        return {**own, **sink.options}
    return {**source_brokers(pipeline), **sink.options}


def source_brokers(pipeline: Pipeline) -> dict[str, str]:
    """Brokers of the first source of messages, with what TLS and tokens need."""
    source = next(source for source in pipeline.sources.values() if source.format == "nsq")
    security = ("tls", "httptoken", "requesttimeout", "retrytimeout")
    passed = {k: v for k, v in source.options.items() if k.lower().startswith(security)}
    return {**broker_options(source), **passed}
