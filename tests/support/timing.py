"""How exactly a test may measure time on a machine that has other things to do.

What happens is seen late: by a process that has to wait for its turn.  So a wait may look too long
when its end, and too short when its beginning is seen late.  On a machine of our own the limits
below are what they say; the busier it is, the wider they are.
"""

from __future__ import annotations

import os

CORES = os.cpu_count() or 1


def load_per_core() -> float:
    """How many processes want each core; 1 at least."""
    return max(1.0, os.getloadavg()[0] / CORES)


def late_s(limit_s: float = 1.0) -> float:
    """By how much a wait may look too long."""
    return limit_s * load_per_core()


def early_s(limit_s: float = 0.02) -> float:
    """By how much a wait may look too short."""
    return limit_s + 0.1 * (load_per_core() - 1.0)
