"""What broke streams was not a crash but an ordinary day: each of them on real Spark (R45 to R48).

At the end every message is in the table, or the query has failed and told which ones are missing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.spark.loss import Loss, find
from tests.spark.topics import (
    SMALL,
    log_of,
    new_topic,
    node_uuid,
    nodes,
    numbered,
    publish,
)
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

BROKER_OPTIONS = (SMALL,)
END_SECONDS_MAX = 120


@pytest.fixture
def options(broker: Nsqd, topic: str) -> dict[str, str]:
    return {**nodes(broker), "topic": topic, "channel": "c", "columns": "index,body"}


def start(
    spark: SparkSession, options: dict[str, str], folder: Path, **trigger: Any
) -> StreamingQuery:
    frame = spark.readStream.format("nsq").options(**options).load()
    writer = frame.writeStream.format("parquet").option("path", str(folder / "table"))
    return writer.trigger(**trigger).start(checkpointLocation=str(folder / "checkpoint"))


def run(spark: SparkSession, options: dict[str, str], folder: Path) -> StreamingQuery:
    query = start(spark, options, folder, availableNow=True)
    assert query.awaitTermination(END_SECONDS_MAX)
    return query


def outcome(query: StreamingQuery) -> str:
    """Why it failed; "" if it did not."""
    try:
        assert query.awaitTermination(END_SECONDS_MAX), "it runs on"
    except PySparkException as error:
        return str(error)
    return ""


def failure(query: StreamingQuery) -> str:
    text = outcome(query)
    assert text, "it ended as if all were read"
    return text


def table(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder / "table")).select("body").collect()
    return sorted(bytes(row.body) for row in rows)


def publish_each(nsqd: Nsqd, topic: str, messages: list[bytes]) -> list[bytes]:
    """Not at once: what is published together stays together, in one segment."""
    for i in range(0, len(messages), 50):
        publish(nsqd, topic, *messages[i : i + 50])
    return messages


def wait_removed(nsqd: Nsqd, topic: str, before: int) -> None:
    wait_until(lambda: log_of(nsqd, topic)["whole_from"] > before)


def test_an_older_checkpoint_put_back_with_its_table_tells_what_is_gone(
    spark: SparkSession, broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    """It was 5,000 of 101,500 rows, in silence."""
    folder, backup = tmp_path / "query", tmp_path / "backup"
    sent = publish_each(broker, topic, numbered(1000))
    run(spark, options, folder)
    shutil.copytree(folder, backup)
    before = log_of(broker, topic)["end"]
    sent += publish_each(broker, topic, numbered(1000, 1000))
    run(spark, options, folder)
    sent += publish_each(broker, topic, numbered(500, 2000))
    wait_removed(broker, topic, before)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    text = failure(start(spark, options, folder, availableNow=True))
    (loss,) = find(text)
    assert (loss.topic, loss.start) == (topic, before) and loss.count_max
    assert "an older checkpoint was restored" in text
    run(spark, {**options, "acceptLoss": json.dumps([loss.as_json()])}, folder)
    found = table(spark, folder)
    assert len(found) == len(set(found)) == len(sent) - loss.count_max
    run(spark, options, folder)
    assert table(spark, folder) == found


def test_a_second_query_on_a_channel_is_refused_until_it_takes_over(
    spark: SparkSession, broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    """It was 7,500 of 41,500 rows, in silence."""
    sent = publish_each(broker, topic, numbered(300))
    run(spark, options, tmp_path / "a")
    sent += publish_each(broker, topic, numbered(100, 300))
    text = failure(start(spark, options, tmp_path / "b", availableNow=True))
    identity = log_of(broker, topic)["pull_channels"]["c"]["identity"]
    assert "is read by Spark query on" in text and f"takeOver={identity}" in text
    run(spark, {**options, "takeOver": identity}, tmp_path / "b")
    run(spark, {**options, "takeOver": identity}, tmp_path / "b")
    assert "CHANNEL_HAS_READER" in failure(start(spark, options, tmp_path / "a", availableNow=True))
    both = table(spark, tmp_path / "a") + table(spark, tmp_path / "b")
    assert sorted(both) == sorted(sent)
    taken = {**options, "takeOver": identity}
    assert "TAKE_OVER_REFUSED" in failure(start(spark, taken, tmp_path / "d", availableNow=True))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_channel_emptied_by_force_is_told(
    spark: SparkSession,
    broker: Nsqd,
    topic: str,
    options: dict[str, str],
    tmp_path: Path,
    stopped: bool,
) -> None:
    """It was 7,500 of 41,500 rows; now the table and the loss have all of them."""
    sent = publish_each(broker, topic, numbered(300))
    options = {**options, "maxMessagesPerTrigger": "100", "pollTimeout": "50ms"}
    empty = f"/channel/empty?topic={topic}&channel=c"
    run(spark, options, tmp_path)
    if stopped:
        sent += publish_each(broker, topic, numbered(900, 300))
        assert broker.post(empty).status == 409
        assert broker.post(f"{empty}&force=true").status == 200
        sent += publish_each(broker, topic, numbered(300, 1200))
        query = start(spark, options, tmp_path, processingTime="0 seconds")
    else:
        query = start(spark, options, tmp_path, processingTime="0 seconds")
        # Held by a pause, so that all of it is there when the channel is emptied.
        broker.post(f"/channel/pause?topic={topic}&channel=c")
        sent += publish_each(broker, topic, numbered(900, 300))
        assert broker.post(f"{empty}&force=true").status == 200
        sent += publish_each(broker, topic, numbered(300, 1200))
        wait_removed(broker, topic, log_of(broker, topic)["end"] - 600)
        broker.post(f"/channel/unpause?topic={topic}&channel=c")
    losses: list[Loss] = []
    while text := outcome(query):  # segments go one after the other
        new = find(text)
        assert new and len(losses) < 4, text
        losses += new
        accepted = json.dumps([loss.as_json() for loss in losses])
        query = start(spark, {**options, "acceptLoss": accepted}, tmp_path, availableNow=True)
    assert losses
    found = table(spark, tmp_path)
    assert len(found) == len(set(found)) < len(sent)
    assert len(sent) - len(found) <= sum(loss.count_max or 0 for loss in losses)
    assert set(numbered(300, 1200)) <= set(found)


def test_a_deleted_topic_a_pause_and_an_absent_node_end_no_run_as_if_all_were_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic()
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "1", *flags) as one, Nsqd(tmp_path / "2", *flags) as two:

            def registered(count: int) -> None:
                wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == count)

            registered(2)
            options = {"lookupdHttpAddresses": lookupd.http_address, "topic": topic}
            options |= {"channel": "c", "columns": "body"}
            folder = tmp_path / "query"
            publish(one, topic, *numbered(10))
            publish(two, topic, *numbered(10, 10))
            wait_until(lambda: len(lookupd.get(f"/lookup?topic={topic}").json["producers"]) == 2)
            run(spark, options, folder)
            assert table(spark, folder) == sorted(numbered(20))
            # A pause.
            for nsqd in (one, two):
                nsqd.post(f"/channel/pause?topic={topic}&channel=c")
                publish(nsqd, topic, b"paused")
            run(spark, options, folder)
            assert table(spark, folder) == sorted(numbered(20))
            for nsqd in (one, two):
                nsqd.post(f"/channel/unpause?topic={topic}&channel=c")
            # A node that is not there.
            uuid = node_uuid(two)
            two.terminate()
            registered(1)
            text = failure(start(spark, options, folder, availableNow=True))
            assert "not registered with nsqlookupd" in text
            assert [each.node for each in find(text)] == [uuid]
            run(spark, {**options, "failOnDataLoss": "false"}, folder)
            assert table(spark, folder).count(b"paused") == 1
            two.start()
            registered(2)
            run(spark, options, folder)
            assert table(spark, folder).count(b"paused") == 2
            # A deleted topic.
            one.post(f"/topic/delete?topic={topic}&force=true")
            lookupd.post(f"/topic/delete?topic={topic}")
            text = failure(start(spark, options, folder, availableNow=True))
            assert "was deleted: everything that the query had not read" in text
            assert one.get(f"/log?topic={topic}").status == 404
            assert [each.node for each in find(text)] == [node_uuid(one)]


def test_a_first_batch_that_dies_and_a_checkpoint_without_an_identity_go_on(
    spark: SparkSession, broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    found: list[bytes] = []

    def batch(frame: DataFrame, number: int) -> None:
        if number == 0 and not dead:
            dead.append(number)
            raise OSError("the first batch dies")
        found.extend(bytes(row.body) for row in frame.collect())

    def go(**more: str) -> None:
        frame = spark.readStream.format("nsq").options(**options, **more).load()
        writer = frame.writeStream.foreachBatch(batch).trigger(availableNow=True)
        assert writer.start(checkpointLocation=str(checkpoint)).awaitTermination(END_SECONDS_MAX)

    def pull() -> dict[str, Any]:
        told: dict[str, Any] = log_of(broker, topic)["pull_channels"]["c"]
        return told

    dead: list[int] = []
    sent = publish_each(broker, topic, numbered(100))
    with pytest.raises(PySparkException, match="the first batch dies"):
        go()
    assert pull()["identity"] is None
    sent += publish_each(broker, topic, numbered(100, 100))
    go()
    assert sorted(found) == sorted(sent) and pull()["identity"]
    # As an earlier version would have left it.
    for file in (checkpoint / "offsets").iterdir():
        if file.name.isdecimal():
            version, metadata, offset = file.read_text().split("\n")
            told = json.loads(offset)
            del told["identity"]
            file.write_text("\n".join([version, metadata, json.dumps(told)]))
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    low = pull()["low"]
    broker.post(f"/channel/delete?topic={topic}&channel=c&force=true")
    broker.post(f"/channel/pull?topic={topic}&channel=c&start={low}")
    assert pull()["identity"] is None
    sent += publish_each(broker, topic, numbered(100, 200))
    go(checkpoint=str(checkpoint))
    assert sorted(found) == sorted(sent) and pull()["identity"]
    go()
    assert sorted(found) == sorted(sent)
