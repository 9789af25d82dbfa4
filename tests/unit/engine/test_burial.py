"""R24 and R26: messages that failed too often, on a broker without sockets, threads and time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.core.buried import ATTEMPTS, BURY
from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.settings.policy import BURY as ON_BURY
from penstock.settings.policy import DEFAULT
from penstock.settings.policy import DROP as ON_DROP
from tests.support.engine import MINUTE, MS, SECOND, Client, Engine, Received


def limit(channel: Channel, max_attempts: int = 2, **more: Any) -> None:
    channel.apply_policy(dataclasses.replace(DEFAULT, max_attempts=max_attempts, **more))


def consumer(engine: Engine, ready_count: int = 1, **more: Any) -> Client:
    return Client(engine, "t", "c", ready_count, **more)


def buried(channel: Channel) -> list[tuple[int, str, int]]:
    table = channel.window.buried
    return [(one[0], one[1], one[3]) for one in table.page(-1, 1000)] if table is not None else []


def one(client: Client) -> Received:
    [received] = client.take()
    return received


def sweep(engine: Engine, channel: Channel, act: Act = Act.KICK, **chosen: Any) -> int:
    made = Sweep(channel, act, Chosen(**chosen))
    assert engine.done(made.start()) is None
    return made.done_count


def again(engine: Engine) -> Channel:
    """Start again, and take the channel of the new broker."""
    engine.start()
    engine.check()
    return engine.topic("t").channels["c"]


def test_a_message_requeued_too_often_is_buried_and_the_others_go_on() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 3)
    engine.publish("t", b"poison", b"good")
    finished = []
    for _ in range(4):
        received = one(client)
        if received.body == b"poison":
            client.requeue(received.index)
        else:
            client.finish(received.index)
            finished.append(received.body)
        engine.settle()
    assert finished == [b"good"]
    assert client.take() == []
    [(_, reason, attempts)] = buried(client.channel)
    assert (reason, attempts) == ("attempts", 3)
    assert client.channel.depth == client.channel.in_flight_count == 0
    assert client.channel.window.low == client.channel.window.cursor
    assert client.channel.window.buried_total == {"attempts": 1, "bury": 0, "expired": 0}
    engine.check()


def test_one_that_the_policy_drops_is_gone() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 1, on_max_attempts=ON_DROP)
    engine.publish("t", b"x")
    client.requeue(one(client).index)
    engine.settle()
    assert (client.take(), buried(client.channel)) == ([], [])
    assert client.channel.window.dropped_count == 1


def test_without_a_limit_nothing_is_buried() -> None:
    engine = Engine()
    client = consumer(engine)
    engine.publish("t", b"x")
    for attempts in range(1, 30):
        received = one(client)
        assert received.attempts == attempts
        client.requeue(received.index)
        engine.settle()


def test_a_burial_survives_a_crash_and_a_clean_exit() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 1)
    engine.publish("t", b"a", b"b")
    first = one(client)
    client.requeue(first.index)
    engine.settle()
    second = one(client)
    client.bury(second.index, "no")
    expected = [(first.index, "attempts", 1), (second.index, "bury", 1)]
    assert buried(client.channel) == expected
    engine.advance(SECOND)
    engine.crash()
    channel = again(engine)
    assert buried(channel) == expected
    assert channel.depth == 0
    engine.exit()
    channel = again(engine)
    assert buried(channel) == expected
    assert channel.window.buried is not None
    assert channel.window.buried.get(second.index)[2] == "no"  # type: ignore[index]


@pytest.mark.parametrize("more", [{}, {"max_attempts": 2, "requeue_backoff": (MINUTE, MINUTE)}])
def test_a_timeout_after_its_consumer_has_left_survives_a_kill(more: dict[str, Any]) -> None:
    """Nobody has room for others then, and nothing is ready again: it is progress all the same."""
    engine = Engine(requeue_on_disconnect=False)
    client = consumer(engine, msg_timeout_ns=20 * SECOND)
    limit(client.channel, **{"max_attempts": 1, **more})
    engine.publish("t", b"x")
    index = one(client).index
    client.close()
    engine.advance(25 * SECOND)
    was = buried(client.channel), client.channel.window.describe(index)
    engine.crash()
    channel = again(engine)
    assert (buried(channel), channel.window.describe(index)) == was
    assert bool(was[0]) != bool(more)


def test_a_last_attempt_that_our_exit_ends_is_not_a_failure() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 2)
    engine.publish("t", b"x")
    client.requeue(one(client).index)
    engine.settle()
    assert one(client).attempts == 2
    engine.exit()
    channel = again(engine)
    limit(channel, 2)
    assert buried(channel) == []
    client = consumer(engine)
    engine.advance(SECOND)
    assert one(client).attempts == 2


def test_kicked_messages_come_in_order_with_their_first_attempt() -> None:
    engine = Engine()
    client = consumer(engine, 10)
    limit(client.channel, 1)
    engine.publish("t", *[b"%d" % i for i in range(10)])
    for received in reversed(client.take()):
        client.requeue(received.index)
    engine.settle()
    assert len(buried(client.channel)) == 10
    assert sweep(engine, client.channel, count_max=4) == 4
    assert [(m.body, m.attempts) for m in client.take()] == [(b"%d" % i, 1) for i in range(4)]
    assert len(buried(client.channel)) == 6
    assert sweep(engine, client.channel) == 6
    assert [(m.body, m.attempts) for m in client.take()] == [(b"%d" % i, 1) for i in range(4, 10)]
    assert client.channel.window.kicked_count == 10
    assert client.channel.window.low == client.channel.window.oldest(1)[0][0]
    engine.check()


def test_kicks_are_by_index_and_reason_too() -> None:
    engine = Engine()
    client = consumer(engine, 10)
    limit(client.channel, 1)
    engine.publish("t", *[b"%d" % i for i in range(10)])
    indexes = []
    for number, received in enumerate(client.take()):
        indexes.append(received.index)
        if number % 2:
            client.bury(received.index)
        else:
            client.requeue(received.index)
    engine.settle()
    assert sweep(engine, client.channel, indexes=[indexes[3], indexes[4], 1, indexes[3]]) == 2
    assert [m.body for m in client.take()] == [b"3", b"4"]
    assert sweep(engine, client.channel, reason=BURY, count_max=2) == 2
    assert [m.body for m in client.take()] == [b"1", b"5"]
    assert sweep(engine, client.channel, Act.DISCARD, reason=ATTEMPTS) == 4
    assert [index for index, *_ in buried(client.channel)] == [indexes[7], indexes[9]]
    assert client.channel.window.discarded_count == 4
    engine.check()


def test_a_kick_survives_what_follows_it() -> None:
    """Unfinished again after a crash, finished after it is finished, whatever was journaled."""
    for finish in (False, True):
        engine = Engine()
        client = consumer(engine, 3)
        limit(client.channel, 1)
        engine.publish("t", b"a", b"b", b"c")
        for received in client.take():
            client.requeue(received.index)
        engine.advance(SECOND)
        assert sweep(engine, client.channel, count_max=2) == 2
        kicked = client.take()
        if finish:
            for received in kicked:
                client.finish(received.index)
            engine.advance(SECOND)
        engine.crash()
        channel = again(engine)
        assert len(buried(channel)) == 1
        client = consumer(engine, 3)
        engine.settle()
        waiting = [m.body for m in client.take()]
        assert waiting == ([] if finish else [b"a", b"b"])


def test_a_kicked_message_is_delivered_whatever_its_age() -> None:
    """Otherwise a kick would drop what msg_ttl would have dropped meanwhile."""
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 2, msg_ttl_ns=10 * SECOND)
    engine.publish("t", b"x")
    for _ in range(2):
        client.requeue(one(client).index)
        engine.settle()
    client.close()
    engine.advance(MINUTE)
    assert sweep(engine, client.channel) == 1
    engine.advance(MINUTE)
    client = consumer(engine)
    engine.settle()
    for attempts in (1, 2):
        received = one(client)
        assert received.attempts == attempts
        client.requeue(received.index)
        engine.settle()
    assert [reason for _, reason, _ in buried(client.channel)] == ["attempts"]
    assert client.channel.expired_count == 0


def test_a_kicked_message_does_not_expire_after_a_kill() -> None:
    """The kick was answered, and a kill came before the next progress was journaled."""
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 1, msg_ttl_ns=10 * SECOND)
    engine.publish("t", b"x", b"y")
    for _ in range(2):
        client.requeue(one(client).index)
        engine.settle()
    engine.advance(MINUTE)
    client.ready(0)
    assert sweep(engine, client.channel) == 2
    engine.crash()
    engine.clients.clear()
    channel = again(engine)
    limit(channel, 1, msg_ttl_ns=10 * SECOND)
    engine.advance(MINUTE)
    assert (channel.depth, channel.expired_count) == (2, 0)
    client = consumer(engine, 5)
    engine.settle()
    assert [(m.body, m.attempts) for m in client.take()] == [(b"x", 1), (b"y", 1)]


def test_expired_messages_can_be_kicked() -> None:
    engine = Engine()
    engine.broker.create_topic("t")
    channel, _ = engine.topic("t").create_channel("c")
    limit(channel, 0, msg_ttl_ns=10 * SECOND, on_expired=ON_BURY)
    engine.publish("t", *[b"%d" % i for i in range(3)])
    engine.advance(MINUTE)
    assert [reason for _, reason, _ in buried(channel)] == ["expired"] * 3
    assert sweep(engine, channel) == 3
    engine.advance(MINUTE)
    assert (channel.depth, buried(channel)) == (3, [])
    client = consumer(engine, 5)
    engine.settle()
    assert [m.body for m in client.take()] == [b"0", b"1", b"2"]


def test_kicks_that_follow_each_other_kick_each_message_once() -> None:
    """What fails again is among the oldest again; ``after`` leaves it."""
    engine = Engine()
    client = consumer(engine, 10)
    limit(client.channel, 1)
    engine.publish("t", *[b"%d" % i for i in range(10)])
    kicked, after = [], 0
    for message in client.take():
        client.requeue(message.index)
    while after is not None:
        made = Sweep(client.channel, Act.KICK, Chosen(count_max=4, after=after))
        assert engine.done(made.start()) is None
        after = made.next
        for message in client.take():
            kicked.append(message.body)
            client.requeue(message.index)
    assert kicked == [b"%d" % i for i in range(10)]
    assert len(buried(client.channel)) == 10


def test_discarded_messages_stay_gone() -> None:
    engine = Engine()
    client = consumer(engine, 3)
    limit(client.channel, 1)
    engine.publish("t", b"a", b"b", b"c")
    for received in client.take():
        client.requeue(received.index)
    engine.advance(SECOND)
    assert sweep(engine, client.channel, Act.DISCARD, count_max=2) == 2
    engine.crash()
    channel = again(engine)
    assert len(buried(channel)) == 1
    assert channel.depth == 0
    assert sweep(engine, channel, Act.DISCARD) == 1
    engine.crash()
    assert buried(again(engine)) == []


def test_emptying_leaves_buried_messages_and_deleting_does_not() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 1)
    engine.publish("t", b"a", b"b")
    client.requeue(one(client).index)
    assert engine.done(client.channel.empty()) is None
    assert len(buried(client.channel)) == 1
    client.close()
    assert engine.done(engine.topic("t").delete_channel("c")) is None
    assert buried(consumer(engine).channel) == []


def test_kicked_messages_of_a_paused_channel_wait() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 1)
    engine.publish("t", b"a")
    client.requeue(one(client).index)
    engine.done(client.channel.pause(True))
    assert sweep(engine, client.channel) == 1
    assert (client.take(), client.channel.depth) == ([], 1)
    engine.done(client.channel.pause(False))
    engine.settle()
    assert one(client).attempts == 1


def test_a_full_table_leaves_the_message_in_the_channel() -> None:
    """If there is no dead topic for it: its name would be too long."""
    engine = Engine()
    client = Client(engine, "t" * 60, "c", 2)
    limit(client.channel, 1, max_buried=1)
    engine.publish("t" * 60, b"a", b"b")
    for received in client.take():
        client.requeue(received.index)
    engine.settle()
    assert len(buried(client.channel)) == 1
    assert client.take() == []
    assert client.channel.window.no_room_count == 1
    engine.advance(MINUTE + SECOND)
    assert one(client).attempts == 2


def test_a_sweep_at_a_rate_takes_its_time_and_can_be_stopped() -> None:
    engine = Engine()
    client = consumer(engine, 100)
    limit(client.channel, 1)
    engine.publish("t", *[b"%d" % i for i in range(100)])
    for received in client.take():
        client.requeue(received.index)
    engine.settle()
    kicking = Sweep(client.channel, Act.KICK, Chosen(), rate=20)
    kicking.start()
    assert kicking.left == 99
    engine.advance(SECOND)
    assert 18 <= len(client.take()) <= 22
    other = Sweep(client.channel, Act.KICK, Chosen(count_max=3), rate=1)
    other.start()  # takes its place
    assert kicking.ticket.done or engine.done(kicking.ticket) is None
    engine.advance(10 * SECOND)
    assert len(client.take()) == 3
    assert client.channel.sweep is None
    slow = Sweep(client.channel, Act.KICK, Chosen(), rate=1)
    slow.start()
    slow.stop()
    engine.advance(10 * SECOND)
    assert len(client.take()) == 1
    assert engine.done(slow.ticket) is None


def test_a_sweep_ends_although_others_fail_meanwhile() -> None:
    """At a rate below that of the failures it would never end."""
    engine = Engine()
    client = consumer(engine, 100)
    limit(client.channel, 1)
    engine.publish("t", *[b"%d" % i for i in range(10)])
    for received in client.take():
        client.requeue(received.index)
    engine.settle()
    kicking = Sweep(client.channel, Act.KICK, Chosen(), rate=10)
    kicking.start()
    for _ in range(30):
        engine.publish("t", b"later")
        for received in client.take():
            client.requeue(received.index)
        engine.advance(100 * MS)
    assert (kicking.left, kicking.done_count, kicking.next) == (0, 10, None)
    assert engine.done(kicking.ticket) is None
    assert len(buried(client.channel)) == 40


def test_waits_grow_with_the_attempts() -> None:
    engine = Engine()
    client = consumer(engine)
    limit(client.channel, 0, requeue_backoff=(SECOND, 5 * SECOND))
    engine.publish("t", b"x")
    waits = []
    for _ in range(5):
        received = one(client)
        client.requeue(received.index)
        engine.advance(6 * SECOND)
        waits.append(client.inbox[0].wall_ns - engine.clock.wall_ns() + 6 * SECOND)
    assert [round(wait / SECOND) for wait in waits] == [1, 2, 4, 5, 5]


def test_a_delay_of_the_consumers_own_is_kept_and_a_timeout_waits() -> None:
    engine = Engine()
    client = consumer(engine, msg_timeout_ns=SECOND)
    limit(client.channel, 0, requeue_backoff=(10 * SECOND, MINUTE))
    engine.publish("t", b"x")
    client.requeue(one(client).index, 2 * SECOND)
    engine.advance(3 * SECOND)
    assert one(client).attempts == 2
    engine.advance(SECOND + 500 * MS)  # it times out, and waits for 20 s
    assert client.channel.deferred_count == 1
    engine.advance(18 * SECOND)
    assert client.take() == []
    engine.advance(3 * SECOND)
    assert one(client).attempts == 3


def test_a_lost_consumers_message_waits_for_the_longer_of_the_two() -> None:
    engine = Engine()
    limit_of = (10 * SECOND, MINUTE)
    client = consumer(engine)
    limit(client.channel, 0, requeue_backoff=limit_of)
    engine.publish("t", b"x")
    client.close()
    second = consumer(engine)
    engine.advance(9 * SECOND)
    assert second.take() == []
    engine.advance(2 * SECOND)
    assert one(second).attempts == 2


def test_a_neighbour_that_crashes_consumers_does_not_bury_the_others() -> None:
    """R26: the last attempt is delivered alone."""
    engine = Engine()
    client = consumer(engine, 10)
    limit(client.channel, 3)
    engine.publish("t", b"poison", *[b"good %d" % i for i in range(5)])
    done = []
    for _ in range(60):
        received = client.take()
        if any(m.body == b"poison" for m in received):
            client.close()
            client = consumer(engine, 10)
        else:
            for m in received:
                client.finish(m.index)
                done.append(m.body)
        engine.advance(SECOND)
        engine.check()
    assert sorted(done) == [b"good %d" % i for i in range(5)]
    assert [(reason, n) for _, reason, n in buried(client.channel)] == [("attempts", 3)]


def test_a_message_alone_has_its_consumer_for_itself_and_others_go_on() -> None:
    engine = Engine()
    clients = [consumer(engine, 5, msg_timeout_ns=SECOND) for _ in range(2)]
    limit(clients[0].channel, 2)
    engine.publish("t", b"slow")
    engine.advance(SECOND + 500 * MS)  # it timed out: the next is its last attempt
    received = [m for client in clients for m in client.take()]
    assert [m.attempts for m in received] == [1, 2]
    holder = next(c for c in clients if c.consumer.in_flight_count)
    other = next(c for c in clients if c is not holder)
    engine.publish("t", *[b"%d" % i for i in range(5)])
    assert len(other.take()) == 5
    assert holder.take() == []
    assert holder.finish(received[1].index) == 0
    engine.publish("t", *[b"%d" % i for i in range(5)])
    assert len(holder.take()) == 5


def test_a_busy_consumer_is_kept_for_a_message_until_it_is_empty() -> None:
    engine = Engine()
    client = consumer(engine, 4, msg_timeout_ns=10 * SECOND)
    limit(client.channel, 2)
    engine.publish("t", b"slow")
    engine.advance(9 * SECOND)
    engine.publish("t", *[b"%d" % i for i in range(20)])
    engine.advance(2 * SECOND)  # "slow" timed out
    assert client.channel.window.lone_count == 1
    seen = []
    for _ in range(30):
        for received in client.take():
            seen.append((received.body, client.consumer.in_flight_count))
            client.finish(received.index)
        engine.settle()
    assert len(seen) == 22
    assert [count for body, count in seen if body == b"slow"][1:] == [1]
    engine.check()


def test_many_last_attempts_and_new_messages_take_turns() -> None:
    engine = Engine()
    clients = [consumer(engine, 3, msg_timeout_ns=SECOND) for _ in range(3)]
    limit(clients[0].channel, 2)
    engine.publish("t", *[b"late %d" % i for i in range(9)])
    for client in clients:
        client.take()
    engine.advance(2 * SECOND)
    engine.publish("t", *[b"new %d" % i for i in range(50)])
    done = []
    for _ in range(100):
        for client in clients:
            for received in client.take():
                if received.attempts == 2:
                    assert client.consumer.in_flight_count == 1
                client.finish(received.index)
                done.append(received.body)
        engine.settle()
    assert len(done) == 59
    assert any(body.startswith(b"new") for body in done[:9])
    assert clients[0].channel.window.lone_count == 0


def test_a_consumer_that_is_kept_and_takes_nothing_any_more_is_replaced() -> None:
    """RDY 0, as clients send when they back off or close: another one is kept instead."""
    for stop in ("ready_count", "writable"):
        engine = Engine()
        clients = [consumer(engine, 2, msg_timeout_ns=10 * SECOND) for _ in range(2)]
        limit(clients[0].channel, 2)
        engine.publish("t", b"slow")
        engine.advance(9 * SECOND)
        engine.publish("t", b"1", b"2", b"3")
        engine.advance(2 * SECOND)  # "slow" timed out
        kept = next(client for client in clients if client.consumer.alone)
        other = next(client for client in clients if client is not kept)
        setattr(kept.consumer, stop, 0)
        pending = other.take()
        for number in range(10):
            engine.publish("t", b"more %d" % number)
            if pending:
                assert other.finish(pending.pop(0).index) == 0
            engine.settle()
            came = other.take()
            pending += came
            if came and came[0].body == b"slow":
                break
        assert [m.attempts for m in pending] == [2], stop
        assert not kept.consumer.alone


def test_a_consumer_is_not_kept_for_a_message_that_has_expired() -> None:
    engine = Engine()
    client = consumer(engine, 5, msg_timeout_ns=10 * SECOND)
    limit(client.channel, 2, msg_ttl_ns=13 * SECOND)
    engine.publish("t", b"slow")
    engine.advance(9 * SECOND)
    engine.publish("t", b"1")
    engine.advance(2 * SECOND)  # "slow" timed out
    assert client.consumer.alone
    client.take()
    engine.advance(3 * SECOND)
    assert client.channel.expired_count == 1 and client.consumer.in_flight_count == 1
    engine.publish("t", b"2")
    assert one(client).body == b"2"


def test_an_expired_message_on_its_last_attempt_waits_for_room_to_be_buried() -> None:
    engine = Engine()
    name = "c" * 60  # the name of the dead topic would be too long
    client = Client(engine, "t", name, 5, msg_timeout_ns=SECOND)
    channel = client.channel
    limit(channel, 2, msg_ttl_ns=10 * SECOND, on_expired=ON_BURY, max_buried=1)
    engine.publish("t", b"first", b"late")
    assert client.bury(client.take()[0].index) == 0
    client.ready(0)
    engine.advance(20 * SECOND)
    assert (channel.depth, channel.window.buried_count) == (1, 1)
    client.ready(5)
    engine.advance(20 * SECOND)
    assert client.take() == [] and channel.depth == 1
    assert sweep(engine, channel, Act.DISCARD) == 1
    engine.advance(2 * SECOND)
    assert [reason for _, reason, _ in buried(channel)] == ["expired"]


def test_what_consumers_requeued_is_not_delivered_alone() -> None:
    engine = Engine()
    client = consumer(engine, 5)
    limit(client.channel, 2)
    engine.publish("t", b"x")
    client.requeue(one(client).index)
    engine.settle()
    assert one(client).attempts == 2
    engine.publish("t", b"y")
    assert one(client).body == b"y"


def test_a_consumer_with_a_ready_count_of_1_gets_everything() -> None:
    engine = Engine()
    client = consumer(engine, 1, msg_timeout_ns=SECOND)
    limit(client.channel, 3)
    engine.publish("t", *[b"%d" % i for i in range(5)])
    done = []
    for _ in range(60):
        for received in client.take():
            if received.attempts == 3:
                client.finish(received.index)
                done.append(received.body)
        engine.advance(300 * MS)
    assert sorted(done) == [b"%d" % i for i in range(5)]
    assert buried(client.channel) == []


def test_a_held_consumer_that_leaves_is_replaced() -> None:
    engine = Engine()
    first, second = (consumer(engine, 2, msg_timeout_ns=SECOND) for _ in range(2))
    limit(first.channel, 2)
    engine.publish("t", b"slow")
    engine.advance(SECOND + 50 * MS)
    for client in (first, second):
        client.take()
    lone = first if first.consumer.in_flight_count else second
    lone.close()  # R26: that was the last attempt
    engine.advance(5 * SECOND)
    assert [reason for _, reason, _ in buried(lone.channel)] == ["attempts"]


def test_a_limit_set_later_counts_from_the_attempts_so_far() -> None:
    engine = Engine()
    client = consumer(engine)
    engine.publish("t", b"x")
    for _ in range(4):
        client.requeue(one(client).index)
        engine.settle()
    limit(client.channel, 3)
    assert one(client).attempts == 5
    assert buried(client.channel) == []  # nothing failed since


def test_an_ephemeral_channel_buries_nothing() -> None:
    engine = Engine()
    client = Client(engine, "t", "c#ephemeral", 1)
    limit(client.channel, 1, on_max_attempts=ON_BURY)
    engine.publish("t", b"x")
    received = one(client)
    assert client.bury(received.index) == 4
    client.requeue(received.index)
    engine.settle()
    assert one(client).attempts == 2


def test_a_segment_full_of_buried_messages_stays_and_a_few_are_moved() -> None:
    for buried_count, kept in ((3, True), (150, False)):
        engine = Engine(max_bytes_per_file=64 * 1024)
        client = consumer(engine, 2500)
        limit(client.channel, 1)
        engine.publish("t", *[b"%04d" % i + b"x" * 196 for i in range(300)])
        for number, received in enumerate(client.take()):
            if number < buried_count:
                client.requeue(received.index)
            else:
                client.finish(received.index)
        engine.publish("t", *[b"y" * 200 for i in range(700)])
        for received in client.take():
            client.finish(received.index)
        engine.advance(MINUTE)
        log = engine.topic("t").log
        sides = [segment for segment in log.segments() if segment.side]
        assert (len(sides) > 0) == kept
        assert len(buried(client.channel)) == buried_count
        assert sweep(engine, client.channel) == buried_count
        received = client.take()
        assert [m.body[:4] for m in received] == [b"%04d" % i for i in range(buried_count)]
        for m in received:
            client.finish(m.index)
        engine.advance(MINUTE)
        assert log.count < 300
        engine.crash()
        again(engine)
