"""The client without asyncio."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.client import Message, sync
from penstock.errors import NotConnectedError, RefusedError, StoppedError
from tests.clients.harness import QUICK
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.waits import eventually


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.tcp_port}"


def left(nsqd: Nsqd, topic: str) -> int:
    channel = nsqd.channel(topic, "ch")
    return int(channel["depth"] + channel["in_flight_count"])


def consumer_of(nsqd: Nsqd, topic: str, **options: object) -> sync.Consumer:
    options = {**QUICK, "max_in_flight": 20, **options}
    return sync.Consumer(topic, "ch", nsqd_tcp_addresses=address(nsqd), **options)


def test_publishing_and_iterating(nsqd: Nsqd) -> None:
    with sync.Producer(address(nsqd), **QUICK) as producer:
        producer.publish("simple", b"0")
        producer.publish_many("simple", numbered(10, 1))
        for stored in [producer.send("simple", body) for body in numbered(9, 11)]:
            stored.result(5)
        with pytest.raises(RefusedError):
            producer.publish("b@d", b"x")
    with pytest.raises(StoppedError):
        producer.publish("simple", b"x")
    bodies = []
    with consumer_of(nsqd, "simple") as consumer:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 20:
                message.finish()
                break
    assert sorted(bodies) == sorted(numbered(20))
    assert left(nsqd, "simple") == 0


def test_leaving_the_loop_hands_back_the_rest(nsqd: Nsqd) -> None:
    publish(nsqd, "rest", *numbered(50))
    start_s = time.monotonic()
    with consumer_of(nsqd, "rest", stop_timeout=60) as consumer:
        for _ in zip(range(10), consumer, strict=False):
            pass
    assert time.monotonic() - start_s < 30
    assert left(nsqd, "rest") in (40, 41)
    assert nsqd.channel("rest", "ch")["requeue_count"] <= 20


def test_a_handler_runs_here_while_heartbeats_are_answered_there(nsqd: Nsqd) -> None:
    """Checklist 1: one call takes longer than the 2 s of silence that nsqd allows."""
    publish(nsqd, "slow", b"slow", b"fail", b"false")
    calls: list[tuple[bytes, int]] = []

    def handle(message: Message) -> bool:
        assert threading.current_thread() is threading.main_thread()
        calls.append((message.body, message.attempts))
        if message.body == b"slow":
            time.sleep(2.5)
        elif message.attempts == 1 and message.body == b"fail":
            raise ValueError("on purpose")
        return message.body != b"false" or message.attempts > 1

    consumer = consumer_of(nsqd, "slow", heartbeat_interval=1)
    threading.Thread(target=stop_after, args=(consumer, 3)).start()
    consumer.run(handle)
    assert sorted(calls) == [(b"fail", 1), (b"fail", 2), (b"false", 1), (b"false", 2), (b"slow", 1)]
    assert consumer.stats.connected == 1


def stop_after(consumer: sync.Consumer, count: int) -> None:
    eventually(lambda: consumer.stats.finished == count)
    consumer.stop()


def test_waiting_has_a_limit_and_an_end(nsqd: Nsqd) -> None:
    consumer = consumer_of(nsqd, "nothing")
    assert consumer.get(timeout=0.05) is None
    threading.Timer(0.1, consumer.stop).start()
    assert list(consumer) == []
    with pytest.raises(StoppedError):
        consumer.start()


def test_nobody_to_connect_to() -> None:
    with pytest.raises(NotConnectedError), sync.Producer("127.0.0.1:1"):
        pass
