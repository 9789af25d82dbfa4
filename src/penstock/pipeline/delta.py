"""A Delta table written through deltalake: Spark writes the files, deltalake the log.

A commit to the log carries (query, batch) as the format's application transaction, so a batch that
is repeated is seen to be there.  Files of a batch that was killed before its commit are in no
version of the table; DeltaTable.vacuum() removes them like any other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.errors import PipelineError
from penstock.pipeline.folders import File, LocalFolder, spark_path
from penstock.pipeline.parquet import SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NULL = "__HIVE_DEFAULT_PARTITION__"
STAGE = "_penstock"


class DeltaSinkTable:
    """One table, as one query writes it."""

    def __init__(self, path: str, partition_by: tuple[str, ...], query: str) -> None:
        if "://" in path:
            raise PipelineError(f"{path}: Delta tables are written on this machine's files only")
        self._folder = LocalFolder(path)
        self._partition_by = partition_by
        self._query = query

    def has(self, batch: int) -> bool:
        table = self._open()
        version = None if table is None else table.transaction_version(self._query)
        return version is not None and version >= batch

    def write(self, rows: DataFrame, batch: int) -> int:
        """Put a batch in, once; return how many files it became."""
        if self.has(batch):
            return 0
        stage = f"{STAGE}/{self._query}-{batch}"
        self._folder.remove(stage)
        writer = rows.write.mode("overwrite")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(spark_path(f"{self._folder.uri}/{stage}"))
        added = []
        for number, file in enumerate(sorted(self._folder.files(stage), key=lambda f: f.path)):
            if file.path.endswith(SUFFIX):
                added.append(self._take(file, stage, f"{batch:08d}-{number:05d}"))
        if added:
            self._commit(rows, added, batch)
        self._folder.remove(stage)
        return len(added)

    def _take(self, file: File, stage: str, name: str) -> Any:
        """Move a file to where it stays; return the log's entry for it."""
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction

        folder = file.path.removeprefix(f"{stage}/").rpartition("/")[0]
        target = f"{folder}/{name}-{self._query[:8]}{SUFFIX}".lstrip("/")
        self._folder.move(file.path, target)
        count = pq.read_metadata(Path(self._folder.uri) / target).num_rows
        values: dict[str, str | None] = {}
        for part in folder.split("/") if folder else []:
            column, _, text = part.partition("=")
            values[column] = None if text == NULL else unquote(text)
        stats = json.dumps({"numRecords": count})
        return AddAction(target, file.size, values, file.modified_ms, True, stats)

    def _commit(self, rows: DataFrame, added: list[Any], batch: int) -> None:
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import CommitProperties, Transaction

        schema = _arrow_schema(rows)
        table = self._fitting(schema)
        properties = CommitProperties(app_transactions=[Transaction(self._query, batch)])
        partition_by = list(self._partition_by) or None
        try:
            table.create_write_transaction(
                added, "append", schema, partition_by, commit_properties=properties
            )
        except (DeltaError, ValueError) as error:
            raise PipelineError(f"{self._folder.uri}: {error}") from None

    def _fitting(self, schema: Any) -> Any:
        """The table, made or with new columns if need be; deltalake itself would take anything."""
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


def _arrow_schema(rows: DataFrame) -> Any:
    """Every column may be null: what is so in the first batch must not be asked of all."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in schema])


def _plain(kind: Any) -> str:
    return str(kind).replace("large_", "").replace("_view", "")
