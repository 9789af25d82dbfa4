"""A checkpoint of before a log was found: only the channel knows that the log was read (R46)."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import DataLossError
from penstock.progress import Progress
from penstock.spark.offsets import INDEX_MAX
from penstock.spark.reports import Reporter
from tests.spark.topics import (
    SMALL,
    Stream,
    log_of,
    new_topic,
    node_uuid,
    nodes,
    numbered,
    publish,
    publish_each,
    removed_end,
    rows_of,
)
from tests.support.daemon import Nsqd

BROKER_OPTIONS = (SMALL,)
LARGE = [b"%03d" % number + b"x" * 2000 for number in range(20)]  # two or three a segment


def delete(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.post(f"/topic/delete?topic={topic}&force=true").status == 200


def accepting(error: DataLossError) -> dict[str, str]:
    return {"acceptLoss": json.dumps([loss.as_json() for loss in error.losses])}


def read_two_instances(nsqd: Nsqd, topic: str, options: dict[str, str]) -> Any:
    """A query that reads a topic which is made again meanwhile; returns its first checkpoint."""
    first = Stream(options)
    publish(nsqd, topic, b"old")
    assert first.bodies(1) == [b"old"]
    delete(nsqd, topic)
    publish_each(nsqd, topic, LARGE)
    second = Stream({**options, "failOnDataLoss": "false"}, first.offset)
    assert second.bodies(20) == LARGE
    return first.offset


def test_what_was_read_of_a_topic_that_was_made_again_is_told_with_what_is_gone(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """It was read on from the channel's mark, in silence."""
    offset = read_two_instances(broker, topic, options)
    publish_each(broker, topic, LARGE[:3])
    whole_from = removed_end(broker, topic)
    with pytest.raises(DataLossError, match="was read before, by channel c") as caught:
        Stream(options, offset).batch()
    # At once, so that it can be accepted at once.
    deleted, read = caught.value.losses
    assert deleted.end == INDEX_MAX
    assert (read.start, read.end, read.count_max) == (0, whole_from, None)
    assert read.instance == log_of(broker, topic)["instance"] != deleted.instance
    given = {**options, **accepting(caught.value)}
    found = Stream(given, offset).bodies(50)
    assert found[-3:] == LARGE[:3] and len(found) < 23
    assert found[:-3] == LARGE[len(LARGE) - len(found) + 3 :]
    loose = Stream({**options, "failOnDataLoss": "false"}, offset)
    assert loose.bodies(50)[-1:] == LARGE[2:3]


