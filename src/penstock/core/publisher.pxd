cdef class Publication:
    cdef readonly bytes command
    cdef readonly Py_ssize_t size
    cdef readonly object futures
    cdef public Py_ssize_t retries
    cdef readonly double begun_s
    cdef public double sent_s
    # An earlier try may have been stored.
    cdef public bint unknown
