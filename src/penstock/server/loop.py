"""The event loop and its threads, in the form the engine wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.engine.disk import Done

T = TypeVar("T")

# Writes, syncs and cold reads of all topics share these; a stuck one leaves others to go on.
THREAD_COUNT = 8


class LoopTurns:
    """``Turns`` on asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.soon: Callable[[Callable[[], None]], object] = loop.call_soon

    def after(self, delay_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ns / 1e9, call)


class ThreadDisk:
    """``Disk`` on a few threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="disk")
        self._closed = False

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        if self._closed:
            return  # everything is saved, and nobody waits any more

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as failure:
                error = failure
            self._loop.call_soon_threadsafe(done, result, error)

        self._threads.submit(run)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=True)
