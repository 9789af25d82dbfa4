from libc.stdint cimport int64_t


cdef class Lookout:
    cdef object _soon
    cdef int _fd
    cdef bint _looking
    cdef int64_t _count
    cdef int64_t _needed
    cdef int64_t _answered_ns

    cpdef int heard(self, int fd) except -1
    cpdef int answered(self) except -1
    cpdef int expect(self) except -1
    cdef void replied(self) noexcept
    cdef bint due(self) noexcept
    cdef int lone_fd(self) noexcept
    cdef bint lone(self, int64_t within_ns) noexcept
    cdef void polled(self, bint ready) noexcept


cdef enum:
    # How long to poll for the client's next packet.
    PATIENCE_NS = 100_000


cdef int64_t monotonic_ns() noexcept nogil
