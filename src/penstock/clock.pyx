# The clocks: wall time for people and files, monotonic time for deadlines (R4), CPU time.
#
# Compiled, since every batch asks for the time: in the daemon that calls no Python.  A test's clock
# overrides the methods.

import time
from pathlib import Path

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, how often


cdef class Clock:
    """The machine's clocks, in nanoseconds."""

    cpdef int64_t wall_ns(self) except? -1:
        cdef timespec now
        clock_gettime(CLOCK_REALTIME, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

    cpdef int64_t monotonic_ns(self) except? -1:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

    cpdef int64_t thread_wanted_ns(self) except? -1:
        """Time that the calling thread ran on a core or, as Linux reports it, waited for one."""
        try:
            waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
        except (OSError, ValueError, IndexError):
            waited_ns = 0
        return time.thread_time_ns() + waited_ns


class ManualClock(Clock):
    """A clock that tests advance; the wall clock can be stepped separately."""

    def __init__(self, wall_ns=1_800_000_000_000_000_000, monotonic_ns=0):
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._wanted_ns = 0

    def wall_ns(self):
        return self._wall_ns

    def monotonic_ns(self):
        return self._monotonic_ns

    def thread_wanted_ns(self):
        return self._wanted_ns

    def work(self, duration_ns):
        """Advance the clocks and the thread's CPU time."""
        self._wanted_ns += duration_ns
        self.advance(duration_ns)

    def advance(self, duration_ns):
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def step_wall(self, step_ns):
        self._wall_ns += step_ns
