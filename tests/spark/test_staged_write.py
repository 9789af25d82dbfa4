"""Rows staged on real nodes and published by a commit, without a JVM (R19)."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import NodeError, OptionError, QueryError
from penstock.spark import packer
from penstock.spark.cluster import Cluster
from penstock.spark.node_client import Access
from penstock.spark.options import WRITE, parse_options
from penstock.spark.packer import Shape
from penstock.spark.source import NsqDataSource
from penstock.spark.staging import COORDINATOR_FILE, Committer, StagedRows, coordinator_file
from penstock.spark.writer import NsqBatchWriter, NsqStreamWriter, StagedMessage, Stager
from tests.spark.topics import (
    SHORT,
    address,
    bodies,
    node_uuid,
    nodes,
    numbered,
    publish,
    read,
)
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

BODY = StructType([StructField("body", StringType())])


class Query:
    """A stream's sink: its tasks and its driver, which may be killed and started again."""

    def __init__(self, options: dict[str, str], location: str = "", id: str = "") -> None:
        self.options = parse_options({**SHORT, **options}, WRITE, {})
        self.access = Access.of(self.options)
        self.id = id or str(uuid.uuid4())
        self.location = location
        self.restart()

    def restart(self) -> None:
        """The driver and all it remembers are gone."""
        cluster = Cluster(self.options, self.access)
        self.committer = Committer(cluster, self.location, lasting=True)

    def stage(self, batch: int, partition: int, rows: list[bytes]) -> StagedRows:
        stager = Stager(self.options, self.access, Shape(0, -1, -1))
        table = pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())})
        return stager.stage(iter([table] if rows else []), self.id, batch, partition).staged


def staged_on(nsqd: Nsqd, query: Query) -> list[dict[str, Any]]:
    return [each for each in nsqd.get("/staging").json if each["query"] == query.id]


