"""R20 with real daemons: refused and dropped messages over TCP and HTTP, and a lifetime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import Producer
from penstock.errors import RefusedError
from penstock.wire import commands
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.waits import eventually, wait_until

FULL = "topic is full (max_messages)"


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("bounds")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def bounded(nsqd: Nsqd, topic: str, **keys: object) -> None:
    """A topic with the channel c and a policy."""
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post(f"/channel/create?topic={topic}&channel=c").status == 200
    reply = nsqd.http("PUT", f"/policy?topic={topic}", json.dumps(keys).encode())
    assert reply.status == 200, reply.text


def test_a_refused_publish_is_answered_in_order_and_the_connection_lives(nsqd: Nsqd) -> None:
    bounded(nsqd, "order", max_messages=3)
    with Client.of(nsqd) as producer, Client.of(nsqd).sub("order", "c") as consumer:
        for _ in range(2):
            producer.send(
                *(commands.pub("order", b"%d" % number) for number in range(4)),
                commands.mpub("order", [b"a", b"b"]),
                commands.dpub("order", 0, b"c"),
                commands.dpub("order", 60_000, b"d"),
                commands.pub("free", b"e"),
            )
            replies = [producer.reply().text.decode() for _ in range(8)]
            assert replies == [
                *["OK"] * 3,
                f"E_PUB_FAILED PUB failed {FULL}",
                f"E_MPUB_FAILED MPUB failed {FULL}",
                f"E_DPUB_FAILED DPUB failed {FULL}",
                f"E_DPUB_FAILED DPUB failed {FULL}",
                "OK",
            ]
            consumer.rdy(10)
            assert [message.body for message in consumer.finish_all(3)] == [b"0", b"1", b"2"]
            consumer.rdy(0)
            consumer.settle()


def test_a_finish_lets_the_next_publish_in(nsqd: Nsqd) -> None:
    bounded(nsqd, "step", max_messages=5)
    with Client.of(nsqd) as producer, Client.of(nsqd).sub("step", "c", ready=5) as consumer:
        producer.pub("step", *[b"x"] * 5)
        for _ in range(50):
            producer.send(commands.pub("step", b"y"))
            assert producer.error() == f"E_PUB_FAILED PUB failed {FULL}"
            consumer.fin(consumer.message())
            consumer.settle()
            producer.pub("step", b"z")


def test_http_answers_507_and_when_to_try_again(nsqd: Nsqd) -> None:
    bounded(nsqd, "http", max_messages=2)
    assert nsqd.post("/mpub?topic=http", b"1\n2").status == 200
    for path, body in (
        ("/pub?topic=http", b"x"),
        ("/mpub?topic=http", b"x\ny"),
        ("/mpub?topic=http&binary=true", b"\0\0\0\1\0\0\0\1x"),
        ("/pub?topic=http&defer=1000", b"x"),
    ):
        reply = nsqd.post(path, body)
        assert (reply.status, reply.json) == (507, {"message": "TOPIC_FULL"})
        assert reply.headers["retry-after"] == "1"
    assert nsqd.stats("&topic=http")["topics"][0]["refused_count"] == 4
    assert 'penstock_topic_refused_total{topic="http"} 4' in nsqd.get("/metrics").text


def test_two_hundred_publishers_flood_a_bounded_topic(nsqd: Nsqd) -> None:
    """What got an OK is there, and nothing else; the bound holds to a batch."""
    bounded(nsqd, "flood", max_messages=1000)

    def flood(number: int) -> int:
        with Client.of(nsqd) as producer:
            producer.send(*(commands.pub("flood", b"%d" % number) for _ in range(100)))
            return sum(producer.reply().text == b"OK" for _ in range(100))

    with ThreadPoolExecutor(20) as pool:
        stored = sum(pool.map(flood, range(200)))
    assert nsqd.channel("flood", "c")["depth"] == stored == 1000
    with Client.of(nsqd).sub("flood", "c", ready=1000) as consumer:
        consumer.finish_all(1000)


def test_our_producer_raises_the_refusal(nsqd: Nsqd) -> None:
    bounded(nsqd, "client", max_messages=2)

    async def run() -> None:
        address = f"127.0.0.1:{nsqd.tcp_port}"
        async with Producer([address], publish_retries=0) as producer:
            await producer.publish("client", b"1")
            await producer.publish("client", b"2")
            with pytest.raises(RefusedError, match=r"E_PUB_FAILED PUB failed topic is full"):
                await producer.publish("client", b"3")
            with Client.of(nsqd).sub("client", "c", ready=1) as consumer:
                consumer.finish_all(1)
                consumer.settle()
            await producer.publish("client", b"4")

    asyncio.run(run())


def test_a_restart_keeps_the_bound(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        bounded(nsqd, "t", max_messages=3)
        for _ in range(3):
            assert nsqd.post("/pub?topic=t", b"x").status == 200
        nsqd.kill()
        nsqd.start()
        assert nsqd.post("/pub?topic=t", b"x").status == 507


def test_messages_expire_while_nobody_consumes(nsqd: Nsqd) -> None:
    bounded(nsqd, "mortal", msg_ttl="300ms")
    assert nsqd.post("/mpub?topic=mortal", b"1\n2\n3").status == 200
    wait_until(lambda: nsqd.channel("mortal", "c")["depth"] == 0)
    assert nsqd.channel("mortal", "c")["expired_count"] == 3
    with Client.of(nsqd).sub("mortal", "c", ready=5) as consumer:
        assert consumer.quiet(0.2)
        assert nsqd.post("/pub?topic=mortal", b"young").status == 200
        assert consumer.message().body == b"young"
    metrics = nsqd.get("/metrics").text
    assert 'penstock_channel_expired_total{topic="mortal",channel="c"} 3' in metrics


def test_bytes_fall_by_themselves_after_a_flood(nsqd: Nsqd) -> None:
    bounded(nsqd, "bytes", max_bytes="1MB")
    count = 0
    while nsqd.post("/pub?topic=bytes", bytes(20_000)).status == 200:
        count += 1
    assert 40 < count < 60
    with Client.of(nsqd).sub("bytes", "c", ready=100) as consumer:
        consumer.finish_all(count)
    eventually(lambda: nsqd.post("/pub?topic=bytes", b"x").status == 200)


def test_a_consumer_goes_on_after_its_messages_in_flight_were_dropped(nsqd: Nsqd) -> None:
    bounded(nsqd, "dropped", max_messages=16, overflow="drop-oldest")
    with Client.of(nsqd).sub("dropped", "c", ready=2) as consumer:
        with Client.of(nsqd) as producer:
            for number in range(4):
                producer.pub("dropped", b"%d" % number)
            held = consumer.messages(2)
            for number in range(4, 64):
                producer.pub("dropped", b"%d" % number)
            topic = nsqd.stats("&topic=dropped")["topics"][0]
            channel = topic["channels"][0]
            assert channel["in_flight_count"] == 2
            assert channel["depth"] + 2 + channel["dropped_count"] == 64
            consumer.fin(*held)
            assert [consumer.error().split()[0] for _ in held] == ["E_FIN_FAILED"] * 2
            producer.pub("dropped", b"last")
        while (message := consumer.message()).body != b"last":
            consumer.fin(message)
    metrics = nsqd.get("/metrics").text
    assert 'penstock_channel_dropped_total{topic="dropped",channel="c"}' in metrics


def test_our_client_goes_on_when_what_it_holds_is_dropped(nsqd: Nsqd) -> None:
    """A finish that comes too late is no reason to connect again."""
    bounded(nsqd, "ours", max_messages=16, overflow="drop-oldest")
    address = f"127.0.0.1:{nsqd.tcp_port}"

    async def run() -> list[bytes]:
        held, last, came = asyncio.Event(), asyncio.Event(), []

        async def handle(message: Message) -> None:
            came.append(message.body)
            if message.body.startswith(b"held"):
                await held.wait()
            if message.body == b"last":
                last.set()

        consumer = Consumer("ours", "c", handle, nsqd_tcp_addresses=[address], max_in_flight=2)
        async with Producer([address]) as producer:
            await consumer.start()
            await producer.publish("ours", b"held 1")
            await producer.publish("ours", b"held 2")
            while len(came) < 2:
                await asyncio.sleep(0.01)
            for number in range(64):
                await producer.publish("ours", b"%d" % number)
            held.set()
            await producer.publish("ours", b"last")
            await asyncio.wait_for(last.wait(), 30)
        await consumer.stop()
        return came

    came = asyncio.run(run())
    assert came[:2] == [b"held 1", b"held 2"] and came.count(b"held 1") == 1
    channel = nsqd.channel("ours", "c")
    assert channel["dropped_count"] > 0 and channel["depth"] == channel["in_flight_count"] == 0
