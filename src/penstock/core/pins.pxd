cdef class Pins:
    cdef readonly Py_ssize_t users  # take() without give()
    cdef readonly bint kept         # False after drop()
    cdef public bint recent         # used since the flag was cleared, by the search for old ones

    cpdef bint take(self) except -1
    cpdef bint give(self) except -1