def test_a_node_that_is_being_drained_gets_no_new_rows(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:
        query = Query({**nodes(first, second), "topic": "t"})
        assert first.post("/topic/create?topic=held").status == 200
        assert first.post("/pub?topic=held", b"it stays").status == 200
        assert first.post("/drain").status == 200
        for partition in range(3):
            query.stage(0, partition, numbered(2))
        assert (len(staged_on(first, query)), len(staged_on(second, query))) == (0, 3)


def published(*nsqds: Nsqd, topic: str) -> list[bytes]:
    return sorted(bodies(read({**nodes(*nsqds), "topic": topic})))


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(
    broker: Nsqd, second: Nsqd, topic: str
) -> None:
    query = Query({**nodes(broker, second), "topic": topic})
    publish(broker, topic, b"already there")
    staged = [query.stage(0, 0, numbered(5)), query.stage(0, 1, numbered(5, 5))]
    assert {each.node for each in staged} == {node_uuid(broker), node_uuid(second)}
    assert published(broker, second, topic=topic) == [b"already there"]
    assert query.committer.commit(staged) == 10
    assert published(broker, second, topic=topic) == sorted([b"already there", *numbered(10)])
    assert staged_on(broker, query) == staged_on(second, query) == []


def test_a_commit_that_is_repeated_publishes_nothing_twice(
    broker: Nsqd, second: Nsqd, topic: str
) -> None:
    """A driver that dies after its commit, and one whose tasks have staged it all again."""
    query = Query({**nodes(broker, second), "topic": topic})
    staged = [query.stage(0, 0, numbered(5)), query.stage(0, 1, numbered(5, 5))]
    query.committer.commit(staged)
    query.committer.commit(staged)
    query.restart()
    again = [query.stage(0, 0, numbered(5)), query.stage(0, 1, numbered(5, 5))]
    assert query.committer.commit(again) == 10
    assert published(broker, second, topic=topic) == sorted(numbered(10))
    assert staged_on(broker, query) == staged_on(second, query) == []
    query.committer.commit([query.stage(1, 0, [b"next"])])
    query.restart()
    assert query.committer.commit([query.stage(0, 0, numbered(5))]) == 0, "long finished"
    assert published(broker, second, topic=topic) == sorted([*numbered(10), b"next"])


@pytest.mark.parametrize("kept", ["checkpoint", "brokers"])
def test_a_commit_that_dies_half_way_is_finished_by_the_next(
    broker: Nsqd, second: Nsqd, topic: str, tmp_path: Path, kept: str
) -> None:
    """R19: decided, and published on one node of two; then the tasks run again elsewhere."""
    location = str(tmp_path / "checkpoint") if kept == "checkpoint" else ""
    query = Query({**nodes(broker, second), "topic": topic}, location)
    staged = [query.stage(0, 0, [b"a", b"b"]), query.stage(0, 1, [b"c"])]
    coordinator = min((broker, second), key=node_uuid)
    publishing = query.committer._publish

    def half(id: str, batch: int, winners: list[StagedRows]) -> int:
        publishing(id, batch, [each for each in winners if each.node == node_uuid(coordinator)])
        raise NodeError("killed here")

    query.committer._publish = half  # type: ignore[assignment,method-assign]
    with pytest.raises(NodeError, match="killed here"):
        query.committer.commit(staged)
    assert len(published(broker, second, topic=topic)) in (1, 2)
    query.restart()
    # Other rows, as a source that is not deterministic gives them: they lose.
    again = [query.stage(0, 0, [b"x"]), query.stage(0, 1, []), query.stage(0, 2, [b"y"])]
    assert query.committer.commit(again) == 3
    assert published(broker, second, topic=topic) == [b"a", b"b", b"c"]
    assert staged_on(broker, query) == staged_on(second, query) == []
    if kept == "checkpoint":
        told = json.loads((tmp_path / "checkpoint" / COORDINATOR_FILE).read_text())
        assert told == {"coordinator": node_uuid(coordinator)}
    else:
        for nsqd in (broker, second):
            told = nsqd.get(f"/staging/coordinator?query={query.id}").json
            assert told["coordinator"] == node_uuid(coordinator)


def test_a_node_that_is_away_holds_the_batch_back(
    broker: Nsqd, second: Nsqd, topic: str, tmp_path: Path
) -> None:
    query = Query({**nodes(broker, second), "topic": topic}, str(tmp_path / "checkpoint"))
    staged = [query.stage(0, 0, [b"a"]), query.stage(0, 1, [b"b"])]
    second.kill()
    with pytest.raises(NodeError, match=f"nsqd {address(second)} does not answer"):
        query.committer.commit(staged)
    query.restart()
    with pytest.raises(NodeError, match=f"nsqd {address(second)} does not answer"):
        query.committer.commit([query.stage(0, 0, [b"a"]), query.stage(0, 2, [b"b"])])
    second.start()
    query.restart()
    assert query.committer.commit([query.stage(0, 0, [b"a"]), query.stage(0, 2, [b"b"])]) == 2
    assert published(broker, second, topic=topic) == [b"a", b"b"]


def test_a_coordinator_that_is_not_there_any_more_is_named(
    broker: Nsqd, topic: str, tmp_path: Path
) -> None:
    gone = str(uuid.uuid4())
    (tmp_path / COORDINATOR_FILE).write_text(json.dumps({"coordinator": gone}))
    query = Query({**nodes(broker), "topic": topic}, f"file://{tmp_path}")
    with pytest.raises(NodeError, match=f"needs node {gone}.*the batch waits for it"):
        query.committer.commit([query.stage(0, 0, [b"a"])])
    (tmp_path / COORDINATOR_FILE).write_text("{}")
    query.restart()
    with pytest.raises(QueryError, match="has no coordinator"):
        query.committer.commit([query.stage(0, 0, [b"a"])])


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b%20c", "/a/b c"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
        ("relative", None),
        ("", None),
    ],
)
def test_only_a_local_checkpoint_keeps_the_coordinator(location: str, folder: str | None) -> None:
    found = coordinator_file(location)
    assert found == (None if folder is None else Path(folder) / COORDINATOR_FILE)


