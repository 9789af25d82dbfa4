"""Batch reads of real topics, without a JVM (R18)."""

from __future__ import annotations

import datetime
import json
import pickle
import time
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock.errors import CorruptError, DataLossError, NodeError, OptionError, QueryError
from penstock.spark import task_reader
from penstock.spark.batch import NsqFilteringReader
from penstock.spark.node_client import Node, Request
from penstock.spark.source import NsqDataSource
from penstock.spark.task_reader import Fetch
from tests.spark.topics import (
    SHORT,
    SMALL,
    address,
    batch_reader,
    bodies,
    drop_oldest,
    log_of,
    new_topic,
    node_uuid,
    nodes,
    numbered,
    publish,
    read,
    rows_of,
)
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.page_cache import needs_cachestat
from tests.support.proxy import Proxy
from tests.support.waits import wait_until


def test_every_column_of_every_message(broker: Nsqd) -> None:
    topic = new_topic()
    before = datetime.datetime.now(datetime.UTC)
    publish(broker, topic, *numbered(5))
    rows = read({**nodes(broker), "topic": topic})
    first = log_of(broker, topic)["first"]
    assert bodies(rows) == numbered(5)
    assert [row["index"] for row in rows] == list(range(first, first + 5))
    assert {row["topic"] for row in rows} == {topic}
    assert {row["node"] for row in rows} == {node_uuid(broker)}
    assert all(int(row["id"], 16) & ((1 << 54) - 1) == row["index"] for row in rows)
    times = [row["timestamp"] for row in rows]
    second = datetime.timedelta(seconds=1)
    assert before - second <= min(times) and max(times) <= before + 60 * second


@pytest.mark.parametrize("columns", ["body", "timestamp,index", "id,topic", "node"])
def test_columns_are_those_asked_for_in_their_order(broker: Nsqd, columns: str) -> None:
    topic = new_topic()
    publish(broker, topic, b"a", b"b")
    rows = read({**nodes(broker), "topic": topic}, columns)
    assert [list(row) for row in rows] == [columns.split(",")] * 2


def test_what_was_published_a_moment_ago_is_there(broker: Nsqd) -> None:
    """R18: what is not synced yet is synced by the read."""
    topic = new_topic()
    for i in range(5):
        publish(broker, topic, b"%d" % i)
        assert len(read({**nodes(broker), "topic": topic}, "index")) == i + 1


def test_bodies_of_every_size_in_many_fetches(broker: Nsqd) -> None:
    topic = new_topic()
    sent = [bytes([i % 256]) * size for i, size in enumerate([1, 0x8000, 3, 0x40000, 0x80000, 7])]
    for body in sent:
        publish(broker, topic, body)
    options = {**nodes(broker), "topic": topic, "fetchSize": "65536"}
    assert bodies(read(options, "body")) == sent


