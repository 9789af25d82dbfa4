"""What topics retain, read by Spark and replayed by a pipeline (R21 to R23)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.pipeline.replay import place_of, replayed
from penstock.wire import commands
from tests.spark.pipelines import declared, run
from tests.spark.topics import (
    SMALL,
    address,
    bodies,
    log_of,
    new_topic,
    nodes,
    numbered,
    publish,
    read,
)
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def finished(nsqd: Nsqd, topic: str, count: int) -> None:
    """A channel has finished them all."""
    with nsqd.connect() as raw:
        raw.subscribe(topic, "c", ready_count=count)
        for _ in range(count):
            raw.send(commands.fin(raw.receive().id))
        wait_until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)


def test_reads_reach_retained_messages(tmp_path: Path) -> None:
    """Also of a topic of dead letters, which is an ordinary one."""
    topic = f"{new_topic()}.c.dead"
    with Nsqd(tmp_path, SMALL) as nsqd:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        policy = json.dumps({"retain": "1h"}).encode()
        assert nsqd.http("PUT", f"/policy?topic={topic}", policy).status == 200
        publish(nsqd, topic, *numbered(10))
        time.sleep(0.02)
        between = str(int(time.time() * 1000))
        publish(nsqd, topic, *numbered(20, 10))
        finished(nsqd, topic, 30)
        time.sleep(1.5)  # the upkeep would have removed them
        options = {**nodes(nsqd), "topic": topic}
        assert log_of(nsqd, topic)["whole_from"] == 0
        assert bodies(read({**options, "startingOffsets": "earliest"})) == numbered(30)
        assert bodies(read({**options, "startingTimestamp": between})) == numbered(20, 10)
        first = log_of(nsqd, topic)["first"]
        old = {**options, "startingOffsets": json.dumps({address(nsqd): {topic: first}})}
        assert bodies(read(old)) == numbered(30)


def test_a_pipeline_is_replayed_into_a_new_output(spark: SparkSession, tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path / "nsqd") as nsqd:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=keeper")
        publish(nsqd, topic, *[json.dumps({"n": n}).encode() for n in range(20)])
        pipeline = declared(
            tmp_path,
            nsqd,
            source={"topics": topic, "body": "json", "schema": "n INT"},
            sink={"type": "parquet", "path": "out"},
        )
        run(spark, pipeline, tmp_path)
        live = log_of(nsqd, topic)["pull_channels"]
        for place in ("-1d", "earliest"):
            output = tmp_path / f"again{place}"
            run(spark, replayed(pipeline, place_of(place), str(output)), tmp_path)
            rows = spark.read.parquet(str(output)).select("n").collect()
            assert sorted(row["n"] for row in rows) == list(range(20))
        assert log_of(nsqd, topic)["pull_channels"] == live
        assert spark.read.parquet(str(tmp_path / "out")).count() == 20


def test_a_pipeline_reads_what_a_policy_moved_to_a_dead_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In several batches with origins (R25), beside plain publishes, and once each."""
    topic = new_topic()
    dead = f"{topic}.c.dead"
    with Nsqd(tmp_path / "nsqd", SMALL) as nsqd:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        policy = json.dumps({"max_attempts": 1, "on_max_attempts": "topic"}).encode()
        assert nsqd.http("PUT", f"/policy?topic={topic}&channel=c", policy).status == 200
        nsqd.post(f"/topic/create?topic={dead}")
        pipeline = declared(
            tmp_path,
            nsqd,
            source={"topics": dead, "body": "json", "schema": "n INT"},
            sink={"type": "parquet", "path": "out"},
        )
        fail(nsqd, topic, range(20))
        publish(nsqd, dead, b'{"n": 20}')
        run(spark, pipeline, tmp_path)
        fail(nsqd, topic, range(21, 40))
        run(spark, pipeline, tmp_path)
        rows = spark.read.parquet(str(tmp_path / "out")).select("n").collect()
        assert sorted(row["n"] for row in rows) == list(range(40))


def fail(nsqd: Nsqd, topic: str, numbers: range) -> None:
    """A consumer requeues these messages, and the policy moves them."""
    publish(nsqd, topic, *[json.dumps({"n": n}).encode() for n in numbers])
    with nsqd.connect() as raw:
        raw.subscribe(topic, "c", ready_count=len(numbers))
        for _ in numbers:
            raw.send(commands.req(raw.receive().id, 0))
        last = numbers[-1] + 1
        wait_until(lambda: count(nsqd, f"{topic}.c.dead") == last, 20)


def count(nsqd: Nsqd, topic: str) -> int:
    """How many messages a topic has got."""
    return int(nsqd.stats(f"&topic={topic}")["topics"][0]["message_count"])
