"""A ticket stands for something on its way to disk; replies wait for it."""

from __future__ import annotations

from collections.abc import Callable


class Ticket:
    """Settled once, with an error or without; tells everyone who waits."""

    __slots__ = ("_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._waiters: list[Callable[[Ticket], None]] = []

    def add(self, waiter: Callable[[Ticket], None]) -> None:
        """Call ``waiter`` when the ticket is settled, at once if it already is."""
        if self.done:
            waiter(self)
        else:
            self._waiters.append(waiter)

    def settle(self, error: Exception | None = None) -> None:
        assert not self.done
        self.done = True
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(self)


def settled() -> Ticket:
    """A ticket for something that needed no disk."""
    ticket = Ticket()
    ticket.done = True
    return ticket


def after(*tickets: Ticket) -> Ticket:
    """A ticket that is settled when all of ``tickets`` are, with the first error among them."""
    whole = Ticket()
    left = len(tickets)

    def one_settled(_: Ticket) -> None:
        nonlocal left
        left -= 1
        if not left:
            whole.settle(next((t.error for t in tickets if t.error is not None), None))

    for ticket in tickets:
        ticket.add(one_settled)
    return whole
