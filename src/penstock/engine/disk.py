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

from penstock.clock import Clock
from penstock.core.ticket import Ticket
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

# After work that took longer, threads do it for a while.
SLOW_NS = 10_000_000
SLOW_FOR_NS = 5_000_000_000

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


class Here:
    """Runs work on the loop as long as that is quick: what only copies to the page cache (R9)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow_until_ns = 0

    def run(self, work: Callable[[], None]) -> tuple[bool, Exception | None]:
        """Whether it was run, and its error; if it was not, a thread has to do it."""
        started_ns = self._clock.monotonic_ns()
        if started_ns < self._slow_until_ns:
            return False, None
        _, error = run(work)
        if error is not None and not isinstance(error, OSError | PenstockError):
            raise error  # a defect of ours
        if self._clock.monotonic_ns() - started_ns > SLOW_NS:
            self._slow_until_ns = started_ns + SLOW_FOR_NS
        return True, error


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
