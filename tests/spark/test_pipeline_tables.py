"""Tables: a batch is in once, wherever it is cut off; small files become large ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PipelineError
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.folders import Folder, HadoopFolder, LocalFolder
from penstock.pipeline.parquet import Merging, ParquetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)

ALL = Merging(after_ms=0, count_min=2, file_size=10**8)
LATER_MS = 10**13


class Cut(Exception):
    """In place of a kill."""


class CutFolder(LocalFolder):
    """Fails before the n-th change; a kill would leave the same."""

    def __init__(self, path: str, change_count: int) -> None:
        super().__init__(path)
        self.left = change_count

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cut

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def move(self, path: str, target: str) -> None:
        self._count()
        super().move(path, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def rows(spark: SparkSession, batch: int) -> DataFrame:
    numbers = spark.range(batch * 10, batch * 10 + 10, 1, 1)
    return numbers.selectExpr("id", "concat('a:', id % 2) AS part")


def contents(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.parquet(str(path)).collect())


def cut_everywhere(path: Path, change: Callable[[Folder], Any]) -> int:
    """Do it, cut off before each of its changes in turn; return how many there were."""
    for count in range(1000):
        folder = CutFolder(str(path), count)
        try:
            change(folder)
            return count
        except Cut:
            pass
    raise AssertionError("it never came to its end")


def test_a_batch_is_in_once_wherever_it_is_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    def write(batch: int) -> Callable[[Folder], Any]:
        return lambda folder: ParquetTable(spark, folder, ("part",), "query").write(
            rows(spark, batch), batch
        )

    assert cut_everywhere(tmp_path, write(0)) >= 4
    cut_everywhere(tmp_path, write(1))
    assert contents(spark, tmp_path) == list(range(20))
    # Again, as after a checkpoint that was not written.
    write(1)(LocalFolder(str(tmp_path)))
    write(0)(LocalFolder(str(tmp_path)))
    assert contents(spark, tmp_path) == list(range(20))
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert names == [
        "part=a%3A0/00000000-00000-query.parquet",
        "part=a%3A0/00000001-00000-query.parquet",
        "part=a%3A1/00000000-00001-query.parquet",
        "part=a%3A1/00000001-00001-query.parquet",
    ]

    def merge(folder: Folder) -> int:
        return ParquetTable(spark, folder, ("part",), "query").merge(ALL, LATER_MS)

    cut_everywhere(tmp_path, merge)
    assert contents(spark, tmp_path) == list(range(20))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert {path.name for path in (tmp_path / "_penstock" / "query").iterdir()} == {"done.json"}


def test_a_batch_without_rows_makes_no_file(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(spark, LocalFolder(str(tmp_path)), (), "query")
    assert table.write(rows(spark, 0).filter("id < 0"), 0) == 0
    assert list(tmp_path.rglob("*.parquet")) == []
    assert table.has(0)


def test_new_columns_are_taken_and_other_types_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(spark, LocalFolder(str(tmp_path)), (), "query")
    table.write(rows(spark, 0), 0)
    table.write(rows(spark, 1).withColumnRenamed("part", "more"), 1)
    with pytest.raises(PipelineError, match="column id is bigint, the pipeline's is string"):
        table.write(rows(spark, 2).selectExpr("CAST(id AS STRING) AS id"), 2)
    merged = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert set(merged.columns) == {"id", "part", "more"}
    assert merged.count() == 20


def test_hadoop_s_files_do_as_well(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, f"file://{tmp_path}")
    table = ParquetTable(spark, folder, ("part",), "query")
    for batch in (0, 1, 1):
        table.write(rows(spark, batch), batch)
    assert contents(spark, tmp_path) == list(range(20))
    assert table.merge(ALL, LATER_MS) == 4
    assert contents(spark, tmp_path) == list(range(20))
    assert folder.read("none") is None
    # A write of a small file that was cut off between its two steps.
    (tmp_path / "state.json.new").write_text("{}")
    assert folder.read("state.json") == b"{}"


def test_a_delta_table_has_a_batch_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    table = DeltaSinkTable(str(tmp_path), ("part",), "query")
    for batch in (0, 1, 1, 0):
        table.write(rows(spark, batch), batch)
    # Cut off before the commit: its files belong to no version.
    with monkeypatch.context() as patch:
        patch.setattr(DeltaSinkTable, "_commit", lambda *_: (_ for _ in ()).throw(Cut))
        with pytest.raises(Cut):
            table.write(rows(spark, 2), 2)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 20
    table.write(rows(spark, 2).selectExpr("*", "1 AS more"), 2)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(30))
    assert set(found["part"].to_pylist()) == {"a:0", "a:1"}
    assert found["more"].null_count == 20
    with pytest.raises(PipelineError, match="column id is int64, the pipeline's is string"):
        table.write(rows(spark, 3).selectExpr("CAST(id AS STRING) AS id", "part"), 3)
    with pytest.raises(PipelineError, match="on this machine's files only"):
        DeltaSinkTable("s3://bucket/x", (), "query")
