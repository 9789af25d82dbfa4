from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.window import Consumer
from penstock.engine.stats import report
from penstock.engine.stats.latency import format_ns
from penstock.engine.stats.memory import Memory
from penstock.engine.stats.report import Selection, StatsSource
from penstock.engine.topology import ZONE
from tests.support.engine import SECOND, Engine
from tests.unit.nsqd.worker import Worker

START_NS = 1_800_000_000 * 10**9
CLIENT = (
    '{"client_id":"worker1","hostname":"worker1.example.com","version":"V2",'
    '"remote_address":"127.0.0.1:42552","state":3,"ready_count":3,"in_flight_count":3,'
    '"message_count":5,"finish_count":1,"requeue_count":1,"connect_ts":1800000000,'
    '"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"ref/1.0","topology_zone":"",'
    '"topology_region":"","pub_counts":[{"topic":"orders","count":7}],'
    '"tls":false,"tls_cipher_suite":"","tls_version":"","tls_negotiated_protocol":"",'
    '"tls_negotiated_protocol_is_mutual":false}'
)
LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
EXPECTED = (
    '{"version":"1.3.0","health":"OK","start_time":1800000000,"topics":[{"topic_name":"orders",'
    '"channels":[{"channel_name":"billing","depth":2,"backend_depth":0,"in_flight_count":3,'
    '"deferred_count":1,"message_count":7,"global_msg_count":5,"requeue_count":1,"timeout_count":0,"client_count":1,'
    f'"clients":[{CLIENT}],"paused":false,{LATENCY}}}],'
    f'"depth":0,"backend_depth":0,"message_count":7,"message_bytes":59,"paused":false,{LATENCY},'
    '"deferred_count":1}],'
    f'"producers":[{CLIENT}]}}'
)


class FixedMemory(Memory):
    def figures(self) -> dict[str, int]:
        return {"heap_objects": 5, "gc_total_runs": 0}


def source_of(engine: Engine) -> StatsSource:
    return StatsSource(
        engine.components, [c for c in engine.clients if isinstance(c, Worker)], FixedMemory()
    )


def snapshot(engine: Engine, include_memory: bool = False, **wanted: Any) -> Any:
    selection = Selection(include_memory=include_memory, **wanted)
    return json.loads(b"".join(report.json_pieces(source_of(engine), selection)))


def text(engine: Engine, now_ns: int, include_memory: bool = False) -> str:
    selection = Selection(include_memory=include_memory)
    return b"".join(report.text_pieces(source_of(engine), selection, now_ns)).decode()


def worked(**options: Any) -> Engine:
    """A worker got 5 of 7 messages; it finished the first and requeued the second with a delay."""
    engine = Engine(**options)
    worker = Worker(engine, "orders", "billing", ready_count=5, pub_counts={"orders": 7})
    engine.publish("orders", *[b"x" * 8] * 6, b"x" * 11)
    engine.settle()
    first, second, *_ = worker.take()
    worker.consumer.ready_count = 3
    assert worker.finish(first.index) == worker.requeue(second.index, SECOND) == 0
    engine.settle()
    return engine


@pytest.fixture
def engine() -> Engine:
    return worked()


def worker_of(engine: Engine) -> Worker:
    (worker,) = engine.clients
    assert isinstance(worker, Worker)
    return worker


def test_fields_stand_in_nsqds_order(engine: Engine) -> None:
    selection = Selection(include_memory=False)
    assert b"".join(report.json_pieces(source_of(engine), selection)).decode() == EXPECTED


def test_a_topics_deferred_messages_stand_behind_nsqs_fields_unless_there_are_none(
    engine: Engine,
) -> None:
    [topic] = snapshot(engine)["topics"]
    assert (list(topic)[-1], topic["deferred_count"]) == ("deferred_count", 1)
    engine.topic("orders").channels["billing"].empty()
    assert "deferred_count" not in snapshot(engine)["topics"][0]


def test_memory_stands_before_the_producers(engine: Engine) -> None:
    told = snapshot(engine, include_memory=True)
    assert list(told)[-2:] == ["memory", "producers"]


def test_a_client_that_never_published_has_no_pub_counts_and_is_no_producer(
    engine: Engine,
) -> None:
    worker_of(engine).pub_counts.clear()
    told = snapshot(engine)
    assert told["producers"] is None
    assert "pub_counts" not in told["topics"][0]["channels"][0]["clients"][0]


def test_only_one_pub_count_is_told(engine: Engine) -> None:
    pub_counts = worker_of(engine).pub_counts
    pub_counts.clear()
    pub_counts.update({"a": 1, "orders": 2})
    assert len(snapshot(engine)["producers"][0]["pub_counts"]) == 1
    (told,) = snapshot(engine, topic="orders")["producers"][0]["pub_counts"]
    assert told == {"topic": "orders", "count": 2}


