"""The shipped pipelines, from their files, one after the other over one broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from penstock.errors import PipelineError
from tests.spark.pipelines import (
    NOW,
    Running,
    bodies,
    channel,
    publish,
    run,
    shipped,
    topics,
)
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

EVENTS = [{"type": kind, "n": n} for n in range(100) for kind in ("login", "a/b", "")]


def test_archive_replay_audit(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "events", EVENTS)
    publish(nsqd, "007", [b"bond"])
    path = tmp_path / "archive"
    archive = shipped("archive", nsqd, f"parameters.path={path}", *NOW)
    run(spark, archive, tmp_path)
    rows = spark.read.parquet(str(path))
    assert {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()} == {
        "events": 300,
        "007": 1,
    }
    assert {file.parents[2].name for file in path.glob("*/*/*/*.parquet")} == {
        "topic=events",
        "topic=007",
    }
    assert channel(nsqd, "events", "archive")["depth"] == 0

    # Again: nothing new, nothing twice; then one more.
    run(spark, archive, tmp_path)
    publish(nsqd, "events", [b"one more"])
    run(spark, archive, tmp_path)
    assert spark.read.parquet(str(path)).count() == 302

    report = tmp_path / "audit.json"
    audit = shipped("audit", nsqd, f"parameters.path={path}", f"parameters.report={report}")
    [shown] = run(spark, audit, tmp_path).shown
    assert "VERDICT  whole" in shown
    told = json.loads(report.read_text())
    assert {each["topic"]: (each["verdict"], each["count"]) for each in told["topics"]} == {
        "events": ("whole", 301),
        "007": ("whole", 1),
    }

    replay = shipped(
        "replay",
        nsqd,
        f"parameters.path={path}",
        "parameters.topic=events",
        "parameters.to=again",
        "parameters.rate=300",
        f"checkpoint={tmp_path / 'replay'}",
    )
    # Cut off after the first chunk, it goes on behind it, and not faster than it may.
    with Running(spark, replay, tmp_path) as running:
        running.until(lambda: topics(nsqd).get("again"))
    begun = topics(nsqd)["again"]
    assert 0 < begun < 301
    assert running.screen.shown == [
        f"replay: stopped, {begun} messages published;"
        " run it again with the same parameters to resume"
    ]
    assert running.run.report() == ""
    started_s = time.monotonic()
    run(spark, replay, tmp_path)
    assert time.monotonic() - started_s > (301 - begun - 150) / 300
    assert bodies(spark, nsqd, "again") == [*(json.dumps(e).encode() for e in EVENTS), b"one more"]

    # A file that is lost, and one that is there twice.
    file = next(path.glob("topic=events/*/*/00000001-*.parquet"))
    lost = spark.read.parquet(str(file)).count()
    file.unlink()
    twice = next(path.glob("topic=007/*/*/*.parquet"))
    twice.with_name("copy.parquet").write_bytes(twice.read_bytes())
    with pytest.raises(PipelineError, match=f"{lost} messages are missing, 1 appear more than"):
        run(spark, audit, tmp_path)


def test_route_sends_each_message_to_one_topic(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "events", [*EVENTS, b"no json"])
    route = shipped("route", nsqd, f"checkpoint={tmp_path / 'c'}", "trigger.available_now=true")
    run(spark, route, tmp_path)
    run(spark, route, tmp_path)
    assert topics(nsqd) == {
        "events": 301,
        "route.login": 100,
        "route.a-b": 100,
        "route.other": 101,
    }
    assert b"no json" in bodies(spark, nsqd, "route.other")


def test_metrics_are_counted_and_drawn(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    metrics = shipped(
        "metrics",
        nsqd,
        f"parameters.path={path}",
        "parameters.window=1 second",
        "parameters.terminal=true",
        "parameters.watermark=1 second",
    )
    publish(nsqd, "events", EVENTS)
    with Running(spark, metrics, tmp_path) as running:
        running.until(lambda: channel_is_read(nsqd))
        # Later messages close the window of the first.
        running.until(lambda: publish(nsqd, "events", [b"tick"]) or any(path.glob("*.parquet")))
        running.until((tmp_path / "metrics.svg").exists)
    first = spark.read.parquet(str(path)).orderBy("time").first()
    assert first is not None
    assert (first["topic"], first["messages"]) == ("events", 300)
    assert first["bytes"] == sum(len(json.dumps(event)) for event in EVENTS)
    assert first["latency_p99_ms"] >= first["latency_p50_ms"] >= 0
    root = ElementTree.fromstring((tmp_path / "metrics.svg").read_text())
    assert "events" in "".join(root.itertext())
    assert any(text.startswith("messages_per_second events") for text in running.screen.shown)


def channel_is_read(nsqd: Nsqd) -> bool:
    stats = nsqd.get("/stats?format=json&topic=events").json
    channels = stats["topics"][0]["channels"]
    return bool(channels) and channels[0]["depth"] == 0


def test_archive_waits_for_topics_takes_new_ones_and_merges_small_files(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    archive = shipped(
        "archive",
        nsqd,
        f"parameters.path={path}",
        "parameters.every=1s",
        "sink.compact_after=1ms",
        "sink.compact_files=3",
    )

    def files(topic: str) -> list[Path]:
        return list(path.glob(f"topic={topic}/*/*/*.parquet"))

    with Running(spark, archive, tmp_path) as running:
        running.until(lambda: running.status.status.state == "waiting")
        publish(nsqd, "one", [b"1"])
        running.until(lambda: files("one"))
        publish(nsqd, "two", [b"2"])
        running.until(lambda: files("two"))
        running.until(
            lambda: (
                publish(nsqd, "one", [b"more"])
                or any("merge" in file.name for file in files("one"))
            )
        )
    # What the last moment left, then all of it.
    run(spark, shipped("archive", nsqd, f"parameters.path={path}", *NOW), tmp_path)
    counts = spark.read.parquet(str(path)).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in counts} == topics(nsqd)
