# A ticket: a completion that is pending on a disk write, with callbacks.
#
# Each batch has one, made by the appender; the connections that owe a reply wait for it: of a
# producer that waits for each OK, one.

cimport cython


@cython.freelist(16)
cdef class Ticket:
    """Settled once, with an error or without; then calls its waiters."""

    cpdef add(self, waiter):
        """Call ``waiter`` with the ticket when it is settled, now if it already is."""
        if self.done:
            waiter(self)
        elif self.first is None:
            self.first = waiter
        elif self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    cpdef settle(self, error=None):
        assert not self.done
        self.done = True
        self.error = error
        first = self.first
        cdef list waiters = self.waiters
        self.first = self.waiters = None
        if waiters is None:
            if first is not None:
                first(self)
        else:
            waiters.insert(0, first)
            call_all(waiters, self)


cdef int call_all(list waiters, Ticket ticket) except -1:
    # Each of them, though one raises an exception: it has nothing to do with the others.
    cdef object defect = None
    for waiter in waiters:
        try:
            waiter(ticket)
        except Exception as error:
            defect = error
    if defect is not None:
        raise defect
    return 0


def settled():
    """A ticket that is already settled."""
    cdef Ticket ticket = Ticket()
    ticket.done = True
    return ticket


def after(*tickets):
    """A ticket that is settled when all of ``tickets`` are, with the first error among them."""
    if not tickets:
        return settled()
    whole = Ticket()
    left = len(tickets)

    def one_settled(_):
        nonlocal left
        left -= 1
        if not left:
            errors = [ticket.error for ticket in tickets if ticket.error is not None]
            whole.settle(errors[0] if errors else None)

    for ticket in tickets:
        ticket.add(one_settled)
    return whole
