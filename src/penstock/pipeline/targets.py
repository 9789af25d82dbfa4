"""What a pipeline writes to with a ledger: tables, topics, and messages aside.

    Target    a name, a ledger, and how rows are written once
    TableTarget    a Parquet or Delta table, which contains the ledger
    TopicTarget    a topic; the ledger is beside the checkpoint

Console and plots are for display: they have no ledger, and a repeated batch is shown again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import NodeError, PipelineError
from penstock.pipeline.compaction import Merging
from penstock.pipeline.coverage import Coverage, Span, spans_of_rows
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.folders import Folder, open_folder
from penstock.pipeline.ledger import Ledger, of_sum, summed
from penstock.pipeline.ledger_records import Accepted, Batch, Record
from penstock.pipeline.lock import ledger_folder
from penstock.pipeline.message_sink import publish
from penstock.pipeline.outputs import sink_options, source_brokers
from penstock.pipeline.parquet import STATE, ParquetTable
from penstock.pipeline.spec import DeltaSink, Invalid, ParquetSink, Pipeline, Sink, TopicSink
from penstock.spark.cluster import Cluster
from penstock.spark.options import WRITE, parse_options
from penstock.spark.staging import Committer, StagedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NS_PER_MS = 1_000_000
ROWS, ASIDES, INVALID = "rows", "asides", "invalid"  # what a target gets


class TableWriter(Protocol):
    """Writes rows to a table, once."""

    def recover(self) -> None: ...

    def write(self, rows: DataFrame, batch: Batch, spans: Sequence[Span]) -> int: ...

    def skip(self, batch: Batch, spans: Sequence[Span]) -> None: ...

    def maintain(self) -> None: ...

    def finish(self, wait: Callable[[float], bool]) -> None: ...


class TableTarget:
    """A table; ``name`` is as in the checkpoint's description of the pipeline."""

    def __init__(
        self, name: str, ledger: Ledger, table: TableWriter, path: str, sink: Sink | None
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.table = table
        self.path = path
        self.sink = sink  # None: the table of invalid messages
        self.role = ROWS if sink is not None else INVALID

    def recover(self) -> None:
        if self.ledger.exists:
            self.table.recover()

    def write(self, rows: DataFrame, batch: Batch, spans: Sequence[Span]) -> None:
        self.table.write(rows, batch, spans)

    def skip(self, batch: Batch, spans: Sequence[Span]) -> None:
        self.table.skip(batch, spans)

    def maintain(self) -> None:
        """Between batches: maintenance."""
        self.table.maintain()

    def finish(self, wait: Callable[[float], bool]) -> None:
        """Before the end of a run: finish maintenance; True of ``wait``: the run must end now."""
        self.table.finish(wait)


class TopicTarget:
    """Topics that messages are published to in one write.

    The brokers' decision is the step (R19) and contains the record.  So nothing is sealed before,
    and an interrupted step is found by asking the brokers.
    """

    def __init__(
        self,
        name: str,
        slugs: tuple[str, str],
        ledger: Ledger,
        options: dict[str, str],
        sink: Sink | None,
    ) -> None:
        """``slugs``: the names of the write, now and in versions without ledgers."""
        self.name = name
        self.ledger = ledger
        self.path = ""
        self.sink = sink  # None: messages aside, or invalid ones
        self.role = ROWS if sink is not None else slugs[0]
        self.slug, self._old_slug = slugs
        self._options = options

    @property
    def write_name(self) -> str:
        return f"{self.ledger.identity}.{self.slug}"

    def recover(self) -> None:
        """Finish a step that the brokers have decided and the ledger does not have."""
        if not self.ledger.exists:
            return
        found = decision_of(self.write_name, self._options)
        if found is None or found[0] <= self.ledger.seq:
            return
        seq, note = found
        record = _record(note)
        if record is None or seq != self.ledger.seq + 1:
            raise PipelineError(
                f"{self.ledger.uri}: the brokers have published step {seq} of this topic, and the "
                f"ledger ends with {self.ledger.seq}: an old ledger was restored.  Restore the "
                "newer one, or remove its folder: the pipeline then resumes from the brokers"
            )
        finish(self.write_name, seq, self._options)
        self.ledger.commit(record)

    def lost(self, identity: str) -> tuple[int, dict[str, Any]] | None:
        """What the brokers know of a lost ledger: its last step and the summary."""
        name = f"{identity}.{self.slug}"
        found = decision_of(name, self._options)
        if found is None or not found[1]:
            return None
        try:
            summary = of_sum(found[1])
        except ValueError as error:
            raise PipelineError(f"the note of {name} is damaged: {error}") from None
        finish(name, found[0], self._options)
        return found[0], summary

    def decided(self, query: str) -> int | None:
        """Finish and return the newest batch that a version without ledgers has published."""
        name = f"{query}.{self._old_slug}"
        found = decision_of(name, self._options)
        if found is None:
            return None
        finish(name, found[0], self._options)
        return found[0]

    def write(self, rows: DataFrame, batch: Batch, spans: Sequence[Span]) -> None:
        """Write ``rows`` of messages: topic, body and defer."""
        record = self.ledger.batch_record(batch, spans)
        note = summed(self.ledger, record)
        publish(rows, self._options, self.write_name, record.seq, note)
        self.ledger.commit(record)

    def skip(self, batch: Batch, spans: Sequence[Span]) -> None:
        self.ledger.commit(self.ledger.batch_record(batch, spans))

    def maintain(self) -> None:
        pass

    def finish(self, wait: Callable[[float], bool]) -> None:
        pass


Target = TableTarget | TopicTarget


def targets_of(spark: SparkSession, pipeline: Pipeline) -> Iterator[Target]:
    """Everything that a stream writes to with a ledger; the ledgers are loaded."""
    beside = open_folder(spark, ledger_folder(pipeline))
    slugs: Counter[str] = Counter()
    for sink in pipeline.sinks:
        match sink:
            case ParquetSink() | DeltaSink():
                yield table_target(spark, pipeline, sink)
            case TopicSink():
                old_slug = f"rows{slugs.total() or ''}"
                slug = f"topic-{_plain(sink.topic)}" if sink.topic else "topics"
                slugs[slug] += 1
                if slugs[slug] > 1:
                    slug += f"-{slugs[slug]}"
                name = f"topic {sink.topic}".strip()
                options = sink_options(sink, pipeline)
                yield _topic_target(beside, pipeline, name, (slug, old_slug), options, sink)
    if pipeline.functions and not publishes_at_once(pipeline):
        brokers = source_brokers(pipeline)
        yield _topic_target(beside, pipeline, ASIDES, (ASIDES, ASIDES), brokers)
    if any(source.body == "json" for source in pipeline.sources.values()):
        if pipeline.invalid.path:
            yield invalid_table(spark, pipeline)
        else:
            yield _topic_target(
                beside, pipeline, INVALID, (INVALID, INVALID), source_brokers(pipeline)
            )


def publishes_at_once(pipeline: Pipeline) -> bool:
    """Whether all results of the functions become messages, in one write."""
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    if len(pipeline.sinks) != 1 or len(sinks) != 1 or sinks[0].sql or not pipeline.functions:
        return False
    return sink_options(sinks[0], pipeline) == source_brokers(pipeline)


def table_target(
    spark: SparkSession, pipeline: Pipeline, sink: ParquetSink | DeltaSink
) -> TableTarget:
    path = pipeline.resolve(sink.path)
    name = f"{sink.type} {sink.path}"
    folder = open_folder(spark, path)
    ledger = Ledger(folder, ledger_path(pipeline), pipeline.name, name).load()
    ledger.plain = is_plain(pipeline, sink)
    table: TableWriter
    if isinstance(sink, DeltaSink):
        table = DeltaSinkTable(spark, path, sink.partition_by, ledger, merging_of(sink))
    else:
        table = ParquetTable(spark, folder, sink.partition_by, ledger, merging_of(sink))
    return TableTarget(name, ledger, table, path, sink)


def is_plain(pipeline: Pipeline, sink: ParquetSink | DeltaSink) -> bool:
    """Whether each message becomes one row, so that an audit may compare counts."""
    return not (pipeline.transforms or sink.sql) and all(
        source.format == "nsq" and source.body == "bytes" and not source.dedupe
        for source in pipeline.sources.values()
    )


def invalid_table(spark: SparkSession, pipeline: Pipeline) -> TableTarget:
    path = pipeline.resolve(pipeline.invalid.path)
    folder = open_folder(spark, path)
    name = f"invalid parquet {pipeline.invalid.path}"
    ledger = Ledger(folder, ledger_path(pipeline), pipeline.name, name).load()
    table = ParquetTable(spark, folder, (), ledger, merging_of(pipeline.invalid))
    return TableTarget(name, ledger, table, path, None)


def merging_of(sink: ParquetSink | DeltaSink | Invalid) -> Merging | None:
    """When small files of a sink are merged; None: never."""
    if not sink.compact_after_ns:
        return None
    return Merging(sink.compact_after_ns // NS_PER_MS, sink.compact_files, sink.file_size)


def ledger_path(pipeline: Pipeline) -> str:
    return f"{STATE}/ledger/{pipeline.name}"


def _topic_target(
    folder: Folder,
    pipeline: Pipeline,
    name: str,
    slugs: tuple[str, str],
    options: dict[str, str],
    sink: Sink | None = None,
) -> TopicTarget:
    ledger = Ledger(folder, slugs[0], pipeline.name, name).load()
    return TopicTarget(name, slugs, ledger, options, sink)


def _plain(topic: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", topic)[:64]


def _record(note: str) -> Record | None:
    try:
        return Record.of_json(dict(of_sum(note)["record"]))
    except (ValueError, KeyError, TypeError):
        return None


def coverage_in(summary: Mapping[str, Any]) -> tuple[Coverage, Coverage]:
    """The coverage in a summary, and the part of it from before the ledger."""
    return Coverage(spans_of_rows(summary["ranges"])), Coverage(spans_of_rows(summary["before"]))


def losses_in(summary: Mapping[str, Any]) -> list[Accepted]:
    """The accepted losses in a summary; those of earlier versions have none."""
    return [Accepted.of_json(dict(loss)) for loss in summary.get("losses", ())]


# Decisions of the brokers


def decision_of(name: str, options: dict[str, str]) -> tuple[int, str] | None:
    """The newest step of a write that any node knows, with its note.

    All nodes are asked, and all must respond: any of them may be the coordinator.
    """
    cluster = _cluster(options)
    newest: tuple[int, str] | None = None
    for node in cluster.nodes.values():
        try:
            summary = node.get("/staging/decision", query=name)
        except NodeError as error:
            if error.status == 404:
                continue
            raise
        found = (int(summary["batch"]), str(summary["note"] or ""))
        if newest is None or found[0] > newest[0]:
            newest = found
    return newest


def finish(name: str, batch: int, options: dict[str, str]) -> None:
    """Publish the rest of a decided step; do nothing if that was done."""
    Committer(_cluster(options), "", lasting=True).commit([StagedRows(name, batch, 0)])


def _cluster(options: dict[str, str]) -> Cluster:
    cluster = Cluster(parse_options(options, WRITE))
    cluster.discover(strict=True, everywhere=True)
    return cluster
