"""JSON bodies: columns, those that do not fit, dedupe, inferred schemas, what has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PipelineError
from tests.spark.pipelines import bodies, declared, publish, run, topics
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

SCHEMA = "id bigint NOT NULL, total double"
WRONG = {
    b"hello": "not JSON: Expecting value: line 1 column 1 (char 0)",
    b'{"total":1}': "id: missing",
    b'{"id":"x"}': 'id: "x" is not of type bigint',
    b'{"id":1}{"id":2}': "not JSON: Extra data: line 1 column 9 (char 8)",
    b'{"id":1,"total":"\xff"}': "not UTF-8: byte 0xff at 17",
}
GOOD = [{"id": 1, "total": 2.5}, {"id": 2}, {"id": 3, "total": None, "more": [1]}]


def test_what_fits_becomes_rows_and_the_rest_a_topic_with_the_reason(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", [*GOOD, *WRONG])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": SCHEMA},
        transform=[{"sql": "SELECT id, total, nsq_topic, nsq_id FROM input"}],
        sink=[
            {"type": "parquet", "path": "table"},
            {"type": "topic", "topic": "copies", "sql": "SELECT id, total FROM input"},
        ],
    )
    run(spark, pipeline, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("id").collect()
    assert [(row["id"], row["total"]) for row in rows] == [(1, 2.5), (2, None), (3, None)]
    assert {row["nsq_topic"] for row in rows} == {"orders"}
    assert sorted(bodies(spark, nsqd, "copies")) == [
        b'{"id":1,"total":2.5}',
        b'{"id":2}',
        b'{"id":3}',
    ]
    aside = [json.loads(body) for body in bodies(spark, nsqd, "test.invalid")]
    assert sorted(each["error"] for each in aside) == sorted(WRONG.values())
    texts = {each["row"]["body"].get("text", "").encode() for each in aside}
    assert texts - {b""} == {body for body in WRONG if b"\xff" not in body}

    # Nothing is left to do, and a batch without invalid messages makes none.
    publish(nsqd, "orders", [{"id": 4}])
    run(spark, pipeline, tmp_path)
    assert topics(nsqd)["test.invalid"] == len(WRONG)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 4

    # A column of another type would make the table unreadable: nothing is written, all is kept.
    changed = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": "id string"},
        sink={"type": "parquet", "path": "table"},
    )
    publish(nsqd, "orders", [{"id": "five"}])
    with pytest.raises(
        PipelineError, match="the table's column id is bigint, the pipeline's is st"
    ):
        run(spark, changed, tmp_path)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 4
    run(spark, pipeline, tmp_path)
    assert topics(nsqd)["test.invalid"] == len(WRONG) + 1


def test_invalid_messages_can_go_to_a_table_and_equal_rows_are_kept_once(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    """With a watermark the stream carries rows and invalid messages side by side."""
    publish(nsqd, "orders", [*GOOD, *GOOD[:2], *WRONG])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={
            "topics": "orders",
            "body": "json",
            "schema": SCHEMA,
            "watermark": "10 minutes",
            "dedupe": ["id"],
        },
        sink=[
            {"type": "delta", "path": "delta", "partition_by": ["date"]},
            {"type": "console", "rows": 5},
        ],
        invalid={"path": "invalid"},
    )
    screen = run(spark, pipeline, tmp_path)
    publish(nsqd, "orders", [GOOD[0], {"id": 4}])
    run(spark, pipeline, tmp_path)
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [1, 2, 3, 4]
    rows = spark.read.parquet(str(tmp_path / "invalid")).collect()
    assert {bytes(row["body"]): row["reason"] for row in rows} == WRONG
    assert len(rows) == len(WRONG)
    assert " id|" in screen.shown[0]

    # Its state cannot be used for other columns.
    other = declared(
        tmp_path,
        nsqd,
        source={
            "topics": "orders",
            "body": "json",
            "schema": SCHEMA,
            "watermark": "10 minutes",
            "dedupe": ["id", "total"],
        },
        sink={"type": "console"},
    )
    with pytest.raises(PipelineError, match="contains the state of another query"):
        run(spark, other, tmp_path)


def test_a_schema_is_inferred_once(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": "infer"},
        sink={"type": "parquet", "path": "table"},
    )
    publish(nsqd, "orders", [b"hello"])
    with pytest.raises(PipelineError, match=r"none of 1 messages is a JSON object"):
        run(spark, pipeline, tmp_path)
    publish(nsqd, "orders", [{"id": 1, "who": {"name": "a"}}])
    run(spark, pipeline, tmp_path)
    publish(nsqd, "orders", [{"id": 2, "who": {"name": "b"}, "new": True}])
    run(spark, pipeline, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("id").collect()
    assert [(row["id"], row["who"]["name"]) for row in rows] == [(1, "a"), (2, "b")]
    assert "new" not in rows[1].asDict()
    assert topics(nsqd)["test.invalid"] == 1
