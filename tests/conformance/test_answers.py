"""What becomes of a delivered message: finish, requeue, touch, timeout, a lost consumer.

Rows of the seed notes: S0-1 to S0-4, S0-6, S0-7, S1-6, S4-7, A-1, A-7.  Rules: R11, R12, R14.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.frames import Message
from tests.support.bodies import numbered
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.parallel_tests import ParallelTests
from tests.support.timing import early_s, late_s
from tests.support.waits import eventually

# The shortest timeout a client may ask for.
TIMEOUT_MS = 1000
TIMEOUT_S = 1.0

together = ParallelTests()


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    options = ("--max-msg-timeout=2s", "--max-req-timeout=2s")
    with Nsqd(tmp_path_factory.mktemp("answers"), "--msg-timeout=2s", *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def same(first: Message, again: Message, attempts: int) -> bool:
    """Whether ``again`` is ``first`` once more, on the given attempt."""
    return (again.id, again.timestamp_ns, again.body, again.attempts) == (
        first.id,
        first.timestamp_ns,
        first.body,
        attempts,
    )


def waited(began_s: float, seconds: float) -> bool:
    """Whether ``seconds`` have passed since ``began_s``, and not many more."""
    return -early_s() < time.monotonic() - began_s - seconds < late_s()


# Timeouts


@together.test
def test_an_unfinished_message_comes_back_after_its_timeout(nsqd: Nsqd) -> None:
    """S0-2, S0-3, S0-7: a duplicate, with the same id and timestamp and one attempt more."""
    publish(nsqd, "timeout", b"m")
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("timeout", "c", ready=1) as client:
        first = client.message()
        assert first.attempts == 1
        for attempts in (2, 3, 4):
            began_s = time.monotonic()
            assert nsqd.channel("timeout", "c")["clients"][0]["in_flight_count"] == 1
            assert same(first, client.message(), attempts)
            assert waited(began_s, TIMEOUT_S - 0.02)
        channel = nsqd.channel("timeout", "c")
        assert (channel["timeout_count"], channel["in_flight_count"]) == (3, 1)
        assert channel["clients"][0]["in_flight_count"] == 1
        client.fin(first)
        client.settle()
        assert client.quiet(TIMEOUT_S + 0.3)
    channel = nsqd.channel("timeout", "c")
    assert (channel["depth"], channel["in_flight_count"], channel["timeout_count"]) == (0, 0, 3)


@together.test
def test_all_that_is_due_comes_back_at_once(nsqd: Nsqd) -> None:
    """S0-6, S0-1: whatever could reach the client is known to be in flight."""
    publish(nsqd, "burst", *numbered(2000))
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("burst", "c", ready=2000) as client:
        first = {message.id: message for message in client.messages(2000)}
        began_s = time.monotonic()
        client.rdy(2000)
        again = client.messages(2000)
        assert time.monotonic() - began_s < TIMEOUT_S + late_s()
        assert all(same(first.pop(message.id), message, 2) for message in again)
        client.fin(*again)
        client.settle()
    assert nsqd.channel("burst", "c")["timeout_count"] == 2000


@together.test
def test_a_timeout_may_go_to_another_consumer(nsqd: Nsqd) -> None:
    """S0-4: a late FIN is refused, in words that say who has the message now."""
    publish(nsqd, "late", b"m")
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("late", "c", ready=1) as slow:
        first = slow.message()
        slow.rdy(0)
        slow.settle()
        with Client.of(nsqd).sub("late", "c") as other:
            assert eventually(lambda: nsqd.channel("late", "c")["timeout_count"] == 1)
            for command in ("FIN", "REQ", "TOUCH"):
                {"FIN": slow.fin, "REQ": slow.req, "TOUCH": slow.touch}[command](first)
                assert slow.error() == (
                    f"E_{command}_FAILED {command} {first.id.decode()} failed ID not in flight"
                )
            other.rdy(1)
            assert same(first, other.message(), 2)
            for command in ("FIN", "REQ", "TOUCH"):
                {"FIN": slow.fin, "REQ": slow.req, "TOUCH": slow.touch}[command](first)
                assert slow.error() == (
                    f"E_{command}_FAILED {command} {first.id.decode()} "
                    "failed client does not own message"
                )
            other.fin(first)
            other.fin(first)
            assert other.error().endswith("failed ID not in flight")
            slow.settle()


@together.test
def test_a_new_channel_is_watched_at_once(nsqd: Nsqd) -> None:
    """S1-6, R12: nsqd itself may need 5 s more, until it refreshes its list of channels."""
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS) as client, Client.of(nsqd) as producer:
        client.sub("fresh", "just-made", ready=1)
        producer.pub("fresh", b"m")
        client.message()
        began_s = time.monotonic()
        client.message()
        assert waited(began_s, TIMEOUT_S - 0.02)


@together.test
def test_many_channels_are_on_time(nsqd: Nsqd) -> None:
    """A-1: 200 channels, a message of each in flight; sampling would take 1 s on average."""
    clients = [
        Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("many", f"c{number}") for number in range(200)
    ]
    publish(nsqd, "many", b"m")
    taken_s, waits_s = [], []
    for client in clients:
        client.rdy(1)
        client.message()
        taken_s.append(time.monotonic())
    for client, since_s in zip(clients, taken_s, strict=True):
        client.message()
        waits_s.append(time.monotonic() - since_s - TIMEOUT_S)
        client.close()
    waits_s.sort()
    assert waits_s[0] > -early_s(0.05)
    assert waits_s[100] < late_s(0.5) and waits_s[-1] < late_s(), (waits_s[100], waits_s[-1])


# TOUCH


@together.test
def test_touch_puts_the_timeout_off(nsqd: Nsqd) -> None:
    publish(nsqd, "touch", b"m")
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("touch", "c", ready=1) as client:
        first = client.message()
        time.sleep(0.3)
        client.touch(first)
        client.settle()
        began_s = time.monotonic()
        assert same(first, client.message(), 2)
        assert waited(began_s, TIMEOUT_S - 0.02)


@together.test
def test_touch_is_capped_by_max_msg_timeout(nsqd: Nsqd) -> None:
    """Counted from the delivery, 2 s here; nothing tells the client that the cap was hit."""
    publish(nsqd, "cap", b"m")
    with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("cap", "c", ready=1) as client:
        first = client.message()
        began_s = time.monotonic()
        while client.quiet(0.3):
            client.touch(first)
            assert time.monotonic() - began_s < 2 + late_s()
        assert waited(began_s, 1.98)
        assert same(first, client.message(), 2)
        assert nsqd.channel("cap", "c")["timeout_count"] == 1


# REQ


def test_requeue_now(nsqd: Nsqd) -> None:
    """S4-7: at once, with one attempt more each time."""
    publish(nsqd, "req", b"m")
    with Client.of(nsqd).sub("req", "c", ready=1) as client:
        first = client.message()
        for attempts in range(2, 20):
            client.req(first)
            assert same(first, client.message(late_s()), attempts)
        channel = nsqd.channel("req", "c")
        assert (channel["requeue_count"], channel["deferred_count"]) == (18, 0)
        assert channel["clients"][0]["requeue_count"] == 18
        client.fin(first)
        client.settle()
        client.req(first)
        assert client.error() == f"E_REQ_FAILED REQ {first.id.decode()} failed ID not in flight"


@together.test
def test_requeue_with_a_delay(nsqd: Nsqd) -> None:
    """S4-7: meanwhile it is deferred, and nobody's; others pass it."""
    publish(nsqd, "req-later", b"m")
    with Client.of(nsqd).sub("req-later", "c", ready=1) as client:
        first = client.message()
        client.req(first, 1500)
        client.settle()
        began_s = time.monotonic()
        channel = nsqd.channel("req-later", "c")
        assert (channel["deferred_count"], channel["in_flight_count"]) == (1, 0)
        client.fin(first)
        assert client.error() == f"E_FIN_FAILED FIN {first.id.decode()} failed ID not in flight"
        publish(nsqd, "req-later", b"other")
        other = client.message()
        assert other.body == b"other"
        client.fin(other)
        assert same(first, client.message(), 2)
        assert waited(began_s, 1.48)
        client.fin(first)
        client.settle()
        assert nsqd.channel("req-later", "c")["deferred_count"] == 0


