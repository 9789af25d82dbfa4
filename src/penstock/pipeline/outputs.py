"""Shows a batch to people, and prepares the rows of a batch for a sink.

Console and plot are for display only: a repeated batch is printed or drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PipelineError
from penstock.pipeline.drawing import History
from penstock.pipeline.plan import broker_options, run_sql
from penstock.pipeline.spec import (
    INPUT,
    ConsoleSink,
    Pipeline,
    PlotSink,
    Sink,
    TopicSink,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CELL_SIZE_MAX = 60
ROUTING = ("topic", "defer")
TIMES = ("nsq_timestamp", "timestamp")


class Output(Protocol):
    """A running sink for display."""

    def write(self, rows: DataFrame, batch: int) -> None: ...


class ConsoleOutput:
    def __init__(self, sink: ConsoleSink, show: Callable[[str], None]) -> None:
        self._sink = sink
        self._show = show

    def write(self, rows: DataFrame, batch: int) -> None:
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
        if text.count("\n") > 3:  # more than the border and the column names
            self._show(f"batch {batch}\n{text}")


class PlotOutput:
    def __init__(self, pipeline: Pipeline, sink: PlotSink, show: Callable[[str], None]) -> None:
        self._sink = sink
        self._show = show
        self._history = History(pipeline.resolve(sink.path), pipeline.name, sink)

    def write(self, rows: DataFrame, batch: int) -> None:
        sink = self._sink
        columns = [sink.time, *([sink.series] if sink.series else []), *sink.values]
        missing = [name for name in columns if name not in rows.columns]
        if missing:
            raise PipelineError(f"[sink] (plot) the rows have no column {missing[0]}")
        if self._history.add(row.asDict() for row in rows.select(*columns).collect()):
            self._history.draw()
            if sink.terminal:
                self._show(self._history.text())


def make_output(
    pipeline: Pipeline, sink: ConsoleSink | PlotSink, show: Callable[[str], None]
) -> Output:
    if isinstance(sink, ConsoleSink):
        return ConsoleOutput(sink, show)
    return PlotOutput(pipeline, sink, show)


def rows_for(sink: Sink, rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rows after the sink's own SQL."""
    if not sink.sql:
        return rows
    rows.createOrReplaceTempView(INPUT)
    steps = pipeline.queries
    if steps and steps[-1].name:
        rows.createOrReplaceTempView(steps[-1].name)
    return run_sql(rows.sparkSession, sink.sql, pipeline.parameters, f"[sink] ({sink.type})")


def with_times(rows: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    """Add ``date`` and ``hour`` of the message's time where requested and missing."""
    from pyspark.sql import functions as F

    derived = [name for name in ("date", "hour") if name in columns and name not in rows.columns]
    time = next((name for name in TIMES if name in rows.columns), None)
    missing = [name for name in columns if name not in rows.columns and name not in derived]
    if missing or (derived and time is None):
        name = missing[0] if missing else derived[0]
        raise PipelineError(f"partition_by: no column {name} among {rows.columns}")
    for name in derived:
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
    """A message's topic, body and delay; ``prefix`` is put before the rows' columns."""
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
    """Options of the data source ``nsq``: the sink's brokers, or those of the first source."""
    own = broker_options(sink)
    if own:
        return {**own, **sink.options}
    return {**source_brokers(pipeline), **sink.options}


def source_brokers(pipeline: Pipeline) -> dict[str, str]:
    """Brokers of the first source of messages, with its options for TLS and tokens."""
    source = next(source for source in pipeline.sources.values() if source.format == "nsq")
    security = ("tls", "httptoken", "requesttimeout", "retrytimeout")
    passed = {k: v for k, v in source.options.items() if k.lower().startswith(security)}
    return {**broker_options(source), **passed}
