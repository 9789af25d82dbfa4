from libc.stdint cimport uint32_t

from penstock.core.output cimport Output
from penstock.net.poller cimport Endpoint, Poller

cdef enum Link:
    UNOPENED    # no socket yet
    OPEN        # read and written
    LOSING      # nothing more is read or sent; lost() is called soon
    GONE        # the socket is closed, or about to be

# What is done when the output is sent.
cdef enum Then:
    NOTHING
    SHUT        # our side is closed
    LOSE        # the socket is closed


cdef class Stream(Endpoint):
    cdef readonly Output output        # what was not sent yet
    cdef object _loop
    cdef Poller _poller
    cdef object _socket
    cdef int _fd
    cdef uint32_t _events              # asked of epoll
    cdef Link link
    cdef Then then
    cdef bint blocked                  # the output is full

    cdef int attach(self, socket) except -1
    cdef bint is_connected(self) noexcept
    cdef int update_events(self) except -1
    cdef int lose(self, error) except -1
    cdef bytes read_left(self)
    cdef int close_socket(self) except -1
    cdef int added(self) except -1
    cdef bint is_read(self) noexcept
    cdef int received(self, bytearray buffer, const unsigned char* data, Py_ssize_t size) except -1
    cdef int ended(self) except -1
    cdef int lost(self, error) except -1
    cdef int filled(self) except -1
    cdef int emptied(self) except -1
    cdef int defect(self) except -1
    cdef int _receive(self, Py_ssize_t size_max) except -1
    cdef Py_ssize_t _send(self) noexcept
