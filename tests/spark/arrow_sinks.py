"""Sinks of a pipeline without Spark: pyarrow makes rows and files, all else is the real sink's.

Parquet   files in a stage, then the real commit of a stage
Delta     the real write, given a frame that only knows how to write itself
topic     the real writer of the data source, as one task
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.pipeline.compaction import Merging
from penstock.pipeline.coverage import Span
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.parquet import ParquetTable
from penstock.spark import writer as write
from penstock.spark.options import WRITE, parse_options
from penstock.spark.packer import Shape

MERGE_ALL = Merging(after_ms=-1000, count_min=2, file_size=1 << 20)

SCHEMA = pa.schema(
    [("topic", pa.string()), ("node", pa.string()), ("index", pa.int64()), ("body", pa.binary())]
)
STRUCT = StructType(
    [
        StructField("topic", StringType()),
        StructField("node", StringType()),
        StructField("index", LongType()),
        StructField("body", BinaryType()),
    ]
)
MESSAGES = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])


def messages_of(rows: pa.Table, topic: str) -> pa.Table:
    """Rows as a topic gets them."""
    return pa.table({"topic": [topic] * rows.num_rows, "body": rows["body"]})


def write_files(folder: Path, tables: Sequence[pa.Table]) -> None:
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number}.parquet")


def halves(rows: pa.Table) -> list[pa.Table]:
    half = rows.num_rows // 2
    return [rows.slice(0, half), rows.slice(half)]


def merged(folder: LocalFolder, paths: Sequence[str], stage: str) -> None:
    tables = [pq.read_table(folder.root / path) for path in paths]
    folder.remove(stage)
    write_files(folder.root / stage, [pa.concat_tables(tables)])


class ArrowTable(ParquetTable):
    """A Parquet table."""

    def __init__(self, folder: LocalFolder, ledger: Ledger) -> None:
        super().__init__(None, folder, (), ledger, MERGE_ALL)  # type: ignore[arg-type]

    def put(self, rows: pa.Table, batch: Batch, spans: Sequence[Span]) -> None:
        stage = self.begin_stage()
        assert isinstance(self._folder, LocalFolder)
        write_files(self._folder.root / stage, halves(rows))
        self.commit_stage(batch, spans)

    def _rewrite(self, paths: Sequence[str], stage: str, count: int = 1) -> None:
        assert isinstance(self._folder, LocalFolder)
        merged(self._folder, paths, stage)


class ArrowDelta(DeltaSinkTable):
    """A Delta table."""

    def __init__(self, folder: LocalFolder, ledger: Ledger) -> None:
        super().__init__(None, folder.uri, (), ledger, MERGE_ALL)  # type: ignore[arg-type]

    def put(self, rows: pa.Table, batch: Batch, spans: Sequence[Span]) -> None:
        self.write(ArrowFrame(rows), batch, spans)  # type: ignore[arg-type]

    def _rewrite(self, paths: Sequence[str], stage: str) -> None:
        assert isinstance(self._folder, LocalFolder)
        merged(self._folder, paths, stage)


class ArrowFrame:
    """As much of a DataFrame as a write needs."""

    schema = STRUCT

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def write(self) -> ArrowFrame:
        return self

    def mode(self, _: str) -> ArrowFrame:
        return self

    def parquet(self, path: str) -> None:
        write_files(Path(path.removeprefix("file://")), halves(self._rows))


class OnlyTask:
    def partitionId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0


def publish_with(step: Callable[[], None]) -> Callable[..., None]:
    """In place of `writing.publish`: staging and deciding are steps."""

    def publish(
        rows: pa.Table, options: dict[str, str], name: str, batch: int, note: str = ""
    ) -> None:
        given = {**options, "writeId": name, "writeBatch": str(batch), "writeNote": note}
        found = parse_options(given, WRITE)
        writer = write.NsqBatchWriter(found, Shape.of(MESSAGES, found))
        step()
        with mock.patch.object(write, "task_of", OnlyTask):
            message: Any = writer.write(iter(rows.to_batches()))
        step()
        writer.commit([message])

    return publish
