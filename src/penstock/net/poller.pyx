# The turn of the sockets: an epoll set of our own, whose descriptor is one reader of the loop.
#
#     turn:   resume    clients with more to execute than one slice, and clients that are gone
#             receive   each ready socket: read, execute
#             call      what was asked for meanwhile: write batches, answer, deliver (engine/turn.py)
#             send      each client with output: one system call
#
# Rule 1: the order is fixed (R28): all that is received in one turn shares one write a topic, and
#         all output of one client in a turn is sent at once.
# Rule 2: a turn is bounded (R29): bytes, work, and time.  What is left over comes first in the next
#         turn, after HTTP and timers had theirs.
# Rule 3: a descriptor is removed from the set before it is closed.

import os

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from posix.unistd cimport close

from penstock.core.scanner cimport WORK_COUNT_MAX
from penstock.net.lookout cimport PATIENCE_NS, Lookout, monotonic_ns

cdef extern from "<sys/epoll.h>" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int set, int operation, int fd, epoll_event* event)
    int epoll_wait(int set, epoll_event* events, int count_max, int timeout_ms)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD

cdef enum:
    # What one turn reads from all sockets together, about; each gets an equal share.
    TURN_SIZE_MAX = 256 << 10
    SHARE_SIZE_MIN = 4 << 10
    TURN_NS = 2_000_000
    # Work of one turn, in commands (core/scanner.pyx): with it comes what the batches cost that are
    # written at its end, which no clock has seen yet.
    TURN_WORK_MAX = 2 * WORK_COUNT_MAX
    # How long one turn resumes what did not fit into earlier ones.
    LEFT_NS = 1_000_000
    # How long one turn sends: that is a hundred clients at least.
    SEND_NS = 1_000_000
    # Turns in a row that read the socket of a lone client without asking epoll.
    GUESS_COUNT_MAX = 8
    # With --busy-poll: how long to poll for a lone client's next packet.
    BUSY_NS = 10_000_000


cdef class Endpoint:
    """A socket in the set, and what to do when it is ready."""

    cdef int ready(self, uint32_t events, Py_ssize_t size_max) except -1:
        # ``events`` of epoll; read at most ``size_max`` bytes.  Returns 0 if there was nothing.
        return 0

    cdef int flush(self) except -1:
        # Send what can be sent.
        return 0


cdef class Signal(Endpoint):
    """A descriptor that is readable when ``call`` has something to do."""

    def __init__(self, call):
        self._call = call

    cdef int ready(self, uint32_t events, Py_ssize_t size_max) except -1:
        self._call()
        return 1


cdef int check(int result) except -1:
    if result < 0:
        raise OSError(errno, os.strerror(errno))
    return result


