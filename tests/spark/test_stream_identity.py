"""A pull channel has one reader, and a stream is one by the identity in its offsets (R45)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import NodeError, QueryError
from penstock.progress import PipelineState, Progress
from penstock.spark import follower
from penstock.spark.offsets import decode
from penstock.spark.reports import Reporter
from tests.spark.topics import (
    Stream,
    bodies,
    log_of,
    new_topic,
    nodes,
    numbered,
    publish,
    rows_of,
)
from tests.support.daemon import Nsqd


def bound(nsqd: Nsqd, topic: str) -> str | None:
    return log_of(nsqd, topic)["pull_channels"]["c"]["identity"]


def test_a_second_query_is_refused_with_who_reads_the_channel(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    first = Stream({**options, "reader": "the archive of host7"})
    publish(broker, topic, *numbered(3))
    assert bodies(first.batch(2)) == numbered(2)
    assert bound(broker, topic) == first.offset["identity"]
    with pytest.raises(NodeError, match="is read by the archive of host7") as caught:
        Stream(options)
    for part in (first.offset["identity"], "since 20", "another channel", "stop the other query"):
        assert part in str(caught.value)
    assert f"takeOver={first.offset['identity']}" in str(caught.value)
    assert bodies(first.batch()) == numbered(1, 2), "the first one does not notice"
    assert Stream(options, first.offset).batch() == [], "its checkpoint goes on"


def test_of_two_queries_that_begin_together_the_first_to_commit_stays(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    streams = [Stream(options), Stream(options)]
    publish(broker, topic, *numbered(3))
    for stream in streams:
        assert bodies(stream.batch(commit=False)) == numbered(3)
    streams[0].reader.commit(streams[0].offset)
    with pytest.raises(NodeError, match="CHANNEL_HAS_READER"):
        streams[1].reader.commit(streams[1].offset)
    with pytest.raises(NodeError, match="CHANNEL_HAS_READER"):
        streams[1].batch()


def test_a_query_that_is_killed_in_its_first_batch_starts_again_without_help(
    broker: Nsqd, topic: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for the initial offset again; the end of the batch is in the checkpoint."""
    monkeypatch.setattr(follower, "IDLE_COMMIT_S", 0.0)
    stream = Stream(options)
    for _ in range(3):
        assert stream.batch() == []
    assert bound(broker, topic) is None, "an identity that is in no checkpoint was bound"
    publish(broker, topic, *numbered(3))
    end = stream.reader.latestOffset(stream.offset, ReadAllAvailable())
    again = Stream(options)
    assert bodies(rows_of(again.reader, again.reader.partitions(again.offset, end))) == numbered(3)
    again.offset = end
    assert again.batch() == []
    again.reader.commit(end)
    assert bound(broker, topic) == end["identity"]
    publish(broker, topic, b"more")
    assert again.bodies(1) == [b"more"]
    assert Stream(options, again.offset).batch() == []


