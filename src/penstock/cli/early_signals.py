"""Signals that come before a daemon listens to them.

Python would end with a traceback for SIGINT, and the system would end the process for SIGHUP,
which means "read the options again" a moment later.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in typing, without its import
if TYPE_CHECKING:
    from types import FrameType


def take_signals(*, hangup: bool = True) -> None:
    """Until the daemon takes over: leave quietly on SIGINT and SIGTERM, ignore SIGHUP."""
    if hangup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    # Nothing is open yet.  An exception might come up where Python ignores it.
    os.write(2, b"stopped while starting\n")
    os._exit(0)
