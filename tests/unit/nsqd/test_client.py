"""A client's connection, without a daemon: how much of it is kept while the disk is behind."""

from __future__ import annotations

from typing import Any

from penstock.wire import commands
from tests.support.turns import TurnEngine

TOPICS = ("a", "b", "c")
# A slice of commands (12,800), and the batches that a client may wait for.
OWED_COUNT_MAX = 14_000


def test_replies_that_wait_for_batches_of_many_topics_are_bounded() -> None:
    """R29: each publish to another topic than the one before owes a reply of its own."""
    engine = TurnEngine()
    for name in TOPICS:
        engine.broker.create_topic(name)
    engine.settle()
    peer = engine.connect()
    peer.send(b"  V2")
    engine.settle()
    packet = b"".join(commands.pub(name, b"x") for name in TOPICS) * 1000
    sent = 0
    for _ in range(40):
        sent += peer.send_some(packet)
        turn(engine)
    (client,) = engine.services.clients.connected
    owed: list[Any] = client.scanner.owed
    assert 1000 < len(owed) < OWED_COUNT_MAX
    assert sent < 40 * len(packet), "the client is not read"
    engine.settle()
    assert not owed
    engine.stop()


def turn(engine: TurnEngine) -> None:
    """What the loop does while nothing is written."""
    for call in engine.readable():
        call()
    while engine.turns.calls:
        engine.turns.calls.popleft()()
