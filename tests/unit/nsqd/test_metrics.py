"""The page of /metrics on a broker without sockets; a real daemon's is in conformance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from penstock.engine.pull.polls import Known
from penstock.engine.stats.memory import Memory
from penstock.net.admission import Admission, tcp_and_http
from penstock.net.body_budget import BodyBudget
from penstock.nsqd.clients import Clients
from penstock.nsqd.loop_lag import LoopLag
from penstock.nsqd.metrics import Metrics, Traffic, open_files
from tests.support.engine import HOUR, SECOND, Engine
from tests.support.retention import Reader

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def traffic() -> Traffic:
    admission = Admission(100)
    tcp, _ = tcp_and_http(admission)
    tcp.refused_count = 4
    quotas = admission.quotas
    return Traffic(7, 3, {200: 5, 404: 1}, admission.count_max, quotas, BodyBudget(1000), 0)


def pieces_of(engine: Engine) -> list[bytes]:
    metrics = Metrics(engine.components, Clients(), Memory(), LoopLag(), traffic)

    async def make() -> list[bytes]:
        return list(metrics.pieces())

    return asyncio.run(make())


def page_of(engine: Engine) -> Page:
    text = b"".join(pieces_of(engine)).decode()
    found = [s for family in text_string_to_metric_families(text) for s in family.samples]
    page = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(page) == len(found), "no sample twice"
    return page


def at(page: Page, name: str, **labels: str) -> float:
    return page[f"penstock_{name}", frozenset(labels.items())]


def channels(engine: Engine, topic_count: int, channel_count: int) -> Iterator[str]:
    for topic_number in range(topic_count):
        topic, _ = engine.broker.create_topic(f"t{topic_number}")
        for number in range(channel_count):
            topic.create_channel(f"c{number}#ephemeral")
            yield f"c{number}"


def test_a_page_of_many_channels_comes_in_small_pieces() -> None:
    engine = Engine()
    assert len(list(channels(engine, 20, 100))) == 2000
    pieces = pieces_of(engine)
    assert max(map(len, pieces)) < 64 << 10
    page = page_of(engine)
    assert sum(name == "penstock_channel_depth" for name, _ in page) == 2000
    assert at(page, "channels") == 2000


def test_depths_deferrals_and_logs_of_topics() -> None:
    engine = Engine()
    engine.publish("held", b"abc", b"de")
    engine.defer("held", 3600 * SECOND, b"later")
    engine.defer("gone", 3600 * SECOND, b"never")
    engine.done(engine.broker.delete_topic("gone"))
    engine.advance(5 * SECOND)
    page = page_of(engine)
    assert at(page, "topic_depth", topic="held") == 2
    assert at(page, "topic_deferred", topic="held") == 1
    assert at(page, "topic_message_bytes_total", topic="held") == 5
    assert at(page, "log_unsynced_messages", topic="held") == 0
    assert at(page, "log_bytes", topic="held") == engine.topic("held").log.size
    assert at(page, "sync_duration_seconds_count") >= 1
    assert at(page, "deferred_pending") == 1
    assert at(page, "deferred_lateness_seconds_count") == 0


def test_what_retention_keeps_is_shown_for_topics_that_retain() -> None:
    """R21."""
    reader = Reader(retain_ns=HOUR, max_bytes_per_file=2000)
    reader.engine.broker.create_topic("other")
    reader.work(10)
    reader.engine.advance(5 * SECOND)
    page = page_of(reader.engine)
    assert at(page, "topic_retained_bytes", topic="t") >= 8_000
    assert 5 <= at(page, "topic_retained_oldest_seconds", topic="t") < 6
    assert [name for name, _ in page].count("penstock_topic_retained_bytes") == 1
    reader.policy()
    assert "penstock_topic_retained_bytes" not in {name for name, _ in page_of(reader.engine)}


def test_a_deferred_publish_is_counted_when_it_fires() -> None:
    engine = Engine()
    engine.defer("t", 2 * SECOND, b"x")
    engine.sleep(7 * SECOND)
    page = page_of(engine)
    assert at(page, "deferred_lateness_seconds_count") == 1
    assert 4.9 < at(page, "deferred_lateness_seconds_sum") < 5.1, "it came five seconds late"


def test_what_the_servers_counted() -> None:
    page = page_of(Engine())
    assert at(page, "tcp_connections_total") == 7
    assert at(page, "http_connections") == 3
    assert at(page, "http_requests_total", status="404") == 1
    assert at(page, "healthy") == 1


def test_open_files_are_counted() -> None:
    before = open_files()
    with open("/dev/null"):  # noqa: PTH123
        assert open_files() == before + 1


def test_readers_by_index_are_shown() -> None:
    """R18."""
    engine = Engine(pull_channel_lapse_ns=60 * SECOND)
    engine.publish("t", b"x" * 1000)
    topic = engine.topic("t")
    engine.components.pulls.open(topic, "q", topic.log.first)
    engine.components.polls.wait({"none": Known(None, None)}, None, 3600 * SECOND)
    engine.components.reads.read(topic, topic.log.first, topic.end, 1 << 20)
    engine.advance(10 * SECOND)
    page = page_of(engine)
    assert at(page, "pull_channels") == 1 and at(page, "log_polls") == 1
    assert at(page, "pull_channel_idle_seconds", topic="t", channel="q") == 10
    assert 1000 < at(page, "pull_channel_held_bytes", topic="t", channel="q") < 1200
    assert at(page, "log_reads_total") == 1 and at(page, "log_read_bytes_total") > 1000
    engine.advance(60 * SECOND)
    page = page_of(engine)
    assert at(page, "pull_channels") == 0
    assert at(page, "pull_channel_lapses_total", cause="time") == 1
    assert at(page, "pull_channel_lapses_total", cause="bytes") == 0


def test_what_policies_did_is_counted_only_where_there_is_one_or_something_was_done() -> None:
    engine = Engine()
    plain, _ = engine.broker.create_topic("plain")
    ruled, _ = engine.broker.create_topic("ruled")
    for topic in (plain, ruled):
        topic.create_channel("c")
    engine.settle()
    policies = engine.components.policies
    assert engine.done(policies.set_topic(ruled, {"max_messages": 5})) is None
    engine.publish("plain", b"1", b"2")
    engine.publish("ruled", b"1", b"2")
    page = page_of(engine)
    assert at(page, "topic_unfinished_messages", topic="ruled") == 2
    assert at(page, "channel_dropped_total", topic="ruled", channel="c") == 0
    of_plain = {name for name, labels in page if ("topic", "plain") in labels}
    assert not {name for name in of_plain if "unfinished" in name or "expired" in name}
    assert engine.done(policies.set_topic(plain, {"msg_ttl": "1s"})) is None
    engine.advance(5 * SECOND)
    assert engine.done(policies.set_topic(plain, {"msg_ttl": None})) is None
    assert at(page_of(engine), "channel_expired_total", topic="plain", channel="c") == 2
