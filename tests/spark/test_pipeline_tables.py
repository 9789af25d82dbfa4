"""Tables: a batch is in once, wherever it is cut off; small files become large ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PipelineError
from penstock.pipeline.compaction import Merging
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.folders import Folder, HadoopFolder, LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.parquet import ParquetTable
from tests.support.cut_folder import Cut, CutFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)

ALL = Merging(after_ms=0, count_min=2, file_size=10**8)
LATER_MS = 10**13


def table_in(
    spark: SparkSession, folder: Folder, partition_by: tuple[str, ...] = ("part",)
) -> ParquetTable:
    table = ParquetTable(spark, folder, partition_by, ledger_in(folder), ALL)
    table.recover()
    return table


def ledger_in(folder: Folder) -> Ledger:
    ledger = Ledger(folder, "_penstock/ledger/test", "test", "parquet t").load()
    ledger.create("query", ["parquet t"])
    return ledger


def put(table: ParquetTable | DeltaSinkTable, ledger: Ledger, frame: DataFrame, batch: int) -> None:
    """As `batches.py` does it."""
    told = Batch("query", batch, numbered=True)
    if ledger.to_write(told) is not None:
        table.write(frame, told, ())


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
        def change(folder: Folder) -> None:
            table = table_in(spark, folder)
            put(table, table.ledger, rows(spark, batch), batch)

        return change

    assert cut_everywhere(tmp_path, write(0)) >= 4
    cut_everywhere(tmp_path, write(1))
    assert contents(spark, tmp_path) == list(range(20))
    # Again, as after a checkpoint that was not written.
    write(1)(LocalFolder(str(tmp_path)))
    assert contents(spark, tmp_path) == list(range(20))
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert names == [
        "part=a%3A0/00000001-00000-query.parquet",
        "part=a%3A0/00000002-00000-query.parquet",
        "part=a%3A1/00000001-00001-query.parquet",
        "part=a%3A1/00000002-00001-query.parquet",
    ]

    def merge(folder: Folder) -> None:
        table = table_in(spark, folder)
        table.merge(LATER_MS)
        table.replaced.sweep(LATER_MS)

    cut_everywhere(tmp_path, merge)
    assert contents(spark, tmp_path) == list(range(20))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    left = {path.name for path in (tmp_path / "_penstock/ledger/test").iterdir()}
    assert left == {"head.json", *(f"{number:012d}.json" for number in (1, 2, 3))}


def test_a_batch_without_rows_makes_no_file(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, LocalFolder(str(tmp_path)), ())
    assert table.write(rows(spark, 0).filter("id < 0"), Batch("query", 0), ()) == 0
    assert list(tmp_path.rglob("*.parquet")) == []
    assert table.ledger.to_write(Batch("query", 0, numbered=True)) is None


def test_new_columns_are_taken_and_other_types_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, LocalFolder(str(tmp_path)), ())
    put(table, table.ledger, rows(spark, 0), 0)
    put(table, table.ledger, rows(spark, 1).withColumnRenamed("part", "more"), 1)
    with pytest.raises(PipelineError, match="column id is bigint, the pipeline's is string"):
        put(table, table.ledger, rows(spark, 2).selectExpr("CAST(id AS STRING) AS id"), 2)
    merged = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert set(merged.columns) == {"id", "part", "more"}
    assert merged.count() == 20


def test_hadoop_s_files_do_as_well(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, f"file://{tmp_path}")
    table = table_in(spark, folder)
    for batch in (0, 1, 1):
        put(table, table.ledger, rows(spark, batch), batch)
    assert contents(spark, tmp_path) == list(range(20))
    assert table.merge(LATER_MS) == 4
    table.replaced.sweep(LATER_MS)
    assert contents(spark, tmp_path) == list(range(20))
    assert folder.read("none") is None
    # A write of a small file that was cut off between its two steps.
    (tmp_path / "state.json.new").write_text("{}")
    assert folder.read("state.json") == b"{}"


def test_a_delta_table_has_a_batch_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    ledger = ledger_in(LocalFolder(str(tmp_path)))
    table = DeltaSinkTable(spark, str(tmp_path), ("part",), ledger)
    for batch in (0, 1, 1):
        put(table, ledger, rows(spark, batch), batch)
    # Cut off before the commit: its files belong to no version.
    with monkeypatch.context() as patch:
        patch.setattr(DeltaSinkTable, "_commit", lambda *_: (_ for _ in ()).throw(Cut))
        with pytest.raises(Cut):
            put(table, ledger, rows(spark, 2), 2)
    table.recover()
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 20
    put(table, ledger, rows(spark, 2).selectExpr("*", "1 AS more"), 2)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(30))
    assert set(found["part"].to_pylist()) == {"a:0", "a:1"}
    assert found["more"].null_count == 20
    with pytest.raises(PipelineError, match="column id is int64, the pipeline's is string"):
        put(table, ledger, rows(spark, 3).selectExpr("CAST(id AS STRING) AS id", "part"), 3)
    with pytest.raises(PipelineError, match="a Delta table needs a local path"):
        DeltaSinkTable(spark, "s3://bucket/x", (), ledger)
