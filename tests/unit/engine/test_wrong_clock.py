"""A clock that is decades off, or leaps to and fro: nothing is used up, and every start works."""

from __future__ import annotations

import json
import logging

import pytest

from penstock.wire.ids import INDEX_MAX
from tests.crash.lossy import KEEP
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

YEAR = 365 * 24 * HOUR
# From the manual clock's 2027: before and behind the end of an index's 54 bits in 2109, and 1970.
LEAPS = {"2099": 72 * YEAR, "2108": 81 * YEAR, "2110": 83 * YEAR, "2200": 173 * YEAR, "1970": 0}


def leap(engine: Engine, name: str) -> int:
    step_ns = LEAPS[name] or -engine.clock.wall_ns()
    engine.clock.step_wall(step_ns)
    return step_ns


def floor(engine: Engine) -> int:
    return int(json.loads(engine.files.read(engine.data.node))["index_floor"])


def works(engine: Engine, *bodies: bytes) -> list[int]:
    """Publish, receive and finish; the indexes."""
    client = Client(engine, "t", "c", ready_count=100)
    engine.settle()
    indexes = []
    for body in bodies:
        assert engine.publish("t", body) is None
    for received in client.take():
        assert received.index <= INDEX_MAX and len(received.id) == 16
        assert client.finish(received.index) == 0
        indexes.append(received.index)
    assert len(indexes) == len(bodies)
    client.close()
    return indexes


@pytest.mark.parametrize("name", LEAPS)
def test_a_leap_of_the_clock_for_a_moment_leaves_ids_and_starts_as_they_are(name: str) -> None:
    engine = Engine()
    before = works(engine, b"before")
    step_ns = leap(engine, name)
    engine.advance(2500 * MS)
    during = works(engine, b"during")
    engine.broker.create_topic("new")
    engine.advance(2500 * MS)
    engine.clock.step_wall(-step_ns)
    engine.advance(2500 * MS)
    assert 0 < floor(engine) <= INDEX_MAX
    engine.crash(KEEP)
    engine.start()
    assert not engine.components.damage.records
    after = works(engine, b"after")
    assert before < during < after
    assert engine.components.health.problem is None and engine.publish("new", b"x") is None


@pytest.mark.parametrize("name", LEAPS)
def test_a_node_that_starts_with_a_wrong_clock_works_then_and_later(name: str) -> None:
    engine = Engine()
    before = works(engine, b"before")
    engine.exit()
    step_ns = leap(engine, name)
    engine.start()
    during = works(engine, b"during")
    engine.exit()
    engine.clock.step_wall(-step_ns)
    for body in (b"after", b"again"):
        engine.start()
        after = works(engine, body)
        assert before < during < after
        during = after
        engine.exit()


@pytest.mark.parametrize("name", LEAPS)
def test_a_fresh_node_with_a_wrong_clock_works_then_and_later(name: str) -> None:
    engine = Engine()
    engine.exit()
    for path in (engine.data.node, engine.data.node_copy):
        engine.files.unlink(path)
    step_ns = leap(engine, name)
    engine.start()
    first = works(engine, b"one")
    engine.advance(SECOND)
    engine.crash(KEEP)
    engine.clock.step_wall(-step_ns)
    engine.start()
    assert works(engine, b"two") > first


@pytest.mark.parametrize("name", ["2110", "2200"])
def test_a_deferred_message_survives_a_leap_and_an_emptied_one_stays_away(name: str) -> None:
    """Stamps and due times made of such a clock are as good as any other."""
    engine = Engine()
    works(engine, b"x")
    step_ns = leap(engine, name)
    engine.advance(2 * SECOND)
    assert engine.defer("t", MINUTE, b"void") is None
    assert engine.done(engine.topic("t").empty()) is None
    assert engine.defer("t", MINUTE, b"kept") is None
    engine.crash(KEEP)
    engine.start()
    engine.advance(2 * MINUTE)
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert [received.body for received in client.take()] == [b"kept"]
    client.close()
    engine.clock.step_wall(-step_ns)
    assert engine.defer("t", MINUTE, b"void too") is None
    assert engine.done(engine.topic("t").empty()) is None
    assert engine.defer("t", MINUTE, b"kept too") is None
    engine.crash(KEEP)
    engine.start()
    engine.advance(2 * MINUTE)
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert b"kept too" in [received.body for received in client.take()]


def test_a_clock_past_2100_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    with caplog.at_level(logging.WARNING):
        leap(engine, "2110")
        engine.advance(10 * SECOND)
    assert sum("clock" in record.getMessage() for record in caplog.records) == 1


def test_used_up_ids_refuse_publishes_and_lose_nothing() -> None:
    engine = Engine()
    works(engine, b"x")
    client = Client(engine, "t", "c", ready_count=0)
    assert engine.publish("t", b"kept") is None
    engine.components.identity.reached(INDEX_MAX - 5)
    assert (
        engine.components.health.problem is not None and "used up" in engine.components.health.text
    )
    assert "used up" in str(engine.publish("t", b"no"))
    client.ready(10)
    engine.settle()
    assert [received.body for received in client.take()] == [b"kept"]
    engine.crash(KEEP)
    engine.start()
    assert "used up" in engine.components.health.text and floor(engine) <= INDEX_MAX
