"""Backoff: how long a consumer pauses after failures.

    normal --failure--> pause --time--> test --failure--> pause (longer)
       ^                                  |----success--> pause (shorter), or normal at level 0
       '----------------------------------'

A level counts failures minus successes.  Above 0, all connections have RDY 0 during a pause of
``multiplier x 2^level``; then one of them gets RDY 1, and the result of that one message changes
the level.  So recovering from level 3 takes three successes, with a pause before each.

Rule 1: no I/O, no clock.  The caller waits, and calls ``test`` when the pause is over.
Rule 2: a result during a pause is ignored: it is of a message from before the pause.
Rule 3: the level stops growing where its pause would exceed ``duration_max_s``.  With 0 there is
        no backoff at all.

The state machine is go-nsq's, except in ``full_jitter``: there the random number also decides
whether the level grows, here only how long the pause is.
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
    """The state and level; ``pause_s`` is set whenever a pause begins."""

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
            # The exponent is bounded so that many failures cannot overflow.
            self._duration_s = lambda level: multiplier_s * 2.0 ** min(level, 60)

    def fail(self) -> bool:
        """Count a failed message.  Returns whether a pause begins."""
        if self.state is State.PAUSED:
            return False
        if self._duration_s(self.level + 1) <= self._duration_max_s:
            self.level += 1
        return self._pause()

    def succeed(self) -> bool:
        """Count a finished message.  Returns whether the state changed: a pause, or normal."""
        if self.state is not State.TESTING:
            return False
        self.level -= 1
        if self.level > 0:
            return self._pause()
        self.state = State.NORMAL
        return True

    def pass_over(self) -> bool:
        """Count a message that was requeued without backoff: neither a success nor a failure."""
        return self.state is State.TESTING and self._pause()

    def test(self) -> None:
        """End the pause: one message may be received."""
        assert self.state is State.PAUSED
        self.state = State.TESTING

    def postpone(self, pause_s: float = 1.0) -> None:
        """Pause again: there is no connection to test with."""
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
        """Check the invariants, which hold between any two calls."""
        assert self.level >= 0
        assert (self.level == 0) == (self.state is State.NORMAL)
        assert 0 <= self.pause_s <= max(self._duration_max_s, 1.0)
