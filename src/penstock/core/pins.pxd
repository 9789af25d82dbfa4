cdef class Pins:
    cdef readonly Py_ssize_t users
    cdef readonly bint kept
    cdef public bint recent
