"""Channels as their consumers see them, on a broker without sockets, threads and time."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
from typing import Any

import pytest

from penstock.core.batches import HEADER_SIZE
from penstock.engine.channel import CHUNK_SIZE_MAX, TURN_COUNT_MAX
from penstock.engine.ephemeral import HELD_OVERHEAD_SIZE
from penstock.settings.policy import DEFAULT, DROP
from tests.crash.lossy import KEEP
from tests.support.engine import MINUTE, SECOND, Client, Engine


def bodies(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_requeued_and_fresh_messages_take_turns() -> None:
    """R13: a consumer that requeues everything still sees the rest of the queue."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=10)
    engine.publish("t", *bodies(100))
    seen: set[bytes] = set()
    for _ in range(40):
        for received in client.take():
            seen.add(received.body)
            client.requeue(received.index)
        engine.settle()
    assert seen == set(bodies(100))


def test_one_at_a_time_a_requeued_message_does_not_hold_up_the_others() -> None:
    """R13: nor does one that times out; it comes behind what waited, as in NSQ."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=1)
    engine.publish("t", *bodies(5))
    order = []
    for _ in range(9):
        [received] = client.take()
        order.append(received.body)
        if received.body == b"m0":
            client.requeue(received.index)
        else:
            client.finish(received.index)
        engine.settle()
    assert order == [b"m0", b"m1", b"m0", b"m2", b"m0", b"m3", b"m0", b"m4", b"m0"]


def test_equal_consumers_share_a_burst() -> None:
    """R13, S3-7: one batch is spread over all that are ready."""
    engine = Engine()
    clients = [Client(engine, "t", "c", ready_count=50) for _ in range(4)]
    engine.publish("t", *bodies(100))
    assert sorted(len(client.inbox) for client in clients) == [25, 25, 25, 25]


def test_equal_consumers_share_a_trickle() -> None:
    """R13: single messages go round."""
    engine = Engine()
    clients = [Client(engine, "t", "c", ready_count=50) for _ in range(4)]
    for body in bodies(40):
        engine.publish("t", body)
    assert [len(client.inbox) for client in clients] == [10, 10, 10, 10]


def test_one_turn_hands_out_a_bounded_amount() -> None:
    """R13: a large backlog does not hold the loop."""
    engine = Engine()
    engine.broker.create_topic("t")[0].create_channel("c")
    engine.settle()
    engine.publish("t", *bodies(3 * TURN_COUNT_MAX))
    client = Client(engine, "t", "c", ready_count=2500)
    per_turn = []
    while engine.turns.calls:
        engine.turns.calls.popleft()()
        per_turn.append(len(client.take()))
    assert 0 < max(per_turn) <= TURN_COUNT_MAX
    assert sum(per_turn) == 2500


def test_large_messages_are_sent_in_bounded_pieces() -> None:
    """R13: what is handed to a socket at once is bounded in bytes, whatever RDY allows."""
    engine = Engine()
    sizes: list[int] = []

    class Measuring(Client):
        def send(self, parts: list[bytes | memoryview]) -> None:
            sizes.append(sum(map(len, parts)))
            super().send(parts)

    client = Measuring(engine, "t", "c", ready_count=100)
    engine.publish("t", *(bytes(100_000) for _ in range(20)))
    assert len(client.inbox) == 20
    assert max(sizes) < CHUNK_SIZE_MAX + 100_100


def test_many_small_messages_share_one_write() -> None:
    """S3-4: a burst reaches the socket in one piece."""
    engine = Engine()
    sends: list[int] = []

    class Counting(Client):
        def send(self, parts: list[bytes | memoryview]) -> None:
            sends.append(len(parts))
            super().send(parts)

    client = Counting(engine, "t", "c", ready_count=500)
    engine.publish("t", *bodies(500))
    assert len(client.inbox) == 500
    assert sends == [1]


def test_a_deferred_message_goes_to_the_channels_that_exist_when_it_is_due() -> None:
    """D-13: stated semantics, also for a channel made after the publish."""
    engine = Engine()
    early = Client(engine, "t", "early", ready_count=1)
    engine.defer("t", 10 * SECOND, b"later")
    late = Client(engine, "t", "late", ready_count=1)
    engine.settle()
    assert early.channel.deferred_count == late.channel.deferred_count == 1
    engine.advance(11 * SECOND)
    assert [r.body for r in early.take()] == [r.body for r in late.take()] == [b"later"]


def test_memory_of_a_message_in_flight_is_bounded() -> None:
    """S0-8: no timer, task or object each; under 200 bytes a message in flight."""
    engine = Engine()
    clients = [Client(engine, "t", "c", ready_count=2500) for _ in range(8)]
    count = 2500 * len(clients)
    engine.publish("t", *bodies(count))
    # What was received belongs to the test; count only what delivery keeps.
    window = clients[0].channel.window
    assert window.in_flight_count == count
    for client in clients:
        client.consumer.ready_count = 0
    for client in clients:
        for received in client.take():
            client.requeue(received.index)
    for client in clients:
        client.send = lambda parts: None  # type: ignore[method-assign]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for client in clients:
        client.ready(2500)
    engine.settle()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert window.in_flight_count == count
    assert (after - before) / count < 200
    assert sys.getsizeof(window) < 1000


def test_an_ephemeral_channel_drops_the_newest_and_pins_nothing() -> None:
    """R15: it decides when messages arrive, and its blocks are its own."""
    engine = Engine(mem_queue_size=10)
    client = Client(engine, "t", "c#ephemeral", ready_count=0)
    engine.settle()
    engine.publish("t", *bodies(25))
    assert client.channel.depth == 10
    topic = engine.topic("t")
    assert topic.low() == topic.end
    client.ready(25)
    engine.settle()
    assert [received.body for received in client.take()] == bodies(10)


def check_size(engine: Engine, client: Client) -> None:
    """What is accounted for is what is kept."""
    channel: Any = client.channel
    held = sum(len(frame) + HELD_OVERHEAD_SIZE for frame in channel._held.values())
    blocks = sum(block.size for block in channel.kept_blocks())
    assert channel._size == engine.components.shared.ephemeral.size == held + blocks


def test_an_ephemeral_channel_keeps_a_number_of_bytes() -> None:
    """Of what waits, is in flight and was requeued; what is finished makes room."""
    engine = Engine(mem_queue_bytes=100_000)
    client = Client(engine, "t", "c#ephemeral", ready_count=0)
    engine.settle()
    for _ in range(3):
        engine.publish("t", *[bytes(1000)] * 50)
    assert 90 <= client.channel.depth < 100
    check_size(engine, client)
    first_count = client.channel.depth
    assert engine.components.shared.ephemeral.dropped_count == 150 - first_count
    client.ready(2500)
    engine.settle()
    taken = client.take()
    engine.publish("t", *[bytes(1000)] * 50)
    assert not client.take(), "what is in flight is kept too"
    for received in taken[:40]:
        client.requeue(received.index, 1000)
    engine.settle()
    engine.publish("t", *[bytes(1000)] * 50)
    assert not client.take(), "and what waits for its time"
    for received in taken[40:]:
        client.finish(received.index)
    engine.settle()
    engine.publish("t", *[bytes(1000)] * 20)
    assert len(client.take()) == 20
    check_size(engine, client)
    client.channel.empty()
    engine.settle()
    assert engine.components.shared.ephemeral.size == 0
    engine.publish("t", b"x")
    client.close()
    engine.settle()
    assert engine.components.shared.ephemeral.size == 0


@pytest.mark.parametrize("keys", [{"max_attempts": 1}, {"msg_ttl_ns": 10 * SECOND}])
def test_what_an_ephemeral_channel_gives_up_makes_room(keys: dict[str, int]) -> None:
    """Otherwise a few large messages that failed or expired would keep out all others for ever."""
    engine = Engine(mem_queue_bytes=100_000)
    client = Client(engine, "t", "c#ephemeral", ready_count=100)
    client.channel.apply_policy(dataclasses.replace(DEFAULT, on_max_attempts=DROP, **keys))
    for _ in range(12):
        engine.publish("t", bytes(10_000))  # the last ones find no room
    taken = client.take()
    assert 8 <= len(taken) < 12
    engine.publish("t", bytes(10_000))  # what is in flight is kept as single messages now
    for received in taken:
        client.requeue(received.index, 20 * SECOND)
    engine.advance(30 * SECOND)
    assert client.channel.window.unfinished_count == 0
    engine.publish("t", bytes(10_000))
    assert len(client.take()) == 1
    check_size(engine, client)


def test_a_long_run_leaves_nothing_accounted_for() -> None:
    engine = Engine(mem_queue_bytes=50_000)
    client = Client(engine, "t#ephemeral", "c#ephemeral", ready_count=30)
    engine.settle()
    for number in range(300):
        engine.publish("t#ephemeral", *[bytes(100 + number)] * 7)
        for received in client.take():
            if received.index % 5 == number % 5 and received.attempts < 3:
                client.requeue(received.index)
            else:
                client.finish(received.index)
        engine.settle()
        check_size(engine, client)
        assert engine.components.shared.ephemeral.size <= 50_000 + 5000
    while received_now := client.take():
        for received in received_now:
            client.finish(received.index)
        engine.settle()
    client.close()
    engine.settle()
    assert engine.components.shared.ephemeral.size == 0


def test_ephemeral_topics_without_channels_keep_bytes_and_all_together_do_too() -> None:
    engine = Engine(mem_queue_bytes=10_000)
    for number in range(20):
        engine.broker.create_topic(f"t{number}#ephemeral")
        engine.publish(f"t{number}#ephemeral", *[bytes(1000)] * 20)
    memory = engine.components.shared.ephemeral
    depths = [engine.broker.topics[f"t{number}#ephemeral"].depth for number in range(20)]
    assert depths[:8] == [9] * 8 and depths[9:] == [0] * 11
    assert memory.size <= 80_000 and memory.dropped_count == 400 - sum(depths)
    client = Client(engine, "t0#ephemeral", "c", ready_count=100)
    engine.settle()
    assert len(client.take()) == 9
    for number in range(20):
        engine.broker.delete_topic(f"t{number}#ephemeral")
    engine.settle()
    assert memory.size == 0


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_an_ephemeral_channel_delivers_what_follows_a_message_it_skips(name: str) -> None:
    """R17: it was emptied before a deferred message was due."""
    engine = Engine()
    client = Client(engine, name, "c#ephemeral", ready_count=10)
    engine.settle()
    engine.defer(name, SECOND, b"void")
    engine.done(client.channel.empty())
    engine.advance(2 * SECOND)
    engine.publish(name, b"next")
    assert [received.body for received in client.take()] == [b"next"]
    assert client.channel.depth == 0


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
@pytest.mark.parametrize("emptied", ["", "topic", "channel"])
def test_an_ephemeral_channel_counts_no_skipped_message_that_the_topic_holds(
    name: str, emptied: str
) -> None:
    engine = Engine()
    client = Client(engine, name, "c#ephemeral", ready_count=10)
    engine.settle()
    topic = engine.broker.topics[name]
    engine.done(topic.pause(True))
    engine.defer(name, SECOND, b"void")
    engine.done(client.channel.empty())
    engine.advance(2 * SECOND)
    assert client.channel.depth == 0 and topic.depth == 1
    if emptied:
        engine.done(topic.empty() if emptied == "topic" else client.channel.empty())
    engine.done(topic.pause(False))
    engine.settle()
    assert client.channel.depth == 0
    engine.publish(name, b"next")
    assert [received.body for received in client.take()] == [b"next"]


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_a_full_ephemeral_channel_counts_no_skipped_message_that_it_drops(name: str) -> None:
    engine = Engine(mem_queue_size=3)
    client = Client(engine, name, "c#ephemeral", ready_count=0)
    engine.settle()
    engine.defer(name, SECOND, b"void")
    engine.done(client.channel.empty())
    engine.publish(name, *bodies(3))
    engine.advance(2 * SECOND)
    assert client.channel.depth == 3
    client.ready(10)
    engine.settle()
    assert [received.body for received in client.take()] == bodies(3)


def test_an_ephemeral_channel_can_send_a_message_again() -> None:
    """R15: also long after its block was let go."""
    engine = Engine()
    client = Client(engine, "t", "c#ephemeral", ready_count=100)
    engine.settle()
    engine.publish("t", b"first")
    first = client.take()[0]
    for number in range(50):
        engine.publish("t", b"x%d" % number)
        for received in client.take():
            client.finish(received.index)
    engine.settle()
    client.requeue(first.index)
    engine.settle()
    again = client.take()[-1]
    assert (again.body, again.attempts) == (b"first", 2)


def test_a_lost_consumers_messages_wait_longer_each_time() -> None:
    """R14: at once, then 1 s, 2 s, 4 s."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=1)
    engine.publish("t", b"poison")
    waits = []
    for _ in range(4):
        client.close()
        start_ns = engine.clock.monotonic_ns()
        client = Client(engine, "t", "c", ready_count=1)
        engine.settle()
        engine.advance(MINUTE // 2)
        waits.append(round((client.inbox[0].now_ns - start_ns) / SECOND))
    assert waits == [0, 1, 2, 4]


def test_a_channel_emptied_while_its_topic_is_paused_skips_what_was_deferred_before() -> None:
    """R17: and its depth is right once the topic runs again."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=0)
    engine.defer("t", SECOND, b"void")
    client.channel.empty()
    engine.defer("t", SECOND, b"wanted")
    engine.topic("t").pause(True)
    engine.advance(2 * SECOND)
    engine.topic("t").pause(False)
    engine.settle()
    assert client.channel.depth == 1
    client.ready(10)
    engine.settle()
    assert [received.body for received in client.take()] == [b"wanted"]


def damage(data: bytearray) -> None:
    """Spoil everything after the header of the file."""
    data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)


def test_what_is_published_while_a_read_finds_only_damage_is_delivered() -> None:
    engine = Engine(sync_every=1)
    engine.broker.create_topic("t")[0].create_channel("c")
    engine.publish("t", b"old", b"older")
    engine.advance(3 * SECOND)
    engine.crash(KEEP)
    engine.start()  # nothing is in memory
    topic = engine.topic("t")
    [segment] = topic.log.segments()
    engine.files.edit(segment.path, damage)
    engine.files.cold = True
    client = Client(engine, "t", "c", ready_count=10)
    while not engine.disk.works:
        engine.turns.calls.popleft()()
    while engine.disk.works:
        engine.disk.step()
    read = engine.turns.calls.pop()
    assert engine.publish("t", b"new") is None
    engine.turns.soon(read)
    engine.settle()
    assert [received.body for received in client.take()] == [b"new"]
