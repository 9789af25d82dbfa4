"""Connections that are cut, stalled and split: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from penstock.client import Consumer, Message, Producer
from penstock.errors import UnknownOutcomeError
from tests.clients.harness import LOOPS, QUICK, Received, consumer_of, run
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.proxy import Proxy
from tests.support.waits import until


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_where_bytes_are_split_changes_nothing(nsqd: Nsqd, piece: int) -> None:
    topic = f"split-{piece}"
    received = Received()

    async def work() -> None:
        with Proxy(nsqd.tcp_port, piece=piece) as proxy:
            async with (
                Producer(proxy.address, **QUICK) as producer,
                consumer_of(proxy.address, topic, received, max_in_flight=20, snappy=True),
            ):
                await asyncio.gather(*(producer.publish(topic, body) for body in numbered(100)))
                await until(lambda: len(received) >= 100)

    run(work())
    assert sorted(received.bodies) == sorted(numbered(100))


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_cut_at_any_byte_lose_nothing(nsqd: Nsqd, loop: str) -> None:
    topic = f"cut-{loop}"
    received = Received()
    bodies = numbered(900)
    # Each connection passes 8,000 bytes in either direction at most.  Publishing takes more than
    # 20 bytes a message, delivering more than 34: so many connections are needed at the least.
    cut_size = 8_000
    connections_min = 900 * 20 // cut_size + 900 * 34 // cut_size

    async def work() -> None:
        with Proxy(nsqd.tcp_port, seed=7) as proxy:
            proxy.cut_after(cut_size)
            producer = Producer(proxy.address, publish_retries=1000, **QUICK)
            # Every cut is a delivery in vain; attempts say nothing here.
            consumer = consumer_of(proxy.address, topic, received, max_in_flight=50, max_attempts=0)
            async with consumer:
                # So many at once as a connection may live to see answered.
                for first in range(0, 900, 100):
                    part = bodies[first : first + 100]
                    await asyncio.gather(*(producer.publish(topic, body) for body in part))
                await until(lambda: set(bodies) <= set(received.bodies))
                proxy.cut_after(0)
            await producer.stop()
            assert proxy.accepted >= connections_min
            assert consumer.stats.lost >= 900 * 34 // cut_size

    run(work(), loop)


def test_a_consumer_whose_connections_are_cut_again_and_again(nsqd: Nsqd) -> None:
    received = Received()
    choose = random.Random(3)

    async def handle(message: Message) -> bool:
        await asyncio.sleep(choose.random() * 0.004)
        received(message)
        return choose.random() > 0.1

    async def work() -> None:
        with Proxy(nsqd.tcp_port) as proxy:
            consumer = consumer_of(proxy.address, "cuts", handle, max_in_flight=40, max_attempts=0)
            async with consumer:
                for _ in range(10):
                    publish(nsqd, "cuts", *numbered(50, len(received) * 1000))
                    await asyncio.sleep(0.05)
                    proxy.cut()
                await until(lambda: left(nsqd, "cuts") == 0)

    def left(nsqd: Nsqd, topic: str) -> int:
        channel = nsqd.channel(topic, "ch")
        return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])

    run(work())
    assert len(set(received.bodies)) >= 50


def test_a_stalled_connection_is_given_up_and_made_anew(nsqd: Nsqd) -> None:
    received = Received()

    async def work() -> None:
        with Proxy(nsqd.tcp_port) as proxy:
            consumer = consumer_of(
                proxy.address, "stall", received, heartbeat_interval=1, read_timeout=3
            )
            async with consumer:
                publish(nsqd, "stall", b"before")
                await until(lambda: len(received) == 1)
                proxy.stall()
                await until(lambda: consumer.stats.lost >= 1)
                proxy.cut()
                proxy.resume()
                publish(nsqd, "stall", b"after")
                await until(lambda: len(received) == 2)

    run(work())
    assert received.bodies == [b"before", b"after"]


def test_publishes_on_a_stalled_connection_go_to_another_nsqd(nsqd: Nsqd, tmp_path: Path) -> None:
    received = Received()

    async def work() -> None:
        with Nsqd(tmp_path / "other") as other, Proxy(nsqd.tcp_port) as proxy:
            addresses = [proxy.address, f"127.0.0.1:{other.tcp_port}"]
            producer = Producer(addresses, response_timeout=1, publish_retries=100, **QUICK)
            async with producer:
                await until(lambda: len(producer.connections) == 2)
                proxy.stall()
                await asyncio.gather(*(producer.publish("fail", body) for body in numbered(50)))
                proxy.cut()
                proxy.resume()
            both = [f"127.0.0.1:{nsqd.tcp_port}", addresses[1]]
            async with Consumer(
                "fail", "ch", received, nsqd_tcp_addresses=both, max_in_flight=9, **QUICK
            ):
                await until(lambda: set(numbered(50)) <= set(received.bodies))

    run(work())


def test_an_unknown_outcome_is_reported_if_it_must_not_be_tried_again(nsqd: Nsqd) -> None:
    """Checklist 11."""

    async def work() -> None:
        with Proxy(nsqd.tcp_port) as proxy:
            async with Producer(proxy.address, retry_unknown=False, **QUICK) as producer:
                await producer.publish("unknown", b"x")
                proxy.stall()
                unanswered = [await producer.send("unknown", b"y") for _ in range(3)]
                await asyncio.sleep(0.05)
                proxy.cut()
                proxy.resume()
                results = await asyncio.gather(*unanswered, return_exceptions=True)
                assert [type(result) for result in results] == [UnknownOutcomeError] * 3
                await producer.publish("unknown", b"z")

    run(work())


def test_a_producer_outlives_a_restart_of_its_nsqd(tmp_path: Path) -> None:
    received = Received()

    async def work() -> None:
        with Nsqd(tmp_path / "nsqd") as nsqd:
            async with (
                Producer(f"127.0.0.1:{nsqd.tcp_port}", **QUICK) as producer,
                consumer_of(nsqd, "restart", received, max_in_flight=100),
            ):
                stored = [await producer.send("restart", b"%d" % n) for n in range(300)]
                await asyncio.to_thread(nsqd.kill)
                stored += [await producer.send("restart", b"%d" % n) for n in range(300, 600)]
                await asyncio.to_thread(nsqd.start)
                await asyncio.gather(*stored)
                await until(lambda: set(numbered(600)) <= set(received.bodies))

    run(work())


def test_answers_sent_before_stopping_reach_nsqd_through_a_slow_network(nsqd: Nsqd) -> None:
    publish(nsqd, "flushed", *numbered(2000))
    received = Received()

    async def work() -> None:
        with Proxy(nsqd.tcp_port, piece=100) as proxy:
            consumer = consumer_of(proxy.address, "flushed", received, max_in_flight=1000)
            async with consumer:
                await until(lambda: len(received) >= 300)
            assert consumer.stats.finished == len(received)

    run(work())
    channel = nsqd.channel("flushed", "ch")
    assert channel["depth"] + channel["in_flight_count"] == 2000 - len(received)
    assert channel["requeue_count"] == 0


def test_a_consumer_stops_although_nsqd_never_answers_cls(nsqd: Nsqd) -> None:
    """What is in flight is still finished first, however long nsqd is silent."""
    received = Received()

    async def work() -> None:
        async def slowly(message: Message) -> None:
            received(message)
            if message.body == b"slow":
                await asyncio.sleep(3.0)

        with Proxy(nsqd.tcp_port) as proxy:
            consumer = consumer_of(proxy.address, "hung", slowly, stop_timeout=60, max_in_flight=5)
            await consumer.start()
            publish(nsqd, "hung", b"quick", b"slow")
            await until(lambda: len(received) == 2)
            proxy.stall()
            loop = asyncio.get_running_loop()
            since_s = loop.time()
            await consumer.stop()
            assert consumer.stats.finished == 2, "the slow one came to its end"
            assert 2.0 < loop.time() - since_s < 30
            proxy.resume()

    run(work())
