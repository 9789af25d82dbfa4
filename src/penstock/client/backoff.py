"""When a consumer that fails gets messages again.

    normal --failure--> pause --time--> test --failure--> pause (longer)
       ^                                  |----success--> pause (shorter), or normal at level 0
       '----------------------------------'

A level counts failures less successes.  Above 0, all connections have RDY 0 during a pause of
``multiplier x 2^level``; then one of them gets RDY 1, and what becomes of that one message moves
the level.  So coming back from level 3 takes three successes, with a pause before each.

Rule 1: no I/O, no clock.  The caller waits, and says when the pause is over.
Rule 2: a signal during a pause changes nothing: it is about messages from before the pause.
Rule 3: the level stops growing where its pause would exceed ``duration_max_s``.  With 0 there is
        no backoff at all.

The machine is go-nsq's.  Its random pauses (``full_jitter``) differ in one point: there the random
number also decides whether the level grows, here only how long the pause is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

Strategy = Callable[[int], float]  # a level's pause in seconds


class State(Enum):
    NORMAL = "normal"
    PAUSED = "paused"
    TESTING = "testing"


class Backoff:
    """The state, and what has to happen next: ``pause_s`` is set whenever a pause begins."""

    def __init__(
        self,
        multiplier_s: float = 1.0,
        duration_max_s: float = 120.0,
        strategy: str | Strategy = "exponential",
        choose: random.Random | None = None,
    ) -> None:
        self.state = State.NORMAL
        self.level = 0
        self.pause_s = 0.0
        self._duration_max_s = duration_max_s
        self._jitter = strategy == "full_jitter"
        self._choose = choose or random.Random()
        if callable(strategy):
            self._duration_s: Strategy = strategy
        else:
            # The exponent has a bound, or a long row of failures would end in an overflow.
            self._duration_s = lambda level: multiplier_s * 2.0 ** min(level, 60)

    def fail(self) -> bool:
        """A message failed.  Returns whether a pause begins."""
        if self.state is State.PAUSED:
            return False
        if self._duration_s(self.level + 1) <= self._duration_max_s:
            self.level += 1
        return self._pause()

    def succeed(self) -> bool:
        """A message was finished.  Returns whether anything changed: a pause, or back to normal."""
        if self.state is not State.TESTING:
            return False
        self.level -= 1
        if self.level > 0:
            return self._pause()
        self.state = State.NORMAL
        return True

    def pass_over(self) -> bool:
        """A message came back without saying anything about the handler's health."""
        return self.state is State.TESTING and self._pause()

    def test(self) -> None:
        """The pause is over: one message may come."""
        assert self.state is State.PAUSED
        self.state = State.TESTING

    def postpone(self, pause_s: float = 1.0) -> None:
        """There was no connection to test with."""
        self.state = State.PAUSED
        self.pause_s = pause_s

    def _pause(self) -> bool:
        if self.level == 0:
            return False
        self.state = State.PAUSED
        self.pause_s = min(self._duration_s(self.level), self._duration_max_s)
        if self._jitter:
            self.pause_s *= self._choose.random()
        return True

    def check(self) -> None:
        """What holds between any two calls."""
        assert self.level >= 0
        assert (self.level == 0) == (self.state is State.NORMAL)
        assert 0 <= self.pause_s <= max(self._duration_max_s, 1.0)
