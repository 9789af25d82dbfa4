"""How messages reach clients: ready counts, heartbeats, deadlines and shares.

Rows of the seed notes: S3-1, S3-2, S3-3, S3-5, S3-6, S3-7, S3-8.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.parallel_tests import ParallelTests
from tests.support.timing import early_s, late_s
from tests.support.waits import eventually

together = ParallelTests()


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("delivery")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


# Ready count


def test_ready_count_is_a_ceiling_on_what_is_unanswered(nsqd: Nsqd) -> None:
    """S3-1.  It is no credit: a delivery does not use it up, an answer makes room again."""
    publish(nsqd, "ceiling", *numbered(30))
    with Client.of(nsqd).sub("ceiling", "c") as client:
        assert client.quiet(0.2), "nothing comes before RDY"
        client.rdy(5)
        first = client.messages(5)
        assert client.quiet(0.2)
        client.fin(*first[:2])
        more = client.messages(2)
        assert client.quiet(0.1)
        client.rdy(8)
        more += client.messages(3)
        assert client.quiet(0.1)
        client.rdy(3)
        client.fin(*first[2:], *more[:2])
        client.settle()
        assert client.quiet(0.1), "3 are unanswered, and 3 is the ceiling now"
        client.req(more[2])
        assert client.message().id not in {message.id for message in first}
        assert client.quiet(0.1)


def test_ready_count_is_kept_under_races(nsqd: Nsqd) -> None:
    """S3-1.  Finishes, requeues and ready counts in random packets, with a publisher at work."""
    chance = random.Random(5)
    count = 1500
    publisher = threading.Thread(target=publish, args=(nsqd, "races", *numbered(count)))
    finished: list[bytes] = []
    with Client.of(nsqd).sub("races", "c", ready=10) as client:
        publisher.start()
        unanswered = set()
        ceiling = 10
        while len(finished) < count:
            # Only what was executed may be counted on, so the ceiling falls at a quiet point.
            if chance.random() < 0.1:
                ceiling = chance.randint(1, 50)
                client.rdy(ceiling)
                client.settle()
                for message in client.arrived(0.001):
                    unanswered.add(message)
                ceiling = max(ceiling, len(unanswered))
            if not unanswered:
                unanswered.add(client.message())
            unanswered.update(client.arrived(0.001))
            assert len(unanswered) <= ceiling
            assert len({message.id for message in unanswered}) == len(unanswered)
            answered = chance.sample(list(unanswered), chance.randint(1, len(unanswered)))
            for message in answered:
                unanswered.remove(message)
                if chance.random() < 0.2:
                    client.req(message)
                else:
                    client.fin(message)
                    finished.append(message.body)
        publisher.join()
        client.settle()
        assert sorted(finished) == sorted(numbered(count))
        assert client.quiet(0.1)
    channel = nsqd.channel("races", "c")
    assert (channel["depth"], channel["in_flight_count"], channel["timeout_count"]) == (0, 0, 0)


def test_ready_count_0_stops_delivery_and_keeps_what_is_in_flight(nsqd: Nsqd) -> None:
    """S3-2."""
    publish(nsqd, "stop", *numbered(10))
    with Client.of(nsqd).sub("stop", "c", ready=3) as client:
        taken = client.messages(3)
        client.rdy(0)
        client.fin(taken[0])
        client.settle()
        client.touch(taken[1])
        client.fin(taken[1], taken[2])
        client.settle()
        assert client.quiet(0.2)
        client.rdy(10)
        rest = client.finish_all(7)
        assert {message.body for message in taken + rest} == set(numbered(10))


def test_closing_keeps_what_is_in_flight_and_leaves_the_rest_to_others(nsqd: Nsqd) -> None:
    """S3-2.  RDY after CLS is accepted and ignored."""
    publish(nsqd, "closing", *numbered(10))
    with Client.of(nsqd).sub("closing", "c", ready=4) as client:
        taken = client.messages(4)
        client.begin_close()
        client.rdy(10)
        client.fin(*taken[:2])
        client.settle()
        assert client.quiet(0.2)
        assert nsqd.channel("closing", "c")["clients"][0]["state"] == 4
        client.req(taken[2])
        client.fin(taken[3])
        client.settle()
        with Client.of(nsqd).sub("closing", "c", ready=100) as other:
            rest = other.finish_all(7)
        assert {m.body: m.attempts for m in rest}[taken[2].body] == 2
        assert client.quiet(0.1)


def test_a_paused_channel_stops_delivery_and_keeps_what_is_in_flight(nsqd: Nsqd) -> None:
    """S3-2."""
    publish(nsqd, "paused", *numbered(10))
    with Client.of(nsqd).sub("paused", "c", ready=3) as client:
        taken = client.messages(3)
        assert nsqd.post("/channel/pause?topic=paused&channel=c").status == 200
        client.fin(taken[0], taken[1])
        client.req(taken[2])
        client.settle()
        publish(nsqd, "paused", b"later")
        assert client.quiet(0.2)
        channel = nsqd.channel("paused", "c")
        assert (channel["paused"], channel["depth"], channel["in_flight_count"]) == (True, 9, 0)
        assert nsqd.post("/channel/unpause?topic=paused&channel=c").status == 200
        rest = client.finish_all(9)
        assert {message.body for message in rest} == {*numbered(8, 2), b"later"}


# Output buffering


@together.test
def test_nothing_waits_longer_than_the_output_buffer_timeout(nsqd: Nsqd) -> None:
    """S3-3.  With room left in the buffer and in the ready count, as nsqd would hold it."""
    settings = {"output_buffer_timeout": 100, "output_buffer_size": 65536}
    with Client.of(nsqd, **settings) as client, Client.of(nsqd) as producer:
        client.sub("buffered", "c", ready=100)
        for number in range(10):
            sent_s = time.monotonic()
            producer.pub("buffered", b"%d" % number)
            client.fin(client.message())
            assert time.monotonic() - sent_s < 0.1 + late_s()
            time.sleep(0.03)


def test_settings_of_identify_hold_for_the_first_message(nsqd: Nsqd) -> None:
    """S3-6.  IDENTIFY, SUB, RDY and a publish in one packet, to a backlog that waits."""
    publish(nsqd, "at-once", b"waits")
    with Client.of(nsqd) as client:
        client.send(
            commands.identify({"msg_timeout": 1000}),
            commands.sub("at-once", "c"),
            commands.rdy(1),
        )
        assert [client.reply().text, client.reply().text] == [b"OK", b"OK"]
        taken_s = time.monotonic()
        assert client.message().attempts == 1
        assert client.message().attempts == 2
        assert 1 - early_s(0.1) < time.monotonic() - taken_s < 1 + late_s()


# Heartbeats and deadlines


@together.test
def test_heartbeats_come_while_idle(nsqd: Nsqd) -> None:
    """S3-5.  Producers and consumers alike; NOP as answer keeps the connection."""
    with Client.of(nsqd, heartbeat_interval=1000) as consumer:
        consumer.sub("idle", "c", ready=1)
        with Client.of(nsqd, heartbeat_interval=1000) as producer:
            began_s = time.monotonic()
            for number in (1, 2, 3, 4):
                for client in (consumer, producer):
                    came_s = client.heartbeat() - began_s
                    assert number - early_s(0.1) < came_s < number + late_s()
            producer.pub("idle", b"still here")
            assert consumer.message().body == b"still here"


@together.test
def test_heartbeats_come_while_messages_flow(nsqd: Nsqd) -> None:
    """S3-5.  The client answers no heartbeat: its FINs are signs of life enough."""
    with Client.of(nsqd, heartbeat_interval=1000) as client, Client.of(nsqd) as producer:
        client.answers = False
        client.sub("flow", "c", ready=50)
        began_s = time.monotonic()
        while len(client.heartbeat_times_s) < 3 and time.monotonic() < began_s + 15:
            producer.mpub("flow", numbered(100))
            client.finish_all(100)
            time.sleep(0.005)
        beats_s = [began_s, *client.heartbeat_times_s]
        assert len(beats_s) >= 4
        gaps_s = [b - a for a, b in itertools.pairwise(beats_s)]
        assert all(1 - early_s(0.5) < gap_s < 1 + late_s() for gap_s in gaps_s), gaps_s


@together.test
def test_a_silent_client_is_closed_after_two_intervals(nsqd: Nsqd) -> None:
    """What it had in flight comes back (S3-8)."""
    publish(nsqd, "silent", b"m")
    with Client.of(nsqd, heartbeat_interval=1000) as client:
        client.answers = False
        began_s = time.monotonic()
        client.sub("silent", "c", ready=1)
        client.message()
        with Client.of(nsqd).sub("silent", "c", ready=1) as other:
            assert 2 - early_s(0.1) < client.wait_closed() - began_s < 2 + late_s()
            assert len(client.heartbeat_times_s) in (1, 2)
            assert other.message().attempts == 2


@together.test
def test_an_announced_body_must_arrive_in_time(nsqd: Nsqd) -> None:
    """The deadline is set with the command line and not renewed by bytes of its body."""
    with Client.of(nsqd, heartbeat_interval=1000) as client:
        client.answers = False
        began_s = time.monotonic()
        client.send(b"PUB body\n\x00\x00\x10\x00")
        for _ in range(8):
            client.send(b"x")
            time.sleep(0.2)
        assert 2 - early_s(0.1) < client.wait_closed() - began_s < 2 + late_s()
    assert nsqd.stats("&topic=body")["topics"] is None


@together.test
def test_a_line_must_arrive_in_time(nsqd: Nsqd) -> None:
    with Client.of(nsqd, heartbeat_interval=1000) as client:
        client.answers = False
        began_s = time.monotonic()
        client.send(b"PU")
        assert 2 - early_s(0.1) < client.wait_closed() - began_s < 2 + late_s()


@together.test
def test_a_consumer_that_does_not_read_is_closed(nsqd: Nsqd) -> None:
    """The write deadline: its NOPs do not help.  Others get what it could not take."""
    count, size = 60, 512 << 10
    with Client.of(nsqd) as producer:
        producer.pub("unread", *(b"%08d" % number + bytes(size) for number in range(count)))
    with Client.of(nsqd, heartbeat_interval=1000) as client:
        client.sub("unread", "c", ready=count)
        began_s = time.monotonic()
        # Its socket is never read here: whether it is gone shows in the statistics.
        limit_s = began_s + late_s(6)
        while nsqd.channel("unread", "c")["client_count"] and time.monotonic() < limit_s:
            client.send(commands.NOP)
            time.sleep(0.1)
        assert 0.9 < time.monotonic() - began_s < late_s(4)
        with Client.of(nsqd).sub("unread", "c", ready=10) as other:
            taken = other.finish_all(count)
            assert len({message.body[:8] for message in taken}) == count


@together.test
def test_without_heartbeats_there_is_no_deadline(nsqd: Nsqd) -> None:
    with Client.of(nsqd, heartbeat_interval=-1) as client:
        assert client.quiet(2.5)
        assert client.closed_s is None and not client.heartbeat_times_s
        client.pub("no-heartbeats", b"m")


# Sharing


def test_consumers_of_equal_readiness_get_equal_shares(nsqd: Nsqd) -> None:
    """S3-7."""
    count, consumer_count = 4000, 4
    consumers = [Client.of(nsqd).sub("shares", "c", ready=20) for _ in range(consumer_count)]
    publisher = threading.Thread(
        target=lambda: [publish(nsqd, "shares", *numbered(200, at)) for at in range(0, count, 200)]
    )
    publisher.start()
    taken: list[list[bytes]] = [[] for _ in consumers]
    deadline_s = time.monotonic() + 20
    while sum(map(len, taken)) < count and time.monotonic() < deadline_s:
        for consumer, bodies in zip(consumers, taken, strict=True):
            messages = consumer.arrived(0.002)
            consumer.fin(*messages)
            bodies += [message.body for message in messages]
    publisher.join()
    for consumer in consumers:
        consumer.close()
    assert sorted(body for bodies in taken for body in bodies) == sorted(numbered(count))
    fair = count / consumer_count
    assert all(0.6 * fair < len(bodies) < 1.4 * fair for bodies in taken), list(map(len, taken))


def test_few_messages_are_spread_over_ready_consumers(nsqd: Nsqd) -> None:
    """S3-7.  A burst smaller than one ready count does not go to one consumer alone."""
    consumers = [Client.of(nsqd).sub("spread", "c", ready=100) for _ in range(4)]
    for consumer in consumers:
        consumer.settle()
    publish(nsqd, "spread", *numbered(80))
    counts = [0] * 4
    deadline_s = time.monotonic() + 20
    while sum(counts) < 80 and time.monotonic() < deadline_s:
        for at, consumer in enumerate(consumers):
            counts[at] += len(consumer.arrived(0.05))
    for consumer in consumers:
        consumer.close()
    assert sum(counts) == 80 and min(counts) >= 10, counts


def test_a_slow_consumer_does_not_hold_up_others(nsqd: Nsqd) -> None:
    """S3-7.  It keeps what it has taken, and no more."""
    with (
        Client.of(nsqd).sub("slow", "c", ready=10) as slow,
        Client.of(nsqd).sub("slow", "c", ready=10) as quick,
    ):
        publish(nsqd, "slow", *numbered(1000))
        held = slow.messages(10)
        taken = quick.finish_all(990)
        assert slow.quiet(0.05)
        bodies = [message.body for message in held + taken]
        assert sorted(bodies) == sorted(numbered(1000))
        slow.fin(*held)
        slow.settle()
    assert nsqd.channel("slow", "c")["in_flight_count"] == 0


# Connection end


def test_the_end_of_a_connection_removes_the_client(nsqd: Nsqd) -> None:
    """S3-8.  And frees its messages, for which no other answer is needed."""
    publish(nsqd, "ends", *numbered(5))
    with Client.of(nsqd, client_id="first").sub("ends", "c", ready=3) as client:
        client.messages(3)
        channel = nsqd.channel("ends", "c")
        assert (channel["client_count"], channel["in_flight_count"]) == (1, 3)
        assert channel["clients"][0]["in_flight_count"] == 3
        client.rdy(0)
        client.settle()
    assert eventually(lambda: nsqd.channel("ends", "c")["client_count"] == 0)
    channel = nsqd.channel("ends", "c")
    assert (channel["depth"], channel["in_flight_count"], channel["clients"]) == (5, 0, [])
    with Client.of(nsqd).sub("ends", "c", ready=5) as other:
        attempts = sorted(message.attempts for message in other.finish_all(5))
        assert attempts == [1, 1, 2, 2, 2]


def test_finishes_sent_before_the_end_count(nsqd: Nsqd) -> None:
    """R14.  A client may leave right behind its last FINs."""
    publish(nsqd, "last-fins", *numbered(200))
    with Client.of(nsqd).sub("last-fins", "c", ready=200) as client:
        messages = client.messages(200)
        client.fin(*messages[:150])
    assert eventually(lambda: nsqd.channel("last-fins", "c")["client_count"] == 0)
    assert nsqd.channel("last-fins", "c")["depth"] == 50
    with Client.of(nsqd).sub("last-fins", "c", ready=200) as client:
        rest = client.finish_all(50)
        assert {message.body for message in rest} == {message.body for message in messages[150:]}


# Size


def test_batches_that_the_loop_does_not_read_itself(nsqd: Nsqd) -> None:
    """Each is 2 MB, and more than stays in memory: a thread reads them for the channel."""
    chance = random.Random(11)
    batches = [[chance.randbytes(20_000) for _ in range(100)] for _ in range(5)]
    for bodies in batches:
        publish(nsqd, "large", *bodies)
    with Client.of(nsqd).sub("large", "c", ready=50) as client:
        first = client.message()
        client.req(first)
        taken = client.finish_all(500)
    expected = [body for bodies in batches for body in bodies]
    assert sorted(message.body for message in taken) == sorted(expected)
    assert [message.attempts for message in taken if message.id == first.id] == [2]


def test_a_client_alone_and_one_that_joins_it(nsqd: Nsqd) -> None:
    """One at a time, as most clients do by default: the loop looks out for who is alone."""
    with Client.of(nsqd).sub("alone", "c", ready=1) as consumer:
        publish(nsqd, "alone", *numbered(600))
        taken = consumer.finish_all(300)
        for number in range(50):
            publish(nsqd, "beside", b"%d" % number)
            taken += consumer.finish_all(2)
        taken += consumer.finish_all(200)
        assert sorted(message.body for message in taken) == sorted(numbered(600))
    with Client.of(nsqd).sub("beside", "c", ready=50) as other:
        assert len(other.finish_all(50)) == 50
