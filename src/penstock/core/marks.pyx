# Items that were marked for later work: each once, in order, until all are taken.
#
# Every batch and every FIN marks its topic; a round takes the marks a few times a second.


cdef class Marks:
    """An ordered set, so that runs are deterministic."""

    def __cinit__(self):
        self.items = {}

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return item in self.items

    cpdef add(self, item):
        if item is not self.last:
            self.items[item] = None
            self.last = item

    def take(self):
        """All marked items; none is marked any more."""
        cdef list taken = list(self.items)
        self.items = {}
        self.last = None
        return taken
