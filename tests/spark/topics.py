"""Topics for the tests of the data source, and its readers called as Spark calls them.

Most of what a reader does needs no JVM: Spark's engine makes it, asks for partitions and gives each
to a task.  Here that is done in the test's own process, a hundred times as fast.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.spark.batch import NsqBatchReader
from penstock.spark.options import STREAM
from penstock.spark.options import parse_options as parse
from penstock.spark.source import NsqDataSource
from penstock.spark.stream import NsqStreamReader
from tests.support.bodies import several
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

# Small segments, so that what everybody has read goes soon.
SMALL = "--max-bytes-per-file=4096"
# Waits of a test that wants to see something fail.
SHORT = {"retryTimeout": "300ms", "requestTimeout": "2s"}


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.http_port}"


def nodes(*nsqds: Nsqd) -> dict[str, str]:
    return {"nsqdHttpAddresses": ",".join(map(address, nsqds))}


def new_topic() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    reply = nsqd.post(f"/mpub?topic={topic}&binary=true", several(*bodies))
    assert reply.status == 200, reply


def publish_each(nsqd: Nsqd, topic: str, messages: list[bytes]) -> None:
    """Publish one by one: messages published together stay in one segment."""
    for message in messages:
        publish(nsqd, topic, message)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % i for i in range(start, start + count)]


def node_uuid(nsqd: Nsqd) -> str:
    return str(nsqd.get("/info").json["node_uuid"])


def log_of(nsqd: Nsqd, topic: str) -> Any:
    reply = nsqd.get(f"/log?topic={topic}")
    assert reply.status == 200, reply
    return reply.json


def wait_synced(nsqd: Nsqd, *topics: str) -> None:
    """Until then a reader may see what was published to one topic and not what was to another."""
    for topic in topics:
        end = log_of(nsqd, topic)["end"]
        wait_until(lambda topic=topic, end=end: log_of(nsqd, topic)["synced_end"] >= end)


def drop_oldest(nsqd: Nsqd, topic: str) -> None:
    """Have a channel that has read everything, and wait until nsqd has removed old segments."""
    before = log_of(nsqd, topic)["whole_from"]
    nsqd.post(f"/channel/create?topic={topic}&channel=done")
    publish(nsqd, topic, *[b"x" * 1000] * 10)
    nsqd.post(f"/channel/empty?topic={topic}&channel=done")
    wait_until(lambda: log_of(nsqd, topic)["whole_from"] > before)


def removed_end(nsqd: Nsqd, topic: str, index: int = 0) -> int:
    """Where what is left of a log begins, behind ``index``, when segments have stopped going."""
    seen = [0] * 20

    def is_steady() -> bool:
        seen.append(log_of(nsqd, topic)["whole_from"])
        return index < seen[-1] == seen[-20]

    wait_until(is_steady)
    return seen[-1]


def batch_reader(options: dict[str, str], columns: str = "") -> NsqBatchReader:
    source = NsqDataSource({**options, **({"columns": columns} if columns else {})})
    reader = source.reader(source.schema())
    assert isinstance(reader, NsqBatchReader)
    return reader


def rows_of(reader: NsqBatchReader | NsqStreamReader, partitions: Any) -> list[dict[str, Any]]:
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def read(options: dict[str, str], columns: str = "") -> list[dict[str, Any]]:
    """All rows of a batch read."""
    reader = batch_reader(options, columns)
    return rows_of(reader, reader.partitions())


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


class Stream:
    """A stream as Spark's engine runs it; ``offset`` is what its checkpoint would have."""

    def __init__(self, options: dict[str, str], offset: dict[str, Any] | None = None) -> None:
        self.options = {"pollTimeout": "100ms", **options}
        self.reader = NsqStreamReader(parse(self.options, STREAM, {}), ("topic", "index", "body"))
        self.offset = offset if offset is not None else self.reader.initialOffset()

    def batch(self, rows_max: int | None = None, *, commit: bool = True) -> list[dict[str, Any]]:
        """Run the next batch; no rows if there is nothing new."""
        limit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
        end = self.reader.latestOffset(self.offset, limit)
        if json.dumps(end) == json.dumps(self.offset):
            return []
        assert json.loads(json.dumps(end)) == end
        rows = rows_of(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        if commit:
            self.reader.commit(end)
        return rows

    def bodies(self, count: int, rows_max: int | None = None) -> list[bytes]:
        """Batches until there are ``count`` messages, at most 50 of them."""
        found: list[bytes] = []
        for _ in range(50):
            found += bodies(self.batch(rows_max))
            if len(found) >= count:
                break
        return found

    def available_now(self, rows_max: int | None = None) -> list[bytes]:
        """All batches of such a run."""
        self.reader.prepareForTriggerAvailableNow()
        found: list[bytes] = []
        for _ in range(50):
            before = self.offset
            found += bodies(self.batch(rows_max, commit=False))
            if self.offset is before:
                return found
        raise AssertionError("it does not end")

    def stop(self) -> None:
        self.reader.stop()
