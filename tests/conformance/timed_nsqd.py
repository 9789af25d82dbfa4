"""nsqd with the CPU time of each turn of its loop measured, between SIGUSR1 and SIGUSR2.

    python -m tests.conformance.timed_nsqd TIMES --data-path=...

SIGUSR2 writes the longest turns to TIMES, in seconds, longest first.  CPU time, because a busy
machine makes everybody wait.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from penstock.cli.nsqd import main
from penstock.nsqd.daemon import Daemon

COUNT_MAX = 100
SHORT_S = 0.001

times_s: list[float] = []


class Timed(Daemon):
    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        before_s = time.thread_time()

        def tick() -> None:
            nonlocal before_s
            now_s = time.thread_time()
            if now_s - before_s > SHORT_S:
                times_s.append(now_s - before_s)
            before_s = now_s
            loop.call_soon(tick)

        tick()
        return await super().serve()


def begin(*_: object) -> None:
    times_s.clear()


def end(*_: object) -> None:
    path = Path(sys.argv[1])
    path.with_suffix(".new").write_text(json.dumps(sorted(times_s, reverse=True)[:COUNT_MAX]))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    import penstock.nsqd.daemon

    penstock.nsqd.daemon.Daemon = Timed  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.exit(main(sys.argv[2:]))
