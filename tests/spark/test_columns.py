"""A column that comes later shows to readers, as docs/spark.md says how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from deltalake import DeltaTable

from penstock.pipeline.spec import Pipeline
from penstock.pipeline.summary import NAME
from tests.spark.pipelines import declared, publish, run
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


def pipeline(folder: Path, nsqd: Nsqd, sql: str) -> Pipeline:
    return declared(
        folder,
        nsqd,
        source={"topics": "0*", "body": "json", "schema": "n bigint"},
        transform=[{"sql": sql}],
        sink=[
            {"type": "parquet", "path": "table", "partition_by": ["topic", "hour"]},
            {"type": "delta", "path": "delta", "partition_by": ["topic"]},
        ],
    )


FIRST = "SELECT n, nsq_topic AS topic, nsq_timestamp AS timestamp FROM input"
LATER = FIRST.replace(" FROM", ", array(n, 2) AS more, CAST(n AS DECIMAL(10, 2)) AS cost FROM")
OTHER = FIRST.replace(" FROM", ", named_struct('a b', n) AS last FROM")
NAMES = ["n", "topic", "timestamp", "hour", "more", "cost"]


def test_a_new_column_shows_to_readers(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number, sql in enumerate((FIRST, LATER)):
        publish(nsqd, "007", [{"n": number}])
        run(spark, pipeline(tmp_path, nsqd, sql), tmp_path)
    # Spark, as it is.
    found = spark.read.parquet(str(table)).orderBy("n")
    assert found.columns == NAMES
    assert found.schema["cost"].dataType.simpleString() == "decimal(10,2)"
    assert [row["more"] for row in found.collect()] == [None, [1, 2]]
    # Others are given its schema, and topics stay texts.
    schema = pyarrow.parquet.read_schema(table / NAME)
    for rows in (
        pyarrow.dataset.dataset(table, schema=schema, partitioning="hive").to_table(),
        pyarrow.parquet.read_table(table, schema=schema),
    ):
        assert rows.column_names == NAMES
        assert sorted(rows["n"].to_pylist()) == [0, 1]
        assert rows["topic"].to_pylist() == ["007", "007"]
        assert [1, 2] in rows["more"].to_pylist()
    # A Delta table has its columns in its log.
    columns = pyarrow.schema(DeltaTable(tmp_path / "delta").schema().to_arrow()).names
    assert set(NAMES) - {"hour"} == set(columns)

    # One of an earlier version has no such file, and columns that the pipeline lacks by now.
    (table / NAME).unlink()
    publish(nsqd, "007", [{"n": 2}])
    run(spark, pipeline(tmp_path, nsqd, OTHER), tmp_path)
    found = spark.read.parquet(str(table)).orderBy("n")
    assert found.columns == [*NAMES, "last"]
    assert [row["more"] for row in found.collect()] == [None, [1, 2], None]


def test_a_summary_that_cannot_be_whole_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """One that hides a column would be worse than none."""
    from penstock.pipeline.folders import LocalFolder
    from penstock.pipeline.summary import update_summary

    folder = LocalFolder(str(tmp_path))
    schema = spark.range(1).schema
    update_summary(folder, {}, schema)
    assert pyarrow.parquet.read_schema(tmp_path / NAME).names == ["id"]
    folder.remove(NAME)
    update_summary(folder, {"old": "struct<a b:int>"}, schema)  # no text that Spark can read
    assert folder.read(NAME) is None
    (tmp_path / NAME).write_bytes(b"PAR1")
    update_summary(folder, {}, schema)
    assert folder.read(NAME) is None
    assert [file.path for file in folder.files()] == []
