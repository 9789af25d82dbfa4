"""From publish to channel: copies, pauses, deferral, ephemeral ones, limits.

Rows of the seed notes: S4-1, S4-3, S4-4, S4-5, S4-6, S4-9, S4-10.  Rules: R2, R15, R17.
Pauses over a restart stand in test_restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.parallel_tests import ParallelTests
from tests.support.timing import late_s
from tests.support.waits import eventually

MEM_QUEUE_SIZE = 10
CONSUMER_COUNT_MAX = 6

together = ParallelTests()


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    options = (
        f"--mem-queue-size={MEM_QUEUE_SIZE}",
        f"--max-channel-consumers={CONSUMER_COUNT_MAX}",
    )
    with Nsqd(tmp_path_factory.mktemp("topics"), *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def make_channels(nsqd: Nsqd, topic: str, *channels: str) -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


def topic_of(nsqd: Nsqd, topic: str) -> dict[str, object]:
    return nsqd.stats(f"&topic={topic}")["topics"][0]


def topic_names(nsqd: Nsqd) -> set[str]:
    return {topic["topic_name"] for topic in nsqd.stats("&include_clients=false")["topics"]}


def channel_names(nsqd: Nsqd, topic: str) -> set[str]:
    return {
        channel["channel_name"]
        for channel in nsqd.stats(f"&topic={topic}")["topics"][0]["channels"]
    }


# Copies


def test_every_channel_gets_its_own_copy(nsqd: Nsqd) -> None:
    """S4-1.  The same message; what one channel does with it is nothing to another."""
    make_channels(nsqd, "copies", "a", "b")
    publish(nsqd, "copies", *numbered(100))
    with (
        Client.of(nsqd).sub("copies", "a", ready=200) as a,
        Client.of(nsqd).sub("copies", "b", ready=200) as b,
    ):
        at_a = {message.id: message for message in a.messages(100)}
        for message in b.messages(100):
            twin = at_a[message.id]
            assert (message.timestamp_ns, message.body) == (twin.timestamp_ns, twin.body)
        a.fin(*at_a.values())
        a.settle()
        in_a, in_b = nsqd.channel("copies", "a"), nsqd.channel("copies", "b")
        assert (in_a["in_flight_count"], in_a["message_count"]) == (0, 100)
        assert (in_b["in_flight_count"], in_b["message_count"]) == (100, 100)
        message = next(iter(at_a.values()))
        b.req(message)
        assert b.message().attempts == 2
        assert (nsqd.channel("copies", "a")["requeue_count"]) == 0
        assert a.quiet(0.1)


def test_a_topic_without_channels_keeps_messages_for_the_first(nsqd: Nsqd) -> None:
    """S4-3, R2.  Later channels get only what is newer."""
    publish(nsqd, "keeps", *numbered(20))
    assert topic_of(nsqd, "keeps")["depth"] == 20
    with Client.of(nsqd).sub("keeps", "first", ready=100) as first:
        assert sorted(m.body for m in first.finish_all(20)) == sorted(numbered(20))
        assert topic_of(nsqd, "keeps")["depth"] == 0
        with Client.of(nsqd).sub("keeps", "second", ready=100) as second:
            assert second.quiet(0.2)
            publish(nsqd, "keeps", b"newer")
            assert [client.message().body for client in (first, second)] == [b"newer"] * 2


def test_a_channel_made_while_publishing_loses_and_doubles_nothing(nsqd: Nsqd) -> None:
    """S4-4.  A channel that is there gets all; a new one gets all from some message on."""
    make_channels(nsqd, "while", "old")
    count = 20 * 200
    publisher = threading.Thread(
        target=lambda: [publish(nsqd, "while", *numbered(200, at)) for at in range(0, count, 200)]
    )
    publisher.start()
    made = []
    for number in range(4):
        made.append(Client.of(nsqd).sub("while", f"new-{number}", ready=2500))
        time.sleep(0.01)
    publisher.join()
    publish(nsqd, "while", b"%d" % count)
    with Client.of(nsqd).sub("while", "old", ready=2500) as old:
        bodies = [message.body for message in old.finish_all(count + 1)]
        assert sorted(bodies, key=int) == numbered(count + 1)
        assert old.quiet(0.1)
    for client in made:
        numbers: set[int] = set()
        while count not in numbers:
            taken = client.finish_all(1)
            fresh = {int(message.body) for message in taken}
            assert len(fresh) == len(taken) and not fresh & numbers
            numbers |= fresh
        assert numbers == set(range(min(numbers), count + 1))
        assert client.quiet(0.05)
        client.close()


def test_mpub_is_all_or_nothing(nsqd: Nsqd) -> None:
    """S4-10.  An invalid message anywhere: none of the others is published."""
    make_channels(nsqd, "all", "c")
    with Client.of(nsqd) as producer:
        producer.mpub("all", numbered(5))
    for bad in (b"", bytes(1_048_577)):
        for at in (0, 3, 6):
            bodies = numbered(6)
            bodies.insert(at, bad)
            with Client.of(nsqd) as producer:
                producer.send(commands.mpub("all", bodies))
                assert producer.error().startswith("E_BAD_MESSAGE MPUB ")
                producer.wait_closed()
    with Client.of(nsqd) as producer:
        whole = commands.mpub("all", numbered(6))
        producer.send(whole[:-1])
    assert nsqd.channel("all", "c")["depth"] == 5
    with Client.of(nsqd).sub("all", "c", ready=100) as client:
        assert sorted(m.body for m in client.finish_all(5)) == numbered(5)
        assert client.quiet(0.1)


# Pause, empty, delete


def test_a_paused_topic_holds_back_what_comes(nsqd: Nsqd) -> None:
    """S4-5, R2.  What its channels have already goes on."""
    make_channels(nsqd, "hold", "c")
    publish(nsqd, "hold", *numbered(5))
    nsqd.post("/topic/pause?topic=hold")
    publish(nsqd, "hold", *numbered(5, 5))
    with Client.of(nsqd).sub("hold", "c", ready=100) as client:
        assert sorted(m.body for m in client.finish_all(5)) == numbered(5)
        assert client.quiet(0.2)
        assert (topic_of(nsqd, "hold")["depth"], nsqd.channel("hold", "c")["depth"]) == (5, 0)
        with Client.of(nsqd).sub("hold", "made-in-pause", ready=100) as other:
            assert other.quiet(0.1)
            nsqd.post("/topic/unpause?topic=hold")
            assert sorted(m.body for m in client.finish_all(5)) == numbered(5, 5)
            assert sorted(m.body for m in other.finish_all(5)) == numbered(5, 5)


def test_emptying_and_deleting(nsqd: Nsqd) -> None:
    """R17.  Deferred publishes go too; a topic made again knows nothing of the old one."""
    make_channels(nsqd, "gone", "a", "b")
    with Client.of(nsqd) as producer:
        producer.mpub("gone", numbered(10))
        producer.dpub("gone", 600, b"deferred")
        assert nsqd.post("/channel/empty?topic=gone&channel=a").status == 200
        in_a, in_b = nsqd.channel("gone", "a"), nsqd.channel("gone", "b")
        assert (in_a["depth"], in_a["deferred_count"]) == (0, 0)
        assert (in_b["depth"], in_b["deferred_count"]) == (10, 1)
        with Client.of(nsqd).sub("gone", "b", ready=5) as client:
            held = client.messages(5)
            assert nsqd.post("/channel/delete?topic=gone&channel=b").status == 200
            client.wait_closed()
        assert nsqd.post("/topic/delete?topic=gone").status == 200
        producer.pub("gone", b"new")
        with Client.of(nsqd).sub("gone", "a", ready=100) as client:
            taken = client.message()
            assert taken.body == b"new"
            assert taken.id not in {message.id for message in held}
            assert client.quiet(1.0)


def test_emptying_a_topic_discards_what_it_holds(nsqd: Nsqd) -> None:
    """R2, R17.  Held and deferred messages go; what the channels have stays theirs."""
    make_channels(nsqd, "emptied", "c")
    with Client.of(nsqd) as producer:
        producer.mpub("emptied", numbered(5))
        nsqd.post("/topic/pause?topic=emptied")
        producer.mpub("emptied", numbered(5, 5))
        producer.dpub("emptied", 300, b"deferred")
        assert nsqd.post("/topic/empty?topic=emptied").status == 200
        assert topic_of(nsqd, "emptied")["depth"] == 0
        nsqd.post("/topic/unpause?topic=emptied")
        producer.pub("emptied", b"newer")
    with Client.of(nsqd).sub("emptied", "c", ready=100) as client:
        bodies = {message.body for message in client.messages(6)}
        assert bodies == {*numbered(5), b"newer"}
        assert client.quiet(0.7)


# Deferral


@together.test
def test_a_deferred_publish_comes_to_each_channel_when_due(nsqd: Nsqd) -> None:
    """S4-6.  Not before, in the order of due times, and each channel separately."""
    make_channels(nsqd, "defer", "a", "b")
    with (
        Client.of(nsqd).sub("defer", "a", ready=100) as a,
        Client.of(nsqd).sub("defer", "b", ready=100) as b,
        Client.of(nsqd) as producer,
    ):
        due_s, published_ns = {}, {}
        for delay_ms in (2700, 900, 1800, 1):
            body = b"%d" % delay_ms
            started_ns = time.time_ns()
            due_s[body] = started_ns / 1e9 + delay_ms / 1000
            producer.dpub("defer", delay_ms, body)
            published_ns[body] = range(started_ns, time.time_ns() + 1)
        assert nsqd.channel("defer", "a")["deferred_count"] >= 3
        for body in (b"1", b"900", b"1800", b"2700"):
            for client in (a, b):
                message = client.message()
                after_s = time.time() - due_s[body]
                assert (message.body, message.attempts) == (body, 1)
                assert 0 <= after_s < late_s(), after_s
                assert message.timestamp_ns in published_ns[body], "the time of publishing"
                if client is a:
                    a.fin(message)
                    a.settle()
        assert nsqd.channel("defer", "b")["in_flight_count"] == 4
        assert nsqd.channel("defer", "a")["in_flight_count"] == 0


@together.test
def test_many_deferred_publishes_are_none_early_and_none_lost(nsqd: Nsqd) -> None:
    """S4-6, D-18.  600 in a spread of half a second, pipelined with plain ones."""
    with Client.of(nsqd).sub("spread", "c", ready=2500) as client, Client.of(nsqd) as producer:
        parts = []
        due_ms = {}
        for number in range(600):
            delay_ms = 200 + number * 37 % 500
            due_ms[b"%d" % number] = time.time() * 1000 + delay_ms
            parts.append(commands.dpub("spread", delay_ms, b"%d" % number))
            parts.append(commands.pub("spread", b"plain"))
        producer.send(*parts)
        for _ in parts:
            assert producer.reply().text == b"OK"
        plain = 0
        while due_ms or plain < 600:
            message = client.message()
            client.fin(message)
            if message.body == b"plain":
                plain += 1
            else:
                assert time.time() * 1000 >= due_ms.pop(message.body)
        assert client.quiet(0.2)


@together.test
def test_a_deferred_publish_waits_for_a_channel_and_for_the_end_of_a_pause(nsqd: Nsqd) -> None:
    """R16: fired into its topic, it is held there as any other message is."""
    make_channels(nsqd, "defer-paused", "c")
    nsqd.post("/topic/pause?topic=defer-paused")
    with Client.of(nsqd) as producer:
        producer.dpub("defer-paused", 100, b"paused")
        producer.dpub("defer-alone", 100, b"alone")
    with Client.of(nsqd).sub("defer-paused", "c", ready=10) as client:
        assert client.quiet(0.5)
        assert topic_of(nsqd, "defer-paused")["depth"] == 1
        nsqd.post("/topic/unpause?topic=defer-paused")
        assert client.message().body == b"paused"
    assert topic_of(nsqd, "defer-alone")["depth"] == 1
    with Client.of(nsqd).sub("defer-alone", "first", ready=10) as client:
        assert client.message().body == b"alone"


# Ephemeral


def test_an_ephemeral_channel_drops_the_newest_beyond_its_memory(nsqd: Nsqd) -> None:
    """R15.  Its topic and other channels keep all."""
    make_channels(nsqd, "drops", "kept")
    with Client.of(nsqd).sub("drops", "c#ephemeral") as client:
        publish(nsqd, "drops", *numbered(30))
        assert nsqd.channel("drops", "c%23ephemeral")["depth"] == MEM_QUEUE_SIZE
        client.rdy(100)
        assert sorted(m.body for m in client.finish_all(10)) == numbered(10)
        assert client.quiet(0.1)
        publish(nsqd, "drops", b"room again")
        assert client.message().body == b"room again"
    assert eventually(lambda: channel_names(nsqd, "drops") == {"kept"})
    assert nsqd.channel("drops", "kept")["depth"] == 31


def test_an_ephemeral_channel_goes_with_its_last_consumer(nsqd: Nsqd) -> None:
    first = Client.of(nsqd).sub("leaves", "c#ephemeral", ready=1)
    with Client.of(nsqd).sub("leaves", "c#ephemeral"):
        publish(nsqd, "leaves", *numbered(5))
        first.message()
        first.close()
        assert eventually(lambda: nsqd.channel("leaves", "c%23ephemeral")["client_count"] == 1)
        assert nsqd.channel("leaves", "c%23ephemeral")["depth"] == 5
    assert eventually(lambda: not channel_names(nsqd, "leaves"))
    with Client.of(nsqd).sub("leaves", "c#ephemeral", ready=10) as client:
        assert client.quiet(0.2), "a new channel of that name starts empty"


def test_an_ephemeral_topic(nsqd: Nsqd) -> None:
    """R15.  Bounded while nobody listens, gone with its last channel; requeues work."""
    topic = "t#ephemeral"
    publish(nsqd, topic, *numbered(30))
    with Client.of(nsqd).sub(topic, "c#ephemeral", ready=100) as client:
        taken = client.messages(MEM_QUEUE_SIZE)
        assert sorted(m.body for m in taken) == numbered(MEM_QUEUE_SIZE)
        client.req(taken[0])
        assert client.message().attempts == 2
        client.fin(*taken)
        client.settle()
        assert topic in topic_names(nsqd)
    assert eventually(lambda: topic not in topic_names(nsqd))


@pytest.fixture
def roomy_nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """Its queues drop nothing: a message that does not arrive went to a dead channel."""
    with Nsqd(tmp_path / "roomy") as daemon:
        yield daemon


def test_subscribing_to_an_ephemeral_channel_that_is_being_removed(roomy_nsqd: Nsqd) -> None:
    """S4-9.  It neither hangs nor ends up on a dead channel, whoever comes and goes meanwhile."""
    nsqd = roomy_nsqd

    def come_and_go(number: int) -> None:
        for turn in range(25):
            body = b"%d-%d" % (number, turn)
            with Client.of(nsqd) as client:
                client.sub("race", f"c{number % 2}#ephemeral", ready=1)
                with Client.of(nsqd).sub("race", f"own-{number}#ephemeral", ready=100) as own:
                    client.pub("race", body)
                    while own.message().body != body:
                        pass

    with ThreadPoolExecutor(4) as pool:
        for outcome in [pool.submit(come_and_go, number) for number in range(4)]:
            outcome.result(40)
    assert eventually(lambda: not channel_names(nsqd, "race"))


# Limits and sampling


def test_a_channel_takes_so_many_consumers_and_no_more(nsqd: Nsqd) -> None:
    clients = [Client.of(nsqd).sub("limit", "c") for _ in range(CONSUMER_COUNT_MAX)]
    with Client.of(nsqd) as surplus:
        surplus.send(commands.sub("limit", "c"))
        assert surplus.error() == (
            f"E_SUB_FAILED SUB failed consumers for limit:c exceeds limit of {CONSUMER_COUNT_MAX}"
        )
        surplus.wait_closed()
    with Client.of(nsqd).sub("limit", "another"):
        pass
    clients.pop().close()
    assert eventually(lambda: nsqd.channel("limit", "c")["client_count"] == len(clients))
    clients.append(Client.of(nsqd).sub("limit", "c"))
    for client in clients:
        client.close()


def unfinished(nsqd: Nsqd, topic: str) -> int:
    channel = nsqd.channel(topic, "c")
    return int(channel["depth"] + channel["in_flight_count"])


def test_a_sampling_client_gets_its_share_and_the_rest_is_gone(nsqd: Nsqd) -> None:
    """nsqd keeps a message if a random 0..99 is not above the rate: 51 of 100 at rate 50."""
    publish(nsqd, "sample", *numbered(2000))
    with Client.of(nsqd, sample_rate=50).sub("sample", "c", ready=100) as client:
        bodies = []
        while unfinished(nsqd, "sample") or not bodies:
            taken = client.arrived(0.05)
            client.fin(*taken)
            bodies += [message.body for message in taken]
        # Five standard deviations around 1020.
        assert 908 < len(bodies) < 1132
        assert len(set(bodies)) == len(bodies)
    with Client.of(nsqd).sub("sample", "c", ready=100) as other:
        assert other.quiet(0.2)
