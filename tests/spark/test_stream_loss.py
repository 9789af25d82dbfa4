"""Positions are judged against the log at every start and every poll, and losses told (R46)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import DataLossError, QueryError
from penstock.spark import checkpoint
from penstock.spark.loss import Loss, find
from penstock.spark.offsets import INDEX_MAX
from tests.spark.topics import (
    SMALL,
    Stream,
    address,
    batch_reader,
    bodies,
    log_of,
    new_topic,
    node_uuid,
    nodes,
    publish,
    publish_each,
    read,
    removed_end,
    rows_of,
)
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

BROKER_OPTIONS = (SMALL,)
BODIES = [b"%03d" % i + b"x" * 2000 for i in range(60)]  # two or three a segment


def index(stream: Stream) -> int:
    ((place,),) = [topics.values() for topics in stream.offset["nodes"].values()]
    return int(place["index"])


def wait_removed(nsqd: Nsqd, topic: str, index: int) -> int:
    """Until nsqd has removed what lies before ``index``, as far as segments go."""
    return removed_end(nsqd, topic, index - 4)


def three_batches(nsqd: Nsqd, topic: str, options: dict[str, str]) -> tuple[Stream, list[Any]]:
    """A query that has read 30 of 40 messages, and its checkpoint after each batch."""
    stream, offsets = Stream(options), []
    publish_each(nsqd, topic, BODIES[:40])
    for _ in range(3):
        assert len(stream.batch(10)) == 10
        offsets.append(stream.offset)
    return stream, offsets


# A checkpoint that was put back


def test_an_older_checkpoint_whose_messages_are_gone_is_told_with_its_ranges(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream, offsets = three_batches(broker, topic, options)
    whole_from = wait_removed(broker, topic, index(stream))
    for _ in range(2):  # again and again
        back = Stream(options, offsets[0])
        with pytest.raises(DataLossError, match="an older checkpoint was restored") as caught:
            back.batch()
    (loss,) = caught.value.losses
    instance = log_of(broker, topic)["instance"]
    start = index(back)
    where = (node_uuid(broker), address(broker), topic, instance)
    assert loss == Loss(*where, start, whole_from, whole_from - start)
    text = str(caught.value)
    assert f"indexes {start} to {whole_from - 1}, at most {whole_from - start} messages" in text
    for part in (topic, address(broker), node_uuid(broker), "acceptLoss", "failOnDataLoss=false"):
        assert part in text
    assert find(text) == [loss]
    with pytest.raises(DataLossError):
        Stream(options, offsets[0]).available_now()
    # What is left is read if the loss is accepted, by name or in general.
    left = BODIES[10 + whole_from - start : 40]
    loose = Stream({**options, "failOnDataLoss": "false"}, offsets[0])
    assert bodies(loose.batch(commit=False)) == left
    named = Stream({**options, "acceptLoss": json.dumps([loss.as_json()])}, offsets[0])
    assert bodies(named.batch(commit=False)) == left
    assert Stream(options, named.offset).batch() == [], "and is then forgotten"


def test_only_what_is_named_is_accepted(broker: Nsqd, topic: str, options: dict[str, str]) -> None:
    stream, offsets = three_batches(broker, topic, options)
    whole_from = wait_removed(broker, topic, index(stream))
    with pytest.raises(DataLossError) as caught:
        Stream(options, offsets[0]).batch()
    loss = caught.value.losses[0].as_json()
    start = loss["start"]
    wrong = (
        ({"topic": new_topic()}, [(start, whole_from)]),
        ({"instance": "0" * 16}, [(start, whole_from)]),
        ({"node": "another"}, [(start, whole_from)]),
        ({"start": start + 1}, [(start, start + 1)]),
        ({"end": whole_from - 2}, [(whole_from - 2, whole_from)]),
        ({"start": start + 2, "end": start + 5}, [(start, start + 2), (start + 5, whole_from)]),
    )
    for change, rest in wrong:
        given = {**options, "acceptLoss": json.dumps([{**loss, **change}])}
        with pytest.raises(DataLossError) as caught:
            Stream(given, offsets[0]).batch()
        assert [(each.start, each.end) for each in caught.value.losses] == rest
    parts = [{**loss, "end": start + 5}, {**loss, "start": start + 5}]
    assert Stream({**options, "acceptLoss": json.dumps(parts)}, offsets[0]).batch()


def test_what_is_below_the_mark_and_still_there_is_read_with_one_warning(
    broker: Nsqd, topic: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    broker.post(f"/topic/create?topic={topic}")
    broker.post(f"/channel/create?topic={topic}&channel=keeps")
    _, offsets = three_batches(broker, topic, options)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        back = Stream(options, offsets[0])
        assert [len(back.batch(10, commit=False)) for _ in range(4)] == [10, 10, 10, 0]
    (told,) = [text for text in caplog.messages if "below the low-water mark" in text]
    assert "a second query uses this channel" in told and topic in told


def test_a_copy_of_a_checkpoint_is_found_by_whoever_comes_second(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """They have one identity, so the channel does not tell them apart."""
    stream, offsets = three_batches(broker, topic, options)
    copy = Stream(options, offsets[2])
    assert copy.batch() and index(copy) > index(stream)
    wait_removed(broker, topic, index(copy))
    publish_each(broker, topic, BODIES[40:43])
    with pytest.raises(DataLossError, match="or a copy of this checkpoint"):
        stream.batch()


def test_what_was_gone_before_a_query_began_is_no_loss(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream, _ = three_batches(broker, topic, options)
    wait_removed(broker, topic, index(stream))
    other = Stream({**options, "channel": "other"})
    assert bodies(other.batch())[-1:] == BODIES[39:40]
    assert Stream({**options, "channel": "third"}).available_now()[-1:] == BODIES[39:40]


# An emptied channel or topic, a lapse


@pytest.mark.parametrize("what", ["channel", "topic"])
@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_emptied_under_a_query_is_told(
    broker: Nsqd, topic: str, options: dict[str, str], what: str, stopped: bool
) -> None:
    stream, _ = three_batches(broker, topic, options)
    target = f"/{what}/empty?topic={topic}" + ("&channel=c" if what == "channel" else "")
    if what == "topic":  # which has only what it holds back
        assert len(stream.batch()) == 10
        broker.post(f"/topic/pause?topic={topic}")
        publish_each(broker, topic, BODIES[30:40])
    assert broker.post(target).status == 409, "not without force"
    assert broker.post(f"{target}&force=true").status == 200
    broker.post(f"/topic/unpause?topic={topic}")
    publish_each(broker, topic, BODIES[40:50])  # a segment goes when it is full
    wait_removed(broker, topic, index(stream) + 10)
    if stopped:
        stream = Stream(options, stream.offset)
    with pytest.raises(DataLossError, match="the channel or the topic was emptied") as caught:
        for _ in range(3):
            stream.batch()
    (loss,) = caught.value.losses
    assert loss.start == index(stream) and 7 <= (loss.count_max or 0) <= 10
    with pytest.raises(DataLossError):
        Stream(options, stream.offset).available_now()
    loose = Stream({**options, "failOnDataLoss": "false"}, stream.offset)
    assert loose.bodies(10)[-10:] == BODIES[40:50]


def test_an_emptied_channel_whose_messages_are_there_loses_nothing(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    broker.post(f"/topic/create?topic={topic}")
    broker.post(f"/channel/create?topic={topic}&channel=keeps")
    stream, _ = three_batches(broker, topic, options)
    broker.post(f"/channel/empty?topic={topic}&channel=c&force=true")
    assert stream.bodies(10) == BODIES[30:40]


def planned(stream: Stream) -> tuple[Any, Any]:
    end = stream.reader.latestOffset(stream.offset, ReadAllAvailable())
    return end, stream.reader.partitions(stream.offset, end)


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_what_goes_after_a_batch_was_planned_is_told_by_its_tasks(
    broker: Nsqd, topic: str, options: dict[str, str], partitions: str
) -> None:
    """Each of them names all of it, so that it can be accepted at once."""
    options["minPartitions"] = partitions
    stream, _ = three_batches(broker, topic, options)
    end, parts = planned(stream)
    assert len(parts) == int(partitions)
    broker.post(f"/channel/empty?topic={topic}&channel=c&force=true")
    whole_from = wait_removed(broker, topic, index(stream) + 10)
    with pytest.raises(DataLossError, match="no longer has all messages") as caught:
        rows_of(stream.reader, parts)
    (loss,) = caught.value.losses
    assert (loss.start, loss.end) == (index(stream), whole_from)
    loose = Stream({**options, "failOnDataLoss": "false"}, stream.offset)
    assert len(rows_of(loose.reader, parts)) < 10
    accepting = {**options, "acceptLoss": json.dumps([loss.as_json()])}
    again = Stream(accepting, stream.offset)
    parts = again.reader.partitions(stream.offset, end)
    assert len(rows_of(again.reader, parts)) < 10


def test_a_batch_of_which_nothing_is_left_is_not_empty_but_lost(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream = Stream({**options, "minPartitions": "3"})
    publish_each(broker, topic, BODIES[:9])
    end = stream.reader.latestOffset(stream.offset, ReadMaxRows(5))
    broker.post(f"/channel/empty?topic={topic}&channel=c&force=true")
    publish_each(broker, topic, BODIES[9:12])
    wait_removed(broker, topic, index(stream) + 9)
    assert log_of(broker, topic)["first"] >= index(stream) + 5
    parts = stream.reader.partitions(stream.offset, end)
    with pytest.raises(DataLossError, match=r"at most [5-9] messages"):
        rows_of(stream.reader, parts)


def test_a_repeated_batch_is_judged_by_whoever_reads_it(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """A sink that has it already reads nothing, so that it may be gone."""
    stream, offsets = three_batches(broker, topic, options)
    wait_removed(broker, topic, index(stream))
    again = Stream(options, offsets[0])
    parts = again.reader.partitions(offsets[0], offsets[2])
    again.offset = offsets[2]
    assert bodies(again.batch()) == BODIES[30:40]
    with pytest.raises(DataLossError):
        rows_of(again.reader, parts)


def test_a_repeated_batch_whose_channel_is_gone_too_is_judged_by_whoever_reads_it(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    stream, offsets = three_batches(broker, topic, options)
    wait_removed(broker, topic, index(stream))
    broker.post(f"/channel/delete?topic={topic}&channel=c&force=true")
    again = Stream(options, offsets[0])
    parts = again.reader.partitions(offsets[0], offsets[2])
    for _ in range(2):  # and the first failure does not make it look whole
        with pytest.raises(DataLossError):
            rows_of(again.reader, parts)


@pytest.mark.parametrize("again", [[], [b"again"]])
def test_a_repeated_batch_whose_topic_is_gone_is_judged_by_whoever_reads_it(
    broker: Nsqd, topic: str, options: dict[str, str], again: list[bytes]
) -> None:
    """Counting its messages was refused, before anybody could tell or accept that they are gone."""
    options["minPartitions"] = "2"
    stream = Stream(options)
    publish(broker, topic, *BODIES[:4])
    end, _ = planned(stream)
    broker.post(f"/topic/delete?topic={topic}&force=true")
    publish_each(broker, topic, again)
    repeated = Stream(options, stream.offset)
    parts = repeated.reader.partitions(stream.offset, end)
    with pytest.raises(DataLossError, match="was deleted before it was read") as caught:
        rows_of(repeated.reader, parts)
    (loss,) = caught.value.losses
    assert (loss.start, loss.end) == (index(stream), INDEX_MAX)
    accepting = {**options, "acceptLoss": json.dumps([loss.as_json()])}
    accepted = Stream(accepting, stream.offset)
    assert rows_of(accepted.reader, accepted.reader.partitions(stream.offset, end)) == []
    accepted.offset = end
    assert accepted.available_now() == again, "that the rest is gone too was accepted with it"


@pytest.mark.parametrize("made_before", [True, False])
def test_a_repeated_batch_of_before_a_topic_was_made_again_hides_nothing_of_the_new_one(
    broker: Nsqd, topic: str, options: dict[str, str], made_before: bool
) -> None:
    """A run that reads what is there did not end well: it had seen that the old one is gone."""
    loose = {**options, "failOnDataLoss": "false"}
    stream = Stream(loose)
    publish(broker, topic, b"old")
    stream.batch()
    broker.post(f"/topic/delete?topic={topic}&force=true")
    if made_before:
        publish(broker, topic, b"new")
    killed = Stream(loose, stream.offset)
    assert killed.batch(commit=False) == []
    assert killed.offset != stream.offset
    if not made_before:
        publish(broker, topic, b"new")
    again = Stream(loose, killed.offset)
    again.reader.prepareForTriggerAvailableNow()
    assert again.reader.partitions(stream.offset, killed.offset) == []
    assert again.available_now() == [b"new"]


def test_batch_reads_tell_what_was_removed_while_they_read(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish_each(broker, topic, BODIES[:40])
    given = {**nodes(broker), "topic": topic, "fetchSize": str(1 << 16), "minPartitions": "1"}
    reader = batch_reader(given)
    (part,) = reader.partitions()
    batches = reader.read(part)
    first = next(batches).num_rows
    assert 0 < first < 40
    three = Stream(options)
    three.batch()
    publish_each(broker, topic, BODIES[40:43])
    wait_removed(broker, topic, index(three))
    with pytest.raises(DataLossError, match="A batch read does not keep messages"):
        list(batches)
    assert read({**given, "columns": "body"})[-1]["body"] == BODIES[42]


# Nodes and topics that are gone


def test_a_run_that_reads_what_is_there_does_not_end_well_without_a_node(tmp_path: Path) -> None:
    topic = new_topic()
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")

        def registered() -> int:
            return len(lookupd.get("/nodes").json["producers"])

        given = {"lookupdHttpAddresses": lookupd.http_address, "topic": topic, "channel": "c"}
        with pytest.raises(QueryError, match="no nsqd is registered"):
            Stream(given).available_now()
        with Nsqd(tmp_path / "a", *flags) as one, Nsqd(tmp_path / "b", *flags) as two:
            wait_until(lambda: registered() == 2)
            uuid = node_uuid(two)
            stream = Stream(given)
            publish(one, topic, b"one")
            publish(two, topic, b"two")
            assert sorted(stream.bodies(2)) == [b"one", b"two"]
            publish(one, topic, b"three")
            publish(two, topic, b"four")
            two.terminate()
            wait_until(lambda: registered() == 1)
            with pytest.raises(DataLossError, match="not registered with nsqlookupd") as caught:
                Stream(given, stream.offset).available_now()
            (loss,) = caught.value.losses
            assert (loss.node, loss.topic, loss.end) == (uuid, topic, INDEX_MAX)
            assert loss.start == stream.offset["nodes"][uuid][topic]["index"]
            loose = Stream({**given, "failOnDataLoss": "false"}, stream.offset)
            assert loose.available_now() == [b"three"] and uuid in loose.offset["nodes"]
            # A stream waits; a loss that is accepted is told once and then forgotten.
            waiting = Stream(given, stream.offset)
            assert bodies(waiting.batch(commit=False)) == [b"three"]
            dropping = {**given, "acceptLoss": json.dumps([loss.as_json()])}
            dropped = Stream(dropping, stream.offset)
            assert dropped.available_now() == [b"three"] and uuid not in dropped.offset["nodes"]
            assert Stream(given, dropped.offset).available_now() == []
            two.start()
            wait_until(lambda: registered() == 2)
            back = Stream(given, waiting.offset)
            assert back.available_now() == [b"four"]


def test_a_topic_that_was_deleted_and_made_by_others_is_told_of(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """Without the stream's channel, which nobody has made again."""
    stream = Stream(options)
    publish(broker, topic, b"old")
    stream.batch()
    broker.post(f"/topic/delete?topic={topic}&force=true")
    publish(broker, topic, b"new")
    for started in (stream, Stream(options, stream.offset)):
        with pytest.raises(DataLossError, match="was deleted and created again"):
            for _ in range(5):
                started.batch()
    loose = Stream({**options, "failOnDataLoss": "false"}, stream.offset)
    assert loose.bodies(1) == [b"new"]


