# Busy polling: while a single client is active, polls its socket briefly before the loop sleeps.
#
# A client that awaits each reply sends again 20 to 60 us after it.  Putting a core to sleep and
# waking it up takes about as long, and about as much CPU as polling does.
#
# Rule 1: polls only while a single client is active.  With several, the core is better left to them,
#         and what they send meanwhile becomes one batch.
# Rule 2: polling starts after a run of quick packets.  A late packet ends the run, and the next run
#         has to be twice as long: slower clients, and a machine with one core, lose almost nothing.

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents

    int poll(pollfd* fds, unsigned long count, int timeout_ms)
    short POLLIN

cdef enum:
    # From one reply to the next, with the core asleep in between.
    QUICK_NS = 500_000
    RUN_COUNT = 8
    RUN_COUNT_MAX = 8192


cdef class Lookout:
    """Tracks whether a single client is active; ``soon`` is the loop's call_soon."""

    def __init__(self, soon):
        self._soon = soon
        self._fd = -1
        self._needed = RUN_COUNT

    cpdef int heard(self, int fd) except -1:
        """A packet was received on ``fd``."""
        if fd != self._fd:
            self._fd = fd
            self._count = 0
        return 0

    cpdef int answered(self) except -1:
        """The reply to the packet is sent when the loop's turn ends."""
        self.replied()
        return self.expect()

    cpdef int expect(self) except -1:
        """The client is about to send: its next packet, or more of this one."""
        if self.due() and not self._looking:
            self._looking = True
            self._soon(self.look)
        return 0

    cdef void replied(self) noexcept:
        cdef int64_t now_ns = monotonic_ns()
        if now_ns - self._answered_ns > QUICK_NS:
            self._count = 0
        else:
            self._count += 1
        self._answered_ns = now_ns

    cdef bint due(self) noexcept:
        # Whether polling is worthwhile.
        return self._count >= self._needed

    cdef int lone_fd(self) noexcept:
        # The socket of a client that is alone and quick; -1: there is none.
        return self._fd if self._count >= RUN_COUNT else -1

    cdef bint lone(self, int64_t within_ns) noexcept:
        # Whether a lone client got a quick reply a moment ago.
        return self._count >= RUN_COUNT and monotonic_ns() - self._answered_ns < within_ns

    cdef void polled(self, bint ready) noexcept:
        if ready:
            self._needed = RUN_COUNT
        else:
            self._count = 0
            self._needed = min(2 * self._needed, RUN_COUNT_MAX)

    def look(self):
        """Poll until the client has sent something, or is late."""
        cdef pollfd client
        cdef int ready
        cdef int64_t end_ns = monotonic_ns() + PATIENCE_NS
        self._looking = False
        if not self.due():
            return  # another client was active in the same turn
        client.fd = self._fd
        client.events = POLLIN
        with nogil:
            ready = poll(&client, 1, 0)
            while not ready and monotonic_ns() < end_ns:
                ready = poll(&client, 1, 0)
        self.polled(ready != 0)


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1_000_000_000 + now.tv_nsec
