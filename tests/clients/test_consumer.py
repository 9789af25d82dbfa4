"""A consumer and one nsqd: kinds of handlers, answers, backoff, stopping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Message
from penstock.client.backoff import State
from tests.clients.harness import LOOPS, Received, consumer_of, run
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.waits import until


def left(nsqd: Nsqd, topic: str) -> int:
    channel = nsqd.channel(topic, "ch")
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def ready_count(nsqd: Nsqd, topic: str) -> int:
    return sum(client["ready_count"] for client in nsqd.channel(topic, "ch")["clients"])


def left_in_flight(nsqd: Nsqd, topic: str) -> int:
    return int(nsqd.channel(topic, "ch")["in_flight_count"])


def each_way(received: Received) -> dict[str, tuple[Callable[..., Any], dict[str, object]]]:
    """Every kind of handler there is, with the options it needs."""

    async def coroutine(message: Message) -> None:
        received(message)

    async def suspending(message: Message) -> None:
        await asyncio.sleep(0.001)
        received(message)

    def batch(messages: list[Message]) -> None:
        received.messages.extend(messages)

    async def slow_batch(messages: list[Message]) -> None:
        await asyncio.sleep(0.001)
        received.messages.extend(messages)

    return {
        "function": (received, {}),
        "coroutine": (coroutine, {}),
        "suspending": (suspending, {}),
        "suspending, few at once": (suspending, {"concurrency": 7}),
        "returns an awaitable": (lambda message: suspending(message), {}),
        "threads": (received, {"threads": 3}),
        "batch": (batch, {"batch_size": 64}),
        "batch beyond max_in_flight": (batch, {"batch_size": 5000}),
        "coroutine of batches": (slow_batch, {"batch_size": 64}),
    }


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", each_way(Received()))
def test_every_kind_of_handler_gets_every_message_once(nsqd: Nsqd, way: str, loop: str) -> None:
    topic = f"way-{list(each_way(Received())).index(way)}-{loop}"
    publish(nsqd, topic, *numbered(1000))
    received = Received()
    handler, options = each_way(received)[way]

    async def work() -> None:
        async with consumer_of(nsqd, topic, handler, max_in_flight=300, **options) as consumer:
            await until(lambda: len(received) >= 1000 and consumer.in_flight == 0)
        assert sorted(received.bodies) == sorted(numbered(1000))
        assert consumer.stats.finished == 1000

    run(work(), loop)
    assert left(nsqd, topic) == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_iterating_finishes_what_came_before(nsqd: Nsqd, loop: str) -> None:
    topic = f"iterate-{loop}"
    publish(nsqd, topic, *numbered(100))
    bodies: list[bytes] = []

    async def work() -> None:
        async with consumer_of(nsqd, topic, max_in_flight=10, stop_timeout=60) as consumer:
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 60:
                    break
        assert consumer.stats.finished == 59

    start_s = time.monotonic()
    run(work(), loop)
    assert time.monotonic() - start_s < 30, "waited for the message that the loop was left with"
    assert left(nsqd, topic) == 41
    # Asked for no more first: what was handed back did not come again and use up its attempts.
    assert nsqd.channel(topic, "ch")["requeue_count"] <= 10


def test_several_tasks_may_iterate_and_end_with_the_consumer(nsqd: Nsqd) -> None:
    publish(nsqd, "iterate-many", *numbered(200))
    bodies: list[bytes] = []

    async def work() -> None:
        async with consumer_of(nsqd, "iterate-many", max_in_flight=10) as consumer:

            async def take() -> None:
                async for message in consumer:
                    await asyncio.sleep(0)
                    bodies.append(message.body)

            takers = [asyncio.create_task(take()) for _ in range(4)]
            await until(lambda: len(bodies) == 200)
            await consumer.stop()
            await asyncio.gather(*takers)

    run(work())
    assert sorted(bodies) == sorted(numbered(200))
    assert left(nsqd, "iterate-many") == 0


def test_false_and_exceptions_requeue_and_true_finishes(nsqd: Nsqd) -> None:
    publish(nsqd, "verdicts", b"false", b"raise", b"true", b"none")
    attempts: dict[bytes, list[int]] = {}

    def handle(message: Message) -> bool | None:
        attempts.setdefault(message.body, []).append(message.attempts)
        if message.attempts == 1 and message.body == b"raise":
            raise ValueError("on purpose")
        if message.body == b"none":
            return None
        return message.attempts > 1 or message.body == b"true"

    async def work() -> None:
        async with consumer_of(nsqd, "verdicts", handle, max_in_flight=10) as consumer:
            await until(lambda: consumer.stats.finished == 4)
        assert consumer.stats.requeued == 2

    run(work())
    assert attempts == {b"false": [1, 2], b"raise": [1, 2], b"true": [1], b"none": [1]}


def test_a_message_beyond_max_attempts_is_given_up_without_the_handler(nsqd: Nsqd) -> None:
    """Checklist 6."""
    publish(nsqd, "hopeless", b"x")
    calls: list[int] = []
    given_up: list[bytes] = []

    def handle(message: Message) -> bool:
        calls.append(message.attempts)
        return False

    async def work() -> None:
        consumer = consumer_of(
            nsqd, "hopeless", handle, max_attempts=3, give_up=lambda m: given_up.append(m.body)
        )
        async with consumer:
            await until(lambda: consumer.stats.given_up == 1)

    run(work())
    assert calls == [1, 2, 3] and given_up == [b"x"]
    assert left(nsqd, "hopeless") == 0


@pytest.mark.parametrize("suspends", [False, True])
def test_a_give_up_that_fails_loses_nothing(nsqd: Nsqd, suspends: bool) -> None:
    topic = f"hopeless-{suspends}"
    publish(nsqd, topic, b"x")
    tries: list[int] = []

    def give_up(message: Message) -> None:
        tries.append(message.attempts)
        if len(tries) == 1:
            raise OSError("disk full")

    async def give_up_slowly(message: Message) -> None:
        await asyncio.sleep(0.01)
        give_up(message)

    async def work() -> None:
        consumer = consumer_of(
            nsqd,
            topic,
            lambda m: False,
            max_attempts=1,
            give_up=give_up_slowly if suspends else give_up,
        )
        async with consumer:
            await until(lambda: consumer.stats.finished == 1)

    run(work())
    assert tries == [2, 3]


def test_answers_given_later_from_elsewhere_and_twice(nsqd: Nsqd) -> None:
    """Checklist 12: async responses, no double responses."""
    publish(nsqd, "later", *numbered(50))
    kept: list[Message] = []

    def handle(message: Message) -> None:
        message.enable_async()
        kept.append(message)

    async def work() -> None:
        async with consumer_of(nsqd, "later", handle, max_in_flight=50) as consumer:
            await until(lambda: len(kept) == 50)
            assert consumer.in_flight == 50 and consumer.is_starved
            for message in kept[:25]:
                message.finish()
                message.finish()
                message.requeue()
            await asyncio.to_thread(lambda: [m.touch() or m.finish() for m in kept[25:]])
            await until(lambda: consumer.in_flight == 0)
            assert consumer.stats.finished == 50 and consumer.stats.requeued == 0
            assert all(message.responded for message in kept)
        assert consumer.stats.refused == 0

    run(work())
    assert left(nsqd, "later") == 0


def test_requeue_waits_for_its_delay(nsqd: Nsqd) -> None:
    publish(nsqd, "delayed", b"x")
    times_s: list[float] = []

    def handle(message: Message) -> None:
        times_s.append(time.monotonic())
        if message.attempts == 1:
            message.requeue(0.4, backoff=False)

    async def work() -> None:
        async with consumer_of(nsqd, "delayed", handle, output_buffer_size=-1):
            await until(lambda: len(times_s) == 2)

    run(work())
    assert times_s[1] - times_s[0] >= 0.39


@pytest.mark.parametrize("automatic", [True, False])
def test_touch_keeps_a_message_from_timing_out(nsqd: Nsqd, automatic: bool) -> None:
    topic = f"touch-{automatic}"
    publish(nsqd, topic, b"x")
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempts)
        for _ in range(4):
            await asyncio.sleep(0.8)
            if not automatic:
                message.touch()

    async def work() -> None:
        consumer = consumer_of(
            nsqd, topic, handle, msg_timeout=2, auto_touch=automatic, max_in_flight=2
        )
        async with consumer:
            await until(lambda: consumer.stats.finished == 1)
        assert consumer.stats.refused == 0

    run(work())
    assert seen == [1]


def test_an_answer_too_late_is_survived(nsqd: Nsqd) -> None:
    """Checklist 5: E_FIN_FAILED leaves the connection as it is."""
    publish(nsqd, "late", b"x")

    async def handle(message: Message) -> None:
        if message.attempts == 1:
            await asyncio.sleep(2)

    async def work() -> None:
        async with consumer_of(nsqd, "late", handle, msg_timeout=1, max_in_flight=2) as consumer:
            await until(lambda: consumer.stats.refused == 1 and consumer.in_flight == 0)
            publish(nsqd, "late", b"y")
            await until(lambda: consumer.stats.finished == 3)
            assert consumer.stats.connected == 1

    run(work())


def test_failures_back_off_and_recover_stepwise(nsqd: Nsqd) -> None:
    """Checklist 4."""
    publish(nsqd, "backoff", *numbered(100))
    states: list[tuple[State, int]] = []
    failing = True

    def handle(message: Message) -> bool:
        states.append((consumer.backoff, int(message.attempts)))
        return not failing

    consumer = consumer_of(
        nsqd,
        "backoff",
        handle,
        max_in_flight=5,
        backoff_multiplier=0.02,
        max_backoff_duration=0.1,
        max_attempts=0,
        default_requeue_delay=0,
    )

    async def work() -> None:
        nonlocal failing
        async with consumer:
            await until(lambda: consumer.backoff is State.PAUSED)
            await until(lambda: len(states) >= 8)
            failing = False
            await until(lambda: consumer.stats.finished == 100)
            assert consumer.backoff is State.NORMAL

    run(work())
    # At most what was in flight came while all was normal or paused; then one at a time.
    testing = [state for state, _ in states if state is State.TESTING]
    assert len(testing) >= 3
    assert left(nsqd, "backoff") == 0


def test_max_in_flight_bounds_what_is_handled_and_zero_pauses(nsqd: Nsqd) -> None:
    """Checklist 13."""
    publish(nsqd, "bounded", *numbered(200))
    most = 0

    async def handle(message: Message) -> None:
        nonlocal most
        most = max(most, consumer.in_flight)
        await asyncio.sleep(0.002)

    consumer = consumer_of(nsqd, "bounded", handle, max_in_flight=4)

    async def work() -> None:
        async with consumer:
            await until(lambda: consumer.stats.finished >= 20)
            consumer.max_in_flight = 0
            # Until nsqd has read that, it may send more.
            await until(lambda: ready_count(nsqd, "bounded") == 0)
            await until(lambda: consumer.in_flight == left_in_flight(nsqd, "bounded") == 0)
            paused_at = consumer.stats.received
            await asyncio.sleep(0.2)
            assert consumer.stats.received == paused_at < 200
            assert most <= 4
            consumer.max_in_flight = 9
            await until(lambda: consumer.stats.finished == 200)
        assert 4 < most <= 9

    run(work())


def test_stopping_finishes_what_is_in_flight(nsqd: Nsqd) -> None:
    """Checklist 7."""
    publish(nsqd, "graceful", *numbered(500))
    begun: list[bytes] = []
    ended: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.body)
        await asyncio.sleep(0.2)
        ended.append(message.body)

    async def work() -> None:
        async with consumer_of(nsqd, "graceful", handle, max_in_flight=50):
            await until(lambda: len(begun) == 50)

    run(work())
    assert sorted(begun) == sorted(ended)
    assert left(nsqd, "graceful") == 500 - len(ended)
    assert nsqd.channel("graceful", "ch")["requeue_count"] == 0


def test_what_does_not_end_in_time_is_requeued_at_once(nsqd: Nsqd) -> None:
    publish(nsqd, "impatient", *numbered(10))
    begun: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.body)
        await asyncio.sleep(60)

    async def work() -> None:
        consumer = consumer_of(
            nsqd, "impatient", handle, max_in_flight=10, concurrency=4, stop_timeout=0.2
        )
        async with consumer:
            await until(lambda: len(begun) == 4)

    start_s = time.monotonic()
    run(work())
    assert time.monotonic() - start_s < 30
    channel = nsqd.channel("impatient", "ch")
    assert (channel["requeue_count"], channel["in_flight_count"], channel["depth"]) == (10, 0, 10)


def test_heartbeats_are_answered_while_functions_are_slow(nsqd: Nsqd) -> None:
    """Checklist 1: 3.6 s of handlers wait on the loop, and nsqd allows 2 s of silence."""
    publish(nsqd, "slow", *numbered(90))

    async def work() -> None:
        consumer = consumer_of(
            nsqd, "slow", lambda m: time.sleep(0.04), max_in_flight=90, heartbeat_interval=1
        )
        async with consumer:
            await until(lambda: consumer.stats.finished == 90)
            publish(nsqd, "slow", b"one more, which shows that the connection is the old one")
            await until(lambda: consumer.stats.finished == 91)
            assert consumer.stats.connected == 1 and consumer.stats.lost == 0

    run(work())


def test_a_refused_subscription_is_tried_again_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Nsqd(tmp_path / "one", "--max-channel-consumers=1") as nsqd:

        async def work() -> None:
            async with (
                consumer_of(nsqd, "full", Received()) as first,
                consumer_of(nsqd, "full", Received()) as second,
            ):
                await until(lambda: second.stats.lost >= 1)
                await first.stop()
                publish(nsqd, "full", b"x")
                await until(lambda: second.stats.finished == 1)

        run(work())
    assert "exceeds limit of 1" in caplog.text
