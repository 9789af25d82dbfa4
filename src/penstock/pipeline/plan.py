"""Turns a pipeline into a Spark query: its sources, and how messages become rows.

A stream carries one of two things:

    batchwise    messages as they are.  Parsing, SQL and functions run on each micro-batch, as on
                 any table.  So a batch with invalid messages is read again for them, and one
                 without, the usual case, is not.
    streamwise   row struct (a result of the SQL) or raw struct (a message aside), never both.
                 For what spans batches: watermarks, dedupe, aggregations, joins of streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline.bodies import is_valid, json_columns, parse_json, schema_of
from penstock.pipeline.spec import INPUT, MESSAGE_COLUMNS, Pipeline, Source, channel_of
from penstock.pipeline.user_code import load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Nodes of an analysed plan that keep state between batches, or need all rows.
STATEFUL = re.compile(
    r"^\W*(Aggregate|Deduplicate\w*|Distinct|Join|FlatMapGroups\w*|TransformWithState\w*"
    r"|EventTimeWatermark|GlobalLimit|Sort|Intersect|Except|Window) ",
    re.M,
)


def source_options(pipeline: Pipeline, name: str, topics: Sequence[str]) -> dict[str, str]:
    """The options of the data source ``nsq`` for a stream."""
    source = pipeline.sources[name]
    options = {
        "topic": ",".join(topics),
        "channel": channel_of(pipeline, name),
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        **broker_options(source),
    }
    if source.start in ("earliest", "latest"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = source.start
    if source.max_messages:
        options["maxMessagesPerTrigger"] = str(source.max_messages)
    return {**options, **source.options}


def broker_options(table: Any) -> dict[str, str]:
    """The brokers' addresses of a source or a sink."""
    if table.nsqd_http_addresses:
        return {"nsqdHttpAddresses": ",".join(table.nsqd_http_addresses)}
    if table.lookupd_http_addresses:
        return {"lookupdHttpAddresses": ",".join(table.lookupd_http_addresses)}
    return {}


@dataclass(frozen=True, slots=True)
class Split:
    """Messages by kind.  None: there cannot be any."""

    rows: DataFrame
    invalid: DataFrame | None = None
    retries: DataFrame | None = None


class Flow:
    """How messages become rows; the same for a stream, for a batch of it, and for a table."""

    def __init__(self, pipeline: Pipeline, schemas: dict[str, StructType]) -> None:
        self.pipeline = pipeline
        self.schemas = schemas
        self._frames: dict[str, Callable[..., Any]] = {
            str(step.dataframe): load(step.dataframe, pipeline.modules)
            for step in pipeline.queries
            if step.dataframe
        }

    def split(
        self, name: str, messages: DataFrame, watch: Callable[[DataFrame], DataFrame] | None = None
    ) -> Split:
        """Separate messages by kind.  ``watch`` gets all of them, parsed."""
        from pyspark.sql import functions as F

        source = self.pipeline.sources[name]
        retries = None
        if self._retried(source):
            again = F.col("topic") == self.pipeline.retry_topic
            retries, messages = messages.filter(again), messages.filter(~again)
        if source.body != "json":
            text = F.col("body").cast("string")
            rows = messages.withColumn("body", text) if source.body == "text" else messages
            return Split(rows, None, retries)
        parsed = parse_json(messages, self.schemas[name])
        invalid = parsed.filter(~is_valid()).select(*MESSAGE_COLUMNS)
        watched = watch(parsed) if watch is not None else parsed
        rows = json_columns(watched.filter(is_valid()), self.schemas[name])
        return Split(rows, invalid, retries)

    def _retried(self, source: Source) -> bool:
        return bool(self.pipeline.functions) and source.format == "nsq"

    def transform(self, views: Mapping[str, DataFrame]) -> DataFrame:
        """Run the SQL and DataFrame steps; return the last result, or the only source.

        Spark takes 10 ms per batch to create a view, so views that nothing reads are not created.
        """
        frame = views[INPUT] if INPUT in views else next(iter(views.values()))
        session = frame.sparkSession
        if any(step.sql for step in self.pipeline.queries):
            for name, view in views.items():
                view.createOrReplaceTempView(name)
        last = len(self.pipeline.queries)
        for number, step in enumerate(self.pipeline.queries, 1):
            place = f"[[transform]] {step.name or number}"
            if step.sql:
                frame = run_sql(session, step.sql, self.pipeline.parameters, place)
            else:
                frame = self._frames[str(step.dataframe)](frame)
            if number < last:
                for name in filter(None, (INPUT, step.name)):
                    frame.createOrReplaceTempView(name)
        return frame

    def watermarked(self, name: str, rows: DataFrame) -> DataFrame:
        source = self.pipeline.sources[name]
        if source.watermark:
            rows = rows.withWatermark(source.time_column, source.watermark)
        if source.dedupe:
            rows = rows.dropDuplicatesWithinWatermark(list(source.dedupe))
        return rows


