# Whether a client is alive, and when it gets its next heartbeat.  No timer and no I/O.
#
# Rule 1: a client is silent when it completes no command for two heartbeat intervals.
# Rule 2: it is stuck when it reads none of its output for a while: for a heartbeat interval if its
#         output is full, as in nsqd, and for --client-write-timeout in any case, however little is
#         unsent.
# Rule 3: time in which nsqd did not read the client, or could not execute its commands, is not its.

from libc.stdint cimport INT64_MAX, int64_t

from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S

# How long a connection may take to its first command; nsqd waits as long as heartbeats allow.
cdef int64_t FIRST_COMMAND_TIMEOUT_NS = int(FIRST_COMMAND_TIMEOUT_S * 1e9)


cdef class Liveness:
    """The times of one client."""

    def __init__(self, int64_t write_timeout_ns):
        self._write_timeout_ns = write_timeout_ns

    cdef int beat_every(self, int64_t interval_ns, int64_t now_ns) except -1:
        # Heartbeats at this interval from now on; 0: none.
        self.heartbeat_ns = interval_ns
        self._beat_ns = now_ns + interval_ns
        return 0

    cdef bint beats(self, int64_t now_ns) noexcept:
        # Whether a heartbeat is due; the next one is an interval later.
        if not self.heartbeat_ns or now_ns < self._beat_ns:
            return False
        self._beat_ns += self.heartbeat_ns
        return True

    cdef int64_t next_beat_ns(self) noexcept:
        return self._beat_ns if self.heartbeat_ns else INT64_MAX

    cdef void filled(self, int64_t size, int64_t now_ns) noexcept:
        # The output is full: from now on the client must read some of it.
        self._unsent_size = self._unsent_mark = size
        self._taken_ns = now_ns

    cdef void emptied(self, int64_t now_ns) noexcept:
        self._taken_ns = now_ns

    cdef int64_t deadline_ns(self, bint sent_command) noexcept:
        # When the client is silent for too long.
        if not self.silence_ns:
            return INT64_MAX
        if not sent_command:
            return self.waiting_since_ns + FIRST_COMMAND_TIMEOUT_NS
        return self.waiting_since_ns + 2 * self.silence_ns

    cdef int64_t _patience_ns(self, bint full) noexcept:
        # How long a client may read none of its output: as in nsqd, a heartbeat interval.
        if self.silence_ns and full:
            return min(self.silence_ns, self._write_timeout_ns)
        return self._write_timeout_ns

    cdef bint is_stuck(self, int64_t size, int64_t replied_size, bint full, int64_t now_ns) noexcept:
        # Whether the client reads none of its output, of which ``size`` is unsent; ``replied_size``
        # is that of the replies since it was full.
        cdef int64_t before = self._unsent_mark
        self._unsent_size = size
        self._unsent_mark = size - replied_size
        # Only replies are added to a full output; otherwise messages are too.
        if (self._unsent_mark < before or (self._unsent_mark > before and not full)
                or not size):
            self._taken_ns = now_ns
        return now_ns - self._taken_ns >= self._patience_ns(full)

    cdef int64_t next_ns(self, bint full, int64_t now_ns) noexcept:
        # When is_stuck() is to be asked again: often enough to notice whether the size shrinks.
        if full or self._unsent_size:
            return now_ns + self._patience_ns(full) // 4
        return now_ns + self._write_timeout_ns // 2
