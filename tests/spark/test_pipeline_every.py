"""Trigger ``every``: one query holds its messages back; a pause of the channel holds it too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest

from tests.spark.pipelines import Running, declared
from tests.spark.topics import new_topic, numbered, publish
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("broker")) as daemon:
        yield daemon


def rows(folder: Path) -> int:
    table = folder / "table"
    return pyarrow.dataset.dataset(table).count_rows() if list(table.glob("*.parquet")) else 0


def test_one_query_takes_all_turns_and_a_pause_holds_it(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    topic = new_topic()
    pipeline = declared(
        tmp_path,
        nsqd,
        name=topic,
        source={"topics": topic},
        sink={"type": "parquet", "path": "table"},
        trigger={"every": "2s"},
    )
    publish(nsqd, topic, *numbered(10))
    with Running(spark, pipeline, tmp_path) as running:
        running.until(lambda: rows(tmp_path) == 10)
        [query] = [each for each in spark.streams.active if each.name == topic]
        run_id, sent, files = query.runId, 10, 1
        for _ in range(3):
            # What comes in between is one batch, however often it was published.
            for _ in range(4):
                publish(nsqd, topic, *numbered(5, sent))
                sent += 5
            running.until(lambda wanted=sent: rows(tmp_path) == wanted)
            files += 1
        assert len(list((tmp_path / "table").glob("*.parquet"))) <= files + 1
        [again] = [each for each in spark.streams.active if each.name == topic]
        assert again.runId == run_id
        nsqd.post(f"/channel/pause?topic={topic}&channel={topic}")
        publish(nsqd, topic, *numbered(5, sent))
        time.sleep(4.5)
        assert rows(tmp_path) == sent
        nsqd.post(f"/channel/unpause?topic={topic}&channel={topic}")
        running.until(lambda: rows(tmp_path) == sent + 5)


def test_enough_messages_end_the_hold(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    topic = new_topic()
    pipeline = declared(
        tmp_path,
        nsqd,
        name=topic,
        source={"topics": topic},
        sink={"type": "parquet", "path": "table"},
        trigger={"every": "1h", "messages": 50},
    )
    publish(nsqd, topic, *numbered(10))
    with Running(spark, pipeline, tmp_path) as running:
        running.until(lambda: rows(tmp_path) == 10)
        publish(nsqd, topic, *numbered(49, 10))
        time.sleep(2.0)
        assert rows(tmp_path) == 10
        publish(nsqd, topic, *numbered(1, 59))
        running.until(lambda: rows(tmp_path) == 60)
