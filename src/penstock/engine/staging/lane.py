"""A lane to the disk: some work must not take all threads from the rest (R9).

A hundred tasks that seal at once are a hundred syncs of large files.  Given to the disk as they
come they would stand before everybody's next write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from penstock.engine.disk import Disk, Done

T = TypeVar("T")


class Lane:
    """``Disk`` with at most ``count_max`` works of this lane at once; the others wait in order."""

    def __init__(self, disk: Disk, count_max: int) -> None:
        self._disk = disk
        self._count_max = count_max
        self._count = 0
        self._waiting: deque[tuple[Callable[[], Any], Done[Any]]] = deque()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._waiting.append((work, done))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._count < self._count_max:
            work, done = self._waiting.popleft()
            self._count += 1
            self._disk.submit(work, partial(self._done, done))

    def _done(self, done: Done[Any], result: Any, error: BaseException | None) -> None:
        self._count -= 1
        self._go_on()
        done(result, error)
