"""The data source in real queries of Spark: Python and SQL, batch and stream, read and write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from penstock.spark.listener import NsqListener, figures, offset_in
from penstock.spark.session import SessionPlan, open_session
from tests.spark.topics import (
    SHORT,
    SMALL,
    address,
    bodies,
    drop_oldest,
    node_uuid,
    nodes,
    numbered,
    publish,
    read,
)
from tests.support.daemon import Nsqd, Reply
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

END_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("second"), "--node-id=9") as daemon:
        yield daemon


def load(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format("nsq").options(**options).load()


def follow(spark: SparkSession, **options: object) -> DataFrame:
    return spark.readStream.format("nsq").options(**{"channel": "c", **options}).load()


def run(frame: DataFrame, folder: Path, **options: object) -> StreamingQuery:
    """Run a stream with AvailableNow to its end; Parquet unless options say nsq."""
    format = "nsq" if "nsqdHttpAddresses" in options else "parquet"
    if format == "parquet":
        options["path"] = folder / "table"
    writer = frame.writeStream.format(format).options(**options)
    query = writer.trigger(availableNow=True).start(checkpointLocation=str(folder / "checkpoint"))
    assert query.awaitTermination(END_SECONDS_MAX)
    return query


def rows_read(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress]


def table(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder / "table")).select("body").collect()
    return sorted(bytes(row.body) for row in rows)


# Tokens


def test_a_stream_with_a_read_token_waits_for_its_topic(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read read-token-1\nadmin admin-token-1\n")
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:

        def admin(method: str, target: str, body: bytes | None = None) -> Reply:
            return nsqd.http(method, target, body, {"Authorization": "Bearer admin-token-1"})

        frame = follow(spark, **nodes(nsqd), topic=topic, httpToken="read-token-1")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = writer.start(checkpointLocation=str(tmp_path / "checkpoint"))
        try:
            refused = re.compile(r'^penstock_http_requests_total.*"404".* [1-9]', re.MULTILINE)
            wait_until(lambda: refused.search(admin("GET", "/metrics").text), END_SECONDS_MAX)
            assert query.isActive and query.exception() is None
            assert admin("GET", f"/log?topic={topic}").status == 404, "it made the topic"
            for body in numbered(5):
                assert admin("POST", f"/pub?topic={topic}", body).status == 200
            wait_until(
                lambda: len(table(spark, tmp_path)) == 5 if rows_read(query) else False,
                END_SECONDS_MAX,
            )
            assert table(spark, tmp_path) == numbered(5)
        finally:
            query.stop()


# Batch reads


def test_a_topic_is_a_table(spark: SparkSession, broker: Nsqd, second: Nsqd, topic: str) -> None:
    publish(broker, topic, *numbered(30))
    publish(second, topic, *numbered(30, 30))
    frame = load(spark, **nodes(broker, second), topic=topic, minPartitions=3)
    assert frame.dtypes == [
        *(("topic", "string"), ("node", "string"), ("index", "bigint"), ("id", "string")),
        *(("timestamp", "timestamp"), ("body", "binary")),
    ]
    rows = frame.collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(numbered(60))
    assert {row.node for row in rows} == {node_uuid(broker), node_uuid(second)}
    assert frame.rdd.getNumPartitions() == 3
    assert frame.where("body = 'm7'").select("topic").collect()[0].topic == topic


def test_sql_reads_a_view(spark: SparkSession, broker: Nsqd, topic: str) -> None:
    publish(broker, topic, *numbered(10))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {topic} USING nsq OPTIONS ("
        f"nsqdHttpAddresses '{address(broker)}', topic '{topic}', columns 'index,body')"
    )
    (row,) = spark.sql(f"SELECT count(*) n, max(body) body FROM {topic}").collect()
    assert (row.n, bytes(row.body)) == (10, b"m9")


def test_a_table_takes_its_options_from_the_query(
    spark: SparkSession, broker: Nsqd, topic: str
) -> None:
    """Spark does not hand the options of CREATE TABLE on."""
    publish(broker, topic, b"a")
    spark.sql(f"CREATE TABLE {topic} (body BINARY) USING nsq")
    try:
        given = f"nsqdHttpAddresses='{address(broker)}', topic='{topic}'"
        assert spark.sql(f"SELECT * FROM {topic} WITH ({given})").count() == 1
    finally:
        spark.sql(f"DROP TABLE {topic}")


def test_filters_are_pushed_down_on_request(spark: SparkSession, broker: Nsqd, topic: str) -> None:
    publish(broker, topic, *numbered(10))
    options: dict[str, object] = {**nodes(broker), "topic": topic, "pushFilters": True}
    with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(spark, **options).count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, **options)
        first = read({**nodes(broker), "topic": topic})[0]["index"]
        chosen = frame.where(f"index >= {first + 3} AND index < {first + 5} AND topic = '{topic}'")
        plan = chosen._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" not in plan
        assert sorted(bytes(row.body) for row in chosen.collect()) == numbered(2, 3)
        later = frame.where("timestamp > '2020-01-01' AND id > ''")
        assert "Filter (" in later._jdf.queryExecution().executedPlan().toString()
        assert later.count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topik": "x"}, r"unknown option 'topik' of the data source nsq \(did you mean topic\?\)"),
        ({"columns": "x"}, "option columns must be some of topic, node"),
        ({"topic": "nowhere"}, "topic nowhere does not exist on any node"),
        ({"channel": "c"}, "option channel is for a stream, not for a batch read"),
        ({"nsqdHttpAddresses": "127.0.0.1:1"}, r"nsqd 127\.0\.0\.1:1 does not answer"),
    ],
)
def test_errors_reach_the_user(
    spark: SparkSession, broker: Nsqd, topic: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        load(spark, **{**nodes(broker), "topic": topic, **SHORT, **options}).count()


def test_lost_offsets_fail_a_query_or_not(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    with Nsqd(tmp_path, SMALL) as nsqd:
        publish(nsqd, topic, b"a")
        drop_oldest(nsqd, topic)
        publish(nsqd, topic, b"last")
        options: dict[str, object] = {**nodes(nsqd), "topic": topic}
        options["startingOffsets"] = f'{{"{address(nsqd)}": {{"{topic}": 1}}}}'
        with pytest.raises(PySparkException, match="DataLossError"):
            load(spark, **options).count()
        frame = load(spark, **options, failOnDataLoss=False).where("body = 'last'")
        assert frame.count() == 1


# Writes


def test_rows_are_written_with_topics_and_deferred(
    spark: SparkSession, broker: Nsqd, second: Nsqd, topic: str
) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "CAST(id AS STRING) body",
        f"concat('{topic}-', id % 2) topic",
        "CASE WHEN id < 10 THEN 3600000 END defer",
    )
    frame.write.format("nsq").options(**nodes(broker, second)).mode("append").save()
    even = read({**nodes(broker, second), "topic": f"{topic}-0"})
    odd = read({**nodes(broker, second), "topic": f"{topic}-1"})
    assert sorted(int(row["body"]) for row in even) == list(range(10, 100, 2))
    assert sorted(int(row["body"]) for row in odd) == list(range(11, 100, 2))
    assert {row["node"] for row in even} == {node_uuid(broker), node_uuid(second)}
    for nsqd in (broker, second):
        nsqd.post(f"/channel/create?topic={topic}-0&channel=d")
    deferred = [nsqd.channel(f"{topic}-0", "d")["deferred_count"] for nsqd in (broker, second)]
    assert sum(deferred) == 5
    assert [nsqd.get("/staging").json for nsqd in (broker, second)] == [[], []]


def test_sql_writes_into_a_view(spark: SparkSession, broker: Nsqd, topic: str) -> None:
    given = f"nsqdHttpAddresses '{address(broker)}', topic '{topic}'"
    broker.post(f"/topic/create?topic={topic}")
    spark.sql(f"CREATE TEMPORARY VIEW v{topic} (body BINARY) USING nsq OPTIONS ({given})")
    spark.sql(f"INSERT INTO v{topic} SELECT CAST(CAST(id AS STRING) AS BINARY) FROM range(5)")
    assert sorted(bodies(read({**nodes(broker), "topic": topic}))) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("id", {}, "a write needs a column body"),
        ("CAST(id AS STRING) body, id x", {}, "it has body, x"),
        ("CAST(NULL AS STRING) body", {}, "column body has a null"),
        ("CAST(id AS STRING) body", {"nsqdHttpAddresses": "127.0.0.1:1"}, "does not answer"),
    ],
)
def test_wrong_writes_are_told(
    spark: SparkSession,
    broker: Nsqd,
    topic: str,
    columns: str,
    options: dict[str, str],
    text: str,
) -> None:
    writer = spark.range(1).selectExpr(columns.split(", ")[0], *columns.split(", ")[1:]).write
    given = {**nodes(broker), "topic": topic, **SHORT, **options}
    with pytest.raises(PySparkException, match=text):
        writer.format("nsq").options(**given).mode("append").save()
    assert broker.get("/staging").json == []


def test_other_modes_than_append_are_refused(spark: SparkSession, broker: Nsqd, topic: str) -> None:
    writer = spark.range(1).selectExpr("'a' body").write.format("nsq")
    writer = writer.options(**nodes(broker), topic=topic)
    for mode, text in (("overwrite", "can only be appended to"), ("ignore", "mode|MODE")):
        with pytest.raises(PySparkException, match=text):
            writer.mode(mode).save()


# Streams


def test_a_stream_goes_to_parquet_and_on_after_a_restart(
    spark: SparkSession, broker: Nsqd, second: Nsqd, topic: str, tmp_path: Path
) -> None:
    options: dict[str, object] = {**nodes(broker, second), "topic": topic}
    frame = follow(spark, **options, maxMessagesPerTrigger=40)
    publish(broker, topic, *numbered(50))
    publish(second, topic, *numbered(50, 50))
    query = run(frame, tmp_path)
    assert rows_read(query) == [40, 40, 20]
    assert table(spark, tmp_path) == sorted(numbered(100))
    publish(broker, topic, *numbered(10, 100))
    query = run(frame, tmp_path)
    assert sum(rows_read(query)) == 10
    assert table(spark, tmp_path) == sorted(numbered(110))
    assert run(frame, tmp_path) and table(spark, tmp_path) == sorted(numbered(110))
    for nsqd in (broker, second):
        assert nsqd.channel(topic, "c")["depth"] == 0


def test_a_running_stream_copies_topic_to_topic_and_shows_its_lag(
    spark: SparkSession, broker: Nsqd, second: Nsqd, topic: str, tmp_path: Path
) -> None:
    """R18, R19: also with a node that is killed and comes back."""
    given = nodes(broker, second)
    listener = NsqListener(given)
    spark.streams.addListener(listener)
    copy = f"{topic}-copy"
    frame = follow(spark, **given, topic=topic)
    query = (
        frame.writeStream.format("nsq")
        .options(**given, topic=copy, checkpointLocation=str(tmp_path))
        .queryName(f"q{topic}")
        .start()
    )

    def copied() -> list[bytes]:
        topics = {
            each["topic_name"] for nsqd in (broker, second) for each in nsqd.stats()["topics"]
        }
        return sorted(bodies(read({**given, "topic": copy}))) if copy in topics else []

    try:
        publish(broker, topic, *numbered(10))
        wait_until(lambda: copied() == numbered(10), END_SECONDS_MAX)
        second.kill()
        second.start()
        publish(second, topic, *numbered(10, 10))
        publish(broker, topic, *numbered(10, 20))
        wait_until(lambda: copied() == sorted(numbered(30)), END_SECONDS_MAX)
        # The listener has told of the last batch too, with its figures.
        wait_until(lambda: broker.channel(topic, "c")["depth"] == 0)
        progress = broker.channel(topic, "c")["pull"]["progress"]
        assert progress["name"] == f"q{topic}" and progress["query"] == str(query.id)
        assert progress["rows"] > 0 and progress["state"] in ("running", "waiting")
        assert query.exception() is None
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_queries_that_start_find_their_environment_made(
    spark: SparkSession, broker: Nsqd, topic: str, tmp_path: Path
) -> None:
    """A name that two queries put into Spark's unguarded map at once could break it for all."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    environment = sources.lookupDataSource("nsq").dataSourceCls().envVars()

    def names() -> set[str]:
        return set(environment.keySet().toArray())

    for name in names() - {"PYTHONPATH"}:  # as of a session in which no query ran
        environment.remove(name)
    assert open_session(SessionPlan()) is spark
    made = names()
    options: dict[str, object] = {**nodes(broker), "topic": topic}
    frame = follow(spark, **options)
    publish(broker, topic, *numbered(10))
    run(frame, tmp_path / "parquet")
    frame = follow(spark, **options, channel="copy")
    run(frame.select("body"), tmp_path / "copy", **nodes(broker), topic=f"{topic}-copy")
    assert table(spark, tmp_path / "parquet") == numbered(10)
    assert names() == made and len(made) > 1


