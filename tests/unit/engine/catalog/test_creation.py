"""New topics, many at once: durable when answered, and in nobody's way (R6, R9)."""

from __future__ import annotations

import errno

import pytest

from penstock.core.ticket import Ticket
from penstock.engine.catalog.creation import BATCH_COUNT
from penstock.engine.components import CHANGE_WORK_COUNT_MAX
from penstock.engine.rounds import SYNC_COUNT_MAX, WRITE_COUNT_MAX
from tests.crash.lossy import KEEP, LOSE, PREFIX
from tests.support.engine import MS, SECOND, Client, Engine

MANY = 5 * BATCH_COUNT


def flood(engine: Engine, count: int = MANY) -> list[Ticket]:
    """Name ``count`` new topics with a message each, in one turn of the loop."""
    tickets = []
    for number in range(count):
        topic, created = engine.broker.create_topic(f"new{number}")
        topic.publish([b"first"])
        tickets.append(created)
    return tickets


def run_some(engine: Engine, work_count: int) -> None:
    """Let the disk do ``work_count`` works, in order, and the loop what follows of them."""
    for _ in range(work_count):
        while engine.turns.calls:
            engine.turns.calls.popleft()()
        if engine.disk.works:
            engine.disk.step()
    while engine.turns.calls:
        engine.turns.calls.popleft()()


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_flood_of_new_topics_leaves_the_disk_to_the_others(sync_every: int) -> None:
    """However many are named, few works of theirs are with the disk at once."""
    engine = Engine(sync_every=sync_every)
    client = Client(engine, "old", "c", ready_count=100)
    engine.settle()
    engine.publish("old", b"0")
    tickets = flood(engine)
    worst = 0
    for _ in range(100_000):
        if engine.turns.calls:
            engine.turns.calls.popleft()()
        elif engine.disk.works:
            worst = max(worst, len(engine.disk.works))
            engine.disk.step()
        else:
            break
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert worst <= CHANGE_WORK_COUNT_MAX + SYNC_COUNT_MAX + WRITE_COUNT_MAX
    assert [received.body for received in client.take()] == [b"0"]


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_publishes_and_finishes_of_others_do_not_wait_for_a_flood(sync_every: int) -> None:
    engine = Engine(sync_every=sync_every)
    client = Client(engine, "old", "c", ready_count=100)
    engine.settle()
    engine.publish("old", b"0", b"1")
    tickets = flood(engine)
    run_some(engine, 2)
    published = engine.topic("old").publish([b"2"])
    first = client.take()[0]
    client.finish(first.index)
    engine.clock.advance(200 * MS)  # the round of the journals
    engine.turns.fire()
    run_some(engine, 12)
    assert published.done and published.error is None
    assert not all(ticket.done for ticket in tickets)
    engine.crash(KEEP)
    engine.start()
    assert b"0" not in engine.unfinished("old", "c")


@pytest.mark.parametrize("mode", [LOSE, PREFIX, KEEP])
def test_what_was_answered_of_a_flood_survives_a_power_cut_at_any_moment(mode: str) -> None:
    for work_count in range(1, 400, 13):
        engine = Engine(seed=work_count)
        tickets = flood(engine, BATCH_COUNT + 20)
        run_some(engine, work_count)
        answered = [n for n, ticket in enumerate(tickets) if ticket.done and not ticket.error]
        engine.crash(mode, work_count)
        engine.start()
        missing = [n for n in answered if f"new{n}" not in engine.broker.topics]
        assert not missing, (work_count, missing)
        assert not engine.components.damage.records, (work_count, engine.components.damage.records)


def test_a_folder_that_cannot_be_made_concerns_its_topic_only() -> None:
    engine = Engine()
    engine.files.faults.add("*/new3~*", errno.ENOSPC, "make_folder")
    tickets = flood(engine, 10)
    engine.settle()
    engine.files.faults.heal()
    assert [n for n, ticket in enumerate(tickets) if ticket.error is not None] == [3]
    assert "new3" not in engine.broker.topics and len(engine.broker.topics) == 9
    assert engine.publish("new3", b"again") is None


def test_names_that_cannot_be_kept_are_topics_that_are_not_made() -> None:
    engine = Engine()
    engine.files.fail("sync_folder", errno.EIO)
    tickets = flood(engine, 10)
    engine.settle()
    assert all(ticket.error is not None for ticket in tickets)
    assert not engine.broker.topics
    engine.advance(3 * SECOND)
    assert engine.publish("new3", b"again") is None and engine.components.health.problem is None


def test_a_journal_that_cannot_be_written_is_written_later() -> None:
    engine = Engine()
    engine.files.faults.add("*/new2~*/journal", errno.EIO, "append", times=1)
    tickets = flood(engine, 5)
    engine.settle()
    assert [n for n, ticket in enumerate(tickets) if ticket.error is not None] == [2]
    topic, again = engine.broker.create_topic("new2")
    assert engine.done(again) is None
    channel, made = topic.create_channel("c")
    assert engine.done(made) is None and channel.depth == 1
    engine.crash(LOSE)
    engine.start()
    assert set(engine.topic("new2").channels) == {"c"}


def test_a_topic_deleted_while_it_waits_to_be_made_does_not_come_back() -> None:
    engine = Engine()
    flood(engine)
    last = f"new{MANY - 1}"
    deleted = engine.broker.delete_topic(last)
    assert engine.done(deleted) is None
    assert last not in engine.broker.topics
    engine.crash(KEEP)
    engine.start()
    assert last not in engine.broker.topics and len(engine.broker.topics) == MANY - 1
    assert not engine.components.damage.records


def test_channels_of_topics_that_wait_to_be_made_are_there_when_answered() -> None:
    engine = Engine()
    flood(engine)
    clients = [Client(engine, f"new{n}", "c", ready_count=5) for n in range(0, MANY, 7)]
    engine.settle()
    assert all(client.ticket.done and client.ticket.error is None for client in clients)
    assert all([r.body for r in client.take()] == [b"first"] for client in clients)
    engine.crash(LOSE)
    engine.start()
    for client in clients:
        assert client.name[1] in engine.topic(client.name[0]).channels


def test_the_loop_asks_nothing_of_the_files_when_a_topic_is_named() -> None:
    engine = Engine()
    engine.files.faults.add("*", errno.EIO)
    topic, created = engine.broker.create_topic("t")
    _, made = topic.create_channel("c")
    published = topic.publish([b"1"])
    engine.files.faults.heal()
    assert [engine.done(ticket) for ticket in (created, made, published)] == [None] * 3
