"""Tables of the version before open and go on: every message is there once.

They lie in tests/spark/stored, each with its checkpoint and the data path of its node.  ``make.py``
there made them with the code of commit 2d6aafd, the last without ledgers: real pipelines on real
Spark and a real nsqd, six batches each, and one that was planned, and cut off by SIGKILL before it
was committed:

    archive   Parquet by topic, date and hour, its checkpoint inside; cut when sealed, no file moved
    columns   Parquet without topic, node and index, and a table of invalid ones; cut when planned
    delta     a Delta table; cut when the batch was in its log
    topic     a topic; cut when the batch was published
    both      Parquet and a topic; cut between the two
    dedupe    Parquet behind state; cut when staged
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.dataset
import pytest

from tests.spark.pipelines import bodies, run
from tests.spark.stored import MESSAGES_MAX, Stored, make, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

NAMES = sorted(make.PIPELINES)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()
    return list(found.to_pylist())


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return list(pyarrow.table(DeltaTable(folder).to_pyarrow_table()).to_pylist())


def texts(found: list[dict[str, Any]]) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in found)


def judge(spark: SparkSession, stored: Stored) -> None:
    """Every message is where it belongs, once."""
    published, table = stored.all_bodies(), stored.folder / "table"
    match stored.name:
        case "archive":
            found = rows(table)
            assert texts(found) == published
            for row in found:
                assert json.loads(row["body"])["topic"] == row["topic"]
        case "delta":
            assert texts(delta_rows(table)) == published
        case "columns":
            valid = [json.loads(body) for body in published if body.startswith("{")]
            wanted = sorted((row["topic"].upper(), row["n"]) for row in valid)
            assert sorted((row["name"], row["n"]) for row in rows(table)) == wanted
            invalid = [body for body in published if not body.startswith("{")]
            assert texts(rows(stored.folder / "invalid")) == invalid
        case "dedupe":
            wanted = sorted((row["topic"], row["n"]) for row in map(json.loads, published))
            assert sorted((row["topic"], row["n"]) for row in rows(table)) == wanted
    if stored.name in ("topic", "both"):
        out = sorted(body.decode() for body in bodies(spark, stored.nsqd, "out"))
        assert out == published
    if stored.name == "both":
        assert texts(rows(table)) == published


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dedupe"])
def test_a_table_of_the_version_before_goes_on(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    with unpacked(name, tmp_path / name) as stored:
        if name == "archive":
            run(spark, stored.pipeline, tmp_path)
            judge(spark, stored)
        stored.publish()
        run(spark, stored.pipeline, tmp_path)
        judge(spark, stored)


def test_a_table_behind_state_of_the_version_before_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a session of its own, as the one of the tests cannot keep state on disk."""
    with unpacked("dedupe", tmp_path / "dedupe") as stored:
        # Its state knows what was there: one of the first that were ever published.
        again = stored.bodies["orders"][0].encode()
        assert stored.nsqd.post("/pub?topic=orders", again).text == "OK"
        stored.publish()
        make.call("dedupe", stored.folder, stored.nsqd.http_port, MESSAGES_MAX)
        judge(spark, stored)