def test_what_was_read_of_a_topic_and_is_still_there_is_read_again_with_a_warning(
    broker: Nsqd, topic: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    new = new_topic()
    both = {**options, "topic": f"{topic},{new}"}
    first = Stream(options)
    publish(broker, topic, *numbered(3))
    assert first.bodies(3) == numbered(3)
    broker.post(f"/topic/create?topic={new}")
    broker.post(f"/channel/create?topic={new}&channel=kept")
    publish(broker, new, *numbered(9, 10))
    later = Stream(both, first.offset)
    assert later.bodies(9) == numbered(9, 10)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert Stream(both, first.offset).bodies(9) == numbered(9, 10)
    assert any("are read (again)" in text and new in text for text in caplog.messages)


def test_a_log_that_was_found_and_not_read_is_no_loss(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """Nothing was committed of it: the channel is where it was, and has no reader."""
    first = Stream(options)
    publish(broker, topic, b"one")
    first.bodies(1)
    new = new_topic()
    publish_each(broker, new, LARGE)
    both = {**options, "topic": f"{topic},{new}"}
    killed = Stream(both, first.offset)
    killed.batch(commit=False)
    killed.batch(commit=False)
    assert Stream(both, first.offset).bodies(20) == LARGE


def test_a_pipeline_whose_first_batch_dies_begins_again_and_one_that_was_put_back_is_told(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """A pipeline says where to resume, also if that is nowhere."""
    options |= {"identity": uuid.uuid4().hex, "resumeFrom": '{"nodes": {}}'}
    publish_each(broker, topic, LARGE[:10])
    for _ in range(2):
        begun = Stream(options)
        assert len(begun.batch(commit=False)) == 10
    assert begun.batch() == []
    publish_each(broker, topic, LARGE[10:])
    begun.reader.commit(begun.offset)
    assert begun.bodies(10) == LARGE[10:]
    publish(broker, topic, b"more")
    end = removed_end(broker, topic)
    with pytest.raises(DataLossError, match="was read before") as caught:
        Stream(options)
    (loss,) = caught.value.losses
    assert (loss.start, loss.end) == (0, end)
    assert Stream({**options, **accepting(caught.value)}).bodies(50)[-1:] == [b"more"]
    # Also if it was told to take over from somebody who does not have the channel any more.
    with pytest.raises(DataLossError, match="was read before"):
        Stream({**options, "takeOver": uuid.uuid4().hex})
    # Where it began the first time is known: that is where the loss begins.
    place = {node_uuid(broker): {topic: end - 1}}
    with pytest.raises(DataLossError) as caught:
        Stream({**options, "startingOffsets": json.dumps(place)})
    assert [(loss.start, loss.end) for loss in caught.value.losses] == [(end - 1, end)]


@pytest.mark.parametrize("resumes", [False, True])
def test_a_node_that_was_dropped_and_is_back_goes_on_where_its_channel_stands(
    broker: Nsqd, topic: str, options: dict[str, str], tmp_path: Path, resumes: bool
) -> None:
    if resumes:  # as a pipeline, which gives every loss that was accepted at each start
        options |= {"identity": uuid.uuid4().hex, "resumeFrom": '{"nodes": {}}'}
    with Nsqd(tmp_path, SMALL) as second:
        both = {**options, **nodes(broker, second)}
        stream = Stream(both)
        publish(broker, topic, b"here")
        publish_each(second, topic, LARGE)
        assert len(stream.bodies(21)) == 21
        removed_end(second, topic)
        publish(second, topic, b"unread")
        with pytest.raises(DataLossError, match="is not one of") as caught:
            Stream(options, stream.offset).batch()
        dropped = Stream({**options, **accepting(caught.value)}, stream.offset)
        publish(broker, topic, b"more")
        assert dropped.bodies(1) == [b"more"]
        assert node_uuid(second) not in dropped.offset["nodes"]
        back = {**both, **(accepting(caught.value) if resumes else {})}
        assert Stream(back, dropped.offset).bodies(1) == [b"unread"]


def test_a_repeated_batch_that_another_reader_has_passed_is_told_after_a_take_over(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """It was refused for ever: what is lost stays closed, and so nothing was taken over."""
    first = Stream(options)
    publish_each(broker, topic, LARGE)
    first.batch(5)
    start, end = first.offset, first.reader.latestOffset(first.offset, ReadAllAvailable())
    second = Stream({**options, "takeOver": first.offset["identity"]})
    assert len(second.bodies(15)) == 15
    removed_end(broker, topic)
    again = Stream({**options, "takeOver": second.offset["identity"]}, start)
    parts = again.reader.partitions(start, end)
    with pytest.raises(DataLossError, match="no longer has all messages"):
        rows_of(again.reader, parts)


def test_a_report_binds_no_channel_and_reaches_one_that_is_bound(
    broker: Nsqd, topic: str, options: dict[str, str]
) -> None:
    """Bound by a report, a log that nobody had read looked as if it had been."""
    options |= {"identity": uuid.uuid4().hex, "resumeFrom": '{"nodes": {}}'}
    brokers = {name: options[name] for name in ("nsqdHttpAddresses", "identity")}
    publish(broker, topic, *numbered(3))
    stream = Stream(options)
    early, late = Reporter(brokers), Reporter(brokers)
    pull = {}
    for state, reporter in (("starting", early), ("waiting", early), ("retrying", late)):
        assert reporter.find("c", [topic])
        reporter.report(["c"], Progress("q", "p", state))
        pull = broker.channel(topic, "c")["pull"]
        assert pull["progress"]["state"] == state
        assert pull["identity"] == (None if state == "starting" else options["identity"])
        stream.bodies(3)
    assert pull["low"] > 0
