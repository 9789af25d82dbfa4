"""Tolerances for times that a test measures on a busy machine.

A process that waits for a core observes events late.  A measured wait is too long if its end is
observed late, and too short if its start is.  On an idle machine the tolerances are as given; they
grow with the load.
"""

from __future__ import annotations

import os

CORES = os.cpu_count() or 1


def load_per_core() -> float:
    """The load average for each core; at least 1."""
    return max(1.0, os.getloadavg()[0] / CORES)


def late_s(limit_s: float = 1.0) -> float:
    """By how much a measured wait may be too long."""
    return limit_s * load_per_core()


def early_s(limit_s: float = 0.02) -> float:
    """By how much a measured wait may be too short."""
    return limit_s + 0.1 * (load_per_core() - 1.0)
