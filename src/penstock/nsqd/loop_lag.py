"""Event loop lag: the one number that shows whether this node is overloaded.

A timer runs every 100 ms; how late it runs is how long something else blocked the loop.  Ten calls
a second cost a hundred-thousandth of a core.
"""

from __future__ import annotations

import asyncio
import time

from penstock.core.latency import Histogram, Latency

INTERVAL_S = 0.1
# The maximum covers the last one to two minutes, so that a scraper does not miss a spike.
MAXIMUM_WINDOW_NS = 120_000_000_000


class LoopLag:
    """Measures from ``start()`` to ``stop()``."""

    def __init__(self) -> None:
        self.times = Histogram()
        self._recent = Latency(MAXIMUM_WINDOW_NS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def maximum_ns(self) -> int:
        """The maximum of the last one to two minutes."""
        total = Histogram()
        self._recent.merge_into(total, time.monotonic_ns())
        return total.maximum

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not loop.time(): uvloop's clock and timers have a resolution of a millisecond.
        due_ns = time.monotonic_ns() + round(INTERVAL_S * 1e9)
        self._timer = loop.call_later(INTERVAL_S, self._called, loop, due_ns)

    def _called(self, loop: asyncio.AbstractEventLoop, due_ns: int) -> None:
        now_ns = time.monotonic_ns()
        late_ns = max(0, now_ns - due_ns)
        self.times.add(late_ns)
        self._recent.add(late_ns, now_ns)
        self._arm(loop)
