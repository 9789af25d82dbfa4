"""Buried messages go to another topic: by policy, by hand, once and within bounds (R25)."""

from __future__ import annotations

import dataclasses
import errno
import logging
from typing import Any

import pytest

from penstock.core.buried import ATTEMPTS, BURY
from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.engine.moves.tasks import BATCH_COUNT_MAX, Burial, Owed, Task
from penstock.errors import MoveError
from penstock.settings.policy import DEFAULT, MOVE, Policy
from penstock.storage.journal import UNBURIED, records
from tests.crash.lossy import KEEP
from tests.support.engine import MINUTE, SECOND, Client, Engine


def policy(**keys: Any) -> Policy:
    return dataclasses.replace(DEFAULT, **keys)


MOVING = policy(max_attempts=1, on_max_attempts=MOVE)
BURYING = policy(max_attempts=1)


def consumer(engine: Engine, topic: str = "t", keys: Policy = MOVING) -> Client:
    client = Client(engine, topic, "c", ready_count=100_000)
    client.channel.apply_policy(keys)
    engine.settle()
    return client


def fail_all(client: Client) -> None:
    """Every delivery fails."""
    client.engine.settle()
    while messages := client.take():
        for message in messages:
            client.requeue(message.index)
        client.engine.settle()


def poisoned(engine: Engine, count: int, keys: Policy = BURYING) -> Channel:
    """A channel with ``count`` buried messages."""
    client = consumer(engine, keys=keys)
    engine.publish("t", *[b"%d" % i for i in range(count)])
    fail_all(client)
    client.close()
    return client.channel


def move(engine: Engine, channel: Channel, chosen: Chosen, rate: int = 0) -> Task:
    task = engine.components.moves.move(channel, "other", chosen, rate)
    engine.settle()
    return task


def bodies(engine: Engine, topic: str) -> list[bytes]:
    return list(engine.logged(topic).values()) if topic in engine.broker.topics else []


def test_what_fails_goes_to_the_dead_topic_and_is_consumed_there() -> None:
    engine = Engine()
    client = consumer(engine)
    engine.publish("t", b"good", b"bad", b"worse")
    published_ns = engine.clock.wall_ns()
    good, bad, worse = client.take()
    client.finish(good.index)
    engine.advance(5 * SECOND)
    client.requeue(bad.index)
    client.requeue(worse.index)
    engine.settle()
    channel = client.channel
    assert (channel.window.buried_count, channel.moved_count, channel.depth) == (0, 2, 0)
    dead = Client(engine, "t.c.dead", "again", ready_count=10)
    engine.settle()
    first, second = dead.take()
    assert (first.body, second.body) == (b"bad", b"worse"), "in order"
    assert (first.attempts, second.attempts) == (1, 1)
    assert first.id != bad.id and first.index != bad.index
    frame = engine.topic("t.c.dead").log.frame(first.index, wait=True)
    assert frame is not None
    assert abs(int.from_bytes(frame[8:16], "big") - published_ns) < SECOND, "of the publish"
    assert dead.finish(first.index) == 0
    engine.check()


def test_the_dead_topic_is_made_when_it_is_needed_first() -> None:
    engine = Engine()
    asked: list[str] = []
    engine.components.shared.hooks.on_change = lambda what, _exists: asked.append(what.name)
    client = consumer(engine)
    engine.publish("t", b"good")
    assert "t.c.dead" not in engine.broker.topics
    fail_all(client)
    assert "t.c.dead" in asked, "announced like any new topic"
    assert bodies(engine, "t.c.dead") == [b"good"]


