"""The clocks: wall time for people and files, monotonic time for deadlines (R4), work done."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, how often


def thread_wanted_ns() -> int:
    """For how long the calling thread had a core or, where Linux tells, waited for one."""
    try:
        waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.thread_time_ns() + waited_ns


class Clock:
    """The machine's clocks, in nanoseconds."""

    # The functions themselves: they are asked several times for every batch.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    thread_wanted_ns = staticmethod(thread_wanted_ns)


class ManualClock(Clock):
    """A clock that moves only when told; tests step the wall clock on its own."""

    def __init__(self, wall_ns: int = 1_800_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._wanted_ns = 0

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def thread_wanted_ns(self) -> int:
        return self._wanted_ns

    def work(self, duration_ns: int) -> None:
        """Be busy for that long."""
        self._wanted_ns += duration_ns
        self.advance(duration_ns)

    def advance(self, duration_ns: int) -> None:
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def step_wall(self, step_ns: int) -> None:
        self._wall_ns += step_ns
