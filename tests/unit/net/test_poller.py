"""The poller's turn: what is left over takes a bounded time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.engine.context import Supervisor
from penstock.net.lookout import Lookout
from penstock.net.poller import Poller

SPIN_S = 0.0003


class Loop:
    """What the poller uses of an event loop."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        pass

    def remove_reader(self, fd: int) -> None:
        pass

    def run_once(self) -> None:
        taken, self.soon = self.soon, []
        for call in taken:
            call()


class Quiet(Supervisor):
    def __init__(self) -> None:
        self.defects: list[str] = []

    def defect(self, what: str) -> None:
        self.defects.append(what)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def supervisor() -> Quiet:
    return Quiet()


@pytest.fixture
def poller(loop: Loop, supervisor: Quiet) -> Iterator[Poller]:
    unused: Any = loop
    made = Poller(unused, Lookout(loop.call_soon), supervisor)
    yield made
    made.close()


def spin() -> None:
    end_s = time.perf_counter() + SPIN_S
    while time.perf_counter() < end_s:
        pass


def test_what_is_left_over_takes_several_turns_in_order(loop: Loop, poller: Poller) -> None:
    """R29: all of it at once was 50 ms of fifty clients with much to execute."""
    made: list[int] = []

    def call(number: int) -> None:
        spin()
        made.append(number)

    for number in range(20):
        poller.later(partial(call, number))
    loop.run_once()
    assert 0 < len(made) < 10
    poller.later(partial(call, 20))
    turns = 0
    while loop.soon:
        before = len(made)
        loop.run_once()
        turns += 1
        assert 0 < len(made) - before < 10
    assert made == list(range(21)) and turns >= 2


def test_what_is_left_over_in_a_turn_waits_for_the_next(loop: Loop, poller: Poller) -> None:
    made: list[str] = []

    def again() -> None:
        made.append("again")
        if len(made) < 3:
            poller.later(again)

    poller.later(again)
    for count in (1, 2, 3):
        loop.run_once()
        assert len(made) == count
    assert not loop.soon


def test_a_defect_of_one_does_not_stop_the_others(
    loop: Loop, poller: Poller, supervisor: Quiet
) -> None:
    made: list[str] = []

    def fail() -> None:
        raise RuntimeError("broken")

    poller.later(fail)
    poller.later(partial(made.append, "good"))
    loop.run_once()
    assert made == ["good"] and supervisor.defects == ["turn"]