def test_tasks_leave_out_nodes_that_are_not_well(broker: Nsqd, second: Nsqd, topic: str) -> None:
    query = Query({**nodes(broker, second), "topic": topic})
    second.kill()
    staged = [query.stage(0, partition, [b"%d" % partition]) for partition in range(4)]
    assert {each.node for each in staged} == {node_uuid(broker)}
    broker_only = {"nsqdHttpAddresses": "127.0.0.1:1", "topic": topic}
    with pytest.raises(NodeError, match="does not answer"):
        Query(broker_only).stage(0, 0, [b"a"])


def test_many_parts_are_one_staging(
    broker: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "PART_SIZE_MAX", 2000)
    query = Query({**nodes(broker), "topic": topic})
    staged = query.stage(0, 0, numbered(1000))
    assert staged.count == 1000
    assert query.committer.commit([staged]) == 1000
    rows = read({**nodes(broker), "topic": topic})
    assert bodies(rows) == numbered(1000), "in order"


def test_a_batch_without_rows_publishes_nothing(broker: Nsqd, topic: str) -> None:
    query = Query({**nodes(broker), "topic": topic})
    assert query.committer.commit([]) == 0
    assert query.committer.commit([query.stage(0, 0, []), query.stage(0, 1, [])]) == 0
    assert query.committer.commit([query.stage(1, 0, [b"a"])]) == 1


def test_what_nsqd_refuses_fails_the_task_and_leaves_nothing(broker: Nsqd, topic: str) -> None:
    query = Query({**nodes(broker), "topic": topic})
    with pytest.raises(NodeError, match="413 MSG_TOO_BIG"):
        query.stage(0, 0, [b"x" * (2 << 20)])
    with pytest.raises(QueryError, match="the body is empty"):
        query.stage(0, 0, [b"a", b""])
    assert staged_on(broker, query) == []


def test_a_task_that_fails_discards_what_it_has_staged(broker: Nsqd, topic: str) -> None:
    query = Query({**nodes(broker), "topic": topic})
    stager = Stager(query.options, query.access, Shape(0, -1, -1))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"body": [b"x" * 500_000] * 20})
        assert staged_on(broker, query) != []
        raise RuntimeError("the query's own fault")

    with pytest.raises(RuntimeError, match="own fault"):
        stager.stage(rows(), query.id, 0, 0)
    assert staged_on(broker, query) == []


# Writers, as Spark makes them


def test_abort_discards_only_what_cannot_have_been_decided(broker: Nsqd, topic: str) -> None:
    options = parse_options({**nodes(broker), "topic": topic}, WRITE)
    query = Query({**nodes(broker), "topic": topic})
    writer = NsqStreamWriter(options, Shape(0, -1, -1), "")
    messages = [StagedMessage(query.stage(0, partition, [b"a"])) for partition in range(2)]
    writer.abort([*messages], 0)
    assert len(staged_on(broker, query)) == 2, "all tasks have told: a commit may have failed"
    writer.abort([messages[0], None], 0)
    assert len(staged_on(broker, query)) == 1
    writer.commit([messages[1]], 0)
    assert published(broker, topic=topic) == [b"a"]


def test_a_batch_write_of_a_name_is_published_once(broker: Nsqd, topic: str) -> None:
    name = f"daily-{topic}"
    for batch, body in ((0, b"one"), (0, b"two"), (3, b"three"), (3, b"four"), (1, b"five")):
        given = {**nodes(broker), "topic": topic, "writeId": name, "writeBatch": str(batch)}
        source = NsqDataSource(given)
        writer = pickle.loads(pickle.dumps(source.writer(BODY, False)))
        assert isinstance(writer, NsqBatchWriter)
        rows = pa.RecordBatch.from_pydict({"body": [body]})
        writer.commit([writer.stager.stage(iter([rows]), writer.query, batch, 0)])
    assert published(broker, topic=topic) == [b"one", b"three"]
    for _ in range(2):
        writer = NsqDataSource({**nodes(broker), "topic": topic}).writer(BODY, False)
        assert isinstance(writer, NsqBatchWriter)
        rows = pa.RecordBatch.from_pydict({"body": [b"any"]})
        writer.commit([writer.stager.stage(iter([rows]), writer.query, 0, 0)])
    assert published(broker, topic=topic) == [b"any", b"any", b"one", b"three"]


