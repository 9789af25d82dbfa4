"""Streams of real topics as Spark's engine runs them, without a JVM (R18)."""

from __future__ import annotations

import json
import pickle
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import DataLossError, NodeError, QueryError
from penstock.spark import follower, watcher
from penstock.spark.loss import find
from penstock.spark.offsets import INDEX_MAX
from tests.spark.topics import (
    SHORT,
    SMALL,
    Stream,
    address,
    bodies,
    drop_oldest,
    log_of,
    new_topic,
    node_uuid,
    nodes,
    numbered,
    publish,
    rows_of,
    wait_synced,
)
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.proxy import Proxy
from tests.support.waits import wait_until


def depth(nsqd: Nsqd, topic: str) -> int:
    return int(nsqd.channel(topic, "c")["depth"])


def look_again(stream: Stream) -> None:
    """One look may find that the channel is gone, and the next one makes it."""
    assert [stream.batch() for _ in range(2)] == [[], []]


# From the beginning


def test_a_stream_reads_what_is_there_and_what_comes(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(3))
    stream = Stream(options)
    assert bodies(stream.batch()) == numbered(3)
    assert stream.batch() == []
    publish(broker, topic, *numbered(2, 3))
    assert bodies(stream.batch()) == numbered(2, 3)
    assert depth(broker, topic) == 0
    stream.stop()


