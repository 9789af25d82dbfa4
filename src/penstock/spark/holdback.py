"""Larger batches less often: a stream holds messages back for a time or until there are enough.

    finished ---- holdInterval, or holdMessages available --> released: all messages until now
       ^                                                        |
       +---------- read, in batches of maxMessagesPerTrigger ---+

Rule 1: the first batch of a query that has just started is not held back.
Rule 2: the end of what is released is fixed then; later messages wait for the next release.
"""

from __future__ import annotations

import math
import time

from penstock.spark.offsets import Positions

NS = 1_000_000_000


class Hold:
    """Whether messages are held back, and up to where they are released."""

    def __init__(self, interval_ns: int, messages: int | None) -> None:
        self.messages = messages
        self.goal: Positions | None = None  # the ends of what is released
        # With holdMessages only, there is no time limit.
        self._interval_s = interval_ns / NS if interval_ns else math.inf
        self._due_s = 0.0
        self.wanted = bool(interval_ns or messages)

    def left_s(self) -> float:
        """Time until holdInterval is over; 0 if it is."""
        return max(0.0, self._due_s - time.monotonic())

    def finish(self) -> None:
        """Hold messages back again: all that was released has been read."""
        self.goal = None
        self._due_s = time.monotonic() + self._interval_s
