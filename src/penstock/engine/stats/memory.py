"""Memory figures under the nine names Go's runtime gives them, for /stats and statsd.

Dashboards read these names; the values are the closest that Python and the kernel have:

    heap_objects         blocks that Python's allocator has handed out
    heap_in_use_bytes    resident size of the process
    heap_idle_bytes      resident once, at the peak, but not now
    heap_released_bytes  the same: what is not resident went back to the kernel
    gc_pause_usec_*      percentiles of the last 256 runs of the cyclic collector
    next_gc_bytes        0: Python's collector runs by count of objects, not by bytes
    gc_total_runs        runs of the cyclic collector, all generations
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections import deque
from pathlib import Path

PAUSE_COUNT_MAX = 256
_STATM = Path("/proc/self/statm")
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Measures the collector's pauses from ``start()`` on, and everything else on request."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=PAUSE_COUNT_MAX)
        self._began_ns = 0

    def start(self) -> None:
        """Measure every collection; costs well under a microsecond each."""
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)

    def figures(self) -> dict[str, int]:
        """All nine, in the order of /stats."""
        resident_size = self.resident_size()
        peak_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        idle_size = max(0, peak_size - resident_size)
        pauses_ns = sorted(self._pauses_ns)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": idle_size,
            "heap_in_use_bytes": resident_size,
            "heap_released_bytes": idle_size,
            "gc_pause_usec_100": _percentile_us(pauses_ns, 100),
            "gc_pause_usec_99": _percentile_us(pauses_ns, 99),
            "gc_pause_usec_95": _percentile_us(pauses_ns, 95),
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def resident_size(self) -> int:
        try:
            return int(_STATM.read_text().split()[1]) * _PAGE_SIZE
        except OSError:  # no /proc
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        else:
            self._pauses_ns.append(time.perf_counter_ns() - self._began_ns)


def _percentile_us(pauses_ns: list[int], percent: int) -> int:
    if not pauses_ns:
        return 0
    at = -(-len(pauses_ns) * percent // 100) - 1
    return pauses_ns[at] // 1000