def test_the_note_of_a_batch_write_is_kept_with_its_decision(broker: Nsqd, topic: str) -> None:
    """R43: also of a write that has no tasks; a repeated one changes nothing."""
    name = f"noted-{topic}"
    rows = pa.RecordBatch.from_pydict({"body": [b"a"]})
    for batch, note in ((0, "one"), (0, "other"), (2, "two"), (1, "old"), (3, "")):
        given = {**nodes(broker), "topic": topic, "writeId": name, "writeBatch": str(batch)}
        writer = NsqDataSource({**given, "writeNote": note} if note else given).writer(BODY, False)
        assert isinstance(writer, NsqBatchWriter)
        staged = [writer.stager.stage(iter([rows]), writer.query, batch, 0)] if batch != 2 else []
        writer.commit([*staged])
        told = broker.get(f"/staging/decision?query={name}").json
        newest, kept = {0: (0, "one"), 3: (3, None)}.get(batch, (2, "two"))
        assert (told["batch"], told["note"], told["published"]) == (newest, kept, True)
    assert published(broker, topic=topic) == [b"a", b"a"]


def test_a_topic_cannot_be_overwritten(broker: Nsqd) -> None:
    source = NsqDataSource({**nodes(broker), "topic": "t"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match="can only be appended to: write with mode append"):
            make(BODY, True)


def test_rows_are_written_by_tasks(broker: Nsqd) -> None:
    writer = NsqDataSource({**nodes(broker), "topic": "t"}).streamWriter(BODY, False)
    with pytest.raises(QueryError, match="rows can only be written in a Spark task"):
        writer.write(iter([]))


def test_rows_that_are_lost_on_a_node_fail_the_batch_until_they_are_given_up(
    tmp_path: Path, broker: Nsqd, second: Nsqd, topic: str
) -> None:
    """The driver is told what became of them, and repeats nothing of what is published."""
    query = Query({**nodes(broker, second), "topic": topic})
    staged = [query.stage(0, 0, numbered(5)), query.stage(0, 1, numbered(5, 5))]
    (lost,) = (each for each in staged if each.node == node_uuid(second))
    second.terminate()
    (path,) = (tmp_path / "second" / "penstock" / "staging").glob("*.staging")
    path.unlink()
    second.start()
    for _ in range(2):
        with pytest.raises(NodeError, match=f"410 STAGING_LOST .*{path.name} is missing"):
            query.committer.commit(staged)
        query.restart()
    told = {"query": query.id, "batch": 0}
    names = [{"partition": lost.partition, "attempt": lost.attempt}]
    body = json.dumps({**told, "stagings": names}).encode()
    assert second.post("/staging/give-up", body).status == 200
    assert query.committer.commit(staged) == 5
    rows = published(broker, topic=topic)
    assert len(rows) == 5 and set(rows) <= set(numbered(10))
    assert query.committer.commit([query.stage(1, 0, [b"next"])]) == 1


def test_all_registered_nodes_take_part(tmp_path: Path, topic: str) -> None:
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *flags) as one, Nsqd(tmp_path / "b", *flags) as two:
            wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == 2)
            query = Query({"lookupdHttpAddresses": lookupd.http_address, "topic": topic})
            staged = [query.stage(0, 0, [b"a"]), query.stage(0, 1, [b"b"])]
            assert query.committer.commit(staged) == 2
            assert {each.node for each in staged} == {node_uuid(one), node_uuid(two)}


def test_tokens_open_staging(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read read-token-1\npublish publish-token-1\nadmin admin-token-1\n")
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:
        given = {**nodes(nsqd), "topic": "t"}
        with pytest.raises(NodeError, match="writing needs publish"):
            Query({**given, "httpToken": "read-token-1"}).stage(0, 0, [b"a"])
        query = Query({**given, "httpToken": "publish-token-1"})
        assert query.committer.commit([query.stage(0, 0, [b"a"])]) == 1
