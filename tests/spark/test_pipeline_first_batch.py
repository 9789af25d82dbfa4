"""A pipeline that is killed in its very first batch, again and again, has every message once.

Three sinks, two nodes; the kills hit the whole process group: the driver, its JVM, the workers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.dataset
import pytest

from tests.spark.driver_process import kill, members_of
from tests.spark.pipelines import bodies, publish
from tests.spark.test_pipeline_cli import PENSTOCK, QUICK_JVM
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

WAIT_S = 120.0
COUNT = 3000
PIPELINE = """
name = "first"
[source]
topics = "numbers"
nsqd_http_addresses = "ADDRESSES"
[trigger]
available_now = true
[[sink]]
type = "parquet"
path = "table"
[[sink]]
type = "delta"
path = "delta"
[[sink]]
type = "topic"
topic = "out"
"""
# What is there when a kill hits: planned; a table sealed or done; the next one too.
MOMENTS = (
    "checkpoints/first/offsets/0",
    "table/_penstock/ledger/first/0*.json",
    "delta/_penstock/ledger/first/0*.json",
)


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [PENSTOCK, "pipeline", "run", "first.toml", "--master=local[2]", QUICK_JVM],
            cwd=folder,
            env={**os.environ, "PENSTOCK_STATE": str(folder / "state")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_a_query_that_dies_in_its_first_batch_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "1") as one, Nsqd(tmp_path / "2") as two:
        addresses = ",".join(f"127.0.0.1:{node.http_port}" for node in (one, two))
        (tmp_path / "first.toml").write_text(PIPELINE.replace("ADDRESSES", addresses))
        sent = 0
        for moment in MOMENTS:
            for node in (one, two):
                publish(node, "numbers", [str(sent + n).encode() for n in range(COUNT)])
                sent += COUNT
            process = start(tmp_path)
            give_up_s = time.monotonic() + WAIT_S
            while not list(tmp_path.glob(moment)) and process.poll() is None:
                assert time.monotonic() < give_up_s, (tmp_path / "log").read_text()[-4000:]
                time.sleep(0.002)
            while members := members_of(process.pid):
                kill(members)
                time.sleep(0.01)
            process.wait(10)
        process = start(tmp_path)
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()[-4000:]
        wanted = Counter(str(n).encode() for n in range(sent))
        table = pyarrow.dataset.dataset(tmp_path / "table").to_table(["body"])
        assert Counter(table["body"].to_pylist()) == wanted
        from deltalake import DeltaTable

        delta = pyarrow.table(DeltaTable(tmp_path / "delta").to_pyarrow_table(columns=["body"]))
        assert Counter(delta["body"].to_pylist()) == wanted
        out = [body for node in (one, two) for body in bodies(spark, node, "out")]
        assert Counter(out) == wanted
