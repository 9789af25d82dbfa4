cdef class Publication:
    cdef readonly bytes command     # PUB or MPUB, whole
    cdef readonly Py_ssize_t size   # bytes of the bodies, for the bound on what is pending
    cdef readonly object futures    # of the callers that wait for the answer
    cdef public Py_ssize_t retries  # how many are left; counted down by the producer
    cdef readonly double begun_s    # monotonic, when it was accepted
    cdef public double sent_s       # monotonic, when it was sent last; set by the connection
    # An earlier try may have been stored.
    cdef public bint unknown        # an earlier try may have been stored; set by the producer
