from libc.stdint cimport int64_t, uint32_t

from penstock.core.output cimport Output
from penstock.core.scanner cimport Scanner
from penstock.core.window cimport Consumer
from penstock.net.poller cimport Endpoint, Poller


cdef class Client(Endpoint):
    cdef readonly Scanner scanner      # what it sent and is not executed, and what it is owed
    cdef readonly Output output        # what it has not been sent
    cdef readonly object commands      # nsqd.commands.Commands: what the scanner does not execute
    cdef readonly object upgrade       # nsqd.upgrade.Upgrade: TLS and compression; None: plain
    cdef readonly object channel       # subscribed to; None: none
    cdef readonly Consumer consumer    # its part of the channel
    cdef readonly str host             # of the peer; "" for a unix socket
    cdef readonly str remote_address
    cdef readonly int64_t connect_time  # seconds since 1970
    cdef object _services              # nsqd.services.Services
    cdef object _loop
    cdef object _clock
    cdef object _deferred              # the writer of deferred publishes
    cdef Poller _poller
    cdef object _socket
    cdef int _fd
    cdef uint32_t _events              # asked of epoll
    cdef object _timer                 # the next check or heartbeat; the end of lingering
    cdef object _parked                # a command that waits for the replies of earlier publishes
    cdef bytes _magic                  # of the magic, what was received

    # The socket
    cdef bint connected                # from open() until the connection is lost
    cdef bint _lost_asked              # it will be: nothing more is read or sent
    cdef bint _finishing               # closes when the output is sent
    cdef bint _shutting                # shuts its side when the output is sent
    cdef bint _ended                   # the client sends no more
    # The input
    cdef bint _greeted                 # the magic was received
    cdef bint closed                   # no command is executed any more
    cdef bint waiting                  # a command waits for something
    cdef bint _resting                 # the slice ended; goes on in a later turn
    cdef bint _running                 # commands are being executed
    cdef bint _held                    # not read: too much input waits
    cdef bint _short                   # not read: the budget for bodies is exhausted
    cdef bint _strained                # not read: it floods a topic whose disk is behind
    cdef bint _noted                   # an unfinished command counts in that budget
    cdef bint _unpacking               # compressed input is decompressed in a later turn
    # The output
    cdef bint blocked                  # it is full
    cdef bint _choked                  # full of replies: nothing is executed
    cdef int64_t _replied_size         # bytes of replies since it is full
    # Whether the client is alive
    cdef readonly int64_t heartbeat_ns  # between two heartbeats; 0: none
    cdef int64_t _silence_ns           # a client silent for twice as long is disconnected; 0: never
    cdef int64_t _write_timeout_ns     # --client-write-timeout
    cdef int64_t _waiting_since_ns     # when the client last completed a command
    cdef int64_t _beat_ns              # when the next heartbeat is due
    cdef int64_t _taken_ns             # when the client last read some output
    cdef int64_t _unsent_size          # at the last check
    cdef int64_t _unsent_mark          # at the last check, without the replies since

    cpdef write(self, bytes frame)
    cpdef write_raw(self, bytes data)
    cdef bint is_stopped(self) noexcept
    cdef bint is_busy(self) noexcept
    cdef int _update_events(self) except -1
    cdef int _receive(self, Py_ssize_t size_max) except -1
    cdef int _received(self, Py_ssize_t size) except -1
    cdef int _run(self) except -1
    cdef int _execute(self, command) except -1
    cdef int _continue_later(self) except -1
    cdef int _hold_back(self, Py_ssize_t size) except -1
    cdef int _read_on(self) except -1
    cdef int _note_body(self) except -1
    cdef int _eof(self) except -1
    cdef int _end(self) except -1
    cdef int _lose(self, error) except -1
    cdef int _leave(self) except -1
    cdef int _detach(self) except -1
    cdef int _added(self) except -1
    cdef int _close_socket(self) except -1
    cdef int _block(self) except -1
    cdef int _unblock(self) except -1
    cdef int _greet(self, bytes data) except -1
    cdef int _unwrap(self, bytes data) except -1
    cdef int _unpack_soon(self) except -1
    cdef int _arm(self) except -1
    cdef int64_t _deadline_ns(self) noexcept
    cdef int64_t _patience_ns(self) noexcept
    cdef bint _is_stuck(self, int64_t now_ns) noexcept
