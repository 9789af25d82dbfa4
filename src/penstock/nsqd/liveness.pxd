from libc.stdint cimport int64_t


cdef class Liveness:
    cdef readonly int64_t heartbeat_ns  # between two heartbeats; 0: none
    cdef int64_t silence_ns            # a client silent for twice as long is disconnected; 0: never
    cdef int64_t _write_timeout_ns     # --client-write-timeout
    cdef int64_t waiting_since_ns      # when the client last completed a command
    cdef int64_t _beat_ns              # when the next heartbeat is due
    cdef int64_t _taken_ns             # when the client last read some output
    cdef int64_t _unsent_size          # at the last check
    cdef int64_t _unsent_mark          # at the last check, without the replies since

    cdef int beat_every(self, int64_t interval_ns, int64_t now_ns) except -1
    cdef bint beats(self, int64_t now_ns) noexcept
    cdef void filled(self, int64_t size, int64_t now_ns) noexcept
    cdef void emptied(self, int64_t now_ns) noexcept
    cdef int64_t deadline_ns(self, bint sent_command) noexcept
    cdef bint is_stuck(self, int64_t size, int64_t replied_size, bint full, int64_t now_ns) noexcept
    cdef int64_t next_ns(self, bint full, int64_t now_ns) noexcept
    cdef int64_t next_beat_ns(self) noexcept
    cdef int64_t _patience_ns(self, bint full) noexcept
