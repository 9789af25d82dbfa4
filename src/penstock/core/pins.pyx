# Who uses something that may be given up meanwhile: a file's descriptor, and several threads.
#
# Rule 1: compiled code holds the interpreter's lock from its first step to its last, so each method
#         happens at once to other threads.  A lock of its own, twice for every append to a file,
#         was 2 % of the CPU of publishing.
# Rule 2: what is dropped is released once: by whoever drops it if nobody uses it, else by the last
#         give().


cdef class Pins:
    """Counts the users of something that is kept until it is dropped."""

    def __cinit__(self, *_args, **_named):
        self.kept = True

    def take(self):
        """Use it; False: it was dropped."""
        if not self.kept:
            return False
        self.users += 1
        self.recent = True
        return True

    def give(self):
        """Use it no more; whether it is to be released now."""
        assert self.users > 0
        self.users -= 1
        return not self.users and not self.kept

    def drop(self):
        """Keep it no more; whether it is to be released now."""
        cdef bint kept = self.kept
        self.kept = False
        return kept and not self.users

    def drop_unused(self):
        """As drop(), but if somebody uses it, it stays."""
        return not self.users and self.drop()
