cdef class Marks:
    cdef dict items   # in the order they came; the values are None
    cdef object last  # marked last: most calls are for the same one

    cpdef add(self, item)
