"""A crash at every change of the disk while a segment is rolled for its age and others are dropped.

Nothing that is retained is lost, and `whole_from` is true after each (R18, R21); also while a bound
drops the oldest messages (R20).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.engine.pull.channel import PullChannel
from penstock.engine.topic import Topic
from tests.crash.lossy import KEEP, LOSE, PREFIX, Crashed
from tests.support.engine import MINUTE, SECOND, Engine
from tests.support.retention import Reader, retaining

RETAIN_NS = MINUTE


class Days:
    """Messages of several ages: old segments are about to go, the active one to be rolled."""

    def __init__(self) -> None:
        self.reader = Reader(retain_ns=RETAIN_NS, max_bytes_per_file=3000, sync_every=1)
        self.engine: Engine = self.reader.engine
        self.passed_ns = 0
        self.published: dict[int, int] = {}
        self.work(30)
        stuck = self.reader.work(1, body_size=40, finish=False)[0].index
        self.published[stuck] = 0
        self.work(30)
        self.wait(30)
        self.work(10)
        self.wait(27)
        self.engine.files.trace.clear()

    def work(self, count: int) -> None:
        for _ in range(count):
            self.reader.work(1, body_size=40)
            self.published[self.reader.topic.end - 1] = self.passed_ns

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.engine.advance(SECOND)
            self.passed_ns += SECOND

    def change(self) -> None:
        """What is interrupted."""
        self.work(1)
        self.wait(20)

    def check(self) -> None:
        """After a start."""
        topic = retaining(self.engine, "t", retain_ns=RETAIN_NS)
        assert not self.engine.components.damage.records
        self.engine.check()
        for _ in range(3):
            found = self.engine.logged("t")
            missing = self.published.keys() - found.keys()
            young = {i for i, at in self.published.items() if self.passed_ns - at < RETAIN_NS}
            assert not missing & young, "retained"
            assert all(index < topic.whole_from for index in missing), "whole_from"
            self.engine.advance(SECOND)
            self.passed_ns += SECOND
        assert self.engine.publish("t", b"next") is None
        self.engine.advance(2 * RETAIN_NS)
        assert topic.log.count <= 5, "the stuck one, the new one, and what was just finished"


def steps() -> Iterator[int]:
    days = Days()
    before = days.engine.files.step_count
    days.change()
    actions = {line.split()[0] for line in days.engine.files.trace}
    assert {"append", "sync", "unlink"} <= actions
    assert days.reader.topic.whole_from > min(days.published), "segments were dropped"
    assert any(".side" in line for line in days.engine.files.trace), "a straggler was moved"
    return iter(range(days.engine.files.step_count - before))


@pytest.mark.parametrize("mode", [LOSE, KEEP, PREFIX])
def test_a_crash_at_every_step_of_a_drop_and_a_roll_loses_nothing_retained(mode: str) -> None:
    count = 0
    for step in steps():
        days = Days()
        days.engine.files.crash_at = days.engine.files.step_count + step
        with pytest.raises(Crashed):
            days.change()
        days.engine.crash(mode, seed=step)
        days.engine.start()
        days.check()
        count += 1
    assert count > 20


class Dropping:
    """A topic that drops its oldest messages, with a pull channel that has committed nothing."""

    def __init__(self) -> None:
        self.engine = Engine()
        topic, created = self.engine.broker.create_topic("t")
        assert self.engine.done(created) is None
        assert isinstance(topic, Topic)
        _, opened, _ = self.engine.components.pulls.open(topic, "p", topic.end)
        assert self.engine.done(opened) is None
        policy = {"max_messages": 16, "overflow": "drop-oldest"}
        assert self.engine.done(self.engine.components.policies.set_topic(topic, policy)) is None
        self.publish(16)
        self.engine.advance(2 * SECOND)
        self.stored = self.engine.logged("t")

    def publish(self, count: int) -> None:
        for _ in range(count):
            assert self.engine.publish("t", b"message") is None

    def change(self) -> None:
        """What is interrupted."""
        self.publish(20)
        self.engine.advance(2 * SECOND)


@pytest.mark.parametrize("mode", [LOSE, KEEP, PREFIX])
def test_a_crash_at_every_step_of_a_drop_tells_a_reader_what_is_missing(mode: str) -> None:
    step = 0
    while True:
        dropping = Dropping()
        engine = dropping.engine
        engine.files.crash_at = engine.files.step_count + step
        try:
            dropping.change()
        except Crashed:
            pass
        else:
            break
        engine.crash(mode, seed=step)
        engine.start()
        channel = engine.topic("t").channels["p"]
        assert isinstance(channel, PullChannel)
        missing = dropping.stored.keys() - engine.logged("t").keys()
        assert all(index < channel.whole_from for index in missing), step
        step += 1
    assert step > 50