def test_thousands_are_moved_in_batches() -> None:
    engine = Engine()
    channel = poisoned(engine, 5000)
    writer = engine.topic("t").writer
    assert channel.window.buried_count == 5000 and writer.idle
    task = move(engine, channel, Chosen())
    assert engine.done(task.ticket) is None
    assert (task.moved_count, channel.moved_count, channel.window.buried_count) == (5000, 5000, 0)
    assert bodies(engine, "other") == [b"%d" % i for i in range(5000)]
    segment = engine.topic("other").log.files[0]
    assert segment.tally is not None
    assert segment.tally.moved_count == -(-5000 // BATCH_COUNT_MAX)
    engine.check()


def test_large_messages_are_moved_about_a_megabyte_at_a_time() -> None:
    engine = Engine()
    client = consumer(engine, keys=BURYING)
    for i in range(6):
        engine.publish("t", bytes([i]) * 700_000)
    fail_all(client)
    task = move(engine, client.channel, Chosen())
    assert engine.done(task.ticket) is None and task.moved_count == 6
    assert [body[0] for body in bodies(engine, "other")] == [*range(6)]
    segment = engine.topic("other").log.files[0]
    assert segment.tally is not None and segment.tally.moved_count == 3


def test_ids_a_count_or_a_reason_choose() -> None:
    engine = Engine()
    client = consumer(engine, keys=BURYING)
    engine.publish("t", *[b"%d" % i for i in range(10)])
    messages = client.take()
    for message in messages[:4]:
        client.bury(message.index, "by the client")
    for message in messages[4:]:
        client.requeue(message.index)
    engine.settle()
    channel = client.channel
    indexes = [message.index for message in messages]
    assert move(engine, channel, Chosen([indexes[7], indexes[0], 5, indexes[7]])).moved_count == 2
    assert move(engine, channel, Chosen(None, 2, ATTEMPTS)).moved_count == 2
    assert move(engine, channel, Chosen(None, reason=BURY)).moved_count == 3
    assert move(engine, channel, Chosen(None, 100)).moved_count == 3
    assert move(engine, channel, Chosen([indexes[7]])).moved_count == 0
    wanted = [0, 7, 4, 5, 1, 2, 3, 6, 8, 9]
    assert bodies(engine, "other") == [b"%d" % i for i in wanted]


def test_a_rate_limits_a_move_and_it_can_be_stopped() -> None:
    engine = Engine()
    channel = poisoned(engine, 500)
    task = move(engine, channel, Chosen(), rate=100)
    assert task.left == 500 - task.moved_count and task.moved_count == 10
    engine.advance(2 * SECOND)
    assert 190 <= task.moved_count <= 220 and not task.ticket.done
    assert engine.components.moves.stop(channel) == [task]
    engine.advance(SECOND)
    assert task.ticket.done and task.moved_count <= 230
    assert engine.components.moves.stop(channel) == []
    assert channel.window.buried_count == 500 - task.moved_count == 500 - channel.moved_count


def test_a_move_at_a_rate_lets_others_pass() -> None:
    engine = Engine()
    channel = poisoned(engine, 500)
    slow = move(engine, channel, Chosen(), rate=1)
    fast = move(engine, channel, Chosen(None, 50))
    assert fast.ticket.done and (slow.moved_count, fast.moved_count) == (1, 50)
    other = move(engine, channel, Chosen(), rate=10)
    engine.advance(10 * SECOND)
    assert 9 <= slow.moved_count <= 12 and 90 <= other.moved_count <= 120
    assert engine.components.moves.stop(channel) == [slow, other]
    engine.settle()
    assert slow.ticket.done and other.ticket.done


def test_a_move_at_a_rate_does_not_wait_for_a_dead_topic_that_fails() -> None:
    engine = Engine()
    client = consumer(engine)
    engine.publish("t", *[b"%d" % i for i in range(100)])
    engine.publish("t.c.dead", b"first")
    engine.publish("other", b"first")
    engine.topic("t.c.dead").apply_policy(policy(max_messages=1))
    fail_all(client)
    engine.advance(5 * MINUTE)  # it is tried once a minute now
    task = move(engine, client.channel, Chosen(), rate=10)
    engine.advance(5 * SECOND)
    assert 45 <= task.moved_count <= 55


def test_only_topics_that_keep_messages_are_moved_to() -> None:
    engine = Engine()
    channel = poisoned(engine, 1)
    codes = {
        "t": "SAME_TOPIC",
        "x#ephemeral": "EPHEMERAL_TOPIC",
        "no good": "INVALID_TOPIC",
        "": "INVALID_TOPIC",
        "x" * 65: "INVALID_TOPIC",
    }
    for name, code in codes.items():
        with pytest.raises(MoveError) as caught:
            engine.components.moves.move(channel, name, Chosen())
        assert caught.value.code == code
    assert channel.window.buried_count == 1


def test_a_topic_that_cannot_be_written_leaves_messages_buried_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    caplog.set_level(logging.INFO)
    client = consumer(engine)
    engine.publish("t", b"x")
    engine.publish("t.c.dead", b"first")
    engine.settle()
    engine.files.faults.add("*.log", errno.EIO, "append")
    fail_all(client)
    channel = client.channel
    assert channel.window.buried_count == 1 and channel.moved_count == 0
    assert channel.move_failure_count == 1
    engine.advance(10 * SECOND)
    assert 3 <= channel.move_failure_count <= 5, "with growing pauses"
    assert channel.window.buried_count == 1
    engine.files.faults.heal()
    engine.advance(MINUTE)
    assert (channel.window.buried_count, channel.moved_count) == (0, 1)
    assert bodies(engine, "t.c.dead") == [b"first", b"x"]
    lines = [r.getMessage() for r in caplog.records if "failed messages" in r.getMessage()]
    assert len(lines) == 2, "at the beginning and at the end"
    assert "stay buried" in lines[0] and "moved again" in lines[1]
    engine.check()


def test_a_move_by_hand_that_fails_ends_and_says_so() -> None:
    engine = Engine()
    channel = poisoned(engine, 3)
    engine.publish("other", b"first")
    engine.files.faults.add("*.log", errno.EIO, "append")
    task = move(engine, channel, Chosen())
    assert isinstance(task.ticket.error, OSError) and task.moved_count == 0
    engine.files.faults.heal()
    assert channel.window.buried_count == 3
    assert move(engine, channel, Chosen()).moved_count == 3
    assert bodies(engine, "other") == [b"first", b"0", b"1", b"2"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_bad_sector_does_not_stop_the_others(by_hand: bool) -> None:
    engine = Engine(max_bytes_per_file=2000)
    client = consumer(engine, keys=BURYING)
    channel = client.channel
    for number in range(30):
        engine.publish("t", b"%03d" % number + b"x" * 300)
    fail_all(client)
    engine.advance(SECOND)
    bad = engine.topic("t").log.segments()[1].path
    engine.files.faults.add(bad, errno.EIO, "pread")
    if by_hand:
        task = move(engine, channel, Chosen())
        assert isinstance(task.ticket.error, OSError)
    else:
        channel.apply_policy(policy(max_attempts=1, on_max_attempts=MOVE, dead_topic="other"))
    engine.advance(SECOND)
    left = channel.window.buried_count
    assert 0 < left < 10 and len(bodies(engine, "other")) == 30 - left
    engine.files.faults.heal()
    if by_hand:
        assert move(engine, channel, Chosen()).ticket.error is None
    engine.advance(2 * MINUTE)
    assert channel.window.buried_count == 0
    assert sorted(b[:3] for b in bodies(engine, "other")) == [b"%03d" % i for i in range(30)]


def test_a_failed_sync_is_tried_again_and_nothing_is_appended_twice() -> None:
    engine = Engine()
    channel = poisoned(engine, 3)
    engine.publish("other", b"first")
    engine.files.faults.add("*/other~*.log", errno.EIO, "sync")
    engine.files.faults.add("*/other~*.log.new", errno.EIO, "append")
    task = move(engine, channel, Chosen())
    engine.advance(3 * SECOND)
    assert not task.ticket.done and channel.window.buried_count == 3
    assert channel.moving, "kick and discard leave them alone"
    sweep = Sweep(channel, Act.KICK, Chosen())
    engine.done(sweep.start())
    assert sweep.done_count == 0 and channel.window.buried_count == 3
    engine.files.faults.heal()
    engine.advance(3 * SECOND)
    assert task.ticket.done and task.moved_count == 3 and not channel.moving
    assert bodies(engine, "other") == [b"first", b"0", b"1", b"2"]
    assert channel.window.buried_count == 0
    engine.check()


def test_the_log_keeps_the_origins_until_the_finish_is_durable() -> None:
    engine = Engine()
    channel = poisoned(engine, 1)
    engine.files.faults.add("*/t~*/journal", errno.EIO, "sync")
    task = move(engine, channel, Chosen())
    engine.advance(2 * SECOND)
    other = engine.topic("other")
    assert other.log.holds and not task.ticket.done and channel.window.buried_count == 0
    engine.files.faults.heal()
    engine.advance(3 * SECOND)
    assert not other.log.holds and task.ticket.done
    engine.exit()
    engine.start()
    assert not engine.topic("other").log.holds, "settled: nothing to read again"


def test_dead_topics_that_lead_back_end_at_the_first() -> None:
    """A message does not go round for ever."""
    engine = Engine()
    ways = {"t": "u", "u": "v", "v": "t"}
    clients = [
        consumer(engine, name, policy(max_attempts=1, on_max_attempts=MOVE, dead_topic=to))
        for name, to in ways.items()
    ]
    engine.publish("t", b"round")
    for _ in range(5):
        for client in clients:
            fail_all(client)
        engine.advance(SECOND)
    assert [client.channel.window.buried_count for client in clients] == [1, 0, 0]
    assert not bodies(engine, "u") and clients[0].channel.move_failure_count > 1
    # Without the last one it is a chain.
    clients[2].channel.apply_policy(BURYING)
    engine.advance(2 * MINUTE)
    for client in clients[1:]:
        fail_all(client)
        engine.advance(SECOND)
    assert [client.channel.window.buried_count for client in clients] == [0, 0, 1]


def test_more_than_max_buried_go_to_the_dead_topic() -> None:
    engine = Engine()
    channel = poisoned(engine, 10, policy(max_attempts=1, max_buried=4))
    assert channel.window.buried_count == 4
    assert sorted(bodies(engine, "t.c.dead")) == [b"%d" % i for i in range(4, 10)]
    channel.apply_policy(policy(max_attempts=1, max_buried=1))
    engine.settle()
    assert channel.window.buried_count == 1 and len(bodies(engine, "t.c.dead")) == 9


def test_a_policy_set_later_moves_what_is_buried_for_its_reason() -> None:
    engine = Engine()
    client = consumer(engine, keys=BURYING)
    engine.publish("t", b"failed", b"no use")
    failed, unwanted = client.take()
    client.requeue(failed.index)
    client.bury(unwanted.index)
    engine.settle()
    client.channel.apply_policy(MOVING)
    engine.settle()
    assert bodies(engine, "t.c.dead") == [b"failed"]
    assert client.channel.window.buried_count == 1, "a client's own burials stay"


def test_what_a_stop_left_is_moved_after_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    client = consumer(engine)
    engine.publish("t", b"x")
    engine.components.shared.hooks.move_out = lambda _channel, _indexes: None  # it ended first
    fail_all(client)
    engine.advance(SECOND)
    assert client.channel.window.buried_count == 1
    engine.crash(KEEP)
    engine.start()
    channel = engine.topic("t").channels["c"]
    assert channel.window.buried_count == 1
    channel.apply_policy(MOVING)
    engine.settle()
    assert channel.window.buried_count == 0 and bodies(engine, "t.c.dead") == [b"x"]


@pytest.mark.parametrize("act", list(Act))
def test_kicks_and_discards_by_id_pass_over_what_is_being_moved(act: Act) -> None:
    """Rule 3, in one record: a thousand of each would take the loop half a second."""
    engine = Engine()
    channel = poisoned(engine, 1000)
    assert channel.window.buried is not None
    indexes = channel.window.buried.indexes()
    channel.moving = frozenset(indexes[:500])
    sweep = Sweep(channel, act, Chosen(indexes[::-2]))
    assert engine.done(sweep.start()) is None
    assert sweep.done_count == 250
    assert channel.window.buried.indexes() == indexes[:500] + indexes[500::2]
    journal = engine.files.read(engine.topic("t").keeper.path)
    assert [found.kind for found in records(journal)].count(UNBURIED) == 1


@pytest.mark.parametrize("searching", [True, False])
def test_a_turn_looks_at_a_batch_of_messages(searching: bool) -> None:
    """Also if none of them is moved any more: a policy has changed, or they were kicked."""
    engine = Engine()
    count = 3 * BATCH_COUNT_MAX
    channel = poisoned(engine, count)
    looked_at = []

    def wanted(row: Burial, picked_count: int) -> bool:
        looked_at.append(row)
        return False

    owed = Owed(channel, wanted)
    if searching:
        owed.search()
    else:
        assert channel.window.buried is not None
        owed.add(channel.window.buried.indexes())
    for turn in range(1, 4):
        assert not owed.pick()
        assert len(looked_at) == turn * BATCH_COUNT_MAX
    assert owed.pick() is None and owed.idle


def test_a_deleted_channel_ends_its_moves() -> None:
    engine = Engine()
    channel = poisoned(engine, 3)
    task = engine.components.moves.move(channel, "other", Chosen())
    engine.topic("t").delete_channel("c")
    engine.settle()
    assert task.ticket.done and task.moved_count == 0
    assert bodies(engine, "other") == []


def test_an_exit_ends_the_moves_that_somebody_waits_for() -> None:
    engine = Engine()
    channel = poisoned(engine, 3 * BATCH_COUNT_MAX)
    task = engine.components.moves.move(channel, "other", Chosen())
    while not channel.moving:
        engine.turns.calls.popleft()()
    engine.components.refuse_all()
    engine.settle()
    assert isinstance(task.ticket.error, MoveError) and task.ticket.error.code == "EXITING"
    assert task.moved_count == BATCH_COUNT_MAX
    assert channel.window.buried_count == 2 * BATCH_COUNT_MAX


def test_moves_of_a_channel_are_bounded() -> None:
    engine = Engine()
    channel = poisoned(engine, 20)
    tasks = []
    with pytest.raises(MoveError, match="too many") as caught:
        for _ in range(17):
            tasks.append(engine.components.moves.move(channel, "other", Chosen(None, 1)))
    assert caught.value.code == "TOO_MANY_REQUESTS" and len(tasks) == 16
    engine.settle()
    assert [task.moved_count for task in tasks] == [1] * 16
