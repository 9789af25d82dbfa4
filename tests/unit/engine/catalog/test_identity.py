"""Who a node is, and that its indexes never come back."""

from __future__ import annotations

from penstock.engine.options import Options
from penstock.wire.ids import split_id
from tests.support.engine import HOUR, Client, Engine


def test_a_node_keeps_its_uuid() -> None:
    """R7: Spark knows a node by it."""
    engine = Engine()
    uuid = engine.components.identity.uuid
    engine.exit()
    engine.start()
    assert engine.components.identity.uuid == uuid != ""
    assert Engine().components.identity.uuid != uuid


def test_a_new_node_id_begins_a_new_segment() -> None:
    """R7: ids are made of the node id, so it stands in the segment's header."""
    engine = Engine()
    engine.broker.create_topic("t")[0].create_channel("c")
    engine.settle()
    engine.publish("t", b"old")
    engine.exit()
    engine.options = Options(data_path=engine.root, node_id=6)
    engine.start()
    engine.publish("t", b"new")
    log = engine.topic("t").log
    assert len([segment for segment in log.segments() if segment.count]) == 2
    ids = {
        body: split_id(frame[18:34])
        for index, body in engine.logged("t").items()
        if (frame := log.frame(index, wait=True))
    }
    assert {body: found and found[0] for body, found in ids.items()} == {b"old": 5, b"new": 6}


def test_indexes_ascend_over_restarts_though_the_clock_steps_back() -> None:
    """R1, R4: not even when a power cut took the log's end."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=100)
    engine.publish("t", b"one")
    highest = max(received.index for received in client.take())
    engine.crash("lose")
    engine.clock.step_wall(-100 * HOUR)
    engine.start()
    engine.publish("t", b"two")
    assert min(engine.logged("t")) > highest


def test_indexes_ascend_though_the_clock_ran_ahead_for_a_moment() -> None:
    """R1: what a new topic gave then lies below the floor that a restart begins at."""
    engine = Engine()
    engine.clock.step_wall(HOUR)
    client = Client(engine, "t", "c", ready_count=100)
    engine.publish("t", b"one")
    highest = max(received.index for received in client.take())
    engine.crash("lose")
    engine.clock.step_wall(-HOUR)
    engine.start()
    engine.publish("t", b"two")
    assert min(engine.logged("t")) > highest
