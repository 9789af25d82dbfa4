"""What happens with each micro-batch: rows to tables, messages to topics, each of them once.

    1. the stream's log of this batch is synced: a repeated batch has the same messages
    2. functions run, once, and what they made is kept until the batch is through (``outcome``)
    3. tables, each skips a batch it has
    4. messages: of topic sinks, retries and dead letters in one write; invalid ones in another.
       Each write has a name made of query and batch, and nsqd publishes a name once (R19)
    5. console and plots

Rule 1: everything is decided before anything is visible: the SQL gives the same rows each time, and
        what a function gave is read back, not asked for again.  So a batch that is repeated after a
        crash writes what is missing of it, and nothing else.
Rule 2: with topics as the only sinks step 2 is left out: what the functions gave becomes visible
        all at once in step 4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder, open_folder, spark_path, sync
from penstock.pipeline.outputs import (
    Output,
    make_output,
    message_columns,
    rows_for,
    sink_options,
    source_brokers,
    topic_messages,
)
from penstock.pipeline.plan import Plan, Split
from penstock.pipeline.records import make_step, outcome_ddl
from penstock.pipeline.spec import ConsoleSink, Pipeline, Sink, TopicSink
from penstock.pipeline.writing import publish, write_invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

OUTCOME = "outcome"
COUNT_WAIT_S = 10.0


class Batches:
    """The function of ``foreachBatch``, and what it needs for a run."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        show: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` raises if nothing may be written any more."""
        self._spark = spark
        self._plan = plan
        self._pipeline: Pipeline = plan.flow.pipeline
        self._source = next(iter(self._pipeline.sources))
        self._checkpoint: Folder = open_folder(spark, self._pipeline.checkpoint_path)
        self._outputs: list[tuple[Sink, Output]] = [
            (sink, make_output(spark, self._pipeline, sink, show))
            for sink in self._pipeline.sinks
            if not isinstance(sink, TopicSink)
        ]
        self._topics = [sink for sink in self._pipeline.sinks if isinstance(sink, TopicSink)]
        self._step = make_step(self._pipeline) if self._pipeline.functions else None
        self._check = check
        self._lock = threading.Lock()
        self._closed = False
        self.error: BaseException | None = None
        self.last_batch = -1  # that was written

    @contextmanager
    def closing(self, seconds_max: float) -> Iterator[None]:
        """No batch is under way inside, unless one takes too long, and none begins any more."""
        held = self._lock.acquire(timeout=seconds_max)
        self._closed = True
        try:
            yield
        finally:
            if held:
                self._lock.release()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take one batch through.  An error is kept: Spark passes on only a text of it."""
        with self._lock:
            if self._closed:
                # To return would tell Spark that the batch is written.
                raise PipelineError(f"batch {batch} was not begun: the pipeline is stopping")
            try:
                self._check()
                self._take(frame, batch)
            except BaseException as error:
                self.error = error
                raise
            self.last_batch = batch

    def _take(self, frame: DataFrame, batch: int) -> None:
        query = str(self._spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        self._sync_log(batch)
        kept: list[DataFrame] = []
        if self._step is not None or not self._plan.batchwise:
            kept.append(frame.persist())
        try:
            if self._step is not None:
                self._with_functions(frame, query, batch)
            else:
                self._plain(frame, query, batch, kept)
        finally:
            for each in kept:
                each.unpersist()
        for _, output in self._outputs:
            output.rest()

    def _sync_log(self, batch: int) -> None:
        """Spark does not.  After a power cut it could plan the batch anew, with other messages."""
        path = Path(self._checkpoint.uri) / "offsets" / str(batch)
        if "://" not in self._checkpoint.uri and path.exists():
            sync(path)
            sync(path.parent)

    def _split(self, frame: DataFrame, observation: Observation | None = None) -> Split:
        """The rows of a batch behind its SQL, and the messages aside."""
        from pyspark.sql import functions as F

        pipeline, flow = self._pipeline, self._plan.flow
        if not self._plan.batchwise:
            rows = frame.filter("row IS NOT NULL").select("row.*")
            if "raw" not in frame.columns:
                return Split(rows)
            raw = frame.filter("raw IS NOT NULL").select("raw.*")
            again = F.col("topic") == pipeline.retry_topic
            return Split(rows, raw.filter(~again), raw.filter(again))

        def watch(parsed: DataFrame) -> DataFrame:
            from penstock.pipeline.bodies import is_valid

            assert observation is not None
            return parsed.observe(observation, F.count_if(~is_valid()).alias("invalid"))

        split = flow.split(self._source, frame, watch if observation is not None else None)
        rows = flow.transform({self._source: split.rows})
        return Split(rows, split.invalid, split.retries)

    def _plain(self, frame: DataFrame, query: str, batch: int, kept: list[DataFrame]) -> None:
        from pyspark.sql import Observation

        observation = Observation()
        split = self._split(frame, observation if self._plan.batchwise else None)
        rows = split.rows
        if self._plan.batchwise and len(self._outputs) + len(self._topics) > 1:
            rows = rows.persist()
            kept.append(rows)
        self._write_tables(rows, query, batch)
        self._publish_rows(rows, query, batch)
        if split.invalid is None:
            return
        if not (self._read_whole and invalid_count(observation) == 0):
            write_invalid(self._spark, self._plan.flow, split.invalid, query, batch)

    @property
    def _read_whole(self) -> bool:
        """Whether writing the sinks reads every message, so that those counted are all.

        Nothing else than the console looks at a part of them, and an SQL of a sink's own.
        """
        sinks = [sink for sink in self._pipeline.sinks if not isinstance(sink, ConsoleSink)]
        return self._plan.batchwise and any(not sink.sql for sink in sinks)

    def _with_functions(self, frame: DataFrame, query: str, batch: int) -> None:
        split = self._split(frame)
        outcome = self._outcome(split)
        if self._at_once:
            self._publish_at_once(outcome, query, batch)
        else:
            outcome = self._kept_outcome(outcome, batch)
            self._write_tables(outcome.filter("row IS NOT NULL").select("row.*"), query, batch)
            self._publish_kept(outcome, query, batch)
        if split.invalid is not None:
            write_invalid(self._spark, self._plan.flow, split.invalid, query, batch)
        self._checkpoint.remove(f"{OUTCOME}/{batch - 1}")

    @property
    def _at_once(self) -> bool:
        """Whether all that the functions give becomes messages, in one write."""
        if self._outputs or len(self._topics) != 1 or self._topics[0].sql:
            return False
        brokers = source_brokers(self._pipeline)
        return sink_options(self._topics[0], self._pipeline) == brokers

    def _outcome(self, split: Split) -> DataFrame:
        """Rows through the functions: ``row`` or ``aside``."""
        from pyspark.sql import functions as F

        step = self._step
        assert step is not None
        row_type = split.rows.schema.simpleString()
        rows = split.rows.select(
            F.struct("*").alias("row"), F.lit(None).cast("binary").alias("envelope")
        )
        if split.retries is not None:
            rows = rows.union(
                split.retries.select(F.lit(None).cast(row_type), F.col("body").cast("binary"))
            )
        return rows.mapInArrow(lambda batches: step(batches), outcome_ddl(self._pipeline))

    def _kept_outcome(self, outcome: DataFrame, batch: int) -> DataFrame:
        path = f"{OUTCOME}/{batch}"
        target = spark_path(f"{self._checkpoint.uri}/{path}")
        if self._checkpoint.read(f"{path}/_SUCCESS") is None:
            outcome.write.mode("overwrite").parquet(target)
        return outcome.sparkSession.read.schema(outcome.schema).parquet(target)

    def _publish_at_once(self, outcome: DataFrame, query: str, batch: int) -> None:
        """A row is a message, and so is one aside: no branches, so each is evaluated once."""
        from pyspark.sql import functions as F

        [sink] = self._topics
        columns = outcome.select("row.*").columns
        topic, body, defer = message_columns(sink, columns, "row.")
        aside = F.col("aside").isNotNull()
        messages = outcome.select(
            F.when(aside, F.col("aside.topic")).otherwise(topic).alias("topic"),
            F.when(aside, F.col("aside.body")).otherwise(body).alias("body"),
            F.when(aside, F.col("aside.delay_ms")).otherwise(defer.cast("bigint")).alias("defer"),
        )
        publish(messages, source_brokers(self._pipeline), f"{query}.rows", batch)

    def _publish_kept(self, outcome: DataFrame, query: str, batch: int) -> None:
        from pyspark.sql import functions as F

        self._publish_rows(outcome.filter("row IS NOT NULL").select("row.*"), query, batch)
        asides = outcome.filter("aside IS NOT NULL").select("aside.*")
        messages = asides.select("topic", "body", F.col("delay_ms").alias("defer"))
        publish(messages, source_brokers(self._pipeline), f"{query}.asides", batch)

    def _publish_rows(self, rows: DataFrame, query: str, batch: int) -> None:
        for number, sink in enumerate(self._topics):
            messages = topic_messages(sink, rows_for(sink, rows, self._pipeline))
            options = sink_options(sink, self._pipeline)
            publish(messages, options, f"{query}.rows{number or ''}", batch)

    def _write_tables(self, rows: DataFrame, query: str, batch: int) -> None:
        for sink, output in self._outputs:
            output.write(rows_for(sink, rows, self._pipeline), query, batch)


def invalid_count(observation: Observation) -> int | None:
    """How many messages of a batch were invalid; None if that was not counted.

    The count comes with the write that read the messages.  If that was not needed, because all
    sinks had the batch, there is none, and waiting for it would never end.
    """
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(int(observation.get["invalid"])), daemon=True
    )
    thread.start()
    thread.join(COUNT_WAIT_S)
    return found[0] if found else None
