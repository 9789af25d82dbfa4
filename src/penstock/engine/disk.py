"""Running work that may wait for a disk, so that the loop never waits (R9).

Rule 1: work ends with a result or an ``Exception``.  Any other BaseException (SystemExit,
        KeyboardInterrupt) becomes an OSError here, so that it never settles a ticket as success.
Rule 2: work that arrives in large numbers uses a lane, which keeps threads free for others.  A
        hundred tasks that seal at once are a hundred syncs of large files; submitted directly, they
        would delay every other write.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.core.ticket import Ticket

log = logging.getLogger(__name__)

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]


class Disk(Protocol):
    """Runs ``work`` on another thread; ``done`` gets its result or error later, on the loop."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None: ...


def run(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Run ``work`` and return the arguments for ``done`` (Rule 1)."""
    try:
        return work(), None
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, OSError(f"{type(error).__name__}: {error}")


class Lane:
    """A ``Disk`` that runs at most ``count_max`` works at once; the others wait in order."""

    def __init__(self, disk: Disk, count_max: int) -> None:
        self._disk = disk
        self._count_max = count_max
        self._count = 0
        self._waiting: deque[tuple[Callable[[], Any], Done[Any]]] = deque()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._waiting.append((work, done))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._count < self._count_max:
            work, done = self._waiting.popleft()
            self._count += 1
            self._disk.submit(work, partial(self._done, done))

    def _done(self, done: Done[Any], result: Any, error: Exception | None) -> None:
        self._count -= 1
        self._start()
        done(result, error)


def failed(error: Exception) -> Ticket:
    """A ticket settled with ``error``."""
    ticket = Ticket()
    ticket.settle(error)
    return ticket


def report(where: str, error: Exception | None) -> None:
    """Log an error that no ticket carries."""
    log.error("%s: %s", where, error if error is not None else "failed")
