"""The two clocks: wall time for people and files, monotonic time for deadlines (R4)."""

from __future__ import annotations

import time


class Clock:
    """The machine's clocks, in nanoseconds."""

    # The functions themselves: they are asked several times for every batch.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock(Clock):
    """A clock that moves only when told; tests step the wall clock on its own."""

    def __init__(self, wall_ns: int = 1_800_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, duration_ns: int) -> None:
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def step_wall(self, step_ns: int) -> None:
        self._wall_ns += step_ns
