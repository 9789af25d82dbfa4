"""The children of a process, and whether they have ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def children(pid: int) -> list[int]:
    """The ids of all descendants of ``pid``."""
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [each for child in map(int, direct) for each in (child, *children(child))]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def gone(pids: list[int], timeout_s: float = 10.0) -> bool:
    """Whether all of them end in time; those that do not are killed.

    A zombie has ended too.
    """
    give_up_s = time.monotonic() + timeout_s
    while any(map(_alive, pids)):
        if time.monotonic() > give_up_s:
            for pid in filter(_alive, pids):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def state(pid: int) -> str:
    """R, S and D: alive, T: stopped, Z: ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _alive(pid: int) -> bool:
    try:
        return state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
