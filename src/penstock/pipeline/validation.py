"""Checks a pipeline's SQL, schemas and functions without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline.outputs import rows_for, topic_messages, with_times
from penstock.pipeline.plan import Flow, declared_schemas, is_stateful, make_plan, read_other
from penstock.pipeline.records import make_step, outcome_ddl
from penstock.pipeline.spec import DeltaSink, ParquetSink, Pipeline, PlotSink, Source, TopicSink
from penstock.pipeline.user_code import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGE_DDL = (
    ("topic", "string"),
    ("node", "string"),
    ("index", "bigint"),
    ("id", "string"),
    ("timestamp", "timestamp"),
    ("body", "binary"),
)


def validate(spark: SparkSession, pipeline: Pipeline) -> str:
    """Return what the sinks would get, for people; raises PipelineError."""
    if pipeline.job:
        return f"job {load(pipeline.job, pipeline.modules).__name__}"
    inferred = [name for name, source in pipeline.sources.items() if source.schema == "infer"]
    if inferred:
        return f"the schema of {inferred[0]} is inferred at run time: its SQL is not checked"
    flow = Flow(pipeline, declared_schemas(pipeline))
    frames = {name: _frame(spark, pipeline, source) for name, source in pipeline.sources.items()}
    if not pipeline.trigger.once:
        make_plan(flow, frames)
    splits = {name: flow.split(name, frame) for name, frame in frames.items()}
    views = {name: flow.watermarked(name, split.rows) for name, split in splits.items()}
    rows = flow.transform(views)
    state = "with state, " if is_stateful(rows) and not pipeline.trigger.once else ""
    if pipeline.functions:
        make_step(pipeline)
        rows = spark.createDataFrame([], outcome_ddl(pipeline)).select("row.*")
    for sink in pipeline.sinks:
        _check_columns(sink, rows_for(sink, rows, pipeline))
    columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows.schema.fields)
    return f"{state}rows of {columns}"


def _frame(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    """An empty stream or table with the columns of messages."""
    if source.format != "nsq":
        return read_other(spark, pipeline, source)
    if pipeline.trigger.once:
        ddl = ", ".join(f"`{name}` {kind}" for name, kind in MESSAGE_DDL)
        return spark.createDataFrame([], ddl)
    columns = [f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in MESSAGE_DDL]
    return spark.readStream.format("rate").load().selectExpr(*columns)


def _check_columns(sink: Any, rows: DataFrame) -> None:
    match sink:
        case ParquetSink() | DeltaSink():
            with_times(rows, sink.partition_by)
        case TopicSink():
            topic_messages(sink, rows)
        case PlotSink():
            columns = [sink.time, *([sink.series] if sink.series else []), *sink.values]
            missing = [name for name in columns if name not in rows.columns]
            if missing:
                raise PipelineError(
                    f"[sink] (plot) no column {missing[0]} among {', '.join(rows.columns)}"
                )
