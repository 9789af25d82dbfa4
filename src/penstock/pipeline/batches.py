"""Writes each micro-batch: rows to tables, messages to topics, each of them once.

    1. the stream's log of this batch is synced: a repeated batch has the same messages
    2. each target's ledger returns which ranges of the batch it lacks (R43).  If none lacks any,
       the batch is not even read.  A target that has a part of it gets only the other part
    3. functions run, once, and their results are stored until the batch is written (``outcome``)
    4. tables
    5. messages: of topic sinks, retries and dead letters in one write; invalid ones in another.
       Each write is named after pipeline and record, and nsqd publishes a name once (R19)
    6. console and plots

Rule 1: everything is decided before anything is visible: the SQL returns the same rows each time,
        and the results of functions are read back, not computed again.  So a batch that is
        repeated after a crash writes what is missing of it, and nothing else.
Rule 2: if topics are the only sinks, step 3 is skipped: the results of the functions become
        visible all at once in step 5.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PipelineError
from penstock.pipeline.batch_ranges import BatchRanges
from penstock.pipeline.coverage import Span
from penstock.pipeline.folders import Folder, is_local, open_folder, spark_path, sync
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.message_sink import invalid_rows
from penstock.pipeline.outputs import (
    Output,
    make_output,
    message_columns,
    rows_for,
    topic_messages,
    with_times,
)
from penstock.pipeline.plan import Plan, Split
from penstock.pipeline.records import make_step, outcome_ddl
from penstock.pipeline.spec import (
    ConsoleSink,
    DeltaSink,
    ParquetSink,
    Pipeline,
    PlotSink,
    Sink,
    TopicSink,
)
from penstock.pipeline.targets import ASIDES, INVALID, Target, publishes_at_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

OUTCOME = "outcome"
COUNT_WAIT_S = 10.0


class Part:
    """Targets that lack the same ranges of a batch, and those ranges, with counts."""

    def __init__(self, batch: Batch, spans: Sequence[Span], targets: Sequence[Target]) -> None:
        self.batch = batch
        self.spans = spans
        self.tables = [each for each in targets if isinstance(each.sink, ParquetSink | DeltaSink)]
        self.topics = [each for each in targets if isinstance(each.sink, TopicSink)]
        self.asides = next((each for each in targets if each.role == ASIDES), None)
        self.invalid = next((each for each in targets if each.role == INVALID), None)
        self.targets = targets

    @property
    def whole(self) -> bool:
        """Whether it is the whole batch."""
        return self.batch.numbered or _filled(self.spans) == _filled(self.batch.spans)

    @property
    def empty(self) -> bool:
        """Whether it cannot contain a row."""
        return not self.batch.numbered and not _filled(self.spans)

    @property
    def outcome(self) -> str:
        """The folder for the results of functions."""
        if self.whole:
            return f"{OUTCOME}/{self.batch.number}"
        digest = hashlib.sha256(repr(_filled(self.spans)).encode()).hexdigest()[:8]
        return f"{OUTCOME}/{self.batch.number}-{digest}"


def _filled(spans: Sequence[Span]) -> list[tuple[object, ...]]:
    return sorted((span.log, span.start, span.end) for span in spans if span.start < span.end)


def parts_of(batch: Batch, targets: Sequence[Target], ranges: BatchRanges) -> list[Part]:
    """What to write: usually the whole batch to all targets, in one part."""
    groups: dict[tuple[Span, ...], list[Target]] = {}
    for target in targets:
        spans = target.ledger.to_write(batch)
        if spans is not None:
            groups.setdefault(spans, []).append(target)
    return [Part(batch, ranges.counted(spans), found) for spans, found in groups.items()]


class Batches:
    """The function passed to ``foreachBatch``, and its state for a run."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        targets: Sequence[Target],
        ranges: BatchRanges,
        show: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
        note: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` raises if writing is no longer allowed; ``note``: ledgers have new logs."""
        self._spark = spark
        self._plan = plan
        self._targets = targets
        self._ranges = ranges
        self._pipeline: Pipeline = plan.flow.pipeline
        self._source = next(iter(self._pipeline.sources))
        self._checkpoint: Folder = open_folder(spark, self._pipeline.checkpoint_path)
        self._displays: list[tuple[Sink, Output]] = [
            (sink, make_output(self._pipeline, sink, show))
            for sink in self._pipeline.sinks
            if isinstance(sink, ConsoleSink | PlotSink)
        ]
        # With state, or sources other than topics, rows may belong to no message of the batch.
        topics = all(source.format == "nsq" for source in self._pipeline.sources.values())
        self._numbered = not plan.batchwise or not topics
        self._step = make_step(self._pipeline) if self._pipeline.functions else None
        self._check = check
        self._note = note
        self._log_count = self._count_logs()
        self._lock = threading.Lock()
        self._closed = False
        self.error: BaseException | None = None
        self.refused = False  # a batch was refused because the run is stopping
        self.last_batch = -1  # the last batch written

    def close(self, seconds_max: float) -> None:
        """Wait for the current batch, at most ``seconds_max``; refuse later ones.

        The lock is released: a batch that Spark starts at this moment is refused at once.  If it
        waited here, Spark's own stop would wait for it, and neither would end.
        """
        held = self._lock.acquire(timeout=seconds_max)
        self._closed = True
        if held:
            self._lock.release()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one batch.  An error is stored: Spark passes on only its text."""
        with self._lock:
            if self._closed:
                self.refused = True
                # If this returned, Spark would record the batch as written.
                raise PipelineError(f"batch {batch} was not started: the pipeline is stopping")
            try:
                self._check()
                self._take(frame, batch)
            except BaseException as error:
                self.error = error
                raise
            self.last_batch = batch

    def maintain_if_idle(self) -> None:
        """Maintain the tables, unless a batch is being written."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed:
                self._check()
                self._maintain()
        finally:
            self._lock.release()

    def finish(self, wait: Callable[[float], bool]) -> None:
        """After the last batch: finish all maintenance; True of ``wait``: the run must end now."""
        with self._lock:
            for target in self._targets:
                self._check()
                target.finish(wait)

    def _maintain(self) -> None:
        for target in self._targets:
            target.maintain()

    def _take(self, frame: DataFrame, number: int) -> None:
        query = str(self._spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        self._sync_log(number)
        batch = Batch(query, number, self._ranges.of(number), self._numbered)
        parts = parts_of(batch, self._targets, self._ranges)
        if not parts and self._targets:
            return
        cached: list[DataFrame] = []
        if self._step is not None or not self._plan.batchwise or (self._displays and parts):
            cached.append(frame.persist())
        try:
            for part in parts:
                self._write_part(frame, part, cached)
            self._show(frame, number, cached)
        finally:
            for each in cached:
                each.unpersist()
        if self._log_count != (found := self._count_logs()):
            self._log_count = found
            self._note()
        self._maintain()

    def _count_logs(self) -> int:
        return sum(len(target.ledger.coverage.logs) for target in self._targets)

    def _write_part(self, frame: DataFrame, part: Part, cached: list[DataFrame]) -> None:
        if part.empty:
            for target in part.targets:
                target.skip(part.batch, part.spans)
            return
        if not part.whole:
            frame = frame.filter(self._inside(frame, part.spans))
        if self._step is not None:
            self._with_functions(frame, part)
        else:
            self._plain(frame, part, cached)

    def _inside(self, frame: DataFrame, spans: Sequence[Span]) -> Column:
        """Whether a message is in one of the ranges; a batch has one instance of each log."""
        from pyspark.sql import functions as F

        lacking = [name for name in ("node", "topic", "index") if name not in frame.columns]
        if lacking:
            raise PipelineError(
                f"only a part of the batch is missing, and selecting it needs the column "
                f"{lacking[0]}; add it to the option columns"
            )
        found: Column = F.lit(False)
        for span in spans:
            if span.start < span.end:
                log = (F.col("node") == span.log.node) & (F.col("topic") == span.log.topic)
                found |= log & (F.col("index") >= span.start) & (F.col("index") < span.end)
        return found

    def _show(self, frame: DataFrame, number: int, cached: list[DataFrame]) -> None:
        if not self._displays:
            return
        if self._step is not None:
            path = spark_path(f"{self._checkpoint.uri}/{OUTCOME}/{number}")
            if self._checkpoint.read(f"{OUTCOME}/{number}/_SUCCESS") is None:
                return  # only a part of the batch was missing; it was shown before
            rows = self._spark.read.parquet(path).filter("row IS NOT NULL").select("row.*")
        else:
            rows = self._split(frame).rows
        for sink, output in self._displays:
            output.write(rows_for(sink, rows, self._pipeline), number)

    def _sync_log(self, batch: int) -> None:
        """Spark does not sync it.  After a power failure it could plan the batch differently."""
        path = Path(self._checkpoint.uri) / "offsets" / str(batch)
        if is_local(self._checkpoint.uri) and path.exists():
            sync(path)
            sync(path.parent)

    def _split(self, frame: DataFrame, observation: Observation | None = None) -> Split:
        """The rows of a batch after its SQL, and the messages that go elsewhere."""
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

    def _plain(self, frame: DataFrame, part: Part, cached: list[DataFrame]) -> None:
        from pyspark.sql import Observation

        observation = Observation()
        split = self._split(frame, observation if self._plan.batchwise else None)
        rows = split.rows
        if self._plan.batchwise and len(part.tables) + len(part.topics) > 1:
            rows = rows.persist()
            cached.append(rows)
        self._write_rows(rows, part)
        if part.invalid is not None and split.invalid is not None:
            if self._read_whole(part) and invalid_count(observation) == 0:
                part.invalid.skip(part.batch, part.spans)
            else:
                self._write_invalid(split.invalid, part)

    def _read_whole(self, part: Part) -> bool:
        """Whether writing the sinks reads every message, so that the count is complete.

        A sink's own SQL may read only some of them.
        """
        written = (*part.tables, *part.topics)
        plain = any(each.sink is not None and not each.sink.sql for each in written)
        return self._plan.batchwise and plain

    def _write_invalid(self, invalid: DataFrame, part: Part) -> None:
        assert part.invalid is not None
        part.invalid.write(invalid_rows(self._plan.flow, invalid), part.batch, part.spans)

    def _write_rows(self, rows: DataFrame, part: Part) -> None:
        """Write to tables first, then to topics."""
        for target in (*part.tables, *part.topics):
            sink = target.sink
            assert sink is not None
            output_rows = rows_for(sink, rows, self._pipeline)
            if isinstance(sink, TopicSink):
                output_rows = topic_messages(sink, output_rows)
            elif isinstance(sink, ParquetSink | DeltaSink):
                output_rows = with_times(output_rows, sink.partition_by)
            target.write(output_rows, part.batch, part.spans)

    def _with_functions(self, frame: DataFrame, part: Part) -> None:
        split = self._split(frame)
        outcome = self._outcome(split)
        if publishes_at_once(self._pipeline):
            self._publish_at_once(outcome, part)
        else:
            outcome = self._stored_outcome(outcome, part.outcome)
            self._write_rows(outcome.filter("row IS NOT NULL").select("row.*"), part)
            self._publish_asides(outcome, part)
        if split.invalid is not None and part.invalid is not None:
            self._write_invalid(split.invalid, part)
        self._forget_outcomes(part.batch.number)

    def _forget_outcomes(self, number: int) -> None:
        """Remove the results for the previous batch."""
        self._checkpoint.remove(f"{OUTCOME}/{number - 1}")

    def _outcome(self, split: Split) -> DataFrame:
        """Pass rows through the functions; each result is ``row`` or ``aside``."""
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

    def _stored_outcome(self, outcome: DataFrame, path: str) -> DataFrame:
        target = spark_path(f"{self._checkpoint.uri}/{path}")
        if self._checkpoint.read(f"{path}/_SUCCESS") is None:
            outcome.write.mode("overwrite").parquet(target)
        return outcome.sparkSession.read.schema(outcome.schema).parquet(target)

    def _publish_at_once(self, outcome: DataFrame, part: Part) -> None:
        """Publish rows and asides as messages in one write, so that each is evaluated once."""
        from pyspark.sql import functions as F

        if not part.topics:
            return
        [target] = part.topics
        assert isinstance(target.sink, TopicSink)
        columns = outcome.select("row.*").columns
        topic, body, defer = message_columns(target.sink, columns, "row.")
        aside = F.col("aside").isNotNull()
        messages = outcome.select(
            F.when(aside, F.col("aside.topic")).otherwise(topic).alias("topic"),
            F.when(aside, F.col("aside.body")).otherwise(body).alias("body"),
            F.when(aside, F.col("aside.delay_ms")).otherwise(defer.cast("bigint")).alias("defer"),
        )
        target.write(messages, part.batch, part.spans)

    def _publish_asides(self, outcome: DataFrame, part: Part) -> None:
        from pyspark.sql import functions as F

        if part.asides is not None:
            asides = outcome.filter("aside IS NOT NULL").select("aside.*")
            messages = asides.select("topic", "body", F.col("delay_ms").alias("defer"))
            part.asides.write(messages, part.batch, part.spans)


def invalid_count(observation: Observation) -> int | None:
    """How many messages of a batch were invalid; None if they were not counted.

    The count arrives with the write that read the messages.  If no write was needed, because all
    sinks had the batch, it never arrives.
    """
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(int(observation.get["invalid"])), daemon=True
    )
    thread.start()
    thread.join(COUNT_WAIT_S)
    return found[0] if found else None