def test_a_deleted_topic_is_not_made_on_a_new_node_either(
    broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    stream = Stream({**options, "failOnDataLoss": "false"})
    publish(broker, topic, b"old")
    stream.batch()
    broker.post(f"/topic/delete?topic={topic}&force=true")
    stream.batch()
    with Nsqd(tmp_path, "--node-id=9") as second:
        both = Stream({**options, **nodes(broker, second)}, stream.offset)
        assert both.batch() == []
        for nsqd in (broker, second):
            assert nsqd.get(f"/log?topic={topic}").status == 404
        publish(second, topic, b"there")
        found: list[bytes] = []
        wait_until(lambda: found.extend(bodies(both.batch())) or found == [b"there"])


# A pause


def test_a_paused_channel_holds_a_run_that_reads_what_is_there(
    broker: Nsqd, topic: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(options)
    publish(broker, topic, *BODIES[:6])
    assert len(stream.batch(2)) == 2
    broker.post(f"/channel/pause?topic={topic}&channel=c")
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert Stream(options, stream.offset).available_now() == []
    assert any("paused" in text and topic in text for text in caplog.messages)
    broker.post(f"/channel/unpause?topic={topic}&channel=c")
    # Also one that has begun, and one that stands below the mark.
    begun = Stream(options, stream.offset)
    begun.reader.prepareForTriggerAvailableNow()
    old = begun.offset
    assert len(begun.batch(2)) == 2
    broker.post(f"/channel/pause?topic={topic}&channel=c")
    assert begun.batch(2) == [] and begun.batch(2) == []
    below = Stream(options, old)
    assert below.batch() == [] and below.batch() == []
    broker.post(f"/channel/unpause?topic={topic}&channel=c")
    assert begun.batch() and begun.batch() == []


# Going on from elsewhere


def test_a_new_query_goes_on_from_given_positions(
    broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    stream, offsets = three_batches(broker, topic, options)
    who = {"identity": stream.offset["identity"]}
    given = {**options, **who, "resumeFrom": json.dumps({"nodes": offsets[2]["nodes"]})}
    again = Stream(given)
    assert again.offset["nodes"] == offsets[2]["nodes"]
    assert bodies(again.batch()) == BODIES[30:40]
    # Again, because its first batch is repeated, though the channel has moved on.
    assert Stream(given).offset["nodes"] == offsets[2]["nodes"]
    # What it does not name enters as ever.
    other = new_topic()
    publish(broker, other, b"other")
    late = {"resumeFrom": json.dumps({"nodes": again.offset["nodes"]})}
    more = Stream({**given, **late, "topic": f"{topic},{other}"})
    assert more.bodies(1) == [b"other"]
    assert set(more.offset["nodes"][node_uuid(broker)]) == {topic, other}
    wait_removed(broker, topic, index(stream))
    with pytest.raises(DataLossError):
        Stream({**given, "resumeFrom": json.dumps(offsets[0])}).batch()


# Fewer, larger batches


def test_a_stream_holds_messages_back_for_a_time_or_a_number(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    publish(broker, topic, *BODIES[:3])
    stream = Stream({**options, "holdInterval": "1h", "holdMessages": "10", "pollTimeout": "20ms"})
    assert len(stream.bodies(1)) == 3, "the first batch is not held"
    publish(broker, topic, *BODIES[3:9])
    assert [stream.batch() for _ in range(3)] == [[], [], []]
    publish(broker, topic, *BODIES[9:15])
    assert len(stream.bodies(1, rows_max=8)) == 8
    publish(broker, topic, *BODIES[15:18])
    assert len(stream.batch(8)) == 4, "what came later waits"
    assert stream.batch(8) == [] and stream.batch(8) == []
    timed = Stream({**options, "holdInterval": "300ms"}, stream.offset)
    assert len(timed.bodies(1)) == 3
    publish(broker, topic, BODIES[18])
    assert timed.batch() == []
    found: list[bytes] = []
    wait_until(lambda: found.extend(bodies(timed.batch())) or found)
    assert found == [BODIES[18]]


# The checkpoint before the channel


def test_the_channel_moves_only_after_the_checkpoint_is_durable(
    broker: Nsqd,
    topic: str,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream({**options, "checkpoint": tmp_path.as_uri()})
    publish(broker, topic, b"a", b"b")
    stream.batch(1, commit=False)
    depth = broker.channel(topic, "c")["depth"]
    with pytest.raises(QueryError, match="so the channel is not committed"):
        stream.reader.commit(stream.offset)
    assert broker.channel(topic, "c")["depth"] == depth == 2
    for name in ("offsets/0", "offsets/1", "commits/0", "commits/.0.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("v1")
    synced: list[tuple[str, int]] = []
    real = checkpoint.sync

    def noted(path: Path) -> None:
        real(path)
        synced.append((str(path.relative_to(tmp_path)), broker.channel(topic, "c")["depth"]))

    monkeypatch.setattr(checkpoint, "sync", noted)
    stream.reader.commit(stream.offset)
    assert broker.channel(topic, "c")["depth"] == 1
    names = ["offsets/0", "offsets/1", "offsets", "commits/0", "commits/.0.crc", "commits"]
    assert sorted(synced) == sorted((name, 2) for name in names)
    assert [name for name, _ in synced][-1] == "commits"
    synced.clear()
    (tmp_path / "commits/1").write_text("v1")
    stream.batch()
    assert [name for name, _ in synced] == ["commits/1", "commits"], "what is new"
