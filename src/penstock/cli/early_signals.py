"""Signals that arrive before a daemon has installed its handlers.

By default SIGINT would print a traceback, and SIGHUP would end the process, although it means
"reload the options" once the daemon runs.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in typing, without its import
if TYPE_CHECKING:
    from types import FrameType


def install_signals(*, hangup: bool = True) -> None:
    """Until the daemon installs its own: exit on SIGINT and SIGTERM, ignore SIGHUP."""
    if hangup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    # Nothing is open yet.  Python might ignore an exception, depending on where it is raised.
    os.write(2, b"stopped while starting\n")
    os._exit(0)
