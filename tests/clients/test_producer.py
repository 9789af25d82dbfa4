"""Publishing: pipelined, batched, deferred, bounded; what is refused and how."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Producer, sync
from penstock.errors import NotConnectedError, OptionError, RefusedError, StoppedError
from tests.clients.harness import LOOPS, QUICK, run
from tests.support.bodies import numbered
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.proxy import Proxy
from tests.support.waits import until


def producer_of(*nsqds: Nsqd | str, **options: Any) -> Producer:
    addresses = [n if isinstance(n, str) else f"127.0.0.1:{n.tcp_port}" for n in nsqds]
    return Producer(addresses, **{**QUICK, **options})


def bodies_of(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with Client.of(nsqd, output_buffer_timeout=25) as consumer:
        consumer.sub(topic, "ch", ready=2500)
        return [message.body for message in consumer.finish_all(count)]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("gathered", [0, 100])
def test_many_publishes_at_once_are_all_stored(nsqd: Nsqd, gathered: int, loop: str) -> None:
    topic = f"pipelined-{gathered}-{loop}"

    async def work() -> None:
        async with producer_of(nsqd, batch_publish_count=gathered) as producer:
            stored = [await producer.send(topic, body) for body in numbered(2000)]
            await asyncio.gather(*stored)
            await producer.publish(topic, b"last")
            assert producer.pending_size == 0

    run(work(), loop)
    assert sorted(bodies_of(nsqd, topic, 2001)) == sorted([*numbered(2000), b"last"])


def test_gathering_ends_with_time_and_with_size(nsqd: Nsqd) -> None:
    async def work() -> None:
        options = {"batch_publish_count": 1000, "batch_publish_timeout": 0.05}
        async with producer_of(nsqd, **options) as producer:
            start_s = time.monotonic()
            await producer.publish("gathered", b"alone")
            assert time.monotonic() - start_s >= 0.05
        options["batch_publish_timeout"] = 60
        async with producer_of(nsqd, batch_publish_size=1000, **options) as producer:
            await asyncio.gather(*(producer.publish("gathered", b"x" * 100) for _ in range(10)))
            rest = await producer.send("gathered", b"at stop")
        assert rest.done()

    run(work())
    assert len(bodies_of(nsqd, "gathered", 12)) == 12


def test_many_in_one_command_and_all_kinds_of_bytes(nsqd: Nsqd) -> None:
    async def work() -> None:
        async with producer_of(nsqd) as producer:
            await producer.publish_many("many", [b"a", bytearray(b"b"), memoryview(b"c")])
            await producer.publish("many", bytearray(b"d"))

    run(work())
    assert sorted(bodies_of(nsqd, "many", 4)) == [b"a", b"b", b"c", b"d"]


def test_a_deferred_message_comes_later(nsqd: Nsqd) -> None:
    async def work() -> None:
        async with producer_of(nsqd) as producer:
            await producer.publish("deferred", b"x", delay=0.5)

    start_s = time.monotonic()
    run(work())
    with Client.of(nsqd, output_buffer_size=-1) as consumer:
        consumer.sub("deferred", "ch", ready=1)
        consumer.fin(consumer.message())
    assert time.monotonic() - start_s >= 0.5


def test_publishers_wait_while_too_many_bytes_are_on_their_way(nsqd: Nsqd) -> None:
    most = 0

    async def work() -> None:
        nonlocal most
        async with producer_of(nsqd, max_pending_size=10_000) as producer:

            async def one(number: int) -> None:
                nonlocal most
                stored = await producer.send("bounded", b"%04d" % number * 250)
                most = max(most, producer.pending_size)
                await stored

            await asyncio.gather(*(one(number) for number in range(300)))
            # Beyond the limit all by itself: goes when nothing else is on its way.
            await producer.publish("bounded", b"x" * 50_000)
            waiting = [asyncio.create_task(one(number)) for number in range(40)]
            await asyncio.sleep(0)
            waiting[20].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await producer.publish("bounded", b"after")

    run(work())
    assert most <= 10_000
    assert len(bodies_of(nsqd, "bounded", 341)) >= 341


@pytest.mark.parametrize(
    ("topic", "body", "delay", "code"),
    [
        ("b@d", b"x", 0, "E_BAD_TOPIC"),
        ("t", b"", 0, "E_BAD_MESSAGE"),
        ("t", b"x", -1, "E_INVALID"),
        ("t", b"x" * 1_048_577, 0, "E_BAD_MESSAGE"),
        ("t", b"x", 400 * 86400, "E_INVALID"),
    ],
)
def test_what_nsqd_would_refuse_is_an_exception_with_its_code(
    nsqd: Nsqd, topic: str, body: bytes, delay: float, code: str
) -> None:
    async def work() -> None:
        async with producer_of(nsqd) as producer:
            with pytest.raises(RefusedError) as caught:
                await producer.publish(topic, body, delay=delay)
            assert caught.value.code == code
            assert producer.pending_size == 0
            await producer.publish("t", b"fine")

    run(work())


def test_a_refused_publish_takes_no_other_with_it(nsqd: Nsqd) -> None:
    async def work() -> None:
        async with producer_of(nsqd, retry_unknown=False) as producer:
            before = [await producer.send("victims", body) for body in numbered(50)]
            bad = await producer.send("victims", b"x" * 1_048_577)
            after = [await producer.send("victims", body) for body in numbered(50, 50)]
            results = await asyncio.gather(bad, *before, *after, return_exceptions=True)
            assert isinstance(results[0], RefusedError)
            assert results[1:] == [None] * 100

    run(work())
    assert sorted(bodies_of(nsqd, "victims", 100)) == sorted(numbered(100))


def test_an_empty_batch_is_refused(nsqd: Nsqd) -> None:
    async def work() -> None:
        async with producer_of(nsqd) as producer:
            for bodies in ([], [b"a", b""]):
                with pytest.raises(RefusedError):
                    await producer.publish_many("t", bodies)

    run(work())


def test_nobody_to_connect_to() -> None:
    async def work() -> None:
        with pytest.raises(NotConnectedError, match="no nsqd can be reached"):
            await producer_of("127.0.0.1:1").start()
        lazy = producer_of("127.0.0.1:1", publish_timeout=0.2)
        with pytest.raises(NotConnectedError, match="in time"):
            await lazy.publish("t", b"x")
        await lazy.stop()
        with pytest.raises(StoppedError):
            await lazy.publish("t", b"x")

    run(work())


def test_the_wrong_port_is_named(nsqd: Nsqd) -> None:
    async def work() -> None:
        with pytest.raises(NotConnectedError, match="HTTP port"):
            await producer_of(f"127.0.0.1:{nsqd.http_port}").start()

    run(work())
    with pytest.raises(OptionError):
        Producer([])


def test_heartbeats_between_answers_are_not_answers(nsqd: Nsqd) -> None:
    """Checklist 11."""

    async def work() -> None:
        with Proxy(nsqd.tcp_port) as proxy:
            async with producer_of(proxy.address, heartbeat_interval=1) as producer:
                await asyncio.gather(*(producer.publish("idle", b"x") for _ in range(50)))
                # nsqd closes after 2 s of silence.
                await asyncio.sleep(2.3)
                await asyncio.gather(*(producer.publish("idle", b"x") for _ in range(50)))
            assert proxy.accepted == 1

    run(work())
    assert len(bodies_of(nsqd, "idle", 100)) == 100


def test_with_several_nsqds_all_get_their_part_and_one_may_go(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:

        async def work() -> None:
            async with producer_of(first, second) as producer:
                await until(lambda: len(producer.connections) == 2)
                for body in numbered(100):
                    await producer.publish("spread", body)
                await asyncio.to_thread(second.terminate)
                for body in numbered(100, 100):
                    await producer.publish("spread", body)
                assert len(producer.connections) == 1

        run(work())
        second.start()
        ours = [bodies_of(first, "spread", 150), bodies_of(second, "spread", 50)]
        assert sorted(ours[0] + ours[1]) == sorted(numbered(200))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("text", r"a body must be bytes, not str: encode it, as in body\.encode\(\)"),
        ("", "a body must be bytes, not str"),
        (5, "a body must be bytes, not int"),
        (None, "a body must be bytes, not NoneType"),
        (["a"], "a body must be bytes, not list"),
    ],
)
@pytest.mark.parametrize("gathered", [0, 10])
def test_a_body_that_is_not_bytes_is_a_type_error(
    nsqd: Nsqd, body: Any, text: str, gathered: int
) -> None:
    """Of a number, bytes() would make as many zeros."""

    async def work() -> None:
        async with producer_of(nsqd, batch_publish_count=gathered) as producer:
            for delay in (0.0, 1.0):
                with pytest.raises(TypeError, match=text):
                    await producer.publish("typed", body, delay=delay)
            with pytest.raises(TypeError, match=text):
                await producer.send("typed", body)
            with pytest.raises(TypeError, match="a body must be bytes, not"):
                await producer.publish_many("typed", [b"good", body])
            await producer.publish("typed", b"good")
            assert producer.pending_size == 0

    run(work())
    blocking = sync.Producer(f"127.0.0.1:{nsqd.tcp_port}")
    with blocking, pytest.raises(TypeError, match=text):
        blocking.publish("typed", body)


@pytest.mark.parametrize("bodies", ["text", b"bytes"])
def test_bodies_that_are_one_body_are_a_type_error(nsqd: Nsqd, bodies: Any) -> None:
    async def work() -> None:
        async with producer_of(nsqd) as producer:
            with pytest.raises(TypeError, match="bodies must be a list of bytes, not"):
                await producer.publish_many("typed", bodies)

    run(work())


def test_a_topic_that_is_not_text_is_a_type_error(nsqd: Nsqd) -> None:
    async def work() -> None:
        topic: Any = b"topic"
        async with producer_of(nsqd) as producer:
            for publishing in (
                producer.publish(topic, b"x"),
                producer.publish(topic, b"x", delay=1),
                producer.publish_many(topic, [b"x"]),
            ):
                with pytest.raises(TypeError, match="a topic must be a str, not bytes"):
                    await publishing
            assert producer.pending_size == 0
        with pytest.raises(TypeError, match="must be a str, not bytes"):
            Consumer(topic, "c", nsqd_tcp_addresses="h:1")

    run(work())
