"""The resource usage of a process from /proc: CPU time, resident memory, open files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# The lowest bits of the id of a process's CPU clock, of all its threads (clock_getcpuclockid).
_CPU_CLOCK = 2
_IDLE_US = 10_000  # of CPU in 0.2 s
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """A sample of a process."""

    cpu_us: int
    rss_size: int
    wall_ns: int


def usage(pid: int) -> Usage:
    """Read the CPU time (user and system, all threads) and the resident memory of ``pid``.

    Raises ``ProcessLookupError`` if there is no such process.
    """
    try:
        # Of the kernel's clock for this process: /proc/PID/stat counts in steps of 10 ms.
        cpu_us = int(time.clock_gettime(~pid << 3 | _CPU_CLOCK) * 1e6)
        rss_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError as error:
        raise ProcessLookupError(f"no process with id {pid}") from error
    return Usage(cpu_us, rss_pages * _PAGE_SIZE, time.monotonic_ns())


def open_file_count(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def settle(pid: int, seconds_max: float = 5.0) -> Usage:
    """Wait until ``pid`` is idle, so that deferred work is counted too."""
    give_up_s = time.monotonic() + seconds_max
    before = usage(pid)
    while True:
        time.sleep(0.2)
        after = usage(pid)
        if after.cpu_us - before.cpu_us <= _IDLE_US or time.monotonic() > give_up_s:
            return after
        before = after
