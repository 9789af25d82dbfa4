"""Status lines of the forwarding tools: the duration of the last requests.

[aggregate]: finished 250 - 99th: 1.23ms - 95th: 1.01ms - avg: 0.50ms
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

log = logging.getLogger("penstock.cli")

AGGREGATE = "aggregate"


class Timing:
    """Logs a line after every ``every`` requests to an address, and in total; 0: never."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._times_s: dict[str, list[float]] = {}

    def add(self, address: str, elapsed_s: float) -> None:
        if self._every <= 0:
            return
        for name in (address, AGGREGATE):
            times_s = self._times_s.setdefault(name, [])
            times_s.append(elapsed_s)
            if len(times_s) >= self._every:
                log.info("%s", status_line(name, times_s))
                times_s.clear()


def status_line(name: str, times_s: Sequence[float]) -> str:
    ordered = sorted(times_s)
    average_ms = sum(ordered) / len(ordered) * 1000
    return (
        f"[{name}]: finished {len(ordered)} - 99th: {percentile_ms(ordered, 0.99):.2f}ms"
        f" - 95th: {percentile_ms(ordered, 0.95):.2f}ms - avg: {average_ms:.2f}ms"
    )


def percentile_ms(ordered_s: Sequence[float], share: float) -> float:
    return ordered_s[max(0, math.ceil(share * len(ordered_s)) - 1)] * 1000
