# A socket in the poller's set: bytes in, output out, and the end of the connection.
#
#     UNOPENED --attach()--> OPEN --lose()--> LOSING --lost()--> GONE
#
# A subclass says whether the socket is read (is_read), and is called with what happens: received(),
# ended(), filled(), emptied(), lost().
#
# Rule 1: a lost connection is reported once, in a later turn, never from inside of a call of the
#         subclass.
# Rule 2: epoll reports errors and hang-ups again and again and cannot be told not to: a socket that
#         is not being read is given up at once.
# Rule 3: above OUTPUT_SIZE_MAX the output is full, until it is a quarter of that.

import os
from functools import partial

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport memset

from penstock.core.output cimport Output, iovec
from penstock.net.poller cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, Endpoint, Poller

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        void* msg_name
        iovec* msg_iov
        size_t msg_iovlen
    Py_ssize_t recv(int fd, void* buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void* buffer, size_t size, int flags)
    Py_ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SHUT_WR

cdef enum:
    INPUT_SIZE = 256 << 10
    # Output that the socket has not taken: above this the client gets no more messages, until it is
    # a quarter.
    OUTPUT_SIZE_MAX = 1 << 20
    OUTPUT_SIZE_LOW = OUTPUT_SIZE_MAX // 4
    # What is still read from a lost connection: about what the kernel buffers.
    LEFT_READ_SIZE = 256 << 10
    LEFT_READ_COUNT_MAX = 24
    VECTOR_COUNT_MAX = 64

# All sockets are read into this buffer, one after the other, and what is not executed at the end of
# their turn is copied.  A bytes object per read would be one more copy of everything.
cdef bytearray INPUT = bytearray(INPUT_SIZE)


cdef class Stream(Endpoint):
    """One connection."""

    def __init__(self, loop, Poller poller not None):
        self._loop = loop
        self._poller = poller
        self._fd = -1
        self.output = Output()

    # ---- for subclasses to replace

    cdef bint is_read(self) noexcept:
        """Whether the socket is to be read; update_events() after a change."""
        return True

    cdef int received(self, bytearray buffer, const unsigned char* data, Py_ssize_t size) except -1:
        """``data`` is in ``buffer``, which the next socket overwrites."""
        return 0

    cdef int ended(self) except -1:
        """The peer sends no more."""
        return 0

    cdef int filled(self) except -1:
        """The output is full."""
        return 0

    cdef int emptied(self) except -1:
        """It is not full any more."""
        return 0

    cdef int lost(self, error) except -1:
        """The connection is gone; ``error`` is None if it ended here.  Calls close_socket()."""
        return self.close_socket()

    cdef int defect(self) except -1:
        """One of these raised an exception, which is handled here."""
        return 0

    # ---- the socket

    cdef int attach(self, socket) except -1:
        # Serve an accepted socket.
        self._socket = socket
        self._fd = socket.fileno()
        self._events = EPOLLIN
        self._poller.add(self._fd, self, EPOLLIN)
        self.link = Link.OPEN
        return 0

    cdef bint is_connected(self) noexcept:
        return self.link == Link.OPEN or self.link == Link.LOSING

    cdef int update_events(self) except -1:
        cdef uint32_t events = 0
        if self.link != Link.OPEN:
            return 0
        if self.is_read():
            events = EPOLLIN
        if self.output.size:
            events |= self._events & EPOLLOUT
        if events != self._events:
            self._events = events
            self._poller.change(self._fd, events)
        return 0

    cdef int ready(self, uint32_t events, Py_ssize_t size_max) except -1:
        try:
            if events & EPOLLOUT:
                self.flush()
            if self._events & EPOLLIN:
                if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    return self._receive(size_max)
            elif events & (EPOLLERR | EPOLLHUP):
                self.lose(ConnectionResetError())
            elif not events & EPOLLOUT:
                return 0    # it is not being read
        except Exception:
            self.defect()
        return 1

    cdef int _receive(self, Py_ssize_t size_max) except -1:
        cdef unsigned char* data = <unsigned char*>PyByteArray_AS_STRING(INPUT)
        cdef Py_ssize_t size = recv(self._fd, data, min(size_max, INPUT_SIZE), MSG_DONTWAIT)
        if size > 0:
            self.received(INPUT, data, size)
        elif size == 0:
            self.ended()
        elif errno == EAGAIN or errno == EINTR:
            return 0
        else:
            self.lose(OSError(errno, os.strerror(errno)))
        return 1

    cdef int added(self) except -1:
        # Something was added to the output.
        self._poller.flush_later(self)
        if self.output.size > OUTPUT_SIZE_MAX and not self.blocked:
            self.blocked = True
            self.filled()
        return 0

    cdef int flush(self) except -1:
        cdef Py_ssize_t size
        cdef Output output = self.output
        cdef bint full = False
        if self.link != Link.OPEN:
            return 0
        while output.size and not full:
            size = self._send()
            if size >= 0:
                output.sent(size)
            elif errno == EAGAIN:
                full = True
            elif errno != EINTR:
                self.lose(OSError(errno, os.strerror(errno)))
                return 0
        if full != bool(self._events & EPOLLOUT):
            self._events ^= EPOLLOUT
            self._poller.change(self._fd, self._events)
        if not full and self.then != Then.NOTHING:
            if self.then == Then.LOSE:
                self.lose(None)
            else:
                self.then = Then.NOTHING
                shutdown(self._fd, SHUT_WR)
        if self.blocked and output.size <= OUTPUT_SIZE_LOW:
            self.blocked = False
            self.emptied()
        return 0

    cdef Py_ssize_t _send(self) noexcept:
        # One system call; of the two, the one for a single piece is cheaper.
        cdef iovec[VECTOR_COUNT_MAX] vectors
        cdef msghdr message
        cdef int count = self.output.fill(vectors, VECTOR_COUNT_MAX)
        cdef int flags = MSG_DONTWAIT | MSG_NOSIGNAL
        if count == 1:
            return send(self._fd, vectors[0].iov_base, vectors[0].iov_len, flags)
        memset(&message, 0, sizeof(message))
        message.msg_iov = vectors
        message.msg_iovlen = count
        return sendmsg(self._fd, &message, flags)

    cdef int lose(self, error) except -1:
        # The connection ends: nothing more is read or sent, and lost() is called soon.
        if self.link == Link.OPEN:
            self.link = Link.LOSING
            self._events = 0
            self._poller.remove(self._fd)
            self._poller.later(partial(self._lost, error))
        return 0

    def _lost(self, error):
        self.link = Link.GONE
        self.lost(error)

    cdef bytes read_left(self):
        # What the kernel had received before a reply found the connection closed.
        cdef list parts = []
        try:
            for _ in range(LEFT_READ_COUNT_MAX):
                part = self._socket.recv(LEFT_READ_SIZE)
                if not part:
                    break
                parts.append(part)
        except OSError:
            pass
        return b"".join(parts)

    cdef int close_socket(self) except -1:
        self._socket.close()
        self._fd = -1
        self.output.clear()
        self.blocked = False
        return 0