@together.test
def test_a_requeue_beyond_the_limit_is_shortened_to_it(nsqd: Nsqd) -> None:
    """S4-7: 2 s here."""
    publish(nsqd, "clamp", b"m")
    with Client.of(nsqd).sub("clamp", "c", ready=1) as client:
        first = client.message()
        client.req(first, 3_600_000_000)
        began_s = time.monotonic()
        assert same(first, client.message(), 2)
        assert waited(began_s, 2.0)


# A lost consumer


@together.test
def test_a_lost_consumer_s_messages_come_back(nsqd: Nsqd) -> None:
    """R14, A-7: at once the first time, then after waits that double."""
    publish(nsqd, "lost", *numbered(500))
    with Client.of(nsqd).sub("lost", "c") as heir:
        with Client.of(nsqd).sub("lost", "c", ready=500) as lost:
            first = {message.id: message for message in lost.messages(500)}
        heir.rdy(500)
        began_s = time.monotonic()
        again = heir.messages(500, timeout_s=late_s())
        assert all(same(first[message.id], message, 2) for message in again)
    began_s = time.monotonic()
    with Client.of(nsqd).sub("lost", "c", ready=500) as heir:
        third = heir.messages(500)
        assert waited(began_s, 0.98)
        assert all(same(first[message.id], message, 3) for message in third)
        heir.fin(*third[:490])
        heir.settle()
    began_s = time.monotonic()
    with Client.of(nsqd).sub("lost", "c", ready=500) as heir:
        fourth = heir.finish_all(10)
        assert waited(began_s, 1.98)
        assert all(same(first[message.id], message, 4) for message in fourth)
        heir.settle()
    channel = nsqd.channel("lost", "c")
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)


def test_a_lost_consumer_s_messages_may_wait_for_their_timeout(tmp_path: Path) -> None:
    """R14, A-7, S0-3: nsqd's own way, and an owner that is gone disturbs nothing."""
    with Nsqd(tmp_path, "--requeue-on-disconnect=false") as nsqd:
        publish(nsqd, "lost", *numbered(10))
        with Client.of(nsqd, msg_timeout=TIMEOUT_MS).sub("lost", "c", ready=10) as lost:
            messages = lost.messages(10)
            began_s = time.monotonic()
            lost.fin(messages[0])
        with Client.of(nsqd).sub("lost", "c", ready=10) as heir:
            channel = nsqd.channel("lost", "c")
            assert (channel["in_flight_count"], channel["client_count"]) == (9, 1)
            assert {message.attempts for message in heir.finish_all(9)} == {2}
            assert waited(began_s, TIMEOUT_S - 0.05)
            heir.settle()
        channel = nsqd.channel("lost", "c")
        assert (channel["timeout_count"], channel["requeue_count"]) == (9, 0)
        assert "Traceback" not in nsqd.log
