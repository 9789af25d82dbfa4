cdef class Ticket:
    cdef readonly bint done     # settled
    cdef readonly object error  # Exception, or None
    cdef list waiters           # called when it is settled; None if there are none

    cpdef add(self, waiter)
    cpdef settle(self, error=*)
