"""Messages that are moved to another topic, through every crash point: each is there once (R25)."""

from __future__ import annotations

import pytest

from penstock.core.ticket import Ticket
from penstock.engine.writer import Arrival
from penstock.storage.moved import encode_ordinals, origin_of
from tests.crash.lossy import KEEP, LOSE, PREFIX
from tests.support.engine import SECOND, Client, Engine


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX])
@pytest.mark.parametrize("synced", [False, True])
def test_a_start_finishes_what_was_moved(mode: str, synced: bool) -> None:
    """Moved, and not finished at the source yet; delivered, requeued or still queued there."""
    engine = Engine()
    source, _ = engine.broker.create_topic("t")
    client = Client(engine, "t", "c", ready_count=3)
    engine.publish("t", *[b"%d" % i for i in range(6)])
    engine.publish("dead", b"first")
    indexes = [message.index for message in client.take()]
    client.requeue(indexes[1])
    engine.advance(SECOND)
    assert engine.done(engine.topic("t").sync_log()) is None
    moved = [indexes[0], indexes[1], indexes[2] + 1]
    dead = engine.topic("dead")
    messages = [(b"moved %d" % i, 7) for i in range(3)]
    origin = origin_of(source.instance, source.channels["c"].id, moved[0])
    ticket = Ticket()
    dead.writer.receive(Arrival(messages, *origin, encode_ordinals(moved), ticket))
    dead.flush()
    assert engine.done(ticket) is None
    if synced:
        assert engine.done(dead.sync_log()) is None
    engine.crash(mode, seed=3)
    for _ in range(3):
        engine.start()
        engine.check()
        arrived = len(engine.logged("dead")) == 4
        assert arrived or not (synced or mode == KEEP)
        left = {b"%d" % i for i in range(6)} - ({b"0", b"1", b"3"} if arrived else set())
        assert set(engine.unfinished("t", "c")) == left
        assert dead.name in engine.broker.topics
        engine.advance(2 * SECOND)
        engine.crash(LOSE if arrived else KEEP)
    engine.start()
    engine.exit()
    engine.start()
    again = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    assert {message.body for message in again.take()} == left
    assert not engine.topic("dead").log.holds
