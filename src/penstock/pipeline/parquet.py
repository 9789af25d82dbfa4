"""A folder of Parquet files in which every row stands once, whatever is killed and retried.

    orders/topic=clicks/date=2026-11-15/00000007-00000-1f0c9a4e.parquet      batch, number, query
    orders/_common_metadata                                                  columns, for readers
    orders/_penstock/schema.json                                             columns of the table
    orders/_penstock/<query>/stage-7/...                                     batch 7, being written
    orders/_penstock/<query>/sealed.json      what is to be moved to where   batch 7, decided
    orders/_penstock/<query>/done.json        the last batch that is in      batch 7, finished

Readers pass over names that begin with "_".  Spark's own file sink instead keeps a list of the good
files, which only Spark reads: any other program sees the halves of killed batches too.

Rule 1: a batch becomes visible only after it is written whole and its files are listed (sealed).
Rule 2: a batch that is sealed is finished as it was sealed, never written again.  The same rows may
        fall into other files the second time, and files of both would hold some rows twice.
Rule 3: a batch that is done is not written again.
Rule 4: merging small files is such a batch too.  New files come before the old ones go, so a reader
        misses nothing; one that lists files in those milliseconds may see rows twice, and one that
        has listed them before may find one gone: it fails, and is to be run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline import summary
from penstock.pipeline.folders import File, Folder, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STATE = "_penstock"
SUFFIX = ".parquet"
MERGED_FOLDERS_MAX = 100  # in one go, so that a batch never waits long


@dataclass(frozen=True, slots=True)
class Merging:
    """When small files become larger ones: so many in a folder that was quiet for so long."""

    after_ms: int
    count_min: int
    file_size: int


class ParquetTable:
    """One table, as one query writes it."""

    def __init__(
        self, spark: SparkSession, folder: Folder, partition_by: tuple[str, ...], query: str
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._partition_by = partition_by
        self._query = query
        self._state = f"{STATE}/{query}"

    def has(self, batch: int) -> bool:
        """Whether a batch is in, after finishing what was sealed."""
        sealed = self._read("sealed.json")
        if sealed is not None:
            self._finish(sealed)
        done = self._read("done.json")
        return done is not None and int(done["batch"]) >= batch

    def write(self, rows: DataFrame, batch: int) -> int:
        """Put a batch in, once; return how many files it became."""
        if self.has(batch):
            return 0
        self._check_schema(rows.schema)
        moves = self._stage(rows, f"stage-{batch}", f"{batch:08d}")
        sealed = {"batch": batch, "stage": f"stage-{batch}", "moves": moves, "remove": []}
        self._seal(sealed)
        self._finish(sealed)
        return len(moves)

    def _stage(self, rows: DataFrame, name: str, prefix: str) -> list[list[str]]:
        """Write rows aside; return where each file is and where it shall be."""
        stage = f"{self._state}/{name}"
        self._folder.remove(stage)
        writer = rows.write.mode("overwrite")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(spark_path(f"{self._folder.uri}/{stage}"))
        files = sorted(file.path for file in self._folder.files(stage) if _is_data(file.path))
        moves = []
        for number, path in enumerate(files):
            if self._folder.row_count(path) == 0:
                continue  # Spark writes a file for a batch without rows too, so it has columns
            folder = path.removeprefix(f"{stage}/").rpartition("/")[0]
            target = f"{prefix}-{number:05d}-{self._query[:8]}{SUFFIX}"
            moves.append([path, f"{folder}/{target}" if folder else target])
        return moves

    def _seal(self, sealed: dict[str, Any]) -> None:
        self._folder.write(f"{self._state}/sealed.json", json.dumps(sealed).encode())

    def _finish(self, sealed: dict[str, Any]) -> None:
        """Every step may be repeated."""
        for path, target in sealed["moves"]:
            self._folder.move(path, target)
        for path in sealed["remove"]:
            self._folder.remove(path)
        if sealed["batch"] is not None:
            done = json.dumps({"batch": sealed["batch"]}).encode()
            self._folder.write(f"{self._state}/done.json", done)
        self._folder.remove(f"{self._state}/{sealed['stage']}")
        self._folder.remove(f"{self._state}/sealed.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        text = self._folder.read(f"{self._state}/{name}")
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    def _check_schema(self, schema: StructType) -> None:
        """New columns are welcome; one of another type would make the table unreadable."""
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

    def merge(self, merging: Merging, now_ms: int) -> int:
        """Make large files of small ones; return how many small ones went."""
        self.has(-1)
        merged_count = 0
        for number, (folder, small) in enumerate(due(self._folder.files(), merging, now_ms)):
            self._merge(folder, small, merging, now_ms, number)
            merged_count += len(small)
        return merged_count

    def _merge(
        self, folder: str, small: list[File], merging: Merging, now_ms: int, number: int
    ) -> None:
        paths = [spark_path(f"{self._folder.uri}/{file.path}") for file in small]
        # Without a base path Spark takes these as files without partition columns, as they are.
        rows = self._spark.read.option("mergeSchema", "true").parquet(*paths)
        count = max(1, round(sum(file.size for file in small) / merging.file_size))
        # The number keeps apart what one pass makes of two folders.
        stage = f"merge-{now_ms}-{number}"
        uri = f"{self._folder.uri}/{self._state}/{stage}"
        rows.coalesce(count).write.mode("overwrite").parquet(spark_path(uri))
        moves = []
        files = self._folder.files(f"{self._state}/{stage}")
        for part, path in enumerate(sorted(file.path for file in files if _is_data(file.path))):
            target = f"{stage}-{part:05d}-{self._query[:8]}{SUFFIX}"
            moves.append([path, f"{folder}/{target}" if folder else target])
        remove = [file.path for file in small]
        sealed = {"batch": None, "stage": stage, "moves": moves, "remove": remove}
        self._seal(sealed)
        self._finish(sealed)


def due(files: Iterable[File], merging: Merging, now_ms: int) -> list[tuple[str, list[File]]]:
    """What to merge: folders that nothing came to for a while, and their small files.

    A query that has listed files fails when one of them goes.  So a folder is left alone as long
    as it grows, and is merged once, not over and over.
    """
    folders: dict[str, list[File]] = {}
    for file in files:
        if _is_data(file.path) and not file.path.startswith(f"{STATE}/"):
            folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    found = []
    for folder, members in folders.items():
        quiet = max(file.modified_ms for file in members) <= now_ms - merging.after_ms
        small = [file for file in members if file.size < merging.file_size // 2]
        if quiet and len(small) >= merging.count_min:
            found.append((folder, sorted(small, key=lambda file: file.path)))
    found.sort(key=lambda item: -len(item[1]))
    return found[:MERGED_FOLDERS_MAX]


def _is_data(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(SUFFIX) and not name.startswith((".", "_"))
