"""A pipeline run without Spark: micro-batches as MicroBatchExecution makes them, in this process.

    settle -> latestOffset -> offsets/N -> commit(end of N-1) -> read -> tables -> commits/N

Everything but Spark is real: settling, the stream reader, the ranges of a batch, the ledgers and
the sinks.  Files are written with pyarrow, see `arrow_sinks.py`.

Rule 1: every change of a file and every commit to the broker is a step.  Before any of them the
        process can be killed, or something else can happen.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import DataLossError
from penstock.pipeline import folders, targets
from penstock.pipeline.batch_ranges import BatchRanges
from penstock.pipeline.batches import Part, parts_of
from penstock.pipeline.coverage import Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import now_ms
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.losses import ACCEPT, Answers, lost_messages
from penstock.pipeline.reconciliation import Settled, Settling
from penstock.pipeline.replaced_files import GRACE_MS
from penstock.pipeline.spec import DeltaSink, Pipeline, TopicSink, channel_of
from penstock.pipeline.stream_options import stream_options
from penstock.pipeline.targets import TableTarget, Target, TopicTarget
from penstock.spark.options import STREAM, parse_options
from penstock.spark.stream import NsqStreamReader
from tests.spark.arrow_sinks import SCHEMA, ArrowDelta, ArrowTable, messages_of, publish_with

COLUMNS = ("topic", "node", "index", "body")
BATCHES_MAX = 60


class Killed(BaseException):
    """The process is gone: nothing of it handles this."""


class KilledInBatch(Exception):
    """The same on a thread of Spark's, which would wait for ever for a thread that is gone."""


def kill() -> None:
    if threading.current_thread() is threading.main_thread():
        raise Killed
    raise KilledInBatch


@dataclass
class Steps:
    """The steps of one run, and what happens before some of them."""

    before: dict[int, Callable[[], None]] = field(default_factory=dict)
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        if event := self.before.pop(self.count, None):
            event()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Every folder that is opened inside takes its steps here."""
        with (
            mock.patch.object(folders, "open_local", lambda uri: SteppedFolder(uri, self)),
            mock.patch.object(os, "fsync", lambda descriptor: None),
        ):
            yield


class SteppedFolder(LocalFolder):
    """A folder of this machine; each change is a step."""

    def __init__(self, uri: str, steps: Steps) -> None:
        super().__init__(uri.removeprefix("file://").removeprefix("file:"))
        self._steps = steps

    def write(self, path: str, data: bytes) -> None:
        self._steps()
        super().write(path, data)

    def move(self, path: str, target: str) -> None:
        self._steps()
        super().move(path, target)

    def move_folder(self, path: str, target: str) -> None:
        self._steps()
        super().move_folder(path, target)

    def remove(self, path: str) -> None:
        self._steps()
        super().remove(path)


class MicroBatches:
    """One run over what there is; ``retained`` is Spark's minBatchesToRetain."""

    def __init__(
        self, pipeline: Pipeline, answers: Answers, steps: Steps, *, retained: int, merges: bool
    ) -> None:
        self._pipeline = pipeline
        self._answers = answers
        self._steps = steps
        self._retained = retained
        self._merges = merges

    def run(self) -> None:
        """Return when all is read; PenstockError says why it could not be."""
        publish = mock.patch.object(targets, "publish", publish_with(self._steps))
        with self._steps.counted(), publish:
            settled = Settling(
                None,  # type: ignore[arg-type]
                self._pipeline,
                self._answers,
                stateful=False,
            ).settle()
            (name,) = self._pipeline.sources
            topics = self._pipeline.sources[name].topics
            taken = self._answers.take_over
            options = stream_options(self._pipeline, name, topics, settled, taken)
            reader = NsqStreamReader(parse_options(options, STREAM, {}), COLUMNS)
            try:
                self._stream(settled, reader)
            except DataLossError as error:
                channels = dict.fromkeys(topics, channel_of(self._pipeline, name))
                waiting = lost_messages(error.losses, channels)
                raise settled.questions.stop(waiting, str(error), (ACCEPT,)) from error
            finally:
                reader.stop()

    def _stream(self, settled: Settled, reader: NsqStreamReader) -> None:
        log = Log(settled.offsets.folder)
        query = log.query()
        taking = Taking(
            settled, reader, BatchRanges(self._pipeline, settled.offsets, settled.identity.text)
        )
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows)
        number, start, end = log.resume()
        for _ in range(BATCHES_MAX):
            start = start if start is not None else reader.initialOffset()
            if end is None:
                end = reader.latestOffset(start, limit)
                if end == start:
                    return
                log.plan(number, end)
                if number:
                    self._steps()
                    reader.commit(log.offset(number - 1))
                log.forget(number - self._retained)
            taking.take(query, number, start, end)
            if self._merges:
                taking.merge()
            log.commit(number)
            number, start, end = number + 1, end, None
        raise AssertionError("the run does not end")


