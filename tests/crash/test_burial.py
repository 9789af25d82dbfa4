"""R24: burying, kicking and discarding, through every crash point and power cut."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import pytest

from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.settings.policy import BURY as ON_EXPIRED
from penstock.settings.policy import DEFAULT
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.engine import SECOND, Client, Engine

BURYING = dataclasses.replace(DEFAULT, max_attempts=1)
EXPIRING = dataclasses.replace(BURYING, msg_ttl_ns=30 * SECOND, on_expired=ON_EXPIRED)


class Life:
    """A broker on which messages are buried, and then kicked or discarded."""

    def __init__(self, files: LossyFiles) -> None:
        self.published: set[bytes] = set()  # and synced
        self.kicked: set[bytes] = set()  # and answered, as all that follow
        self.discarded: set[bytes] = set()
        self.ending: set[bytes] = set()  # a finish or a discard was begun
        self.engine = Engine(files, sync_every=1)

    def publish(self, *bodies: bytes) -> None:
        assert self.engine.publish("t", *bodies) is None
        self.published |= set(bodies)

    def consume(self) -> Client:
        client = Client(self.engine, "t", "c", ready_count=20)
        client.channel.apply_policy(BURYING)
        self.engine.settle()
        return client

    def sweep(self, client: Client, act: Act, *bodies: bytes) -> None:
        """The messages with these bodies."""
        logged = self.engine.logged("t")
        indexes = [index for index, body in logged.items() if body in bodies]
        if act is Act.DISCARD:
            self.ending |= set(bodies)
        sweep = Sweep(client.channel, act, Chosen(indexes))
        error = self.engine.done(sweep.start())
        if error is None and sweep.done_count == len(bodies):
            (self.discarded if act is Act.DISCARD else self.kicked).update(bodies)

    def play(self) -> None:
        """Ends early when the machine stops."""
        engine = self.engine
        client = self.consume()
        self.publish(b"a", b"b", b"c", b"d", b"e")
        for message in client.take():
            client.requeue(message.index)
        engine.advance(SECOND)
        self.sweep(client, Act.KICK, b"a", b"b")
        for message in client.take():
            if message.body == b"a":
                self.ending.add(b"a")
                client.finish(message.index)
        self.sweep(client, Act.DISCARD, b"d")
        self.publish(b"f", b"g")
        for message in client.take():
            client.bury(message.index, "no use")
        self.sweep(client, Act.KICK, b"f")  # nothing of it is in the journal yet
        engine.done(engine.topic("t").keeper.rewrite())
        self.sweep(client, Act.KICK, b"c")
        self.sweep(client, Act.DISCARD, b"g")
        client.ready(0)
        self.publish(b"h", b"i", b"j")
        client.channel.apply_policy(EXPIRING)
        engine.advance(40 * SECOND)
        self.sweep(client, Act.KICK, b"h")
        self.sweep(client, Act.DISCARD, b"i")
        engine.advance(3 * SECOND)

    def restart(self, mode: str, seed: int) -> None:
        self.engine.crash(mode, seed)
        self.engine.start()
        self.engine.check()

    def judge(self) -> None:
        """Each message is in one state, and in the one that was answered."""
        if "t" not in self.engine.broker.topics:
            assert not self.published
            return
        channel = self.engine.topic("t").channels.get("c")
        if channel is None:
            assert not self.published
            return
        logged = self.engine.logged("t")
        table = channel.window.buried
        buried = {logged[index] for index in table.indexes()} if table is not None else set()
        unfinished = set(self.engine.unfinished("t", "c"))
        assert not buried & unfinished
        lost = self.published - buried - unfinished - self.ending
        assert not lost, f"lost {lost}"
        assert not self.kicked & buried, "buried again"
        assert not self.discarded & (buried | unfinished), "discarded in vain"

    def finish(self) -> None:
        """Everything that is left can be kicked and consumed."""
        client = self.consume()
        left = set(self.engine.unfinished("t", "c"))
        table = client.channel.window.buried
        count = len(table) if table is not None else 0
        sweep = Sweep(client.channel, Act.KICK, Chosen())
        assert self.engine.done(sweep.start()) is None
        assert sweep.done_count == count
        self.engine.advance(SECOND)
        came: list[bytes] = []
        while messages := client.take():  # some are delivered alone
            for message in messages:
                came.append(message.body)
                assert client.finish(message.index) == 0
            self.engine.settle()
        assert len(came) == len(set(came)) == len(left) + count
        assert self.published - self.ending <= set(came)
        self.engine.advance(SECOND)
        self.engine.crash()
        self.engine.start()
        assert self.engine.unfinished("t", "c") == {}


def steps() -> tuple[int, int]:
    files = LossyFiles()
    life = Life(files)
    first = files.step_count
    life.play()
    life.judge()
    assert life.kicked == {b"a", b"b", b"c", b"f", b"h"}
    assert life.discarded == {b"d", b"g", b"i"}
    return first, files.step_count


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX, HOLES])
def test_a_crash_at_any_step_leaves_each_message_in_one_state(mode: str) -> None:
    first, last = steps()
    for crash_at in range(first, last + 1):
        files = LossyFiles()
        life = Life(files)
        files.crash_at = crash_at
        with suppress(Crashed):
            life.play()
        life.restart(mode, seed=crash_at)
        life.judge()
        if crash_at % 3 == 0:
            life.restart(mode, seed=crash_at + 1)
            life.judge()
        if life.published:
            life.finish()


def test_a_journal_cut_at_any_byte_loses_no_message() -> None:
    """Rule 1 of storage/burials.py: a message is unfinished or buried, wherever it is torn."""
    files = LossyFiles()
    life = Life(files)
    life.play()
    life.engine.crash(KEEP)
    folder = life.engine.topic("t").keeper.path
    whole = bytes(files.read(folder))
    wall_ns = life.engine.clock.wall_ns()
    for size in range(0, len(whole), 7):
        copy = LossyFiles()
        other = Life(copy)
        other.play()
        other.engine.crash(KEEP)
        copy.truncate(other.engine.topic("t").keeper.path, size)
        other.engine = Engine.of(copy, wall_ns)
        other.engine.check()
        channel = other.engine.topic("t").channels.get("c")
        if channel is None:
            continue
        other.discarded.clear()
        other.kicked.clear()
        other.judge()
