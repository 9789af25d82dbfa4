# A reference count for a resource that threads share and that may be dropped while in use, such as
# a file descriptor.
#
# Rule 1: compiled code holds the interpreter's lock throughout, so each method is atomic to other
#         threads.  A lock, taken twice for every append to a file, was 2 % of the CPU of
#         publishing.
# Rule 2: the resource is released once: by drop() if nobody uses it, otherwise by the last give().


cdef class Pins:
    """Counts the users of a resource."""

    def __cinit__(self, *_args, **_named):
        self.kept = True

    cpdef bint take(self) except -1:
        """Start using it; False if it was dropped."""
        if not self.kept:
            return False
        self.users += 1
        self.recent = True
        return True

    cpdef bint give(self) except -1:
        """Stop using it; return whether to release it now."""
        assert self.users > 0
        self.users -= 1
        return not self.users and not self.kept

    def drop(self):
        """Drop it; return whether to release it now."""
        cdef bint kept = self.kept
        self.kept = False
        return kept and not self.users

    def drop_unused(self):
        """Drop it unless it is in use; return whether to release it now."""
        return not self.users and self.drop()
