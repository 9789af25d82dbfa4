"""A topic that retains, with one consumer that finishes everything."""

from __future__ import annotations

import dataclasses
from typing import Any

from penstock.engine.topic import Topic
from penstock.settings.policy import DEFAULT
from tests.crash.lossy import KEEP
from tests.support.engine import MS, Client, Engine, Received

# A segment of an idle topic goes with the upkeep after it is due; a roll takes two of them.
LATE_NS = 5_000 * MS


def retaining(engine: Engine, name: str, **keys: Any) -> Topic:
    """The topic, created if it is missing, with a policy."""
    engine.broker.create_topic(name)
    engine.settle()
    topic = engine.topic(name)
    topic.apply_policy(dataclasses.replace(DEFAULT, **keys))
    return topic


class Reader:
    """Topic "t" with the channel "c", whose consumer finishes what it gets."""

    def __init__(self, *, retain_ns: int = 0, retain_bytes: int = 0, **options: Any) -> None:
        self.engine = Engine(**options)
        self.keys = {"retain_ns": retain_ns, "retain_bytes": retain_bytes}
        self._open()

    def _open(self) -> None:
        if any(self.keys.values()):
            retaining(self.engine, "t", **self.keys)
        self.client = Client(self.engine, "t", "c", 1000)
        self.engine.settle()

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    def policy(self, **keys: int) -> None:
        self.keys = keys
        retaining(self.engine, "t", **keys)

    def restart(self, step_ns: int = 0) -> None:
        """Kill the broker, set the clock, start it again."""
        self.engine.crash(KEEP)
        self.engine.clock.step_wall(step_ns)
        self.engine.start()
        self._open()

    def work(self, count: int, *, body_size: int = 1000, finish: bool = True) -> list[Received]:
        """Publish messages, and finish them."""
        for _ in range(count):
            assert self.engine.publish("t", bytes(body_size)) is None
        received = self.client.take()
        for message in received if finish else ():
            assert self.client.finish(message.index) == 0
        self.engine.settle()
        return received

    def check(self, published: dict[int, int], retain_ns: int) -> None:
        """Every message is there for ``retain_ns``, and none for a quarter longer."""
        now_ns, log = self.engine.clock.monotonic_ns(), self.topic.log
        for index, at_ns in published.items():
            there = log.count_between(index, index + 1) == 1
            age_ns = now_ns - at_ns
            assert there or age_ns >= retain_ns, f"{index} went after {age_ns / 1e9} s"
            assert not there or age_ns <= retain_ns * 5 // 4 + LATE_NS, f"{index} stays"
            assert there or index < self.topic.whole_from