def test_record_batches_are_small_and_of_equal_size(broker: Nsqd) -> None:
    topic = new_topic()
    for i in range(3):
        publish(broker, topic, *numbered(10_000, i * 10_000))
    reader = batch_reader({**nodes(broker), "topic": topic, "minPartitions": "1"}, "index,body")
    (part,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == 30_000
    assert max(sizes) <= task_reader.ROWS_MAX
    assert bodies(rows_of(reader, [part])) == numbered(30_000)


def test_partitions_are_ranges_of_equal_count(broker: Nsqd) -> None:
    topic, other = new_topic(), new_topic()
    publish(broker, topic, *numbered(70))
    publish(broker, other, *numbered(30, 70))
    options = {**nodes(broker), "topic": f"{topic},{other}", "minPartitions": "4"}
    reader = batch_reader(options)
    parts = reader.partitions()
    assert [len(rows_of(reader, [part])) for part in parts] == [25] * 4
    assert bodies(rows_of(reader, parts)) == numbered(100)


def test_a_reader_and_its_partitions_travel_to_the_executors(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, b"a")
    reader = batch_reader({**nodes(broker), "topic": topic}, "body")
    reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    assert rows_of(reader, parts) == [{"body": b"a"}]


def test_an_empty_topic_has_no_rows(broker: Nsqd) -> None:
    topic = new_topic()
    broker.post(f"/topic/create?topic={topic}")
    assert read({**nodes(broker), "topic": topic}) == []


# Ranges


def test_offsets_choose_a_range_by_node_or_address(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, *numbered(10))
    options = {**nodes(broker), "topic": topic}
    first = log_of(broker, topic)["first"]
    for name in (node_uuid(broker), address(broker)):
        start = json.dumps({name: {topic: first + 3}})
        end = json.dumps({name: {topic: first + 7}})
        chosen = {**options, "startingOffsets": start, "endingOffsets": end}
        assert bodies(read(chosen)) == numbered(4, 3)
    assert read({**options, "startingOffsets": "latest"}) == []
    assert read({**options, "endingOffsets": "earliest"}) == []
    beyond = json.dumps({address(broker): {topic: first + 100}})
    assert read({**options, "startingOffsets": beyond}) == []
    assert len(read({**options, "endingOffsets": beyond})) == 10


def test_times_choose_a_range(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, *numbered(3))
    time.sleep(0.02)
    between = str(int(time.time() * 1000))
    publish(broker, topic, *numbered(4, 3))
    options = {**nodes(broker), "topic": topic}
    assert bodies(read({**options, "startingTimestamp": between})) == numbered(4, 3)
    assert bodies(read({**options, "endingTimestamp": between})) == numbered(3)
    assert read({**options, "startingTimestamp": "2100-01-01"}) == []


def test_a_gap_that_a_restart_leaves_is_read_over(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path) as nsqd:
        publish(nsqd, topic, *numbered(30))
        nsqd.restart()
        publish(nsqd, topic, *numbered(30, 30))
        options = {**nodes(nsqd), "topic": topic, "minPartitions": "4"}
        reader = batch_reader(options)
        parts = reader.partitions()
        assert [len(rows_of(reader, [part])) for part in parts] == [15] * 4
        rows = rows_of(reader, parts)
        assert bodies(rows) == numbered(60)
        assert rows[30]["index"] - rows[29]["index"] > 1


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ('{"nobody": {"TOPIC": 1}}', "startingOffsets has node nobody, but the nodes are"),
        ('{"NODE": {"other": 1}}', "startingOffsets has topic other, but the topics are"),
    ],
)
def test_offsets_of_what_is_not_read_are_refused(broker: Nsqd, offsets: str, text: str) -> None:
    topic = new_topic()
    publish(broker, topic, b"a")
    offsets = offsets.replace("TOPIC", topic).replace("NODE", node_uuid(broker))
    with pytest.raises(QueryError, match=text):
        read({**nodes(broker), "topic": topic, "startingOffsets": offsets})


# Filters


def test_filters_decide_what_is_read(broker: Nsqd) -> None:
    topic, other = new_topic(), new_topic()
    publish(broker, topic, *numbered(10))
    publish(broker, other, b"other")
    first = log_of(broker, topic)["first"]
    column = ("index",)
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    cases = [
        ([EqualTo(("topic",), topic)], 10),
        ([EqualTo(("topic",), topic), GreaterThanOrEqual(column, first + 8)], 2),
        ([EqualTo(("topic",), topic), GreaterThan(column, first + 8)], 1),
        ([EqualTo(("topic",), topic), LessThan(column, first + 8)], 8),
        ([EqualTo(("topic",), topic), LessThanOrEqual(column, first + 8)], 9),
        ([EqualTo(("topic",), topic), EqualTo(column, first + 8)], 1),
        ([EqualTo(("topic",), topic), EqualTo(("topic",), other)], 0),
        ([In(("topic",), (topic, other)), IsNotNull(("body",))], 11),
        ([EqualTo(("node",), "nobody")], 0),
        ([EqualTo(("node",), node_uuid(broker))], 11),
        ([EqualTo(column, -5)], 0),
        ([GreaterThan(column, 1 << 60)], 0),
    ]
    for filters, count in cases:
        reader = NsqDataSource(
            {**nodes(broker), "topic": f"{topic},{other}", "pushFilters": "true"}
        ).reader(NsqDataSource({}).schema())
        assert isinstance(reader, NsqFilteringReader)
        assert list(reader.pushFilters(list(filters))) == []
        assert len(rows_of(reader, reader.partitions())) == count, filters
    left = [GreaterThan(("timestamp",), long_ago), StringContains(("id",), "0")]
    assert list(reader.pushFilters(list(left))) == left, "Spark looks at these again"