def run_sql(
    session: SparkSession, text: str, parameters: Mapping[str, str], place: str
) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return session.sql(text, args=dict(parameters)) if parameters else session.sql(text)
    except (AnalysisException, ParseException) as error:
        raise PipelineError(f"{place} sql: {_first_lines(error)}") from None


def _first_lines(error: BaseException) -> str:
    """The message without the plan that Spark prints below it."""
    lines = str(error).strip().splitlines()
    end = next(
        (n for n, line in enumerate(lines) if line.startswith(("'", "+-", "== ", "JVM"))), 12
    )
    return " ".join(" ".join(lines[: max(1, end)]).split()).rstrip(" ;")


@dataclass(frozen=True, slots=True)
class Plan:
    """The stream to start, and how its batches are processed."""

    stream: DataFrame
    flow: Flow
    batchwise: bool


def make_plan(flow: Flow, messages: Mapping[str, DataFrame]) -> Plan:
    """Choose batchwise or streamwise; ``messages`` are the streams of the sources."""
    pipeline = flow.pipeline
    splits = {name: flow.split(name, frame) for name, frame in messages.items()}
    views = {name: flow.watermarked(name, split.rows) for name, split in splits.items()}
    rows = flow.transform(views)
    if len(messages) == 1 and not is_stateful(rows):
        return Plan(next(iter(messages.values())), flow, batchwise=True)
    if not rows.isStreaming:
        raise PipelineError("[[transform]] the SQL does not read a stream")
    return Plan(_streamwise(pipeline, rows, splits), flow, batchwise=False)


def is_stateful(rows: DataFrame) -> bool:
    plan: Any = rows._jdf.queryExecution().analyzed()
    return STATEFUL.search(str(plan.toString())) is not None


def is_stateful_text(pipeline: Pipeline) -> bool:
    """A guess before Spark runs, for settings that are cheaper if it is right."""
    texts = " ".join(step.sql for step in pipeline.queries)
    marks = any(source.watermark or source.dedupe for source in pipeline.sources.values())
    frames = any(step.dataframe for step in pipeline.queries)
    return marks or frames or re.search(r"(?i)\b(group\s+by|distinct|join)\b", texts) is not None


def _streamwise(pipeline: Pipeline, rows: DataFrame, splits: Mapping[str, Split]) -> DataFrame:
    from pyspark.sql import functions as F

    row_type = rows.schema.simpleString()
    stream = rows.select(F.struct("*").alias("row"))
    asides = [
        frame.select(F.lit(None).cast(row_type).alias("row"), message_struct().alias("raw"))
        for split in splits.values()
        for frame in (split.invalid, split.retries)
        if frame is not None
    ]
    if not asides:
        return stream
    raw_type = asides[0].schema["raw"].dataType
    stream = stream.withColumn("raw", F.lit(None).cast(raw_type))
    for frame in asides:
        stream = stream.unionByName(frame)
    return stream


def message_struct() -> Column:
    from pyspark.sql import functions as F

    return F.struct(*MESSAGE_COLUMNS)


def declared_schemas(pipeline: Pipeline) -> dict[str, StructType]:
    """The schemas in the file; those to be inferred are left out."""
    return {
        name: schema_of(source.schema)
        for name, source in pipeline.sources.items()
        if source.body == "json" and source.schema != "infer"
    }


def read_other(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    """A source that is not a topic."""
    reader: Any = spark.readStream if source.streaming else spark.read
    reader = reader.format(source.format).options(**source.options)
    if source.schema:
        reader = reader.schema(source.schema)
    from pyspark.errors import AnalysisException

    try:
        # Spark resolves a plain path on its default file system; file: overrides that.
        given = source.path.lower().startswith("file:")
        path = source.path if given else pipeline.resolve(source.path)
        frame: DataFrame = reader.load(*([path] if source.path else []))
    except AnalysisException as error:
        raise PipelineError(f"[source] {source.format}: {_first_lines(error)}") from None
    return frame
