from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.engine.stats import report
from penstock.engine.stats.latency import Percentiles
from penstock.engine.stats.memory import Memory
from penstock.engine.stats.report import Selection
from tests.unit.nsqd.memory_broker import MemoryBroker, MemoryConnection

START_NS = 1_794_717_442 * 10**9
CLIENT = (
    '{"client_id":"worker1","hostname":"worker1.example.com","version":"V2",'
    '"remote_address":"127.0.0.1:42552","state":3,"ready_count":3,"in_flight_count":3,'
    '"message_count":5,"finish_count":1,"requeue_count":1,"connect_ts":1794717442,'
    '"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"ref/1.0","topology_zone":"",'
    '"topology_region":"","pub_counts":[{"topic":"orders","count":7}],'
    '"tls":false,"tls_cipher_suite":"","tls_version":"","tls_negotiated_protocol":"",'
    '"tls_negotiated_protocol_is_mutual":false}'
)
LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
EXPECTED = (
    '{"version":"1.3.0","health":"OK","start_time":1794717442,"topics":[{"topic_name":"orders",'
    '"channels":[{"channel_name":"billing","depth":1,"backend_depth":0,"in_flight_count":3,'
    '"deferred_count":2,"message_count":7,"requeue_count":1,"timeout_count":0,"client_count":1,'
    f'"clients":[{CLIENT}],"paused":false,{LATENCY}}}],'
    f'"depth":0,"backend_depth":0,"message_count":7,"message_bytes":59,"paused":false,{LATENCY}}}],'
    f'"producers":[{CLIENT}]}}'
)


class FixedMemory(Memory):
    def figures(self) -> dict[str, int]:
        return {"heap_objects": 5, "gc_total_runs": 0}


def snapshot(broker: MemoryBroker, include_memory: bool = False, **wanted: Any) -> Any:
    """The statistics, which must be the same at once and in pieces."""
    selection = Selection(include_memory=include_memory, **wanted)
    whole = report.snapshot(broker, selection, FixedMemory())
    pieces = b"".join(report.json_pieces(broker, selection, FixedMemory()))
    assert pieces == json.dumps(whole, separators=(",", ":")).encode()
    return whole


def text(broker: MemoryBroker, now_ns: int, include_memory: bool = False) -> str:
    selection = Selection(include_memory=include_memory)
    return b"".join(report.text_pieces(broker, selection, FixedMemory(), now_ns)).decode()


def client() -> MemoryConnection:
    return MemoryConnection(
        client_id="worker1",
        hostname="worker1.example.com",
        remote_address="127.0.0.1:42552",
        ready_count=3,
        in_flight_count=3,
        message_count=5,
        finish_count=1,
        requeue_count=1,
        pub_counts={"orders": 7},
    )


@pytest.fixture
def broker() -> MemoryBroker:
    """The broker of the reference's example."""
    broker = MemoryBroker()
    topic, _ = broker.create_topic("orders")
    topic.message_count, topic.message_bytes = 7, 59
    channel, _ = topic.create_channel("billing")
    channel.depth, channel.in_flight_count, channel.deferred_count = 1, 3, 2
    channel.message_count, channel.requeue_count = 7, 1
    worker = client()
    channel.clients.append(worker)
    broker.clients.add(worker)
    return broker


def test_fields_stand_in_nsqds_order(broker: MemoryBroker) -> None:
    assert json.dumps(snapshot(broker), separators=(",", ":")) == EXPECTED


def test_a_topics_deferred_messages_stand_behind_nsqs_fields_unless_there_are_none(
    broker: MemoryBroker,
) -> None:
    assert "deferred_count" not in snapshot(broker)["topics"][0]
    broker.topics["orders"].deferred_count = 4
    [topic] = snapshot(broker)["topics"]
    assert (list(topic)[-1], topic["deferred_count"]) == ("deferred_count", 4)


def test_memory_stands_before_the_producers(broker: MemoryBroker) -> None:
    told = snapshot(broker, include_memory=True)
    assert list(told)[-2:] == ["memory", "producers"]


def test_a_client_that_never_published_has_no_pub_counts_and_is_no_producer(
    broker: MemoryBroker,
) -> None:
    (consumer,) = broker.clients
    consumer.pub_counts = {}
    told = snapshot(broker)
    assert told["producers"] is None
    assert "pub_counts" not in told["topics"][0]["channels"][0]["clients"][0]


