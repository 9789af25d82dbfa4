"""A Delta table written through deltalake: Spark writes the files, deltalake the log.

A commit to the log contains (pipeline, record) as the format's application transaction, which shows
whether an interrupted step is in the table.  Its properties also contain the ends of everything the
table covers, in case the ledger is lost.  Files of a batch that was killed before its commit are in
no version of the table; the next start removes them.

Small files are merged in one commit, which removes them and adds the large one: every version has
each row once.  Queries on older versions need the old files, so those of this pipeline are removed
when the table's own retention ends (`delta.deletedFileRetentionDuration`, a week by default).
Files of others are never removed: that is up to whoever runs VACUUM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.errors import PipelineError
from penstock.pipeline.compaction import Merger, Merging, Staged
from penstock.pipeline.coverage import Span
from penstock.pipeline.folders import spark_path
from penstock.pipeline.ledger import Ledger, now_ms, of_sum, summed
from penstock.pipeline.ledger_records import Batch, DataFile, Record
from penstock.pipeline.parquet import rewrite
from penstock.pipeline.staged_files import SUFFIX, staged_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NULL = "__HIVE_DEFAULT_PARTITION__"
COMMIT_TRIES_MAX = 10
HISTORY_MAX = 1000  # commits searched for one of this pipeline
CLEAR_INTERVAL_S = 3600.0


class DeltaSinkTable:
    """One table as one pipeline writes it; its ledger is loaded."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        partition_by: tuple[str, ...],
        ledger: Ledger,
        merging: Merging | None = None,
    ) -> None:
        if "://" in path:
            raise PipelineError(f"{path}: a Delta table needs a local path")
        self._spark = spark
        self._folder = ledger.folder
        self._partition_by = partition_by
        self._ledger = ledger
        self._merger = Merger(
            ledger,
            merging,
            lambda paths, stage: self._rewrite(paths, stage),
            self._swap,
            self._live,
        )
        self._clear_s = 0.0

    @property
    def _application(self) -> str:
        return f"penstock/{self._ledger.head.pipeline}"

    def recover(self) -> None:
        """Record an interrupted step that is in the table, or undo one that is not."""
        sealed = self._ledger.sealed()
        if sealed is None:
            return
        record = Record.of_json(sealed["record"])
        table = self._open()
        version = None if table is None else table.transaction_version(self._application)
        if version is not None and version >= record.seq:
            self._ledger.commit(record)
        else:
            for file in record.added:
                self._folder.remove(file.path)
        self._ledger.unseal()

    def lost(self) -> tuple[int, dict[str, Any]] | None:
        """What the table's log knows of a lost ledger: its last step and the summary."""
        table = self._open()
        version = None if table is None else table.transaction_version(self._application)
        if table is None or version is None:
            return None
        for commit in table.history(HISTORY_MAX):
            if text := commit.get(self._application):
                try:
                    return version, of_sum(str(text))
                except ValueError as error:
                    raise PipelineError(
                        f"{self._folder.uri}: the ledger's summary in Delta's log is damaged: "
                        f"{error}"
                    ) from None
        return None

    def write(self, rows: DataFrame, batch: Batch, spans: Sequence[Span]) -> int:
        """Write a batch, once, which covers ``spans``; return the number of files."""
        ledger = self._ledger
        stage = f"{ledger.path}/stage-{ledger.seq + 1}"
        self._folder.remove(stage)
        writer = rows.write.mode("overwrite")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(spark_path(f"{self._folder.uri}/{stage}"))
        moves, files = staged_files(self._folder, stage, f"{ledger.seq + 1:08d}", ledger.identity)
        record = ledger.batch_record(batch, spans, files)
        if files:
            ledger.seal({"record": record.as_json()})
            for path, target in moves:
                self._folder.move(path, target)
            self._commit(rows, [self._entry(file) for file in files], record)
        ledger.commit(record)
        ledger.unseal()
        self._folder.remove(stage)
        self._merger.note(files)
        return len(files)

    def skip(self, batch: Batch, spans: Sequence[Span]) -> None:
        """Record a batch without rows for this table."""
        self._ledger.commit(self._ledger.batch_record(batch, spans))

    # Merging

    def maintain(self) -> None:
        """Between batches: merge some files that are due."""
        self._merger.step(now_ms())

    def merge(self, now_ms: int) -> int:
        """Merge what is due at a time, without pauses; return how many files were replaced."""
        return self._merger.step(now_ms, hurry=True)

    def finish(self, wait: Callable[[float], bool]) -> None:
        """Before the end of a run: merge what is due."""
        self._merger.finish(wait)

    def _rewrite(self, paths: Sequence[str], stage: str) -> None:
        rewrite(self._spark, self._folder, paths, stage)

    def _swap(self, staged: Staged) -> bool:
        ledger, record = self._ledger, staged.record(self._ledger)
        ledger.seal({"record": record.as_json()})
        for path, target in staged.moves:
            self._folder.move(path, target)
        self._folder.remove(staged.stage)
        swapped = self._replace(record)
        if swapped:
            ledger.commit(record)
        else:
            for file in record.added:
                self._folder.remove(file.path)
        ledger.unseal()
        if swapped:
            self._clear()
        return swapped

    def _replace(self, record: Record) -> bool:
        """Commit a merge; False if the log no longer has all of the old files.

        deltalake does not detect two commits that remove the same file, and its rows would appear
        twice.  So it must not retry by itself: each try reads the newest version.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        for _ in range(COMMIT_TRIES_MAX):
            table = self._open()
            sizes = {} if table is None else _sizes(table)
            if table is None or not sizes.keys() >= set(record.removed):
                return False
            actions = [self._entry(file, data_change=False) for file in record.added]
            actions += [
                RemoveAction(path, False, record.at_ms, sizes[path], _values(path))
                for path in record.removed
            ]
            try:
                self._commit_actions(table, actions, table.schema(), record, tries=0)
            except CommitFailedError:
                continue
            return True
        return False

    def _live(self) -> Collection[str]:
        table = self._open()
        return set() if table is None else _sizes(table).keys()

    def _clear(self) -> None:
        """Remove files that this pipeline's merges have replaced and that no version needs."""
        table = self._open()
        if table is None or time.monotonic() < self._clear_s:
            return
        self._clear_s = time.monotonic() + CLEAR_INTERVAL_S
        own = f"-{self._ledger.identity[:8]}{SUFFIX}"
        old = {path for path in table.vacuum(dry_run=True) if path.endswith(own)}
        for path in old - self._ledger.live_files().keys() if old else ():
            self._folder.remove(path)

    # Delta's log

    def _entry(self, file: DataFile, *, data_change: bool = True) -> Any:
        """The log entry for a file."""
        from deltalake.transaction import AddAction

        modified_ms = self._folder.modified_ms(file.path) or 0
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(file.path, file.size, _values(file.path), modified_ms, data_change, stats)

    def _commit(self, rows: DataFrame, added: list[Any], record: Record) -> None:
        from deltalake.exceptions import DeltaError

        schema = _arrow_schema(rows)
        table = self._fitting(schema)
        try:
            self._commit_actions(table, added, schema, record)
        except (DeltaError, ValueError) as error:
            raise PipelineError(f"{self._folder.uri}: {error}") from None

    def _commit_actions(
        self, table: Any, actions: list[Any], schema: Any, record: Record, tries: int | None = None
    ) -> None:
        from deltalake.transaction import CommitProperties, Transaction

        properties = CommitProperties(
            app_transactions=[Transaction(self._application, record.seq)],
            custom_metadata={self._application: summed(self._ledger, record)},
            max_commit_retries=tries,
        )
        partition_by = list(self._partition_by) or None
        table.create_write_transaction(
            actions, "append", schema, partition_by, commit_properties=properties
        )

    def _fitting(self, schema: Any) -> Any:
        """The table, created or extended with new columns; deltalake itself accepts anything."""
        import pyarrow as pa
        from deltalake import DeltaTable, Schema

        table = self._open()
        if table is None:
            partition_by = list(self._partition_by) or None
            return DeltaTable.create(self._folder.uri, schema, partition_by=partition_by)
        known = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        new = []
        for field in schema:
            kind = known.get(field.name)
            if kind is None:
                new.append(field)
            elif _plain(kind) != _plain(field.type):
                raise PipelineError(
                    f"{self._folder.uri}: the table's column {field.name} is {kind}, "
                    f"the pipeline's is {field.type}; cast it in SQL, or write to another folder"
                )
        if new:
            table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)
        return table

    def _open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._folder.uri) if DeltaTable.is_deltatable(self._folder.uri) else None


def _values(path: str) -> dict[str, str | None]:
    """The partition values of a file, from its folders."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        column, _, text = part.partition("=")
        values[column] = None if text == NULL else unquote(text)
    return values


def _sizes(table: Any) -> dict[str, int]:
    """The sizes of a version's files, by path."""
    import pyarrow as pa

    actions = pa.table(table.get_add_actions())
    paths = map(unquote, actions["path"].to_pylist())
    return dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))


def _arrow_schema(rows: DataFrame) -> Any:
    """Make every column nullable: what the first batch has must not be required of all."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in schema])


def _plain(kind: Any) -> str:
    return str(kind).replace("large_", "").replace("_view", "")
