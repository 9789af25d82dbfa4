cdef class Ticket:
    cdef readonly bint done
    cdef readonly object error
    cdef list waiters

    cpdef add(self, waiter)
