"""The life of a run: session, checkpoint, topics, query, progress, end.

    start -> tables and checkpoint compared -> [no topic yet: wait] -> query -> stop, or its end
                                                        ^                |
                                                        +-- new topics --+   ends after a batch

Rule 1: a stop waits for the batch that is being written, up to BATCH_END_S.  Interrupting it would
        be safe, because it would be repeated; but then the next start does the work again.
Rule 2: the end of a run is explained in one sentence, with what to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.errors import (
    AlreadyRunningError,
    DataWouldBeLostError,
    NodeError,
    PenstockError,
    PipelineError,
)
from penstock.pipeline import checkpoints
from penstock.pipeline.attempts import Attempts
from penstock.pipeline.batch_ranges import BatchRanges
from penstock.pipeline.batches import Batches
from penstock.pipeline.bodies import infer_schema, schema_of
from penstock.pipeline.discovery import Brokers, Discovery, has_patterns
from penstock.pipeline.faults import fault_of
from penstock.pipeline.folders import open_folder, spark_path
from penstock.pipeline.losses import ACCEPT, Answers, lost_messages
from penstock.pipeline.one_shot import run_once
from penstock.pipeline.plan import (
    Flow,
    Plan,
    broker_options,
    declared_schemas,
    is_stateful_text,
    make_plan,
    read_other,
)
from penstock.pipeline.reconciliation import Settled, Settling
from penstock.pipeline.reports import RunReports
from penstock.pipeline.spec import Pipeline, Source, channel_of
from penstock.pipeline.status import StatusFile
from penstock.pipeline.stream_options import place_options, stream_options
from penstock.pipeline.user_code import load
from penstock.progress import PipelineState
from penstock.spark.loss import ADVICE, find
from penstock.spark.session import Interrupted, SessionPlan, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

log = logging.getLogger("penstock.pipeline")

POLL_S = 0.2
TOPICS_POLL_S = 5.0
WAITING_POLL_S = 2.0
BATCH_END_S = 60.0
PROGRESS_S = 2.0
MAINTENANCE_S = 5.0
TABLE_SETTINGS = {
    # The type that other programs read, deltalake among them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A topic named 007 is not a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


class Screen(Protocol):
    """Where a run shows its output."""

    def show(self, text: str) -> None:
        """Show requested output: rows, a report."""

    def log(self, text: str) -> None:
        """Show a line of another program's log."""

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces."""


@dataclass
class Run:
    """One run of a pipeline.  ``stop`` may be set from any thread."""

    pipeline: Pipeline
    screen: Screen
    status: StatusFile
    log_level: str = "error"
    spark: SparkSession | None = None  # the caller's session, which is not closed
    stop: threading.Event = field(default_factory=threading.Event)
    answers: Answers = field(default_factory=Answers)

    def __post_init__(self) -> None:
        self._reports = RunReports(self.pipeline)
        self._topics: dict[str, tuple[str, ...]] = {}
        self._message_count = 0
        self._batch_count = 0
        self._last_batch = -1
        self._waiting_s = 0.0
        self._attempts = Attempts(
            *(self.pipeline, self.status, self._reports, self.stop),
            open=self._open_session,
            given=self.spark,
        )
        self._done = False
        self._reading_logged = False
        self._settled: Settled | None = None
        self._discovery: Discovery | None = None

    def run(self) -> None:
        """Return when it was stopped or has finished; raises PenstockError if it failed."""
        try:
            self._run()
        except Interrupted:
            log.info("pipeline=%s: stopped while Spark was starting", self.pipeline.name)
        except Exception as error:
            fault = self._waiting_for(error, fault_of(error))
            if isinstance(fault, AlreadyRunningError) and not self._attempts.begun:
                self.status.remove()  # the other process has its own
                raise
            self.status.update(state=PipelineState.FAILED, error=str(fault), stopping=False)
            self._reports.report(PipelineState.FAILED, str(fault))
            if isinstance(error, PenstockError) and not isinstance(fault, DataWouldBeLostError):
                raise
            raise fault from error
        self._reports.report(PipelineState.ENDED)
        self.status.remove()

    def _waiting_for(self, error: BaseException, fault: PipelineError) -> PipelineError:
        """Give a loss that the source reports a name, by which it can be accepted."""
        text = "\n".join(str(each) for each in (error, error.__cause__, error.__context__) if each)
        losses = find(text) if isinstance(fault, DataWouldBeLostError) else []
        if not losses or self._settled is None:
            return fault
        channels = {
            topic: channel_of(self.pipeline, name)
            for name, topics in self._topics.items()
            for topic in (*topics, self.pipeline.retry_topic)
        }
        # The start of the advice is enough: a long text may be cut inside it.
        sentence = str(fault).partition("\n")[0].partition(f".  {ADVICE[:8]}")[0]
        return self._settled.questions.stop(lost_messages(losses, channels), sentence, (ACCEPT,))

    def _run(self) -> None:
        self.status.update(state=PipelineState.STARTING)
        if places := " and ".join(self.pipeline.places()):
            log.info("pipeline=%s: will write to %s", self.pipeline.name, places)
        self._attempts.run(self._live)

    def _open_session(self) -> SparkSession:
        plan = session_plan(self.pipeline, self.log_level)
        return open_session(plan, self.screen.log, self.stop)

    def _live(self, spark: SparkSession) -> None:
        pipeline = self.pipeline
        if pipeline.job:
            job = load(pipeline.job, pipeline.modules)
            self.status.update(state=PipelineState.RUNNING)
            job(spark, pipeline, self.screen.show)
        elif pipeline.trigger.once:
            self.status.update(state=PipelineState.RUNNING)
            self._done = run_once(spark, pipeline, self.screen, self.stop)
        else:
            self._settle(spark)
            with self._reports.listening(spark, self._reporting()):
                self._stream(spark)

    @property
    def starting(self) -> bool:
        """Whether Spark is starting."""
        return self._attempts.starting

    def stopping(self) -> str:
        """What is still done before the run ends, for people."""
        if self.starting:
            return "interrupted while Spark is starting; exiting, nothing was read"
        return "stopping after this batch"

    def report(self) -> str:
        """What was written so far, for people."""
        places = " and ".join(self.pipeline.places())
        if self.pipeline.job or self.pipeline.trigger.once:
            return f"everything was written to {places}" if places and self._done else ""
        if not self._message_count:
            return "nothing was written"
        batches = "1 batch" if self._batch_count == 1 else f"{self._batch_count:,} batches"
        return f"{self._message_count:,} messages in {batches} were written to {places}"

    def _reporting(self) -> dict[str, str]:
        """The options that identify this run in its reports."""
        name = next(iter(self.pipeline.sources))
        place = place_options(self.pipeline, name, self._settled, "")
        return {key: place[key] for key in ("identity", "reader", "checkpoint") if key in place}

    def _stream(self, spark: SparkSession) -> None:
        while not self.stop.is_set():
            if not self._find_topics():
                return
            plan, schemas = self._plan(spark)
            self._note_plan(spark, plan, schemas)
            batches = self._batches(spark, plan)
            query = self._start(plan, batches)
            self._reports.started(query, self._topics)
            self._report_places()
            if not self._reading_logged:
                self._reading_logged = True
                names = ", ".join(sorted(self._all_topics()))
                log.info("pipeline=%s: reading %s", self.pipeline.name, names or "its source")
            self._follow(query, batches)
            if self.pipeline.trigger.available_now and not self.stop.is_set():
                batches.finish(self.stop.wait)
            if self.stop.is_set() or self.pipeline.trigger.available_now:
                return

    def _settle(self, spark: SparkSession) -> None:
        """Compare tables and checkpoint; again after a fault, because a batch may be half done."""
        answers = self.answers if self._settled is None else Answers()
        stateful = self._is_stateful(spark)
        self._settled = Settling(spark, self.pipeline, answers, stateful=stateful).settle()
        if self._discovery is None:
            take_over = self.answers.take_over
            self._discovery = Discovery(self.pipeline, self._settled.identity, take_over)

    def _is_stateful(self, spark: SparkSession) -> bool:
        """Whether the SQL keeps state, before topics are known."""
        folder = open_folder(spark, self.pipeline.checkpoint_path)
        stored = checkpoints.load(folder)
        if stored is not None:
            checkpoints.check_owner(stored, self.pipeline.name, folder.uri)
            return bool(stored.state)
        sources = self.pipeline.sources
        if not is_stateful_text(self.pipeline):
            return False
        if any(source.schema == "infer" for source in sources.values()):
            return True
        self._topics = dict.fromkeys(sources, ("any",))
        return not self._plan(spark)[0].batchwise

    def _batches(self, spark: SparkSession, plan: Plan) -> Batches:
        settled = self._settled
        assert settled is not None
        ranges = BatchRanges(self.pipeline, settled.offsets, settled.identity.text)
        check = self._attempts.locks.check
        show = self.screen.show
        return Batches(spark, plan, settled.targets, ranges, show, check, settled.note)

    # Before a query

    def _find_topics(self) -> bool:
        """List the topics, and wait until there is one; False if the run was stopped."""
        logged = False
        while not self.stop.is_set():
            self._topics = self._topics_now()
            if all(self._topics.values()):
                return True
            if not logged:
                log.info("pipeline=%s: no topic matches yet; waiting", self.pipeline.name)
                self.status.update(state=PipelineState.WAITING)
                logged = True
            if self.pipeline.trigger.available_now:
                return False
            self.stop.wait(TOPICS_POLL_S / 5)
        return False

    def _topics_now(self) -> dict[str, tuple[str, ...]]:
        assert self._discovery is not None
        found = self._discovery.topics()
        self.status.update(
            gone_before=self._discovery.missed_count, gone_topics=self._discovery.missed_topic_count
        )
        return found

    def _all_topics(self) -> set[str]:
        return {topic for topics in self._topics.values() for topic in topics}

    def _plan(self, spark: SparkSession) -> tuple[Plan, dict[str, StructType]]:
        stored = checkpoints.load(open_folder(spark, self.pipeline.checkpoint_path))
        schemas = self._schemas(spark, stored)
        messages = {
            name: self._messages(spark, name, source)
            for name, source in self.pipeline.sources.items()
        }
        return make_plan(Flow(self.pipeline, schemas), messages), schemas

    def _note_plan(self, spark: SparkSession, plan: Plan, schemas: dict[str, StructType]) -> None:
        """Store with the checkpoint what a later run is compared with."""
        folder = open_folder(spark, self.pipeline.checkpoint_path)
        stored = checkpoints.load(folder)
        now = checkpoints.describe(self.pipeline, schemas, not plan.batchwise)
        if stored is not None:
            for change in checkpoints.check_fit(stored, now, folder.uri):
                log.warning("pipeline=%s: %s", self.pipeline.name, change)
        if stored != now:
            folder.write(checkpoints.NAME, now.to_json())

    def _messages(self, spark: SparkSession, name: str, source: Source) -> DataFrame:
        if source.format == "nsq":
            take_over = self.answers.take_over
            options = stream_options(
                self.pipeline, name, self._topics[name], self._settled, take_over
            )
            return spark.readStream.format("nsq").options(**options).load()
        return read_other(spark, self.pipeline, source)

    def _schemas(
        self, spark: SparkSession, stored: checkpoints.Checkpoint | None
    ) -> dict[str, StructType]:
        schemas = declared_schemas(self.pipeline)
        for name, source in self.pipeline.sources.items():
            if source.schema != "infer":
                continue
            if stored is not None and name in stored.schemas:
                schemas[name] = schema_of(stored.schemas[name])
                continue
            given = {"topic": ",".join(self._topics[name]), **broker_options(source)}
            messages = spark.read.format("nsq").options(**given, columns="body").load()
            schemas[name] = infer_schema(spark, messages)
            log.info("source=%s: inferred schema %s", name, schemas[name].toDDL())
        return schemas

    def _start(self, plan: Plan, batches: Batches) -> StreamingQuery:
        pipeline, trigger = self.pipeline, self.pipeline.trigger
        writer = plan.stream.writeStream.foreachBatch(batches).queryName(pipeline.name)
        writer = writer.option("checkpointLocation", spark_path(pipeline.checkpoint_path))
        writer = writer.outputMode(pipeline.output_mode)
        if trigger.available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger.interval_ns:
            milliseconds = max(1, trigger.interval_ns // 1_000_000)
            writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
        return writer.start()

    # While it runs

    def _follow(self, query: StreamingQuery, batches: Batches) -> None:
        """Return when the query has ended, by itself or because of a stop or new topics."""
        poll_due_s = time.monotonic() + TOPICS_POLL_S
        maintenance_due_s = time.monotonic() + MAINTENANCE_S
        patterns = has_patterns(self.pipeline)
        while query.isActive and not self.stop.wait(POLL_S):
            self._report_progress(query)
            if patterns and time.monotonic() >= poll_due_s:
                poll_due_s = time.monotonic() + TOPICS_POLL_S
                if self._has_new_topics():
                    break
            if time.monotonic() >= maintenance_due_s:
                batches.maintain_if_idle()
                maintenance_due_s = time.monotonic() + MAINTENANCE_S
        if query.isActive:
            self._end(query, batches)
        self._waiting_s = 0.0
        self._report_progress(query)
        # A refused batch ends the query with an exception, which is not an error.
        error = None if batches.refused and batches.error is None else query.exception()
        # Spark may die of our error (its texts are long) before it has recorded it.
        if error is not None or batches.error is not None:
            raise fault_of(batches.error, error) from (batches.error or error)

    def _has_new_topics(self) -> bool:
        """Whether there are topics that the query does not read."""
        now = self._poll_topics()
        new = {topic for topics in now.values() for topic in topics} - self._all_topics()
        if new:
            log.info("pipeline=%s: new topics %s", self.pipeline.name, ", ".join(sorted(new)))
        return bool(new)

    def _poll_topics(self) -> dict[str, tuple[str, ...]]:
        """The topics that exist; none if no node responds."""
        try:
            return self._topics_now()
        except NodeError as error:
            log.warning("pipeline=%s: %s", self.pipeline.name, error)
            return {}

    def _end(self, query: StreamingQuery, batches: Batches) -> None:
        self.status.update(stopping=self.stop.is_set())
        batches.close(BATCH_END_S)
        self._await_progress(query, batches.last_batch)
        query.stop()

    def _await_progress(self, query: StreamingQuery, batch: int) -> None:
        """Wait for Spark's report of a written batch, which a stopped query never sends."""
        until_s = time.monotonic() + PROGRESS_S
        while query.isActive and time.monotonic() < until_s:
            last = query.lastProgress
            if batch <= (-1 if last is None else int(last["batchId"])):
                return
            time.sleep(PROGRESS_S / 40)

    def _report_places(self) -> None:
        names = list(self._topics)
        nodes = sorted({n.address for name in names for n in Brokers(self.pipeline, name).nodes()})
        channel = channel_of(self.pipeline, names[0]) if names else ""
        topics = sorted(self._all_topics())
        self.status.update(
            state=PipelineState.RUNNING, topics=topics, nodes=nodes, channel=channel, error=""
        )

    def _report_progress(self, query: StreamingQuery) -> None:
        self._reports.poll()
        for progress in self._progress(query):
            batch = int(progress["batchId"])
            if batch <= self._last_batch:
                continue
            self._last_batch = batch
            self._batch_count += 1
            self._attempts.progressed()
            count = int(progress["numInputRows"])
            self._message_count += count
            took_ms = int(progress["durationMs"].get("triggerExecution", 0))
            self.status.update(
                batch=batch,
                message_count=self._message_count,
                messages_per_s=count / took_ms * 1000 if took_ms else 0.0,
                batch_ms=took_ms,
            )
        if time.monotonic() >= self._waiting_s:
            self._waiting_s = time.monotonic() + WAITING_POLL_S
            self.status.update(waiting=self._waiting())
        self.screen.progress(progress_line(self))

    def _progress(self, query: StreamingQuery) -> Sequence[StreamingQueryProgress]:
        """The new reports; Spark's history is read only if there was more than one batch."""
        last = query.lastProgress
        if last is None or int(last["batchId"]) <= self._last_batch:
            return ()
        return (last,) if int(last["batchId"]) == self._last_batch + 1 else query.recentProgress

    def _waiting(self) -> int | None:
        """How many messages are not read yet, by the depths of the pull channels."""
        counts = []
        for name, topics in self._topics.items():
            try:
                counts.append(Brokers(self.pipeline, name).waiting(topics))
            except NodeError:
                return None
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def progress_line(run: Run) -> str:
    status = run.status.status
    parts = [f"{status.name}: batch {status.batch}" if status.batch >= 0 else f"{status.name}:"]
    parts.append(f"{status.message_count:,} messages")
    if status.batch >= 0:
        parts.append(f"{status.messages_per_s:,.0f}/s, {status.batch_ms / 1000:.2f} s a batch")
    if status.waiting is not None:
        parts.append(f"{status.waiting:,} waiting")
    return "  ".join(parts)


def session_plan(pipeline: Pipeline, log_level: str = "error") -> SessionPlan:
    return SessionPlan(
        name=f"penstock {pipeline.name}",
        master=pipeline.master,
        conf={**TABLE_SETTINGS, **pipeline.spark},
        stateful=is_stateful_text(pipeline),
        local_files="://" not in pipeline.checkpoint_path,
        log_level=log_level,
    )
