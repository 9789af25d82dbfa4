"""The turn: what is asked for is done once, by the loop or by a caller that is in a turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.core.deadlines import NEVER_NS
from penstock.engine.context import Supervisor
from penstock.engine.turn import Turn

PUMP_NS = 1_000_000


class Recorder:
    """A topic and a channel that note what they are asked to do."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.then: Callable[[], None] = lambda: None
        self.pumped: Callable[[], None] = lambda: None

    def flush(self) -> None:
        self.calls.append("flush")
        self.then()

    def pump(self, now_ns: int) -> None:
        self.calls.append("pump")
        self.pumped()


class Quiet(Supervisor):
    def __init__(self) -> None:
        self.defects: list[str] = []

    def defect(self, what: str) -> None:
        self.defects.append(what)


class Loop:
    """A turn with its loop: ``soon`` has the calls that the loop would make."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.supervisor = Quiet()
        self.clock = ManualClock()
        self.next_ns = NEVER_NS
        scan: Any = SimpleNamespace(watch=lambda _: True, next_ns=NEVER_NS, run=lambda: None)
        context: Any = SimpleNamespace(
            turns=SimpleNamespace(soon=self.soon.append, after=lambda *_: None),
            clock=self.clock,
            supervisor=self.supervisor,
            options=SimpleNamespace(sync_every=1),
        )
        self.turn = Turn(context, scan)
        deferred: Any = SimpleNamespace(next_due_ns=NEVER_NS)
        self.turn.serve(deferred, {})

    def call(self) -> None:
        taken = list(self.soon)
        self.soon.clear()
        for call in taken:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_work_of_one_turn_is_scheduled_once_and_flushed_before_it_is_pumped(loop: Loop) -> None:
    what = Recorder()
    loop.turn.wake(what)
    loop.turn.flush_later(what)
    assert loop.turn.asked and len(loop.soon) == 1
    loop.call()
    assert what.calls == ["flush", "pump"]
    assert not loop.turn.asked and not loop.soon


def test_a_flush_that_wakes_a_channel_has_it_pumped_in_the_same_turn(loop: Loop) -> None:
    what = Recorder()
    what.then = lambda: loop.turn.wake(what)
    loop.turn.flush_later(what)
    loop.call()
    assert what.calls == ["flush", "pump"]
    assert not loop.turn.asked and not loop.soon


def test_a_scheduled_call_that_finds_nothing_to_do_is_harmless(loop: Loop) -> None:
    what = Recorder()
    loop.turn.flush_later(what)
    loop.turn.run()
    assert what.calls == ["flush"]
    loop.turn.wake(what)
    assert len(loop.soon) == 1, "the call that was scheduled first serves"
    loop.call()
    assert what.calls == ["flush", "pump"]
    loop.turn.flush_later(what)
    loop.turn.run()
    loop.call()
    assert what.calls == ["flush", "pump", "flush"] and not loop.soon


def test_many_channels_are_served_in_several_turns(loop: Loop) -> None:
    channels = [Recorder() for _ in range(300)]
    for channel in channels:
        channel.pumped = lambda: loop.clock.advance(PUMP_NS // 100)
        loop.turn.wake(channel)
    loop.call()
    served = [channel for channel in channels if channel.calls]
    assert served == channels[:100] and loop.turn.asked
    loop.turn.wake(served[0])
    loop.call()
    loop.call()
    assert all(channel.calls == ["pump"] for channel in channels) and loop.turn.asked
    loop.call()
    assert served[0].calls == ["pump", "pump"] and not loop.turn.asked


def test_a_defect_of_one_topic_does_not_stop_the_others(loop: Loop) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    bad, good = Recorder(), Recorder()
    bad.then = fail
    for topic in (bad, good):
        loop.turn.flush_later(topic)
    loop.call()
    assert good.calls == ["flush"] and loop.supervisor.defects == ["recorder"]


def test_an_earlier_deadline_sets_the_timer(loop: Loop) -> None:
    loop.turn.watch(Recorder())
    assert loop.turn.asked
    loop.call()
    assert not loop.turn.asked