cdef class Poller:
    """The sockets of all plain clients; also ``Turns`` for the engine."""

    def __init__(self, loop, Lookout lookout not None, supervisor, bint busy_poll=False):
        self._loop = loop
        self._lookout = lookout
        self._supervisor = supervisor
        self._busy_poll = busy_poll
        self._set = check(epoll_create1(EPOLL_CLOEXEC))
        self._endpoints = []
        self._calls = []
        self._left = []
        self._unsent = []
        self.sharing = 1
        loop.add_reader(self._set, self.run)

    def close(self):
        """Stop; the sockets are closed by their owners."""
        if self._set >= 0:
            self._loop.remove_reader(self._set)
            close(self._set)
            self._set = -1

    def watch(self, int fd, call):
        """Call ``call`` in a turn, before batches are written, when ``fd`` is readable."""
        self.add(fd, Signal(call), EPOLLIN)

    # ---- Turns

    def soon(self, call):
        """Call in this turn, after received data is handled."""
        self._calls.append(call)
        self._ask()

    def after(self, int64_t delay_ns, call):
        """Call once, ``delay_ns`` from now or a little later."""
        return self._loop.call_later(delay_ns / 1e9, call)

    # ---- sockets

    cdef int add(self, int fd, Endpoint endpoint, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.fd = fd
        while len(self._endpoints) <= fd:
            self._endpoints.append(None)
        check(epoll_ctl(self._set, EPOLL_CTL_ADD, fd, &event))
        self._endpoints[fd] = endpoint
        return 0

    cdef int change(self, int fd, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.fd = fd
        check(epoll_ctl(self._set, EPOLL_CTL_MOD, fd, &event))
        return 0

    cdef int remove(self, int fd) except -1:
        cdef epoll_event event
        self._endpoints[fd] = None
        check(epoll_ctl(self._set, EPOLL_CTL_DEL, fd, &event))
        return 0

    cpdef later(self, call):
        """Call in the next turn that has time for it; such calls are made in order."""
        self._left.append(call)
        self._ask()

    cdef int flush_later(self, Endpoint endpoint) except -1:
        # At the end of this turn.
        if not endpoint.unsent_noted:
            endpoint.unsent_noted = True
            self._unsent.append(endpoint)
            self._ask()
        return 0

    # ---- the turn

    cdef int _ask(self) except -1:
        if not self._running and not self._asked:
            self._asked = True
            self._loop.call_soon(self._run_asked)
        return 0

    def _run_asked(self):
        # The loop calls run() if a socket is readable.
        self._asked = False
        self._run(False)

    def run(self):
        """One turn, or several while a lone client sends again at once."""
        self._run(True)

    cdef int _run(self, bint readable) except -1:
        cdef int64_t end_ns = monotonic_ns() + TURN_NS
        if self._running:
            return 0
        self._running = True
        try:
            self._turn(readable)
            while self._expect() and monotonic_ns() < end_ns:
                self._turn(True)
        finally:
            self._running = False
        if self._calls or self._left or self._unsent or self._is_busy():
            self._ask()
        return 0

    cdef int _turn(self, bint readable) except -1:
        self.expecting = False
        self.work_count = 0
        self._resume()
        if self._event_at < self._event_count or (readable and not self._guess()):
            self._receive()
        self._call()
        self._send()
        return 0

    cdef int _resume(self) except -1:
        # Fifty clients that had a slice each held up the loop for 50 ms.
        cdef list calls
        cdef Py_ssize_t done = 0
        cdef int64_t end_ns
        if not self._left:
            return 0
        calls, self._left = self._left, []
        self.sharing = len(calls)
        end_ns = monotonic_ns() + LEFT_NS
        for call in calls:
            try:
                call()
            except Exception:
                self._supervisor.defect("turn")
            done += 1
            if self.work_count >= TURN_WORK_MAX or monotonic_ns() >= end_ns:
                break
        self._left = calls[done:] + self._left
        return 0

    cdef bint _guess(self) except -1:
        # The socket of a lone client is probably the one that is readable: try it first, which saves
        # a system call.  Not too often, since others have to wait.
        cdef int fd = self._lookout.lone_fd()
        if (fd < 0 or self._guess_count >= GUESS_COUNT_MAX
                or fd >= len(self._endpoints) or self._endpoints[fd] is None):
            # There is none, or its connection is one of HTTP.
            self._guess_count = 0
            return False
        self._guess_count += 1
        self.sharing = 1
        return (<Endpoint>self._endpoints[fd]).ready(EPOLLIN, TURN_SIZE_MAX) != 0

    cdef int _receive(self) except -1:
        cdef Endpoint endpoint
        cdef int count, fd, handled = 0
        cdef uint32_t events
        cdef Py_ssize_t share
        cdef int64_t end_ns
        if self._event_at == self._event_count:
            self._event_at = 0
            self._event_count = 0
            if self._set < 0:
                return 0
            count = epoll_wait(self._set, self._events, EVENT_COUNT_MAX, 0)
            if count <= 0:
                if count < 0 and errno != EINTR:
                    check(count)
                return 0
            self._event_count = count
        self.sharing = self._event_count - self._event_at
        share = max(<Py_ssize_t>SHARE_SIZE_MIN, TURN_SIZE_MAX // self.sharing)
        end_ns = monotonic_ns() + TURN_NS
        while self._event_at < self._event_count:
            fd = self._events[self._event_at].data.fd
            events = self._events[self._event_at].events
            self._event_at += 1
            endpoint = <Endpoint>self._endpoints[fd]
            if endpoint is None:
                continue    # closed since
            if type(endpoint) is not Signal:
                self._lookout.heard(fd)
            try:
                endpoint.ready(events, share)
            except Exception:
                self._supervisor.defect(f"fd={fd}")
            handled += 1
            if (self.work_count >= TURN_WORK_MAX
                    or (handled & 7 == 0 and monotonic_ns() >= end_ns)):
                break
        return 0

    cdef int _call(self) except -1:
        # What is asked for meanwhile waits for the next turn.
        cdef list calls
        if not self._calls:
            return 0
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:
                self._supervisor.defect("turn")
        return 0

    cdef int _send(self) except -1:
        cdef list unsent
        cdef Endpoint endpoint
        cdef Py_ssize_t done = 0
        cdef int64_t end_ns
        if not self._unsent:
            return 0
        unsent, self._unsent = self._unsent, []
        self.expecting = True
        self._lookout.replied()
        end_ns = monotonic_ns() + SEND_NS
        for endpoint in unsent:
            endpoint.unsent_noted = False
            try:
                endpoint.flush()
            except Exception:
                self._supervisor.defect("output")
            done += 1
            if done & 7 == 0 and monotonic_ns() >= end_ns:
                self._unsent = unsent[done:] + self._unsent
                break
        return 0

    # ---- busy polling

    cdef bint _is_busy(self) noexcept:
        return self._busy_poll and self._lookout.lone(BUSY_NS)

    cdef bint _expect(self) except -1:
        # Whether a lone client has sent again, after at most PATIENCE_NS.
        cdef Lookout lookout = self._lookout
        cdef int count
        cdef int64_t end_ns
        cdef bint busy = self._is_busy()
        if not busy and not (self.expecting and lookout.due()):
            return False
        if self._event_at < self._event_count or self._calls or self._left or self._unsent:
            return False
        end_ns = monotonic_ns() + PATIENCE_NS
        with nogil:
            count = epoll_wait(self._set, self._events, EVENT_COUNT_MAX, 0)
            while count == 0 and monotonic_ns() < end_ns:
                count = epoll_wait(self._set, self._events, EVENT_COUNT_MAX, 0)
        if not busy:
            lookout.polled(count != 0)
        if count <= 0:
            return False
        self._event_at = 0
        self._event_count = count
        return True
