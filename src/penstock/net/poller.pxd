from libc.stdint cimport int64_t, uint32_t

from penstock.net.lookout cimport Lookout

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP

    ctypedef union epoll_data_t:
        int fd

    struct epoll_event:
        uint32_t events
        epoll_data_t data

cdef enum:
    EVENT_COUNT_MAX = 256


cdef class Endpoint:
    cdef bint unsent_noted  # it is in the poller's list of those with output

    cdef int ready(self, uint32_t events, Py_ssize_t size_max) except -1
    cdef int flush(self) except -1


cdef class Signal(Endpoint):
    cdef object _call


cdef class Poller:
    cdef object _loop
    cdef object _supervisor
    cdef Lookout _lookout
    cdef bint _busy_poll              # --busy-poll
    cdef int _set                     # descriptor of the epoll set
    cdef list _endpoints              # Endpoint by descriptor, or None
    cdef list _calls                  # to be called in this turn, after received data is handled
    cdef list _left                   # to be called in this turn or later, as far as there is time
    cdef list _unsent                 # Endpoints with output
    cdef bint _running                # a turn runs
    cdef bint _asked                  # the loop will call run()
    cdef int sharing                  # clients among which the time of this turn is divided
    cdef int64_t work_count           # commands executed in this turn; counted by clients
    cdef bint expecting               # a client is about to send; set by clients too
    cdef epoll_event[EVENT_COUNT_MAX] _events
    cdef int _event_at                # the next event to handle
    cdef int _event_count
    cdef int _guess_count             # turns in a row that asked no epoll

    cdef int add(self, int fd, Endpoint endpoint, uint32_t events) except -1
    cdef int change(self, int fd, uint32_t events) except -1
    cdef int remove(self, int fd) except -1
    cpdef later(self, call)
    cdef int flush_later(self, Endpoint endpoint) except -1
    cdef int _ask(self) except -1
    cdef int _run(self, bint readable) except -1
    cdef int _turn(self, bint readable) except -1
    cdef int _resume(self) except -1
    cdef bint _guess(self) except -1
    cdef int _receive(self) except -1
    cdef int _call(self) except -1
    cdef int _send(self) except -1
    cdef bint _is_busy(self) noexcept
    cdef bint _expect(self) except -1