def test_only_one_pub_count_is_told(broker: MemoryBroker) -> None:
    (producer,) = broker.clients
    producer.pub_counts = {"a": 1, "orders": 2}
    assert len(snapshot(broker)["producers"][0]["pub_counts"]) == 1
    (told,) = snapshot(broker, topic="orders")["producers"][0]["pub_counts"]
    assert told == {"topic": "orders", "count": 2}


def test_empty_and_absent_differ(broker: MemoryBroker) -> None:
    assert snapshot(MemoryBroker())["topics"] == []
    assert snapshot(broker, topic="no")["topics"] is None
    assert snapshot(broker, topic="no")["producers"] is None
    assert snapshot(broker, topic="orders", channel="no")["topics"] == []
    without = snapshot(broker, include_clients=False)
    assert without["producers"] is None
    assert without["topics"][0]["channels"][0]["clients"] is None
    assert without["topics"][0]["channels"][0]["client_count"] == 1


def test_topics_and_channels_are_sorted() -> None:
    broker = MemoryBroker()
    for topic in "bca":
        for channel in "yxz":
            broker.create_topic(topic)[0].create_channel(channel)
    topics = snapshot(broker)["topics"]
    assert [topic["topic_name"] for topic in topics] == ["a", "b", "c"]
    assert [channel["channel_name"] for channel in topics[0]["channels"]] == ["x", "y", "z"]


def test_the_text_is_nsqds(broker: MemoryBroker) -> None:
    (worker,) = broker.clients
    worker.pub_counts = {}
    broker.clients.add(MemoryConnection(hostname="p", state=0, pub_counts={"orders": 7}))
    topic, _ = broker.create_topic("paused")
    topic.create_channel("c")
    topic.paused = topic.channels["c"].paused = True
    shown = text(broker, START_NS + 2_419_151_120, include_memory=True)
    first, *lines = shown.split("\n")
    assert first.startswith("nsqd v1.3.0 (built w/go")
    expected = f"""\
start_time 2026-11-15T04:37:22Z
uptime 2.41915112s

Health: OK

Memory:
   heap_objects             \t5
   gc_total_runs            \t0

Topics:
   [orders         ] depth: 0     be-depth: 0     msgs: 7        e2e%:{" "}
      [billing                  ] depth: 1     be-depth: 0     inflt: 3    def: 2    \
re-q: 1     timeout: 0     msgs: 7        e2e%:{" "}
        [V2 worker1.example.com:42552 ref/1.0] state: 3 inflt: 3    rdy: 3    fin: 1        \
re-q: 1        msgs: 5        connected: 2s

*P [paused         ] depth: 0     be-depth: 0     msgs: 0        e2e%:{" "}
   *P [c                        ] depth: 0     be-depth: 0     inflt: 0    def: 0    \
re-q: 0     timeout: 0     msgs: 0        e2e%:{" "}

Producers:
   [V2 p:5 ref/1.0          ] msgs: 7        topics: orders=7 connected: 2s
"""
    assert "\n".join(lines) == expected


def test_the_text_of_an_empty_broker() -> None:
    shown = text(MemoryBroker(), START_NS)
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
    broker: MemoryBroker,
) -> None:
    channel = broker.topics["orders"].channels["billing"]
    channel.delivery_counts = [3, 0, 5]
    told = snapshot(broker)["topics"][0]["channels"][0]
    names = list(told)
    at = names.index("message_count")
    assert names[at : at + 4] == [
        *("message_count", "zone_local_msg_count", "global_msg_count", "requeue_count"),
    ]
    assert (told["zone_local_msg_count"], told["global_msg_count"]) == (5, 3)


def test_latencies_are_told_to_programs_and_to_people(broker: MemoryBroker) -> None:
    topic = broker.topics["orders"]
    topic.latency = Percentiles(9, ((0.99, 1_002_310_506), (0.5, 1_250_000)))
    topic.channels["billing"].latency = Percentiles(2, ((0.99, 7), (0.5, 0)))
    told = snapshot(broker)["topics"][0]
    assert told["e2e_processing_latency"] == {
        "count": 9,
        "percentiles": [
            {"quantile": 0.99, "value": 1_002_310_506},
            {"quantile": 0.5, "value": 1_250_000},
        ],
    }
    shown = text(broker, START_NS)
    assert "msgs: 7        e2e%: 1.0s, 1.2ms\n" in shown
    assert "msgs: 7        e2e%: 7.0ns, 0.0ns\n" in shown