def test_a_stream_makes_its_channel_and_the_topic(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream(options)
    assert "pull" in broker.channel(topic, "c")
    publish(broker, topic, b"first")
    assert bodies(stream.batch()) == [b"first"]
    with broker.connect() as raw:
        raw.send(f"SUB {topic} c\n".encode())
        assert raw.frame()[1].startswith(b"E_SUB_FAILED")


@pytest.mark.parametrize("start", ["earliest", "latest", "index", "time"])
def test_a_new_channel_starts_where_it_is_told(
    broker: Nsqd, topic: str, options: dict[str, str], start: str
) -> None:
    publish(broker, topic, *numbered(5))
    time.sleep(0.005)
    now_ms = str(int(time.time() * 1000))
    publish(broker, topic, *numbered(2, 5))
    place = json.dumps({node_uuid(broker): {topic: log_of(broker, topic)["first"] + 3}})
    given, count = {
        "earliest": ({}, 7),
        "latest": ({"startingOffsets": "latest"}, 0),
        "index": ({"startingOffsets": place}, 4),
        "time": ({"startingTimestamp": now_ms}, 2),
    }[start]
    stream = Stream({**options, **given})
    publish(broker, topic, b"last")
    assert stream.bodies(count + 1) == [*numbered(7)[7 - count :], b"last"]


def test_a_first_batch_that_is_repeated_starts_at_the_same_place(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """R18: the driver may die before the first batch is in the checkpoint of commits."""
    options = {**options, "startingOffsets": "latest"}
    publish(broker, topic, b"before")
    stream = Stream(options)
    assert stream.reader.initialOffset() == stream.offset
    publish(broker, topic, *numbered(3))
    end = stream.reader.latestOffset(stream.offset, ReadAllAvailable())
    publish(broker, topic, b"after")
    again = Stream(options)
    assert again.offset["nodes"] == stream.offset["nodes"]
    assert again.offset["identity"] != stream.offset["identity"], "it is bound by a commit only"
    assert bodies(rows_of(again.reader, again.reader.partitions(again.offset, end))) == numbered(3)


def test_a_channel_that_exists_goes_on_where_it_stands(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(5))
    stream = Stream(options)
    stream.batch(3)
    who = {"identity": stream.offset["identity"]}
    again = Stream({**options, **who, "startingOffsets": "latest"})
    assert bodies(again.batch()) == numbered(2, 3)


def test_a_channel_with_consumers_is_not_taken(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    with broker.connect() as raw:
        raw.send(f"SUB {topic} c\n".encode())
        raw.frame()
        with pytest.raises(NodeError, match="has or had consumers: a stream needs its own channel"):
            Stream(options)


def test_unreachable_nodes_and_wrong_offsets_are_told_at_the_start(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    with pytest.raises(NodeError, match=r"nsqd 127\.0\.0\.1:1 does not answer"):
        Stream({**options, "nsqdHttpAddresses": f"{address(broker)},127.0.0.1:1", **SHORT})
    with pytest.raises(QueryError, match="has node nobody"):
        Stream({**options, "startingOffsets": json.dumps({"nobody": {topic: 1}})})
    stream = Stream(options)
    with pytest.raises(QueryError, match="does the checkpoint belong to another query"):
        stream.reader.latestOffset({"n": 5}, ReadAllAvailable())


# Batches


def test_a_batch_has_at_most_as_many_messages_as_told(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    other = new_topic()
    options = {**options, "topic": f"{topic},{other}", "maxMessagesPerTrigger": "40"}
    stream = Stream(options)
    limit = stream.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(40)
    assert Stream({**options, "maxMessagesPerTrigger": "1_000"}).reader.getDefaultReadLimit() == (
        ReadMaxRows(1000)
    )
    publish(broker, topic, *numbered(90))
    publish(broker, other, *numbered(10, 90))
    wait_synced(broker, topic, other)
    batches = [bodies(stream.batch(40)) for _ in range(3)]
    assert [len(batch) for batch in batches] == [40, 40, 20]
    assert sorted(chain(*batches)) == sorted(numbered(100))
    assert stream.reader.reportLatestOffset() == stream.offset


def test_a_batch_that_is_repeated_is_the_same(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(100))
    options = {**options, "minPartitions": "3"}
    stream = Stream(options)
    end = stream.reader.latestOffset(stream.offset, ReadMaxRows(70))
    parts = stream.reader.partitions(stream.offset, end)
    publish(broker, topic, *numbered(100, 100))
    again = Stream(options, stream.offset)
    same = again.reader.partitions(stream.offset, end)
    assert [part.value for part in same] == [part.value for part in parts]
    assert [len(rows_of(again.reader, [part])) for part in same] == [23, 23, 24]


def test_a_reader_travels_to_the_executors_without_its_connections(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, b"a")
    stream = Stream(options)
    end = stream.reader.latestOffset(stream.offset, ReadAllAvailable())
    parts = stream.reader.partitions(stream.offset, end)
    reader, parts = pickle.loads(pickle.dumps((stream.reader, parts)))
    assert bodies(rows_of(reader, parts)) == [b"a"]


def test_a_gap_that_a_restart_leaves_does_not_stop_small_batches(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqd(tmp_path) as nsqd:
        stream = Stream({**nodes(nsqd), "topic": topic, "channel": "c"})
        publish(nsqd, topic, *numbered(10))
        nsqd.restart()
        publish(nsqd, topic, *numbered(10, 10))
        wait_synced(nsqd, topic)
        batches = [bodies(stream.batch(4)) for _ in range(6)]
        assert list(chain(*batches)) == numbered(20)
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 0]


def test_a_message_is_seen_at_once_and_waiting_costs_nothing(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream({**options, "pollTimeout": "10s"})
    publisher = threading.Timer(0.3, publish, (broker, topic, b"a"))
    publisher.start()
    start_s = time.monotonic()
    assert bodies(stream.batch()) == [b"a"]
    assert 0.25 < time.monotonic() - start_s < 5
    publisher.join()
    stream = Stream({**options, "pollTimeout": "0"}, stream.offset)
    start_s = time.monotonic()
    assert stream.batch() == []
    assert time.monotonic() - start_s < 1
    publish(broker, topic, b"b")
    wait_until(stream.batch)


def test_available_now_ends_where_it_began(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(10))
    stream = Stream(options)
    stream.reader.prepareForTriggerAvailableNow()
    found = bodies(stream.batch(4))
    publish(broker, topic, *numbered(10, 10))
    for _ in range(4):
        found += bodies(stream.batch(4, commit=False))
    assert found == numbered(10)
    assert depth(broker, topic) == 10, "the last batch is committed too"


def test_a_paused_channel_gives_nothing(broker: Nsqd, topic: str, options: dict[str, str]) -> None:
    stream = Stream(options)
    broker.post(f"/channel/pause?topic={topic}&channel=c")
    publish(broker, topic, b"a")
    assert stream.batch() == []
    broker.post(f"/channel/unpause?topic={topic}&channel=c")
    assert stream.bodies(1) == [b"a"]


# Progress


def test_commits_move_the_channel(broker: Nsqd, topic: str, options: dict[str, str]) -> None:
    stream = Stream(options)
    publish(broker, topic, *numbered(10))
    stream.batch(4, commit=False)
    assert depth(broker, topic) == 10
    stream.reader.commit(stream.offset)
    assert depth(broker, topic) == 6


def test_a_stream_that_rests_has_committed_all(
    broker: Nsqd, topic: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "IDLE_COMMIT_S", 0.1)
    stream = Stream(options)
    publish(broker, topic, b"a")
    stream.batch(commit=False)
    assert depth(broker, topic) == 1
    for _ in range(3):
        stream.batch()
    assert depth(broker, topic) == 0


# Nodes


def test_two_nodes_are_one_stream_and_one_may_be_away(
    broker: Nsqd, second: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "AWAY_S", 0.1)
    options = {**nodes(broker, second), "topic": topic, "channel": "c"}
    stream = Stream(options)
    publish(broker, topic, *numbered(3))
    publish(second, topic, *numbered(3, 3))
    assert sorted(stream.bodies(6)) == numbered(6)
    second.kill()
    publish(broker, topic, *numbered(3, 6))
    assert stream.bodies(3) == numbered(3, 6)
    assert stream.batch() == []
    second.start()
    publish(second, topic, *numbered(3, 9))
    publish(broker, topic, b"m12")
    assert sorted(stream.bodies(4)) == sorted(numbered(4, 9))
    stream.stop()


def test_when_no_node_answers_for_long_the_query_fails(
    second: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "AWAY_S", 0.1)
    stream = Stream({**nodes(second), "topic": topic, "channel": "c", **SHORT})
    assert stream.batch() == []
    second.kill()
    with pytest.raises(NodeError, match="no nsqd has answered for"):
        for _ in range(50):
            stream.batch()


def test_a_node_that_hangs_is_left_out(broker: Nsqd, second: Nsqd, topic: str) -> None:
    with Proxy(second.http_port) as proxy:
        both = {"nsqdHttpAddresses": f"{address(broker)},{proxy.address}"}
        stream = Stream({**both, "topic": topic, "channel": "c", "requestTimeout": "200ms"})
        assert stream.batch() == []
        proxy.stall()
        publish(broker, topic, *numbered(3))
        assert stream.bodies(3) == numbered(3)
        for _ in range(5):
            stream.batch()
        proxy.resume()
        publish(second, topic, b"hung")
        assert stream.bodies(1) == [b"hung"]


def test_new_nodes_are_found_and_none_of_their_messages_missed(tmp_path: Path) -> None:
    """R18: nsqlookupd has a new node make the channel before its first message."""
    topic = new_topic()
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *flags) as one, Nsqd(tmp_path / "b", *flags) as two:
            wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == 2)
            two.terminate()
            options = {
                "lookupdHttpAddresses": lookupd.http_address,
                "topic": topic,
                "channel": "c",
                "discoveryInterval": "50ms",
            }
            wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == 1)
            stream = Stream(options)
            publish(one, topic, *numbered(3))
            assert stream.bodies(3) == numbered(3)
            two.start()
            wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == 2)
            publish(two, topic, *numbered(3, 3))
            found: list[bytes] = []
            wait_until(lambda: found.extend(bodies(stream.batch())) or len(found) == 3)
            assert found == numbered(3, 3)
            assert "pull" in two.channel(topic, "c")
            # Lookupds may all be away for a while.
            lookupd.kill()
            time.sleep(0.1)
            publish(two, topic, b"later")
            assert stream.bodies(1) == [b"later"]
            stream.stop()


def test_a_new_node_enters_at_its_start_without_messages(
    broker: Nsqd, second: Nsqd, topic: str
) -> None:
    """So that both ends of its first range are in the checkpoint."""
    publish(second, topic, *numbered(3))
    options = {"topic": topic, "channel": "c"}
    stream = Stream({**nodes(broker), **options})
    both = Stream({**nodes(broker, second), **options}, stream.offset)
    assert both.batch() == []
    assert set(both.offset["nodes"]) == {node_uuid(broker), node_uuid(second)}
    assert both.batch() and both.batch() == []


# Lost messages


def test_a_node_of_the_checkpoint_that_is_not_asked_for_is_lost(
    broker: Nsqd, second: Nsqd, topic: str
) -> None:
    options = {"topic": topic, "channel": "c"}
    stream = Stream({**nodes(broker, second), **options})
    publish(broker, topic, b"a")
    fewer = {**nodes(broker), **options}
    with pytest.raises(DataLossError, match="is missing: the node is not one of"):
        Stream(fewer, stream.offset).batch()
    careless = Stream({**fewer, "failOnDataLoss": "false"}, stream.offset)
    assert bodies(careless.batch()) == [b"a"]
    assert set(careless.offset["nodes"]) == {node_uuid(broker), node_uuid(second)}
    # And one that is asked for again goes on.
    publish(second, topic, b"b")
    back = Stream({**nodes(broker, second), **options}, careless.offset)
    assert back.bodies(1) == [b"b"]


def test_a_data_path_that_was_wiped_is_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "AWAY_S", 0.1)
    topic = new_topic()
    with Nsqd(tmp_path / "a") as nsqd:
        options = {**nodes(nsqd), "topic": topic, "channel": "c"}
        stream = Stream(options)
        careless = Stream({**options, "channel": "d", "failOnDataLoss": "false"})
        publish(nsqd, topic, b"old")
        assert bodies(stream.batch()) == bodies(careless.batch()) == [b"old"]
        nsqd.kill()
        nsqd.data_path = tmp_path / "b"
        nsqd.start()
        publish(nsqd, topic, b"new")
        with pytest.raises(DataLossError, match="is missing: the node is not one of"):
            for _ in range(5):
                stream.batch()
        assert careless.bodies(1) == [b"new"]


def test_a_topic_that_was_deleted_fails_the_stream_or_begins_anew(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """R48: deleted, and deleted and made again, are two messages; a stream does not make it."""
    loose = {**options, "channel": "d", "failOnDataLoss": "false"}
    careful, careless = Stream(options), Stream(loose)
    publish(broker, topic, b"old")
    for stream in (careful, careless):
        assert bodies(stream.batch()) == [b"old"]
    broker.post(f"/topic/delete?topic={topic}&force=true")
    with pytest.raises(DataLossError, match="was deleted: everything that the query") as caught:
        careful.batch()
    (loss,) = caught.value.losses
    assert (loss.topic, loss.end, loss.count_max) == (topic, INDEX_MAX, None)
    assert loss == find(f"...\n'{caught.value!s}'\n...")[0]
    assert careless.batch() == [] and careless.batch() == []
    # Nor does one that is started again, or a run that reads what is there.
    restarted = Stream(loose, careless.offset)
    assert restarted.batch() == []
    with pytest.raises(DataLossError, match="was deleted: everything"):
        Stream(options, careful.offset).available_now()
    assert broker.get(f"/log?topic={topic}").status == 404, "it was made again"
    # Once it was accepted, it is forgotten.
    named = Stream({**options, "acceptLoss": json.dumps([loss.as_json()])}, careful.offset)
    assert named.batch() == []
    told = Stream(options, named.offset)
    assert told.batch() == []
    publish(broker, topic, b"new")
    with pytest.raises(DataLossError, match="was deleted and created again"):
        Stream(options, careful.offset).batch()
    for stream in (restarted, told):
        wait_until(lambda stream=stream: bodies(stream.batch()) == [b"new"])
    broker.post(f"/topic/delete?topic={topic}&force=true")
    with pytest.raises(DataLossError, match="was deleted: everything"):
        Stream(options, told.offset).available_now()


READ_TOKENS = "read read-token-1\nadmin admin-token-1\n"
ADMIN = {"Authorization": "Bearer admin-token-1"}


def test_a_token_that_only_reads_waits_for_the_topic(tmp_path: Path) -> None:
    """It makes none; what is published to it from its first message on is read."""
    tokens = tmp_path / "tokens"
    tokens.write_text(READ_TOKENS)
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:

        def admin(target: str, body: bytes = b"") -> None:
            assert nsqd.http("POST", target, body, ADMIN).status == 200

        given = {**nodes(nsqd), "channel": "c", "httpToken": "read-token-1"}
        options = {**given, "topic": "there,later", "startingOffsets": "latest"}
        admin("/pub?topic=there", b"old")
        stream = Stream({**options, "failOnDataLoss": "false"})
        assert stream.batch() == []
        admin("/pub?topic=there", b"there")
        assert stream.bodies(1) == [b"there"]
        admin("/pub?topic=later", b"later")
        found: list[bytes] = []
        wait_until(lambda: found.extend(bodies(stream.batch())) or len(found) == 1)
        assert found == [b"later"]
        admin("/topic/delete?topic=later&force=true")
        wait_until(lambda: not stream.batch() and str(INDEX_MAX) in json.dumps(stream.offset))
        admin("/pub?topic=later", b"again")
        wait_until(lambda: found.extend(bodies(stream.batch())) or len(found) == 2)
        assert found == [b"later", b"again"]
        resumed = Stream(options, stream.offset)
        admin("/pub?topic=later", b"resumed")
        assert resumed.bodies(1) == [b"resumed"]
        for each in (stream, resumed):
            each.stop()


def test_a_channel_that_was_deleted_is_made_again_if_nothing_is_lost(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream(options)
    publish(broker, topic, *numbered(3))
    assert bodies(stream.batch()) == numbered(3)
    publish(broker, topic, *numbered(3, 3))
    broker.post(f"/channel/delete?topic={topic}&channel=c&force=true")
    assert stream.bodies(3) == numbered(3, 3)
    look_again(stream)  # the last batch may have been planned before the channel was deleted
    assert depth(broker, topic) == 0


def test_a_channel_that_is_deleted_before_a_planned_range_is_read_does_not_end_the_stream(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream(options)
    publish(broker, topic, *numbered(3))
    reader, start = stream.reader, stream.offset
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions = reader.partitions(start, end)
    broker.post(f"/channel/delete?topic={topic}&channel=c&force=true")
    assert bodies(rows_of(reader, partitions)) == numbered(3)
    reader.commit(end)
    stream.offset = end
    look_again(stream)
    assert depth(broker, topic) == 0


def test_what_was_removed_since_its_channel_was_deleted_is_told(tmp_path: Path) -> None:
    with Nsqd(tmp_path, SMALL) as nsqd:
        topic = new_topic()
        for careful in (True, False):
            publish(nsqd, topic, *[b"x" * 1000] * 10)
            options = {**nodes(nsqd), "topic": topic, "channel": f"c{careful}"}
            stream = Stream({**options, "failOnDataLoss": str(careful).lower()})
            reader, start = stream.reader, stream.offset
            end = reader.latestOffset(start, ReadAllAvailable())
            partitions = reader.partitions(start, end)
            nsqd.post(f"/channel/delete?topic={topic}&channel=c{careful}&force=true")
            drop_oldest(nsqd, topic)
            if careful:
                with pytest.raises(DataLossError, match="no longer has all messages"):
                    rows_of(reader, partitions)
            else:
                assert len(rows_of(reader, partitions)) < 20


def test_messages_that_are_gone_fail_the_stream_or_not(tmp_path: Path) -> None:
    """R18: the channel lapsed or was deleted, and the log was not kept."""
    with Nsqd(tmp_path, SMALL) as nsqd:
        topic, other = new_topic(), new_topic()
        offsets: dict[str, Any] = {}
        for name in (topic, other):
            stream = Stream({**nodes(nsqd), "topic": name, "channel": "c"})
            publish(nsqd, name, *[b"x" * 1000] * 10)
            stream.batch(3)
            offsets[name] = stream.offset
            nsqd.post(f"/channel/delete?topic={name}&channel=c&force=true")
        drop_oldest(nsqd, topic)
        drop_oldest(nsqd, other)
        options = {**nodes(nsqd), "channel": "c"}
        # It fails again and again: the first failure does not make the log look whole.
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"channel c, which kept them, does not exist"):
                Stream({**options, "topic": topic}, offsets[topic]).batch()
        careless = Stream({**options, "topic": other, "failOnDataLoss": "false"}, offsets[other])
        publish(nsqd, other, b"new")
        assert careless.bodies(1)[-1] == b"new"
        # And an offset that a user gives.
        first = offsets[topic]["nodes"][node_uuid(nsqd)][topic]["index"]
        place = json.dumps({address(nsqd): {topic: first}})
        with pytest.raises(DataLossError, match="is complete only from"):
            Stream({**options, "topic": topic, "startingOffsets": place})


def test_a_node_that_was_set_back_is_noticed(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream(options)
    place = stream.offset["nodes"][node_uuid(broker)][topic]
    place["index"] += 1 << 40
    with pytest.raises(DataLossError, match="was the node restored"):
        Stream(options, stream.offset).batch()