def test_a_time_in_a_filter_decides_where_to_start(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, *numbered(3))
    time.sleep(1.1)  # filters are rounded down to seconds
    now = datetime.datetime.now(datetime.UTC)
    publish(broker, topic, *numbered(4, 3))
    reader = NsqDataSource({**nodes(broker), "topic": topic, "pushFilters": "true"}).reader(
        NsqDataSource({}).schema()
    )
    assert isinstance(reader, NsqFilteringReader)
    list(reader.pushFilters([GreaterThanOrEqual(("timestamp",), now)]))
    assert bodies(rows_of(reader, reader.partitions())) == numbered(4, 3)


# Nodes


def test_two_nodes_are_one_table(broker: Nsqd, tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path, "--node-id=9") as second:
        publish(broker, topic, *numbered(5))
        publish(second, topic, *numbered(5, 5))
        rows = read({**nodes(broker, second), "topic": topic})
        assert sorted(bodies(rows)) == sorted(numbered(10))
        assert {row["node"] for row in rows} == {node_uuid(broker), node_uuid(second)}
        # The same node under two names is one node.
        twice = f"{address(second)},localhost:{second.http_port}"
        assert len(read({"nsqdHttpAddresses": twice, "topic": topic})) == 5


def test_a_topic_may_be_missing_on_a_node_but_not_on_all(broker: Nsqd, tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path) as second:
        publish(second, topic, b"a")
        assert len(read({**nodes(broker, second), "topic": topic})) == 1
        with pytest.raises(QueryError, match="topic nowhere does not exist on any node"):
            read({**nodes(broker, second), "topic": f"{topic},nowhere"})
    assert "nowhere" not in json.dumps(broker.stats())


def test_nodes_are_found_through_nsqlookupd(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *flags) as one, Nsqd(tmp_path / "b", *flags) as two:
            publish(one, topic, b"a")
            publish(two, topic, b"b")
            lookup = f"/lookup?topic={topic}"
            wait_until(lambda: len(lookupd.get(lookup).json.get("producers", ())) == 2)
            options = {"lookupdHttpAddresses": f"127.0.0.1:1,{lookupd.http_address}", **SHORT}
            assert sorted(bodies(read({**options, "topic": topic}))) == [b"a", b"b"]
            with pytest.raises(QueryError, match="topic nowhere does not exist on any node"):
                read({**options, "topic": "nowhere"})
    with pytest.raises(NodeError, match=r"nsqlookupd 127.0.0.1:1 does not answer"):
        read({"lookupdHttpAddresses": "127.0.0.1:1", "topic": topic, **SHORT})


def test_an_unreachable_node_is_named(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, b"a")
    both = {"nsqdHttpAddresses": f"{address(broker)},127.0.0.1:1"}
    with pytest.raises(NodeError, match=r"nsqd 127.0.0.1:1 does not answer: .*refused"):
        read({**both, "topic": topic, **SHORT})


def test_something_else_at_the_address_is_named(broker: Nsqd) -> None:
    with Nsqlookupd() as lookupd, pytest.raises(NodeError, match="is not an nsqd of Penstock"):
        read({"nsqdHttpAddresses": lookupd.http_address, "topic": "t", **SHORT})
    with pytest.raises(NodeError, match="does not answer"):
        wrong = {"nsqdHttpAddresses": f"127.0.0.1:{broker.tcp_port}", **SHORT}
        read({**wrong, "topic": "t", "requestTimeout": "300ms"})
    for wrong_address in ("localhost", "host:port", "http://host:1/path"):
        with pytest.raises(OptionError, match="must be host:port or https"):
            read({"nsqdHttpAddresses": wrong_address, "topic": "t"})


