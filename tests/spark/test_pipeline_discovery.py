"""How a pipeline over patterns finds topics on real nodes, without a JVM (R47)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NodeError
from penstock.pipeline.discovery import Discovery
from penstock.pipeline.identity import PipelineIdentity
from penstock.pipeline.patterns import PatternRequest, RegisteredPattern
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.spec_file import from_table
from penstock.spark.node_client import Access, Node
from penstock.spark.options import BATCH, parse_options
from penstock.wire import commands
from tests.support.daemon import RESPONSE, Nsqd, Nsqlookupd
from tests.support.waits import wait_until

ONE, TWO = "1" * 32, "2" * 32
SMALL = "--max-bytes-per-file=20000"


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd", SMALL) as daemon:
        yield daemon


def pipeline(*topics: str, **brokers: str) -> Pipeline:
    table: dict[str, Any] = {
        "name": "archive",
        "source": {"topics": list(topics), "body": "bytes", **brokers},
        "sink": {"type": "topic", "topic": "orders.out"},
    }
    return from_table(table, (), Path.cwd())


def discovery(nsqd: Nsqd, *topics: str, identity: str = ONE, new: bool = False) -> Discovery:
    source = pipeline(*topics, nsqd_http_addresses=f"127.0.0.1:{nsqd.http_port}")
    return Discovery(source, PipelineIdentity(identity, new))


def finish_fast(nsqd: Nsqd, topic: str, count: int = 2000) -> None:
    """A consumer that has finished everything, and a log that has let it go."""
    with nsqd.connect() as raw:
        assert raw.command(commands.sub(topic, "fast")) == (RESPONSE, b"OK")
        raw.send(commands.rdy(2500))
        body = b"\n".join(b"%06d %030d" % (number, number) for number in range(count))
        assert nsqd.post(f"/mpub?topic={topic}", body).status == 200
        for _ in range(count):
            raw.send(commands.fin(raw.message().id))
    wait_until(lambda: nsqd.channel(topic, "fast")["depth"] == 0)


def let_go(nsqd: Nsqd, topic: str) -> None:
    finish_fast(nsqd, topic)
    wait_until(lambda: nsqd.get(f"/log?topic={topic}").json["whole_from"] > 0)


def archives(nsqd: Nsqd, topic: str) -> bool:
    return "archive" in nsqd.get(f"/log?topic={topic}").json["pull_channels"]


def test_a_look_leaves_the_pattern_before_it_lists_topics(nsqd: Nsqd) -> None:
    found = discovery(nsqd, "orders.*", "plain", new=True)
    assert found.topics() == {"input": ("plain",)}
    (left,) = nsqd.get("/channel/patterns").json["patterns"]
    assert left["topics"] == ["orders.*", "plain"]
    assert "orders.out" in left["except"] and "archive.retry" in left["except"]
    assert left["reader"].startswith("pipeline archive on ")
    finish_fast(nsqd, "orders.new", 4000)
    finish_fast(nsqd, "orders.out", 10)
    assert found.topics() == {"input": ("orders.new", "plain")}
    assert nsqd.channel("orders.new", "archive")["depth"] == 4000
    assert found.missed_count == 0
    assert not archives(nsqd, "orders.out")


def test_what_a_topic_had_let_go_before_it_was_found_is_counted_and_told(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    """R47: a node without the pattern, as one that is found later."""
    assert nsqd.post("/topic/create?topic=orders.1").status == 200
    found = discovery(nsqd, "orders.*")
    assert found.topics() == {"input": ("orders.1",)}
    assert nsqd.post("/channel/pattern/delete?channel=archive").status == 200
    let_go(nsqd, "orders.gone")
    assert nsqd.post("/pub?topic=orders.kept", b"x").status == 200
    with caplog.at_level(logging.WARNING):
        assert found.topics() == {"input": ("orders.1", "orders.gone", "orders.kept")}
    assert archives(nsqd, "orders.gone"), "its channel is made at this moment"
    assert archives(nsqd, "orders.kept")
    assert 0 < found.missed_count <= 2000
    (told,) = caplog.messages
    assert told.startswith("topic=orders.gone on nsqd ") and "were finished by its" in told
    before = found.missed_count
    found.topics()
    assert found.missed_count == before, "told once"


def test_where_a_pipeline_begins_nothing_is_a_loss_and_no_channel_is_made(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    let_go(nsqd, "orders.old")
    found = discovery(nsqd, "orders.*", new=True)
    assert found.topics() == {"input": ("orders.old",)}
    assert (found.missed_count, caplog.messages) == (0, [])
    assert not archives(nsqd, "orders.old"), "it begins where its options say"
    again = discovery(nsqd, "orders.*")
    again.topics()
    assert again.missed_count > 0, "one that ran before has missed it"


def test_a_node_that_comes_later_is_given_the_pattern(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        options = (SMALL, f"--lookupd-tcp-address={lookupd.tcp_address}")
        address = "--broadcast-address=127.0.0.1"
        source = pipeline("orders.*", lookupd_http_addresses=lookupd.http_address)
        found = Discovery(source, PipelineIdentity(ONE))
        assert found.topics() == {"input": ()}, "no nsqd is there yet"
        with Nsqd(tmp_path / "one", *options, address) as first:
            wait_until(lambda: lookupd.get("/nodes").json["producers"])
            found.topics()
            finish_fast(first, "orders.a", 100)
            assert found.topics() == {"input": ("orders.a",)}
            assert first.channel("orders.a", "archive")["depth"] == 100
            with Nsqd(tmp_path / "two", *options, address) as second:
                let_go(second, "orders.b")
                wait_until(lambda: len(lookupd.get("/nodes").json["producers"]) == 2)
                assert found.topics() == {"input": ("orders.a", "orders.b")}
                assert found.missed_count > 0 and archives(second, "orders.b")
                finish_fast(second, "orders.c", 100)
                assert second.channel("orders.c", "archive")["depth"] == 100


def test_another_reader_is_refused_with_who_reads(nsqd: Nsqd) -> None:
    discovery(nsqd, "orders.*").topics()
    read_by = r"channel archive is read by pipeline archive on .*1111.*: stop the other one, use"
    with pytest.raises(NodeError, match=read_by):
        discovery(nsqd, "orders.*", identity=TWO).topics()
    source = pipeline("orders.*", nsqd_http_addresses=f"127.0.0.1:{nsqd.http_port}")
    for _ in range(2):
        Discovery(source, PipelineIdentity(TWO), take_over=ONE).topics()
    with pytest.raises(NodeError, match="CHANNEL_HAS_READER"):
        discovery(nsqd, "orders.*").topics()


def test_a_node_that_cannot_take_the_pattern_stops_nobody_and_is_told_once(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    options = parse_options({"nsqdHttpAddresses": "unused:1", "topic": "t"}, BATCH)
    access = Access.of(options)
    with Nsqlookupd() as other:
        addresses = (f"127.0.0.1:{nsqd.http_port}", "127.0.0.1:1", other.http_address)
        nodes = [Node(address, access) for address in addresses]
        left = RegisteredPattern(PatternRequest("archive", ONE, "me", ("*",), ()), new=False)
        for _ in range(3):
            assert [node.address for node in left.register(nodes)] == [addresses[0]]
    assert len(caplog.messages) == 2
    assert all("its pattern could not be registered: nsqd " in text for text in caplog.messages)