def test_a_stream_that_fails_says_why(
    spark: SparkSession, broker: Nsqd, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="option channel is required"):
        run(spark.readStream.format("nsq").options(**nodes(broker), topic=topic).load(), tmp_path)
    frame = follow(spark, **nodes(broker), topic=topic)
    publish(broker, topic, b"a")
    run(frame, tmp_path / "a")
    broker.post(f"/topic/delete?topic={topic}&force=true")
    with pytest.raises(PySparkException, match="was deleted: everything that the query"):
        run(frame, tmp_path / "a")


def test_a_go_nsqd_is_a_source_too(
    spark: SparkSession, broker: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(broker, topic, *numbered(20))
    options = {
        "nsqdTcpAddresses": f"127.0.0.1:{broker.tcp_port}",
        "topic": topic,
        "mode": "channel",
        "storePath": str(tmp_path / "store"),
    }
    run(follow(spark, **options), tmp_path)
    assert table(spark, tmp_path) == sorted(numbered(20))
    publish(broker, topic, b"more")
    run(follow(spark, **options), tmp_path)
    assert table(spark, tmp_path) == sorted([*numbered(20), b"more"])


def test_complete_results_cannot_be_streamed_into_a_topic(
    spark: SparkSession, broker: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(broker, topic, b"a")
    counted = follow(spark, **nodes(broker), topic=topic).groupBy("topic").count()
    writer = counted.selectExpr("CAST(count AS STRING) body").writeStream.format("nsq")
    writer = writer.options(**nodes(broker), topic=f"{topic}-counts").outputMode("complete")
    query = writer.trigger(availableNow=True).start(checkpointLocation=str(tmp_path))
    with pytest.raises(PySparkException, match="can only be appended to"):
        query.awaitTermination(END_SECONDS_MAX)


# What a listener sees


def test_a_listener_knows_offsets_of_this_source_only() -> None:
    assert offset_in('{"channel": "c", "nodes": {}}') == {"channel": "c", "nodes": {}}
    for other in (None, "", "5", "{}", "[1]", '{"file": 1, "channel": "c"}', "not json"):
        assert offset_in(other) is None


def test_figures_are_json_whatever_spark_says() -> None:
    class Spark:
        name, id, batchId, timestamp, numInputRows = None, "id", 3, "t", 0
        processedRowsPerSecond, inputRowsPerSecond = float("nan"), float("inf")
        durationMs = ()
        sink = None

    told = figures(Spark()).as_json()  # type: ignore[arg-type]
    assert (told["query"], told["state"], told["batch"]) == ("id", "waiting", 3)
    assert told["input_rate"] is told["processed_rate"] is None
    json.dumps(told, allow_nan=False)