def test_a_node_that_restarts_is_waited_for(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path) as nsqd:
        for i in range(10):
            publish(nsqd, topic, *[b"x" * 50_000] * 4, b"%d" % i)
        options = {**nodes(nsqd), "topic": topic, "fetchSize": "65536", "minPartitions": "1"}
        reader = batch_reader(options, "body")
        (part,) = reader.partitions()
        batches = reader.read(part)
        found = next(batches).to_pylist()
        nsqd.kill()
        nsqd.start()
        found += [row for batch in batches for row in batch.to_pylist()]
        assert len(found) == 50


def test_a_connection_that_is_cut_in_the_middle_is_made_again(broker: Nsqd) -> None:
    topic = new_topic()
    for _ in range(10):
        publish(broker, topic, *[b"x" * 10_000] * 100)
    with Proxy(broker.http_port) as proxy:
        options = {"nsqdHttpAddresses": proxy.address, "fetchSize": "1000000"}
        reader = batch_reader({**options, "topic": topic, "minPartitions": "1"}, "index")
        (part,) = reader.partitions()
        batches = reader.read(part)
        count = next(batches).num_rows
        proxy.cut()
        assert count + sum(batch.num_rows for batch in batches) == 1000


def test_damaged_bytes_are_noticed(broker: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic()
    publish(broker, topic, *numbered(10))
    reader = batch_reader({**nodes(broker), "topic": topic})
    parts = reader.partitions()
    real = Node.receive

    def damaging(self: Node, connection: object) -> object:
        answer = real(self, connection)  # type: ignore[arg-type]
        flipped = answer.body[:100] + bytes([answer.body[100] ^ 1]) + answer.body[101:]
        return answer._replace(body=flipped)

    monkeypatch.setattr(Node, "receive", damaging)
    with pytest.raises(CorruptError, match=f"topic {topic} on {address(broker)}: .* damaged"):
        rows_of(reader, parts)


@needs_cachestat
def test_what_is_damaged_in_a_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the reader, judged by the node: the messages of one batch, and no other."""
    real = Fetch.verify
    asked: list[int] = []

    def noted(self: Fetch, index: int) -> bool:
        asked.append(index)
        return real(self, index)

    monkeypatch.setattr(Fetch, "verify", noted)
    with Nsqd(tmp_path, "--max-bytes-per-file=100000") as nsqd:
        topic = new_topic()
        for start in range(0, 2000, 20):
            publish(nsqd, topic, *(body + b"x" * 200 for body in numbered(20, start)))
        options = {**nodes(nsqd), "topic": topic, "failOnDataLoss": "false"}
        path = min(tmp_path.rglob("*.log"))
        data = path.read_bytes()
        at = data.index(numbered(1, 130)[0])
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"?")
        found = [body.rstrip(b"x") for body in bodies(read(options))]
        assert found == numbered(120) + numbered(1860, 140)
        assert len(asked) == 1


# Lost messages


def test_offsets_that_are_gone_fail_the_read_or_not(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path, SMALL) as nsqd:
        publish(nsqd, topic, *numbered(10))
        first = log_of(nsqd, topic)["first"]
        drop_oldest(nsqd, topic)
        options = {**nodes(nsqd), "topic": topic}
        old = {**options, "startingOffsets": json.dumps({address(nsqd): {topic: first}})}
        with pytest.raises(DataLossError, match=r"is complete only from .*failOnDataLoss"):
            read(old)
        publish(nsqd, topic, b"left")
        left = read({**old, "failOnDataLoss": "false"})
        assert bodies(left)[-1:] == [b"left"] and left == read(options)


def test_messages_that_go_while_they_are_read_fail_it_or_not(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path, SMALL) as nsqd:
        publish(nsqd, topic, *numbered(10))
        options = {**nodes(nsqd), "topic": topic}
        reader, careless = batch_reader(options), batch_reader({**options, "failOnDataLoss": "0"})
        parts = reader.partitions()
        drop_oldest(nsqd, topic)
        with pytest.raises(
            DataLossError, match=r"no longer has all messages: .*, at most 10 messages"
        ):
            rows_of(reader, parts)
        assert rows_of(careless, parts) == []
        publish(nsqd, topic, b"last")
        parts = reader.partitions()
        nsqd.post(f"/topic/delete?topic={topic}")
        with pytest.raises(DataLossError, match="was deleted"):
            rows_of(reader, parts)
        assert rows_of(careless, parts) == []
        publish(nsqd, topic, b"again")
        with pytest.raises(DataLossError, match="was deleted"):
            rows_of(reader, parts)
        instance = "0123456789abcdef"
        place = {address(nsqd): {topic: {"instance": instance, "index": 1}}}
        old = {**options, "startingOffsets": json.dumps(place)}
        with pytest.raises(DataLossError, match="was deleted and created again"):
            read(old)
        assert bodies(read({**old, "failOnDataLoss": "false"})) == [b"again"]


# Schemas and security


def test_a_schema_of_ones_own_chooses_columns(broker: Nsqd) -> None:
    source = NsqDataSource({**nodes(broker), "topic": "t"})
    with pytest.raises(OptionError, match="no column bodie, only topic, node, index"):
        source.reader(StructType([StructField("bodie", StringType())]))
    with pytest.raises(OptionError, match="column index is bigint, not int"):
        source.reader(StructType([StructField("index", IntegerType())]))


def test_tokens_open_the_log(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text("read read-token-1\npublish publish-token-1\nadmin admin-token-1\n")
    token.write_text("read-token-1\n")
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:
        header = {"Authorization": "Bearer admin-token-1"}
        assert nsqd.http("POST", "/pub?topic=t", b"a", header).status == 200
        options = {**nodes(nsqd), "topic": "t", **SHORT}
        with pytest.raises(NodeError, match=r"401 UNAUTHORIZED.*option httpToken"):
            read(options)
        with pytest.raises(NodeError, match=r"403 FORBIDDEN.*reading needs read"):
            read({**options, "httpToken": "publish-token-1"})
        assert len(read({**options, "httpToken": "read-token-1"})) == 1
        assert len(read({**options, "httpTokenFile": str(token)})) == 1
        for wrong, text in (("missing", "No such file"), ("empty", "is empty")):
            (tmp_path / "empty").touch()
            with pytest.raises(OptionError, match=text):
                read({**options, "httpTokenFile": str(tmp_path / wrong)})


def test_https_with_certificates(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    pki.issue("client")
    flags = (
        *pki.options(),
        f"--tls-root-ca-file={pki.ca}",
        "--tls-client-auth-policy=require-verify",
    )
    with Nsqd(tmp_path / "data", *flags) as nsqd:
        context = pki.client_context("client")
        assert nsqd.http("POST", "/pub?topic=t", b"a", tls=context).status == 200
        with pytest.raises(NodeError, match=r"403 TLS_REQUIRED.*use https"):
            read({**nodes(nsqd), "topic": "t", **SHORT})
        secure = f"https://localhost:{nsqd.https_port}"
        trusting = {"topic": "t", "tlsRootCaFile": pki.ca, **SHORT}
        shown = {"tlsCert": pki.path("client.pem"), "tlsKey": pki.path("client.key")}
        plain = f"localhost:{nsqd.https_port}"
        assert len(read({"nsqdHttpAddresses": secure, **trusting, **shown})) == 1
        assert len(read({"nsqdHttpAddresses": plain, "tls": "true", **trusting, **shown})) == 1
        careless = {"tlsInsecureSkipVerify": "true", "topic": "t", **SHORT}
        assert len(read({"nsqdHttpAddresses": secure, **careless, **shown})) == 1
        with pytest.raises(NodeError, match="CERTIFICATE_VERIFY_FAILED"):
            read({"nsqdHttpAddresses": secure, "topic": "t", **shown, "retryTimeout": "30s"})
        with pytest.raises(NodeError, match="does not answer"):
            read({"nsqdHttpAddresses": secure, **trusting})
        with pytest.raises(OptionError, match=r"failed to build TLS config - .*nothing.pem"):
            read({"nsqdHttpAddresses": secure, **trusting, "tlsCert": "/nothing.pem"})


def test_an_answer_that_makes_no_sense_is_an_error(broker: Nsqd) -> None:
    topic = new_topic()
    publish(broker, topic, b"a")
    node = batch_reader({**nodes(broker), "topic": topic}).reading.access
    with pytest.raises(NodeError, match="is not JSON"):
        Node(address(broker), node).json(Request("GET", "/ping", None))
