"""pyspark.daemon, which forks the Python workers of a machine, with SIGTERM and SIGINT ignored.

A stop of a pipeline may reach all of its processes at once: by Ctrl-C, or by systemd, whose default
is to signal the whole control group.  The driver then ends the batch that is being written, and
needs its workers for it.  Nobody else ends them by these signals: Spark closes the daemon's
standard input, and the daemon ends its workers with SIGHUP or SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from pyspark import daemon

IGNORED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """The module ``signal`` as pyspark.daemon sees it."""

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
