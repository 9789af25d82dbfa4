"""Pipelines without a stream: read, transform, write, exit.

Beside the checkpoint is ``once.json``: {"query": "...", "run": 3, "chunk": 17, "asked": "..."}.
An interrupted run is repeated under the same number, so tables and topics that have it skip it.
After a complete run the next one gets the next number.

A topic sink with a ``rate`` publishes in chunks, one every half second, each under its own number:
an interrupted replay resumes after the last published chunk.  So the rows must come in the same
order each time, which the SQL determines (ORDER BY).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PipelineError
from penstock.pipeline.bodies import infer_schema
from penstock.pipeline.folders import Folder, LocalFolder, open_folder
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.legacy import finished_batch, finished_delta_batch
from penstock.pipeline.message_sink import invalid_rows, publish
from penstock.pipeline.outputs import (
    make_output,
    rows_for,
    sink_options,
    source_brokers,
    topic_messages,
    with_times,
)
from penstock.pipeline.plan import Flow, broker_options, declared_schemas, read_other
from penstock.pipeline.spec import (
    ConsoleSink,
    DeltaSink,
    ParquetSink,
    Pipeline,
    PlotSink,
    Sink,
    TopicSink,
)
from penstock.pipeline.targets import TableTarget, invalid_table, table_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Wait = Callable[[float], bool]  # sleeps for that many seconds; True: the run must end now

NAME = "once.json"
CHUNK_S = 0.5
CHUNK_ROWS_MAX = 100_000
IDENTITY_SIZE = 32  # hex digits at the end of a run's name


class Display(Protocol):
    def show(self, text: str) -> None: ...

    def progress(self, text: str) -> None: ...


@dataclass(slots=True)
class Turn:
    """The current run, or the last complete one (then ``asked`` is empty)."""

    query: str
    run: int = 0
    chunk: int = 0
    asked: str = ""


def run_once(
    spark: SparkSession, pipeline: Pipeline, display: Display, stop: threading.Event
) -> bool:
    """Run it, or a part if ``stop`` is set between two chunks; whether all of it was done."""
    folder = open_folder(spark, pipeline.checkpoint_path)
    turn = begin(folder, pipeline)
    flow = Flow(pipeline, declared_schemas(pipeline))
    frames = {name: _read(spark, pipeline, name) for name in pipeline.sources}
    for name, source in pipeline.sources.items():
        if source.schema == "infer":
            flow.schemas[name] = infer_schema(spark, frames[name])
    splits = {name: flow.split(name, frame) for name, frame in frames.items()}
    rows = flow.transform({name: split.rows for name, split in splits.items()})
    for number, sink in enumerate(pipeline.sinks):
        output_rows = rows_for(sink, rows, pipeline)
        if isinstance(sink, TopicSink):
            chunked = Chunked(pipeline, sink, folder, turn, number)
            if not chunked.publish(output_rows, display, stop):
                return False
        else:
            _write(spark, pipeline, sink, output_rows, turn, display.show, stop.wait)
    for split in splits.values():
        if split.invalid is not None:
            _write_invalid(spark, flow, split.invalid, turn, stop.wait)
    finish(folder, turn)
    return True


def begin(folder: Folder, pipeline: Pipeline) -> Turn:
    """The run to do: the interrupted one, or a new one."""
    asked = _asked(pipeline)
    text = folder.read(NAME)
    if text is None:
        turn = Turn(f"{pipeline.name}-{uuid.uuid4().hex}", asked=asked)
    else:
        turn = Turn(**json.loads(text))
        if turn.asked and turn.asked != asked:
            raise PipelineError(
                f"an earlier run of {pipeline.name} with other parameters was interrupted; finish "
                f"it, or remove {folder.uri}/{NAME} to discard it"
            )
        if not turn.asked:
            turn = Turn(turn.query, turn.run + 1, 0, asked)
    save(folder, turn)
    return turn


def finish(folder: Folder, turn: Turn) -> None:
    turn.asked = ""
    save(folder, turn)


def save(folder: Folder, turn: Turn) -> None:
    folder.write(NAME, json.dumps(asdict(turn)).encode())


def _asked(pipeline: Pipeline) -> str:
    """A digest of everything that makes a run a different one."""
    parts = [dict(pipeline.parameters), [step.sql for step in pipeline.transforms]]
    parts += [[str(source) for source in pipeline.sources.values()]]
    parts += [[str(sink) for sink in pipeline.sinks]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _read(spark: SparkSession, pipeline: Pipeline, name: str) -> DataFrame:
    source = pipeline.sources[name]
    if source.format != "nsq":
        return read_other(spark, pipeline, source)
    from penstock.pipeline.discovery import Brokers

    options = {"topic": ",".join(Brokers(pipeline, name).topics()), **broker_options(source)}
    options["failOnDataLoss"] = str(source.fail_on_data_loss).lower()
    if source.start in ("earliest", "latest"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = source.start
    return spark.read.format("nsq").options(**{**options, **source.options}).load()


def _write(
    spark: SparkSession,
    pipeline: Pipeline,
    sink: Sink,
    rows: DataFrame,
    turn: Turn,
    show: Callable[[str], None],
    wait: Wait,
) -> None:
    if isinstance(sink, ParquetSink | DeltaSink):
        rows = with_times(rows, sink.partition_by)
        _write_table(table_target(spark, pipeline, sink), rows, turn, wait)
    elif isinstance(sink, ConsoleSink | PlotSink):
        make_output(pipeline, sink, show).write(rows, turn.run)


def _write_invalid(
    spark: SparkSession, flow: Flow, invalid: DataFrame, turn: Turn, wait: Wait
) -> None:
    rows, pipeline = invalid_rows(flow, invalid), flow.pipeline
    if pipeline.invalid.path:
        _write_table(invalid_table(spark, pipeline), rows, turn, wait)
    else:
        publish(rows, source_brokers(pipeline), f"{turn.query}.invalid", turn.run)


def _write_table(target: TableTarget, rows: DataFrame, turn: Turn, wait: Wait) -> None:
    """Write a run as one batch, known by its number: it has no ranges."""
    target.ledger.create(turn.query[-IDENTITY_SIZE:], [target.name])
    target.recover()
    batch = Batch(turn.query, turn.run, numbered=True)
    if target.ledger.to_write(batch) is not None and not _was_written(target, turn):
        target.write(rows, batch, ())
    target.finish(wait)


def _was_written(target: TableTarget, turn: Turn) -> bool:
    """Whether an interrupted run of a version without ledgers has written it."""
    folder = target.ledger.folder
    if isinstance(target.sink, DeltaSink) and isinstance(folder, LocalFolder):
        batch = finished_delta_batch(folder, turn.query)
    else:
        batch = finished_batch(folder, turn.query)
    return batch is not None and batch >= turn.run


class Chunked:
    """One topic sink: all rows in one write, or at a rate."""

    def __init__(
        self, pipeline: Pipeline, sink: TopicSink, folder: Folder, turn: Turn, number: int
    ) -> None:
        self._sink = sink
        self._folder = folder
        self._turn = turn
        self._name = f"{turn.query}.{number}"
        self._pipeline = pipeline
        self._options = sink_options(sink, pipeline)

    def publish(self, rows: DataFrame, display: Display, stop: threading.Event) -> bool:
        """Whether all of it was published."""
        messages = topic_messages(self._sink, rows)
        if not self._sink.rate:
            publish(messages, self._options, self._name, self._turn.run)
            return True
        session, schema = messages.sparkSession, messages.schema
        # Chunks are numbered within a run's own name: nsqd takes a smaller number for an old batch.
        name = f"{self._name}.{self._turn.run}"
        size = max(1, min(CHUNK_ROWS_MAX, int(self._sink.rate * CHUNK_S)))
        due_s, count = time.monotonic(), 0
        for chunk, part in enumerate(chunks(messages.toLocalIterator(), size)):
            count += len(part)
            if chunk < self._turn.chunk:
                continue
            if stop.wait(max(0.0, due_s - time.monotonic())):
                done = count - len(part)
                display.show(
                    f"{self._pipeline.name}: stopped, {done:,} messages published;"
                    " run it again with the same parameters to resume"
                )
                return False
            frame = session.createDataFrame(part, schema)
            publish(frame.coalesce(1), self._options, name, chunk)
            self._turn.chunk = chunk + 1
            save(self._folder, self._turn)
            due_s = max(due_s + len(part) / self._sink.rate, time.monotonic() - 1.0)
            display.progress(f"{self._pipeline.name}: {count:,} messages published")
        display.show(f"{self._pipeline.name}: {count:,} messages published")
        self._turn.chunk = 0
        return True


def chunks(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while part := list(itertools.islice(rows, size)):
        yield part
