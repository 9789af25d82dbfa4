"""The lines of a push and the packets they make; the real thing is in conformance."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.stats.memory import Memory
from penstock.nsqd import statsd
from penstock.nsqd.statsd import Lines, pack
from tests.support.engine import MINUTE, SECOND, Client, Engine

MEMORY = [
    *("mem.heap_objects:1|g", "mem.heap_idle_bytes:2|g", "mem.heap_in_use_bytes:3|g"),
    *("mem.heap_released_bytes:4|g", "mem.gc_pause_usec_100:5|g", "mem.gc_pause_usec_99:6|g"),
    *("mem.gc_pause_usec_95:7|g", "mem.next_gc_bytes:8|g", "mem.gc_runs:9|c"),
]
NAMES = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
    "gc_total_runs",
)


class FixedMemory(Memory):
    def figures(self) -> dict[str, int]:
        return dict(zip(NAMES, range(1, 10), strict=True))


def engine_of(memory: bool = False, exclude: bool = False, **options: Any) -> Engine:
    return Engine(statsd_mem_stats=memory, statsd_exclude_ephemeral=exclude, **options)


def lines_of(engine: Engine, prefix: str = "") -> Lines:
    return Lines(engine.components, FixedMemory(), lambda: prefix)


def pushed(lines: Lines) -> list[str]:
    told = list(lines.push())
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in told)
    return [line[:-1] for line in told]


def test_keys_stand_in_nsqds_order_with_nsqds_types() -> None:
    engine = engine_of(
        memory=True, mem_queue_size=1, e2e_processing_latency_percentiles=(0.999, 0.5)
    )
    client = Client(engine, "orders", "billing", ready_count=5, msg_timeout_ns=SECOND)
    engine.publish("orders", *[b"x" * 8] * 6, b"x" * 11)
    first, *_ = client.take()
    engine.advance(1000)
    assert client.finish(first.index) == 0
    client.ready(3)
    engine.advance(SECOND)  # four time out, three are sent again
    again, *_ = client.take()
    client.ready(2)
    assert client.requeue(again.index, MINUTE) == 0
    engine.settle()
    told = pushed(lines_of(engine))
    latency = engine.topic("orders").latency
    high, half = (value_ns for _, value_ns in latency.values)
    assert told == [
        "topic.orders.message_count:7|c",
        "topic.orders.message_bytes:59|c",
        "topic.orders.depth:0|g",
        "topic.orders.backend_depth:0|g",
        f"topic.orders.e2e_processing_latency_100:{high}|g",
        f"topic.orders.e2e_processing_latency_50:{half}|g",
        "topic.orders.channel.billing.message_count:7|c",
        "topic.orders.channel.billing.depth:3|g",
        "topic.orders.channel.billing.backend_depth:2|g",
        "topic.orders.channel.billing.in_flight_count:2|g",
        "topic.orders.channel.billing.deferred_count:1|g",
        "topic.orders.channel.billing.requeue_count:1|c",
        "topic.orders.channel.billing.timeout_count:4|c",
        "topic.orders.channel.billing.clients:1|g",
        f"topic.orders.channel.billing.e2e_processing_latency_100:{high}|g",
        f"topic.orders.channel.billing.e2e_processing_latency_50:{half}|g",
        *MEMORY,
    ]


def test_topics_and_channels_come_by_name_with_the_prefix() -> None:
    engine = engine_of()
    for name in ("b", "a"):
        topic, _ = engine.broker.create_topic(name)
        for channel in ("z", "y"):
            topic.create_channel(channel)
    told = [line for line in pushed(lines_of(engine, "nsq.x.")) if ".dep" in line]
    assert [line.removeprefix("nsq.x.topic.").removesuffix(".depth:0|g") for line in told] == [
        *("a", "a.channel.y", "a.channel.z", "b", "b.channel.y", "b.channel.z"),
    ]


def test_counters_are_differences_since_the_push_before() -> None:
    engine = engine_of()
    lines = lines_of(engine)
    engine.publish("t", *[b"x"] * 5)
    assert pushed(lines)[0] == "topic.t.message_count:5|c"
    assert pushed(lines)[0] == "topic.t.message_count:0|c"
    engine.publish("t", *[b"x"] * 7)
    assert pushed(lines)[0] == "topic.t.message_count:7|c"


def test_a_topic_made_again_counts_from_zero() -> None:
    engine = engine_of()
    lines = lines_of(engine)
    engine.publish("t", *[b"x"] * 100)
    pushed(lines)
    engine.done(engine.broker.delete_topic("t"))
    engine.publish("t", *[b"x"] * 3)
    assert pushed(lines)[0] == "topic.t.message_count:3|c"
    engine.done(engine.broker.delete_topic("t"))
    pushed(lines)
    engine.publish("t", *[b"x"] * 4)
    assert pushed(lines)[0] == "topic.t.message_count:4|c", "what is gone is forgotten"


def test_ephemeral_ones_are_sent_as_they_are_or_left_out() -> None:
    for exclude in (False, True):
        engine = engine_of(exclude=exclude)
        topic, _ = engine.broker.create_topic("t")
        topic.create_channel("c#ephemeral")
        engine.broker.create_topic("e#ephemeral")
        told = pushed(lines_of(engine))
        assert ("topic.t.channel.c#ephemeral.depth:0|g" in told) is not exclude
        assert ("topic.e#ephemeral.depth:0|g" in told) is not exclude
        assert "topic.t.depth:0|g" in told


@given(st.lists(st.text("ab", max_size=20).map(lambda text: text + "\n")), st.integers(1, 40))
def test_packets_hold_whole_lines_in_order(lines: list[str], size_max: int) -> None:
    packets = [packet for packet in pack(lines, size_max) if packet is not None]
    assert b"".join(packets) == "".join(lines).encode()
    for packet in packets:
        assert packet.endswith(b"\n")
        assert len(packet) <= size_max or packet.count(b"\n") == 1, "a long line goes alone"
    for one, other in pairwise(packets):
        first = other.index(b"\n") + 1
        assert len(one) + first > size_max, "no packet is sent with room for one more line"


def test_making_a_push_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    for number in range(50):
        engine.broker.create_topic(f"t{number}")
    sender = statsd.Statsd(engine.components, FixedMemory(), lambda: "")
    monkeypatch.setattr(statsd, "SLICE_NS", 0)

    async def run() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(other())
        packets = await sender._pack()
        task.cancel()
        assert b"".join(packets).count(b"\n") == 200
        return turns

    assert asyncio.run(run()) >= 200
