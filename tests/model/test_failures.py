"""Consumers that fail in every way, while policies change: nothing is lost, and nothing is stuck.

Consumers come and go, set RDY, stop reading, finish, requeue, bury and time out; messages are
kicked, moved by a policy and sought; the node exits, crashes and starts again.  At the end all that
is left is kicked, and consumers that finish everything get it.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.settings.policy import BURY, DEFAULT, MOVE, Policy
from tests.crash.lossy import KEEP
from tests.support.engine import MS, SECOND, Client, Engine, Received

STEPS = 250
# Without a dead_topic the name of the topic to move to is too long, and messages wait for room.
CHANNEL = "c" * 60
READY_COUNTS = (0, 1, 2, 5, 30)


class Days:
    """One topic, one channel, and what was published and finished."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = Engine(seed=seed, sync_every=1, max_bytes_per_file=2000)
        self.clients: dict[Client, list[Received]] = {}
        self.published: list[bytes] = []
        self.finished: set[bytes] = set()
        self.policy = DEFAULT
        self.join()
        self.set_policy()

    @property
    def channel(self) -> Channel:
        return self.engine.topic("t").channels[CHANNEL]

    def join(self) -> None:
        timeout_ns = self.random.choice((SECOND, 3 * SECOND))
        ready_count = self.random.choice(READY_COUNTS)
        self.clients[Client(self.engine, "t", CHANNEL, ready_count, timeout_ns)] = []

    def leave(self) -> None:
        if len(self.clients) > 1:
            client = self.random.choice(list(self.clients))
            del self.clients[client]
            client.close()

    def set_policy(self) -> None:
        choose = self.random.choice
        keys: dict[str, Any] = {
            "max_attempts": choose((0, 1, 2, 3, 5)),
            "requeue_backoff": choose((None, (10 * MS, SECOND))),
            "on_max_attempts": choose((BURY, BURY, MOVE)),
            "max_buried": choose((5, 1000)),
            "msg_ttl_ns": choose((0, 0, 20 * SECOND)),
            "on_expired": BURY,
            "dead_topic": choose(("dead", "")),
        }
        self.apply(dataclasses.replace(DEFAULT, **keys))

    def apply(self, policy: Policy) -> None:
        self.policy = policy
        self.channel.apply_policy(policy)

    def publish(self) -> None:
        start = len(self.published)
        bodies = [b"%d" % i for i in range(start, start + self.random.randrange(1, 20))]
        assert self.engine.publish("t", *bodies) is None
        self.published += bodies

    def change_ready(self) -> None:
        client = self.random.choice(list(self.clients))
        client.consumer.writable = self.random.random() < 0.7
        client.ready(self.random.choice(READY_COUNTS))

    def kick(self) -> None:
        sweep = Sweep(self.channel, Act.KICK, Chosen(None, self.random.choice((1, 5, 1000))))
        assert self.engine.done(sweep.start()) is None

    def pause(self) -> None:
        self.channel.pause(not self.channel.paused)

    def seek(self) -> None:
        topic = self.engine.topic("t")
        if not self.channel.moving and not topic.whole_from:
            assert self.engine.done(topic.rewind(self.channel, topic.log.first)) is None

    def restart(self) -> None:
        engine = self.engine
        if self.random.random() < 0.5:
            engine.exit()
        else:
            engine.crash(KEEP)
        engine.start()
        self.clients.clear()
        self.join()
        self.apply(self.policy)

    def answer(self) -> None:
        client = self.random.choice(list(self.clients))
        held = self.clients[client] = self.clients[client] + client.take()
        self.random.shuffle(held)
        for _ in range(min(len(held), self.random.randrange(1, 10))):
            message, way = held.pop(), self.random.random()
            if way < 0.5:
                if client.finish(message.index) == 0:
                    self.finished.add(message.body)
            elif way < 0.75:
                client.requeue(message.index, self.random.choice((0, 0, SECOND)))
            elif way < 0.9:
                client.bury(message.index)

    def play(self) -> None:
        rare = [self.join, self.leave, self.set_policy, self.kick, self.pause, self.seek]
        for _ in range(STEPS):
            way = self.random.random()
            if way < 0.25:
                self.publish()
            elif way < 0.5:
                self.random.choice([*rare, self.restart, self.change_ready, self.change_ready])()
            else:
                self.answer()
            self.engine.advance(self.random.choice((0, 10 * MS, 200 * MS, SECOND)))
            self.engine.check()

    def finish(self) -> set[bytes]:
        """Deliver all that is left; returns the bodies that came, or are in the dead topic."""
        engine, came = self.engine, set[bytes]()
        self.apply(DEFAULT)
        self.channel.pause(False)
        while self.channel.moving:
            engine.advance(SECOND)
        self.kick()
        while self.channel.window.buried_count:
            self.kick()
        for client in self.clients:
            client.consumer.writable = True
            client.ready(10)
        for _ in range(1000):
            for client in self.clients:
                for message in client.take():
                    came.add(message.body)
                    client.finish(message.index)
            engine.advance(200 * MS)
            channel = self.channel
            if not channel.depth + channel.in_flight_count + channel.deferred_count:
                break
        else:
            raise AssertionError("messages are stuck")
        dead = engine.logged("dead").values() if "dead" in engine.broker.topics else ()
        return came | set(dead)


@pytest.mark.parametrize("seed", range(1, 31))
def test_whatever_fails_nothing_is_lost_and_nothing_is_stuck(seed: int) -> None:
    days = Days(seed)
    days.play()
    left = days.finish()
    missing = set(days.published) - days.finished - left
    assert not missing, f"lost {sorted(missing)}"
