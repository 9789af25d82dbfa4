"""Tickets: settled once, and several of them as one."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.ticket import Ticket, after, settled


def test_after_of_no_tickets_is_settled() -> None:
    seen: list[Ticket] = []
    whole = after()
    whole.add(seen.append)
    assert seen == [whole] and whole.done and whole.error is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_after_is_settled_with_the_last_and_has_the_first_error(order: tuple[int, ...]) -> None:
    tickets = [Ticket() for _ in range(3)]
    errors = [None, OSError("one"), OSError("two")]
    whole = after(*tickets, settled())
    for place in order:
        assert not whole.done
        tickets[place].settle(errors[place])
    assert whole.done and whole.error is errors[1]


def test_a_waiter_that_raises_does_not_keep_the_others_waiting() -> None:
    for bad in range(3):
        called: list[int] = []

        def call(number: int, called: list[int] = called, bad: int = bad) -> None:
            called.append(number)
            if number == bad:
                raise RuntimeError("broken")

        ticket = Ticket()
        for number in range(3):
            ticket.add(lambda _, number=number, call=call: call(number))
        with pytest.raises(RuntimeError, match="broken"):
            ticket.settle()
        assert called == [0, 1, 2]
