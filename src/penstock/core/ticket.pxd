cdef class Ticket:
    cdef readonly bint done     # settled
    cdef readonly object error  # Exception, or None
    cdef object first           # waiter: called when it is settled; None if there is none
    cdef list waiters           # after the first one; None if there are none

    cpdef add(self, waiter)
    cpdef settle(self, error=*)