class Taking:
    """What foreachBatch does."""

    def __init__(self, settled: Settled, reader: NsqStreamReader, ranges: BatchRanges) -> None:
        self._settled = settled
        self._targets = settled.targets
        self._log_count = self._count_logs()
        self._reader = reader
        self._ranges = ranges

    def take(self, query: str, number: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        batch = Batch(query, number, self._ranges.of(number))
        for part in parts_of(batch, self._targets, self._ranges):
            if part.empty:
                for target in part.targets:
                    target.skip(batch, part.spans)
                continue
            rows = self._read(part, start, end)
            for target in part.tables:
                self._table(target).put(rows, batch, part.spans)
            for target in part.topics:
                assert isinstance(target.sink, TopicSink)
                messages: Any = messages_of(rows, target.sink.topic)
                target.write(messages, batch, part.spans)
        if self._log_count != (found := self._count_logs()):
            self._log_count = found
            self._settled.note()

    def _count_logs(self) -> int:
        return sum(len(target.ledger.coverage.logs) for target in self._targets)

    def _read(self, part: Part, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        partitions = self._reader.partitions(start, end)
        found = [batch for each in partitions for batch in self._reader.read(each)]
        rows = [row for batch in found for row in batch.to_pylist()]
        if not part.whole:
            rows = [row for row in rows if any(_inside(row, span) for span in part.spans)]
        return pa.Table.from_pylist(rows, SCHEMA)

    def merge(self) -> None:
        for target in self._targets:
            if isinstance(target, TopicTarget):
                continue
            table = self._table(target)
            if isinstance(table, ArrowTable):
                table.replaced.sweep(now_ms() + GRACE_MS)
            table.merge(now_ms())

    def _table(self, target: Target) -> ArrowTable | ArrowDelta:
        assert isinstance(target, TableTarget)
        ledger = target.ledger
        assert isinstance(ledger.folder, LocalFolder)
        kind = ArrowDelta if isinstance(target.sink, DeltaSink) else ArrowTable
        return kind(ledger.folder, ledger)


def _inside(row: dict[str, Any], span: Span) -> bool:
    where = (row["node"], row["topic"]) == (span.log.node, span.log.topic)
    return where and span.start <= row["index"] < span.end


class Log:
    """Spark's side of a checkpoint."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def query(self) -> str:
        data = self._folder.read("metadata")
        if data is None:
            data = json.dumps({"id": str(uuid.uuid4())}).encode()
            self._folder.write("metadata", data)
        return str(json.loads(data)["id"])

    def resume(self) -> tuple[int, dict[str, Any] | None, dict[str, Any] | None]:
        """The next batch, where it begins, and where it ends if it is planned."""
        planned, committed = self._numbers("offsets"), self._numbers("commits")
        if not planned:
            return 0, None, None
        last = planned[-1]
        if committed and committed[-1] == last:
            return last + 1, self.offset(last), None
        return last, self.offset(last - 1) if last else None, self.offset(last)

    def _numbers(self, name: str) -> list[int]:
        names = (file.path.rpartition("/")[2] for file in self._folder.files(name))
        return sorted(int(name) for name in names if name.isdecimal())

    def offset(self, number: int) -> dict[str, Any]:
        data = self._folder.read(f"offsets/{number}")
        assert data is not None, f"batch {number} doesn't exist"
        found: dict[str, Any] = json.loads(data.decode().splitlines()[2])
        return found

    def plan(self, number: int, end: dict[str, Any]) -> None:
        lines = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}', json.dumps(end)]
        self._folder.write(f"offsets/{number}", "\n".join(lines).encode())

    def commit(self, number: int) -> None:
        self._folder.write(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')

    def forget(self, last: int) -> None:
        for name in ("offsets", "commits"):
            for number in self._numbers(name):
                if number <= last:
                    self._folder.remove(f"{name}/{number}")
