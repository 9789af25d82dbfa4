"""When to retry what failed, and when to give up.

    kind of fault         a stream                            available_now, once
    a node                retry forever                       failed: its retryTimeout is over
    worker, JVM that died retry COUNT_MAX_CRASH times         retry COUNT_MAX_FINITE times
    worker, executor,
    session, machine      retry forever                       retry COUNT_MAX_FINITE times
    not transient         failed                              failed

Pauses grow from 1 s to 60 s, and start at 1 s again after a batch was written.
"""

from __future__ import annotations

import random

from penstock.pipeline.faults import CRASH, NODE

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
COUNT_MAX_FINITE = 3
# A worker that dies each time is killed by the code it runs, which a person must fix.
COUNT_MAX_CRASH = 12


class Retries:
    """``count`` is how many attempts have failed since the last batch."""

    def __init__(self, *, finite: bool) -> None:
        self._finite = finite
        self.count = 0

    def pause_s(self, passing: str) -> float | None:
        """How long to wait before the next attempt; None: give up."""
        if self.count >= self._count_max(passing):
            return None
        longest_s = min(PAUSE_FIRST_S * float(1 << min(self.count, 30)), PAUSE_MAX_S)
        self.count += 1
        # Several pipelines of one broker must not retry at the same moment.
        return longest_s if self.count == 1 else longest_s * random.uniform(0.75, 1)

    def _count_max(self, passing: str) -> float:
        if not passing or (self._finite and passing == NODE):
            return 0
        if self._finite:
            return COUNT_MAX_FINITE
        return COUNT_MAX_CRASH if passing == CRASH else float("inf")
