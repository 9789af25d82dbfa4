"""pyspark.daemon, which forks the Python workers of a machine, with SIGTERM and SIGINT ignored.

A stop signal may reach all processes of a pipeline at once: from Ctrl-C, or from systemd, which by
default signals the whole control group.  The driver then completes the batch that is being written,
and needs its workers for it.  Spark does not use these signals to stop them: it closes the
daemon's standard input, and the daemon stops its workers with SIGHUP or SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from pyspark import daemon

IGNORED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Replaces the module ``signal`` in pyspark.daemon."""

    def signal(self, number: int, action: Callable[..., Any] | int) -> Any:
        return signal.signal(number, signal.SIG_IGN if number in IGNORED else action)

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)


def main() -> None:
    daemon.signal = Signals()  # type: ignore[assignment, attr-defined]
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    daemon.manager()


if __name__ == "__main__":
    main()
