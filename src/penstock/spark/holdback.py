"""Larger batches less often: a stream that holds its messages back for a time or a number.

    finished ---- holdInterval, or holdMessages wait ----> released: all that is there now
       ^                                                        |
       +---------- read, in batches of maxMessagesPerTrigger ---+

Rule 1: a query that has just started has no batch to count from, so its first one is not held.
Rule 2: what is released is fixed at that moment; what comes later waits for the next time.
"""

from __future__ import annotations

import math
import time

from penstock.spark.offsets import Positions

NS = 1_000_000_000


class Hold:
    """Whether messages are held back, and how far they are released."""

    def __init__(self, interval_ns: int, messages: int | None) -> None:
        self.messages = messages
        self.goal: Positions | None = None  # the ends of what is released
        # With a number only, the time never comes.
        self._interval_s = interval_ns / NS if interval_ns else math.inf
        self._due_s = 0.0
        self.wanted = bool(interval_ns or messages)

    def left_s(self) -> float:
        """Until the time is over; 0 if it is."""
        return max(0.0, self._due_s - time.monotonic())

    def finish(self) -> None:
        """All that was released has been read."""
        self.goal = None
        self._due_s = time.monotonic() + self._interval_s
