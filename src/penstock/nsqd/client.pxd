from libc.stdint cimport int64_t

from penstock.clock cimport Clock
from penstock.core.scanner cimport Scanner
from penstock.core.window cimport Consumer
from penstock.net.stream cimport Stream
from penstock.nsqd.liveness cimport Liveness

cpdef enum Phase:
    MAGIC       # the magic was not received
    OPEN        # commands are executed
    UPGRADING   # during a TLS handshake
    ENDING      # the client sends no more, or is gone; what it sent is executed
    FINISHING   # the socket is closed when the output is sent; from here on nothing is executed
    LINGERING   # our side is closed when the output is sent; input is read and dropped
    CLOSED


cdef class Client(Stream):
    cdef readonly Scanner scanner      # what it sent and is not executed, and what it is owed
    cdef readonly object commands      # nsqd.commands.Commands: what the scanner does not execute
    cdef readonly object upgrade       # nsqd.upgrade.Upgrade: TLS and compression; None: plain
    cdef readonly object channel       # subscribed to; None: none
    cdef readonly Consumer consumer    # its part of the channel
    cdef readonly str host             # of the peer; "" for a unix socket
    cdef readonly str remote_address
    cdef readonly int64_t connect_time  # seconds since 1970
    cdef object _services              # nsqd.services.Services
    cdef Clock _clock
    cdef object _deferred              # the writer of deferred publishes
    cdef object _timer                 # the next check or heartbeat; the end of lingering
    cdef object _parked                # a command that waits for the replies of earlier publishes
    cdef bytes _magic                  # of the magic, what was received
    cdef readonly Phase phase
    cdef readonly Liveness liveness    # when it is silent or stuck, and its heartbeats

    # The input
    cdef bint waiting                  # a command waits for something
    cdef bint _resting                 # the slice ended; goes on in a later turn
    cdef bint _running                 # commands are being executed
    cdef bint _held                    # not read: too much input waits
    cdef bint _short                   # not read: the budget for bodies is exhausted
    cdef bint _strained                # not read: it floods a topic whose disk is behind
    cdef bint _noted                   # an unfinished command counts in that budget
    cdef bint _unpacking               # compressed input is decompressed in a later turn
    # The output
    cdef bint _choked                  # full of replies: nothing is executed
    cdef int64_t _replied_size         # bytes of replies since it is full

    cpdef write(self, bytes frame)
    cpdef write_raw(self, bytes data)
    cdef bint is_stopped(self) noexcept
    cdef bint is_busy(self) noexcept
    cdef int enter(self, Phase phase) except -1
    cdef bint is_closed(self) noexcept
    cdef int _run(self) except -1
    cdef int _execute(self, command) except -1
    cdef int _continue_later(self) except -1
    cdef int _hold_back(self, Py_ssize_t size) except -1
    cdef int _read_on(self) except -1
    cdef int _note_body(self) except -1
    cdef int _end(self) except -1
    cdef int _leave(self) except -1
    cdef int _detach(self) except -1
    cdef int _finish(self) except -1
    cdef int _confirm(self, int64_t count) except -1
    cdef int _greet(self, bytes data) except -1
    cdef int _unwrap(self, bytes data) except -1
    cdef int _unpack_soon(self) except -1
    cdef int _arm(self) except -1
    cdef int64_t _deadline_ns(self) noexcept
