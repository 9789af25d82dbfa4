"""Where work that may wait for a disk is sent, so that the loop never waits (R9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.core.ticket import Ticket

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]


class Disk(Protocol):
    """Runs ``work`` elsewhere; ``done`` gets its result or its error, later, on the loop."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None: ...


class InlineDisk:
    """Runs everything at once, for single-threaded use."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


def failure(error: BaseException | None) -> Exception | None:
    """A work's error as a ticket takes it."""
    return error if error is None or isinstance(error, Exception) else OSError(str(error))


def failed(error: BaseException) -> Ticket:
    """A ticket for what a work's error has ended."""
    ticket = Ticket()
    ticket.settle(failure(error))
    return ticket
