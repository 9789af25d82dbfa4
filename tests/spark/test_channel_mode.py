"""Streams through an ordinary channel, as from a Go nsqd: at least once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import DataLossError, NodeError, QueryError
from penstock.spark.go_source import ChannelStreamReader, read_file
from penstock.spark.source import NsqDataSource
from tests.spark.topics import SHORT, bodies, numbered, publish
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until


class Stream:
    """As Spark's engine runs it."""

    def __init__(self, options: dict[str, str], offset: dict[str, Any] | None = None) -> None:
        given = {"mode": "channel", "channel": "c", "pollTimeout": "200ms", **options}
        reader = NsqDataSource(given).streamReader(NsqDataSource({}).schema())
        assert isinstance(reader, ChannelStreamReader)
        self.reader = reader
        self.offset = offset if offset is not None else reader.initialOffset()

    def batch(self, rows_max: int | None = None, *, commit: bool = True) -> list[dict[str, Any]]:
        limit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
        end = self.reader.latestOffset(self.offset, limit)
        if json.dumps(end) == json.dumps(self.offset):
            return []
        parts = self.reader.partitions(self.offset, end)
        rows = [
            row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()
        ]
        self.offset = end
        if commit:
            self.reader.commit(end)
        return rows


@pytest.fixture
def options(broker: Nsqd, topic: str, tmp_path: Path) -> dict[str, str]:
    address = f"127.0.0.1:{broker.tcp_port}"
    return {"nsqdTcpAddresses": address, "topic": topic, "storePath": str(tmp_path / "store")}


@pytest.fixture
def stream(options: dict[str, str]) -> Iterator[Stream]:
    stream = Stream(options)
    yield stream
    stream.reader.stop()


def files(options: dict[str, str]) -> list[str]:
    folder = Path(options["storePath"])
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def all_of(stream: Stream, count: int, rows_max: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    wait_until(lambda: found.extend(stream.batch(rows_max)) or len(found) >= count)
    return found


def test_messages_are_stored_then_finished_then_read(
    broker: Nsqd, topic: str, options: dict[str, str], stream: Stream
) -> None:
    publish(broker, topic, *numbered(5))
    rows = all_of(stream, 5)
    assert sorted(bodies(rows)) == numbered(5)
    first = rows[0]
    assert list(first) == ["topic", "node", "index", "id", "timestamp", "body"]
    assert (first["topic"], first["node"]) == (topic, options["nsqdTcpAddresses"])
    assert first["index"] is None and len(first["id"]) == 16
    wait_until(lambda: broker.channel(topic, "c")["in_flight_count"] == 0)
    assert broker.channel(topic, "c")["depth"] == 0
    assert files(options) == [], "what is committed goes"


def test_a_batch_can_be_read_again_until_it_is_committed(
    broker: Nsqd, topic: str, options: dict[str, str], stream: Stream
) -> None:
    publish(broker, topic, *numbered(3))
    start = stream.offset
    end = stream.offset
    while end == start:
        end = stream.reader.latestOffset(start, ReadAllAvailable())
    stream.reader.stop()
    again = Stream(options)
    assert again.offset == start
    assert again.reader.latestOffset(again.offset, ReadAllAvailable()) == end
    assert sorted(bodies(again.batch())) == numbered(3)
    publish(broker, topic, b"next")
    assert bodies(all_of(again, 1)) == [b"next"]
    again.reader.stop()


def test_batches_have_at_most_as_many_messages_as_told(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream({**options, "maxMessagesPerTrigger": "4"})
    limit = stream.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    publish(broker, topic, *numbered(10))
    sizes: list[int] = []
    wait_until(lambda: sizes.append(len(stream.batch(4))) or sum(sizes) == 10)
    assert max(sizes) <= 4
    stream.reader.stop()


def test_available_now_ends(broker: Nsqd, topic: str, options: dict[str, str]) -> None:
    publish(broker, topic, *numbered(10))
    stream = Stream({**options, "pollTimeout": "1s"})
    stream.reader.prepareForTriggerAvailableNow()
    found: list[bytes] = []
    for _ in range(20):
        rows = stream.batch(4)
        found += bodies(rows)
        if not rows:
            break
    assert sorted(found) == sorted(numbered(10))
    assert stream.batch() == []
    stream.reader.stop()


def test_a_file_that_is_missing_is_lost_data(
    broker: Nsqd, topic: str, options: dict[str, str], stream: Stream
) -> None:
    publish(broker, topic, b"a")
    start = stream.offset
    all_of_it: list[Any] = []
    wait_until(lambda: all_of_it.extend(stream.batch(commit=False)) or all_of_it)
    (name,) = files(options)
    path = Path(options["storePath"]) / name
    path.unlink()
    with pytest.raises(DataLossError, match=f"{name} and 0 more files are missing"):
        stream.reader.partitions(start, stream.offset)
    careless = Stream({**options, "failOnDataLoss": "false"}, start)
    assert careless.reader.partitions(start, stream.offset) == []
    with pytest.raises(QueryError, match="executors need storePath too"):
        list(read_file(path, ["body"]))


def test_nodes_are_found_through_nsqlookupd(tmp_path: Path, topic: str) -> None:
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "nsqd", *flags) as nsqd:
            publish(nsqd, topic, b"a")
            wait_until(lambda: lookupd.get(f"/lookup?topic={topic}").status == 200)
            found = {"lookupdHttpAddresses": lookupd.http_address, "discoveryInterval": "50ms"}
            stream = Stream({**found, "topic": topic, "storePath": str(tmp_path / "store")})
            assert bodies(all_of(stream, 1)) == [b"a"]
            stream.reader.stop()


def test_no_nsqd_at_all_fails_the_query(options: dict[str, str]) -> None:
    stream = Stream({**options, "nsqdTcpAddresses": "127.0.0.1:1", **SHORT})
    with pytest.raises(NodeError, match=r"no nsqd could be reached: 127\.0\.0\.1:1"):
        for _ in range(50):
            stream.batch()
    stream.reader.stop()


def test_a_checkpoint_of_the_other_mode_is_refused(stream: Stream) -> None:
    with pytest.raises(QueryError, match="is not one of mode=channel"):
        stream.reader.latestOffset({"channel": "c", "nodes": {}}, ReadAllAvailable())
