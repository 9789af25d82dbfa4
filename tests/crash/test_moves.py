"""Messages that are moved to another topic, through every crash point: each is there once (R25)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from contextlib import suppress

import pytest

from penstock.core.ticket import Ticket
from penstock.engine.moves.sweep import Chosen
from penstock.engine.writer import Arrival
from penstock.settings.policy import DEFAULT, MOVE
from penstock.storage.moved import encode_ordinals, origin_of
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.engine import MINUTE, SECOND, Client, Engine

MOVING = dataclasses.replace(DEFAULT, max_attempts=1, on_max_attempts=MOVE, dead_topic="dead")
# The topics that messages are in at the end.
PLACES = ("t", "dead", "by.hand")


class Life:
    """A broker on which poison messages fail, and are moved by the policy or by hand."""

    def __init__(
        self, files: LossyFiles, sync_every: int, delete: str = "", turns_before: int = 0
    ) -> None:
        self.delete = delete
        self.turns_before = turns_before  # turns and disk works between a failure and the deletion
        self.answered: set[bytes] = set()
        self.deleted: set[bytes] = set()  # in the dead topic when it was deleted
        self.instance = 0  # of that
        self.engine = Engine(files, sync_every=sync_every)

    def publish(self, *bodies: bytes) -> None:
        """Answered ones are synced, whatever --sync-every says."""
        assert self.engine.publish("t", *bodies) is None
        assert self.engine.done(self.engine.topic("t").sync_log()) is None
        self.answered |= set(bodies)

    def consume(self) -> Client:
        client = Client(self.engine, "t", "c", ready_count=20)
        client.channel.apply_policy(MOVING)
        self.engine.settle()
        return client

    def play(self) -> None:
        """Ends early when the machine stops."""
        engine = self.engine
        client = self.consume()
        self.publish(*[b"poison %d" % i for i in range(4)], b"by hand 0", b"by hand 1")
        self.fail(client)
        engine.advance(SECOND)
        engine.components.moves.move(client.channel, "by.hand", Chosen())
        engine.settle()
        self.publish(*[b"later %d" % i for i in range(3)])
        self.fail(client)
        engine.advance(2 * SECOND)
        engine.advance(3 * SECOND)

    def fail(self, client: Client) -> None:
        """Every delivery fails, or its client buries the message."""
        for message in client.take():
            if message.body.startswith(b"by hand"):
                client.bury(message.index, "no use")
            else:
                client.requeue(message.index)
        if self.delete:
            self.begin_delete()
        self.engine.settle()

    def begin_delete(self) -> None:
        """Delete a topic in the middle of a move."""
        engine = self.engine
        for _ in range(self.turns_before):
            if engine.turns.calls:
                engine.turns.calls.popleft()()
            elif engine.disk.works:
                engine.disk.step()
        topic = engine.broker.topics.get(self.delete)
        if topic is not None and not self.instance:
            self.instance = topic.instance
            engine.broker.delete_topic(self.delete)
            while engine.broker.topics.get(self.delete) is topic:
                # A batch that is being written is still added to it.
                self.deleted |= set(engine.logged(self.delete).values())
                if engine.turns.calls:
                    engine.turns.calls.popleft()()
                elif engine.disk.works:
                    engine.disk.step()
                else:
                    break

    def restart(self, mode: str, seed: int) -> None:
        self.engine.crash(mode, seed)
        self.engine.start()
        self.engine.check()

    def finish(self) -> Counter[bytes]:
        """Let all come to its end; the messages in the topics that they were moved to."""
        engine = self.engine
        for _ in range(4):
            client = self.consume()
            self.fail(client)
            engine.advance(5 * SECOND)
            client.close()
        if client.channel.window.buried_count:
            engine.components.moves.move(client.channel, "by.hand", Chosen())
        engine.advance(2 * MINUTE)
        engine.check()
        assert client.channel.window.buried_count == 0 and client.channel.depth == 0
        moved = [
            b for t in PLACES[1:] if t in engine.broker.topics for b in engine.logged(t).values()
        ]
        assert not any(engine.topic(t).log.holds for t in PLACES if t in engine.broker.topics)
        return Counter(moved)


def steps(sync_every: int, delete: str = "", turns_before: int = 0) -> tuple[int, int]:
    files = LossyFiles()
    life = Life(files, sync_every, delete, turns_before)
    first = files.step_count
    life.play()
    return first, files.step_count


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX, HOLES])
@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_crash_at_any_step_moves_everything_once(mode: str, sync_every: int) -> None:
    """R25: also by power cuts, which lose what is not synced, and a second crash right after."""
    first, last = steps(sync_every)
    for crash_at in range(first, last + 1):
        files = LossyFiles()
        life = Life(files, sync_every)
        files.crash_at = crash_at
        with suppress(Crashed):
            life.play()
        life.restart(mode, seed=crash_at)
        if crash_at % 3 == 0:
            life.restart(mode, seed=crash_at + 1)
        moved = life.finish()
        assert max(moved.values(), default=0) <= 1, f"twice: {moved}, crash at {crash_at}"
        missing = life.answered - set(moved)
        assert not missing, f"lost {missing}, crash at {crash_at}"


@pytest.mark.parametrize("delete", ["dead", "t"])
@pytest.mark.parametrize("mode", [KEEP, LOSE])
def test_a_topic_deleted_in_the_middle_doubles_nothing(delete: str, mode: str) -> None:
    """R25: what was in the dead topic when it was deleted went with it."""
    for turns_before in range(0, 40, 3):
        first, last = steps(1, delete, turns_before)
        for crash_at in range(first, last + 1, 4):
            files = LossyFiles()
            life = Life(files, 1, delete, turns_before)
            files.crash_at = crash_at
            with suppress(Crashed):
                life.play()
            life.restart(mode, seed=crash_at)
            found = life.engine.broker.topics.get("dead")
            moved = life.finish()
            where = f"crash at {crash_at}, deleted after {turns_before}"
            assert max(moved.values(), default=0) <= 1, f"twice: {moved}, {where}"
            if delete == "dead":
                gone = life.deleted if found is None or found.instance != life.instance else set()
                assert not gone & moved.keys(), f"again: {gone & moved.keys()}, {where}"
                missing = life.answered - moved.keys() - life.deleted
                assert not missing, f"lost {missing}, {where}"


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