def test_a_checkpoint_of_an_earlier_version_goes_on_and_takes_an_identity(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream(options)
    publish(broker, topic, *numbered(3))
    stream.batch(commit=False)
    old = {key: value for key, value in stream.offset.items() if key != "identity"}
    given = Stream(options, {**old, "of_a_later_version": 1})
    assert given.batch() == [] and "of_a_later_version" in given.offset, "no batch for nothing"
    given.reader.commit(given.offset)
    assert bound(broker, topic) is None
    assert log_of(broker, topic)["pull_channels"]["c"]["low"] == log_of(broker, topic)["end"]
    publish(broker, topic, b"a")
    assert bodies(given.batch(commit=False)) == [b"a"]
    identity = given.offset["identity"]
    assert bound(broker, topic) is None
    assert given.batch() == []
    given.reader.commit(given.offset)
    assert bound(broker, topic) == identity
    publish(broker, topic, b"b")
    assert given.bodies(1) == [b"b"] and given.offset["identity"] == identity
    with pytest.raises(NodeError, match="CHANNEL_HAS_READER"):
        Stream(options, old).batch()


def test_a_listener_commits_with_the_identity_of_the_offset(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """Also while a poll of the time before is on its way."""
    stream = Stream(options)
    publish(broker, topic, *numbered(3))
    old = {key: value for key, value in stream.offset.items() if key != "identity"}
    stream = Stream(options, old)
    assert bodies(stream.batch(commit=False)) == numbered(3)
    reporter = Reporter(nodes(broker))
    done = Progress("q", "", PipelineState.RUNNING)
    reporter.commit("c", decode(stream.offset), done, stream.offset["identity"])
    assert bound(broker, topic) == stream.offset["identity"]
    assert stream.batch() == []
    reporter.report(["c"], Progress("q", "", PipelineState.WAITING))
    assert broker.channel(topic, "c")["pull"]["progress"]["state"] == "waiting"


def test_the_option_identity_is_who_the_query_is(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """A pipeline gives what its ledger holds: a lost checkpoint is not another query."""
    options["identity"] = uuid.uuid4().hex
    stream = Stream(options)
    assert stream.offset["identity"] == options["identity"]
    publish(broker, topic, *numbered(5))
    stream.batch(3)
    anew = Stream(options)
    assert bodies(anew.batch()) == numbered(2, 3)
    old = {key: value for key, value in anew.offset.items() if key != "identity"}
    publish(broker, topic, b"more")
    assert Stream(options, old).bodies(1) == [b"more"]


# Taking over


def test_a_channel_is_taken_over_by_name_and_once(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    old = Stream(options)
    publish(broker, topic, *numbered(6))
    old.batch(2)
    taking = {**options, "takeOver": old.offset["identity"]}
    other = {**options, "takeOver": uuid.uuid4().hex}
    refused = Stream(other)
    with pytest.raises(NodeError, match=r"TAKE_OVER_REFUSED.*takeOver=" + old.offset["identity"]):
        refused.batch()
    assert bodies(old.batch(2, commit=False)) == numbered(2, 2), "looking does not take over"
    start = old.offset
    end = old.reader.latestOffset(start, ReadAllAvailable())
    parts = old.reader.partitions(start, end)
    new = Stream(taking)
    assert bodies(new.batch(3)) == numbered(3, 2)
    for call in (
        lambda: old.reader.latestOffset(start, ReadAllAvailable()),
        lambda: old.reader.commit(start),
        lambda: rows_of(old.reader, parts),
        lambda: Stream(taking).batch(),
    ):
        with pytest.raises(NodeError, match=new.offset["identity"]):
            call()
    # The option may stay: it does nothing any more.
    again = Stream(taking, new.offset)
    assert bodies(again.batch()) == numbered(1, 5)


def test_a_take_over_is_repeated_with_the_first_batch(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    old = Stream(options)
    publish(broker, topic, *numbered(3))
    old.batch(2)
    taking = {**options, "takeOver": old.offset["identity"]}
    killed = Stream(taking)
    end = killed.reader.latestOffset(killed.offset, ReadAllAvailable())
    again = Stream(taking)
    rows = rows_of(again.reader, again.reader.partitions(again.offset, end))
    assert bodies(rows) == numbered(1, 2)
    again.offset = end
    assert again.batch() == [] and bound(broker, topic) == end["identity"]


def test_a_take_over_of_an_idle_channel_puts_the_identity_into_the_checkpoint(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    old = Stream(options)
    publish(broker, topic, *numbered(3))
    old.batch()
    new = Stream({**options, "takeOver": old.offset["identity"]})
    before = new.offset
    assert new.batch() == [] and new.offset != before, "an empty batch, with the identity"
    assert bound(broker, topic) == new.offset["identity"]
    planned = new.offset
    assert new.batch() == [] and new.offset == planned
    publish(broker, topic, b"more")
    assert Stream(options, new.offset).bodies(1) == [b"more"]


def test_a_checkpoint_that_was_put_back_takes_its_channel_back(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """Also one without an identity, and of topics that nobody has bound yet."""
    first = Stream(options)
    publish(broker, topic, *numbered(3))
    first.batch()
    second = Stream({**options, "takeOver": first.offset["identity"]})
    second.batch()
    both = {**options, "topic": f"{topic},{new_topic()}", "takeOver": second.offset["identity"]}
    old = {key: value for key, value in first.offset.items() if key != "identity"}
    back = Stream(both, old)
    publish(broker, topic, b"more")
    assert back.bodies(1) == [b"more"]
    assert bound(broker, topic) == back.offset["identity"]


def test_the_channel_of_a_topic_that_was_made_again_is_taken_over(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(3))
    old = Stream(options)
    assert old.bodies(3) == numbered(3)
    broker.post(f"/topic/delete?topic={topic}&force=true")
    publish(broker, topic, *numbered(3, 3))
    second = Stream(options)
    assert second.bodies(3) == numbered(3, 3)
    publish(broker, topic, *numbered(3, 6))
    with pytest.raises(NodeError, match="CHANNEL_HAS_READER"):
        Stream(options, old.offset).batch()
    taking = {**options, "takeOver": second.offset["identity"], "failOnDataLoss": "false"}
    assert Stream(taking, old.offset).bodies(3) == numbered(3, 6)


def test_the_first_offset_says_where_its_batch_begins(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *numbered(3))
    stream = Stream(options)
    begin = stream.offset["nodes"]
    assert stream.bodies(3) == numbered(3)
    assert stream.offset["begin"] == begin
    publish(broker, topic, *numbered(3, 3))
    assert stream.bodies(3) == numbered(3, 3)
    assert "begin" not in stream.offset


def test_taking_over_needs_an_admin(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read read-token-1\nadmin admin-token-1\n")
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:
        options = {**nodes(nsqd), "topic": "t", "channel": "c", "httpToken": "admin-token-1"}
        old = Stream(options)
        nsqd.http("POST", "/pub?topic=t", b"a", {"Authorization": "Bearer admin-token-1"})
        old.bodies(1)
        reading = {**options, "httpToken": "read-token-1", "takeOver": old.offset["identity"]}
        with pytest.raises(NodeError, match="needs a token with role admin"):
            Stream(reading).batch()


@pytest.mark.parametrize("identity", [5, "me", "X" * 32, None])
def test_an_identity_that_is_none_is_refused(options: dict[str, str], identity: Any) -> None:
    offset = {**Stream(options).offset, "identity": identity}
    if identity is None:
        assert Stream(options, offset).batch() == []
        return
    with pytest.raises(QueryError, match="is not an identity"):
        Stream(options, json.loads(json.dumps(offset))).batch()
