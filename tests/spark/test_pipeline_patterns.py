"""A pipeline over a pattern gets every message of a new topic, however fast others are (R47)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock.pipeline import runner
from penstock.pipeline.consistency import check
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.spec_file import from_table
from tests.spark.pipelines import Running, run
from tests.spark.test_pipeline_discovery import SMALL, finish_fast, let_go
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# It starts three queries, and Spark before them if it is the first.
pytestmark = pytest.mark.timeout(400)

CONFIG = "/config/nsqlookupd_tcp_addresses"


def archive(folder: Path, lookupd: Nsqlookupd, **trigger: Any) -> Pipeline:
    table = {
        "name": "archive",
        "trigger": trigger,
        "source": {
            "topics": ["*"],
            "body": "bytes",
            "lookupd_http_addresses": lookupd.http_address,
        },
        "sink": {"type": "parquet", "path": str(folder / "table"), "partition_by": ["topic"]},
        "checkpoint": str(folder / "checkpoint"),
    }
    return check(from_table(table, (), folder))


def counts(folder: Path) -> Counter[str]:
    """Rows by topic, each message once."""
    found: Counter[str] = Counter()
    seen: set[tuple[str, str, int]] = set()
    for path in (folder / "table").glob("topic=*/*.parquet"):
        topic = path.parent.name.removeprefix("topic=")
        for row in pq.ParquetFile(path).read(["node", "index"]).to_pylist():
            place = (topic, row["node"], row["index"])
            assert place not in seen
            seen.add(place)
            found[topic] += 1
    return found


def test_a_new_topic_with_a_fast_consumer_is_archived_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R47: while the query runs, on a node that comes later, and while the pipeline is away."""
    monkeypatch.setattr(runner, "TOPICS_POLL_S", 1.0)
    with Nsqlookupd() as lookupd:
        options = (SMALL, "--broadcast-address=127.0.0.1")
        registers = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with (
            Nsqd(tmp_path / "one", *options, registers) as first,
            Nsqd(tmp_path / "two", *options) as second,
        ):
            wait_until(lambda: lookupd.get("/nodes").json["producers"])
            with Running(spark, archive(tmp_path, lookupd), tmp_path) as runs:
                runs.until(lambda: first.get("/channel/patterns").json["patterns"])
                finish_fast(first, "new", 4000)
                assert first.channel("new", "archive")["depth"] == 4000
                runs.until(lambda: counts(tmp_path)["new"] == 4000)
                # A node that is not known yet, and what its topic lets go of meanwhile.
                let_go(second, "late")
                addresses = json.dumps([lookupd.tcp_address]).encode()
                assert second.http("PUT", CONFIG, addresses).status == 200
                runs.until(lambda: second.get("/channel/patterns").json["patterns"])
                runs.until(lambda: runs.status.status.gone_before)
                finish_fast(second, "late.too", 1000)
            gone = runs.status.status.gone_before
            assert runs.status.status.gone_topics == 1
            finish_fast(first, "away", 1000)
            finish_fast(second, "new", 500)
            run(spark, archive(tmp_path, lookupd, available_now=True), tmp_path)
            found = counts(tmp_path)
            assert (found["new"], found["late.too"], found["away"]) == (4500, 1000, 1000)
            assert found["late"] + gone == 2000
