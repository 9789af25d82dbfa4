"""The clocks: wall time for people and files, monotonic time for deadlines (R4), CPU time."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, how often


def thread_wanted_ns() -> int:
    """Time that the calling thread ran on a core or, as Linux reports it, waited for one."""
    try:
        waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.thread_time_ns() + waited_ns


class Clock:
    """The machine's clocks, in nanoseconds."""

    # The functions themselves, without wrappers: they are called several times per batch.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    thread_wanted_ns = staticmethod(thread_wanted_ns)


class ManualClock(Clock):
    """A clock that tests advance; the wall clock can be stepped separately."""

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
        """Advance the clocks and the thread's CPU time."""
        self._wanted_ns += duration_ns
        self.advance(duration_ns)

    def advance(self, duration_ns: int) -> None:
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def step_wall(self, step_ns: int) -> None:
        self._wall_ns += step_ns