def test_empty_and_absent_differ(engine: Engine) -> None:
    assert snapshot(Engine())["topics"] == []
    assert snapshot(engine, topic="no")["topics"] is None
    assert snapshot(engine, topic="no")["producers"] is None
    assert snapshot(engine, topic="orders", channel="no")["topics"] == []
    without = snapshot(engine, include_clients=False)
    assert without["producers"] is None
    assert without["topics"][0]["channels"][0]["clients"] is None
    assert without["topics"][0]["channels"][0]["client_count"] == 1


def test_topics_and_channels_are_sorted() -> None:
    engine = Engine()
    for topic in "bca":
        for channel in "yxz":
            engine.broker.create_topic(topic)[0].create_channel(channel)
    topics = snapshot(engine)["topics"]
    assert [topic["topic_name"] for topic in topics] == ["a", "b", "c"]
    assert [channel["channel_name"] for channel in topics[0]["channels"]] == ["x", "y", "z"]


def test_the_text_is_nsqds(engine: Engine) -> None:
    worker_of(engine).pub_counts.clear()
    topic, _ = engine.broker.create_topic("paused")
    producer = Worker(engine, "paused", "c", hostname="p", pub_counts={"orders": 7})
    topic.channels["c"].leave(producer.consumer)
    topic.pause(True)
    topic.channels["c"].pause(True)
    shown = text(engine, START_NS + 2_419_151_120, include_memory=True)
    first, *lines = shown.split("\n")
    assert first.startswith("nsqd v1.3.0 (built w/go")
    expected = f"""\
start_time 2027-01-15T08:00:00Z
uptime 2.41915112s

Health: OK

Memory:
   heap_objects             \t5
   gc_total_runs            \t0

Topics:
   [orders         ] depth: 0     be-depth: 0     msgs: 7        e2e%:{" "}
      [billing                  ] depth: 2     be-depth: 0     inflt: 3    def: 1    \
re-q: 1     timeout: 0     msgs: 7        e2e%:{" "}
        [V2 worker1.example.com:42552 ref/1.0] state: 3 inflt: 3    rdy: 3    fin: 1        \
re-q: 1        msgs: 5        connected: 2s

*P [paused         ] depth: 0     be-depth: 0     msgs: 0        e2e%:{" "}
   *P [c                        ] depth: 0     be-depth: 0     inflt: 0    def: 0    \
re-q: 0     timeout: 0     msgs: 0        e2e%:{" "}

Producers:
   [V2 p:42552 ref/1.0      ] msgs: 7        topics: orders=7 connected: 2s
"""
    assert "\n".join(lines) == expected


def test_the_text_of_an_empty_broker() -> None:
    shown = text(Engine(), START_NS)
    assert shown.endswith("\nuptime 0s\n\nHealth: OK\n\nTopics: None\n\nProducers: None\n")


@pytest.mark.parametrize(
    ("duration_ns", "words"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (250_000_000, "250ms"),
        (2_419_151_120, "2.41915112s"),
        (60_000_000_000, "1m0s"),
        (3_723_000_000_000, "1h2m3s"),
        (3_600_000_000_001, "1h0m0.000000001s"),
        (100 * 3_600_000_000_000, "100h0m0s"),
        (-1_000_000_000, "-1s"),
    ],
)
def test_durations_are_gos(duration_ns: int, words: str) -> None:
    assert report.go_duration(duration_ns) == words


def test_memory_figures_have_gos_names_and_sense() -> None:
    import gc

    memory = Memory()
    memory.start()
    try:
        gc.collect()
        figures = memory.figures()
    finally:
        memory.stop()
    assert list(figures) == [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ]
    assert figures["heap_objects"] > 1000
    assert figures["heap_in_use_bytes"] > 1 << 20
    assert figures["gc_pause_usec_100"] >= figures["gc_pause_usec_95"] >= 0
    assert figures["gc_pause_usec_100"] > 0
    assert figures["gc_total_runs"] > 0


def test_deliveries_by_locality_stand_behind_the_message_count_unless_zero(
    engine: Engine,
) -> None:
    channel = engine.topic("orders").channels["billing"]
    near = Consumer(None, SECOND)
    near.locality, near.message_count = ZONE, 7
    channel.join(near)
    channel.leave(near)
    told = snapshot(engine)["topics"][0]["channels"][0]
    names = list(told)
    at = names.index("message_count")
    assert names[at : at + 4] == [
        *("message_count", "zone_local_msg_count", "global_msg_count", "requeue_count"),
    ]
    assert (told["zone_local_msg_count"], told["global_msg_count"]) == (7, 5)


def test_latencies_are_told_to_programs_and_to_people() -> None:
    engine = worked(e2e_processing_latency_percentiles=(0.99, 0.5))
    told = snapshot(engine)["topics"][0]
    latency = told["e2e_processing_latency"]
    assert latency["count"] == 1
    assert [entry["quantile"] for entry in latency["percentiles"]] == [0.99, 0.5]
    assert told["channels"][0]["e2e_processing_latency"] == latency
    values = ", ".join(format_ns(entry["value"]) for entry in latency["percentiles"])
    assert text(engine, START_NS).count(f"msgs: 7        e2e%: {values}\n") == 2
