"""The disk threads, with the engine's interface."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.engine.disk import Done, run

T = TypeVar("T")

# Writes, syncs and cold reads of all topics share these; if one is stuck, the others continue.  The
# lanes and the rounds of the engine can use nine of them.
THREAD_COUNT = 12


class ThreadDisk:
    """``Disk`` on a few threads.

    Not concurrent.futures: submitting to its pool takes the loop ten times as long, and ``done``
    is all the notification needed here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._works: SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._busy_count = 0  # tasks submitted and not done, counted on the loop

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        if self._closed:
            return  # everything is written, the process is about to exit
        self._busy_count += 1
        if self._busy_count > len(self._threads) < THREAD_COUNT:
            number = len(self._threads)
            thread = threading.Thread(target=self._serve, name=f"disk_{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._works.put((work, done))

    def close(self) -> None:
        """Wait until all submitted work is done; later submissions are ignored."""
        self._closed = True
        for _ in self._threads:
            self._works.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (submitted := self._works.get()) is not None:
            work, done = submitted
            result, error = run(work)
            self._notify(done, result, error)
            del submitted, work, done, result, error  # keep nothing alive until the next task

    def _notify(self, done: Done[Any], result: Any, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._done, done, result, error)

    def _done(self, done: Done[Any], result: Any, error: Exception | None) -> None:
        self._busy_count -= 1
        done(result, error)
