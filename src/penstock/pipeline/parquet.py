"""A folder of Parquet files that has every row once, whatever is killed and retried.

    orders/topic=clicks/date=2026-11-15/00000007-00000-1f0c9a4e.parquet    record, number, pipeline
    orders/_common_metadata                              columns, for readers
    orders/_penstock/schema.json                         columns of the table
    orders/_penstock/ledger/<pipeline>/                  what the table has, see `ledger.py`
    orders/_penstock/ledger/<pipeline>/stage-7/...       record 7, being written
    orders/_penstock/ledger/<pipeline>/sealed.json       which files to move where
    orders/_penstock/ledger/<pipeline>/merging.json      merged files, to be removed

Readers skip names that start with "_".  Spark's own file sink instead writes a list of the valid
files, which only Spark reads: other programs also see the files of killed batches.

Rule 1: a batch becomes visible only after it is fully written and its files are listed (sealed).
Rule 2: a sealed batch is finished as it was sealed, never written again.  The same rows may be
        distributed differently over files, and files of both writes would have some rows twice.
Rule 3: what the ledger has is not written again.
Rule 4: merging small files is such a step too.  The new files appear first, and the old ones stay
        for a minute (`replaced_files.py`): a reader of the folder may see rows twice meanwhile, but
        never fewer.  The ledger always has each row once: `files.py` lists its files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline import summary
from penstock.pipeline.compaction import Merger, Merging, Staged
from penstock.pipeline.coverage import Span
from penstock.pipeline.folders import Folder, spark_path
from penstock.pipeline.ledger import Ledger, now_ms
from penstock.pipeline.ledger_records import MERGE, Batch, Record
from penstock.pipeline.replaced_files import Replaced
from penstock.pipeline.staged_files import Moves, staged_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("penstock.pipeline")

STATE = "_penstock"


class ParquetTable:
    """One table as one pipeline writes it; its ledger is loaded."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        partition_by: tuple[str, ...],
        ledger: Ledger,
        merging: Merging | None = None,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._partition_by = partition_by
        self.ledger = ledger
        self.replaced = Replaced(ledger)
        self._merger = Merger(
            ledger, merging, lambda paths, stage: self._rewrite(paths, stage), self._swap
        )

    def recover(self) -> None:
        """Finish a sealed step."""
        sealed = self.ledger.sealed()
        if sealed is not None:
            self._finish(sealed)

    def write(self, rows: DataFrame, batch: Batch, spans: Sequence[Span]) -> int:
        """Write a batch, once, which covers ``spans``; return the number of files."""
        self._check_schema(rows.schema)
        writer = rows.write.mode("overwrite")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(spark_path(f"{self._folder.uri}/{self.begin_stage()}"))
        return self.commit_stage(batch, spans)

    def begin_stage(self) -> str:
        """An empty folder for the files of the next step."""
        stage = self._stage
        self._folder.remove(stage)
        return stage

    def commit_stage(self, batch: Batch, spans: Sequence[Span]) -> int:
        """Move the files of the stage into the table."""
        ledger, stage = self.ledger, self._stage
        prefix = f"{ledger.seq + 1:08d}"
        moves, files = staged_files(self._folder, stage, prefix, ledger.identity)
        self._take_step(stage, moves, ledger.batch_record(batch, spans, files))
        return len(moves)

    @property
    def _stage(self) -> str:
        return f"{self.ledger.path}/stage-{self.ledger.seq + 1}"

    def skip(self, batch: Batch, spans: Sequence[Span]) -> None:
        """Record a batch without rows for this table."""
        self.ledger.commit(self.ledger.batch_record(batch, spans))

    def _take_step(self, stage: str, moves: Moves, record: Record) -> None:
        """Seal a step, carry it out and record it."""
        if not moves and not record.removed:
            self.ledger.commit(record)
            self._folder.remove(stage)
            return
        step = {"stage": stage, "moves": moves, "record": record.as_json()}
        self.ledger.seal(step)
        self._finish(step)

    def _finish(self, step: dict[str, Any]) -> None:
        """Carry out a sealed step; every part may be repeated."""
        record = Record.of_json(step["record"])
        for path, target in step["moves"]:
            self._folder.move(path, target)
        if record.kind == MERGE:
            self.replaced.add(record.merge, record.removed, now_ms())
        # Before the record is committed: afterwards nothing would remove it.
        self._folder.remove(step["stage"])
        self.ledger.commit(record)
        if record.kind != MERGE:
            self._merger.note(record.added)
        self.ledger.unseal()

    def _check_schema(self, schema: StructType) -> None:
        """Allow new columns; a column of another type would make the table unreadable."""
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        text = self._folder.read(f"{STATE}/schema.json")
        known: dict[str, str] = {} if text is None else json.loads(text)
        for name, kind in columns.items():
            if known.get(name, kind) != kind:
                raise PipelineError(
                    f"{self._folder.uri}: the table's column {name} is {known[name]}, "
                    f"the pipeline's is {kind}; cast it in SQL, or write to another folder"
                )
        grown = not columns.keys() <= known.keys()
        if grown or self._folder.read(summary.NAME) is None:
            summary.update_summary(self._folder, known, schema)
        if grown:
            merged = json.dumps({**known, **columns}).encode()
            self._folder.write(f"{STATE}/schema.json", merged)

    # Merging

    def maintain(self) -> None:
        """Between batches: remove files that were replaced, and merge some that are due."""
        self.replaced.sweep(now_ms())
        self._merger.step(now_ms())

    def merge(self, now_ms: int) -> int:
        """Merge what is due at a time, without pauses; return how many files were replaced."""
        return self._merger.step(now_ms, hurry=True)

    def finish(self, wait: Callable[[float], bool]) -> None:
        """Before the end of a run: merge what is due, and remove the files that it replaces.

        ``wait`` sleeps for that many seconds and returns True if the run must end now.
        """
        self._merger.finish(wait)
        while (left_ms := self.replaced.wait_ms(now_ms())) is not None:
            if left_ms:
                left_s = left_ms / 1000
                log.info("%s: exits after removing files in %.0f s", self._folder.uri, left_s)
            if wait(left_ms / 1000):
                return
            self.replaced.sweep(now_ms())

    def _swap(self, staged: Staged) -> bool:
        self._take_step(staged.stage, staged.moves, staged.record(self.ledger))
        return True

    def _rewrite(self, paths: Sequence[str], stage: str, count: int = 1) -> None:
        """Write the rows of some files to the stage, as ``count`` files."""
        rewrite(self._spark, self._folder, paths, stage, count)


def rewrite(
    spark: SparkSession, folder: Folder, paths: Sequence[str], stage: str, count: int = 1
) -> None:
    """Write the rows of some files to ``count`` files in a new folder."""
    uris = [spark_path(f"{folder.uri}/{path}") for path in paths]
    # Without a base path Spark reads the files as they are, without partition columns.
    rows = spark.read.option("mergeSchema", "true").parquet(*uris)
    rows.coalesce(count).write.mode("overwrite").parquet(spark_path(f"{folder.uri}/{stage}"))
