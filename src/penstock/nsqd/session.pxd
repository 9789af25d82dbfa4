from libc.stdint cimport int64_t

from penstock.core.scanner cimport Scanner
from penstock.net.lookout cimport Lookout


cdef class Session:
    cdef public Scanner _scanner
    cdef public Lookout _lookout
    cdef public int _fd
    cdef public bytes _ok
    cdef public object _clock
    cdef public object _deferred
    cdef public object _transport
    cdef public object _upgrade
    cdef public object _parked
    cdef public object channel
    cdef public object consumer
    cdef public bint _greeted
    cdef public bint _closed
    cdef public bint _ended
    cdef public bint _waiting
    cdef public bint _held
    cdef public bint _resting
    cdef public bint _blocked
    cdef public bint _choked
    cdef public bint _running
    cdef public int64_t _replied_size
    cdef public bint _noted
    cdef public int64_t _waiting_since_ns

    cdef bint is_stopped(self) noexcept
    cpdef _run(self)
    cpdef _hold_back(self)
    cpdef _write(self, bytes frame)
