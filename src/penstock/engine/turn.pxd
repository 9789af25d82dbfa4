from libc.stdint cimport int64_t

from penstock.clock cimport Clock


cdef class Turn:
    cdef readonly object lateness     # Histogram of deferred publishes: fired minus due
    cdef readonly bint asked          # work waits for run()
    cdef object _turns                # Turns of the context
    cdef Clock _clock
    cdef object _supervisor
    cdef int64_t _sync_every
    cdef object _scan
    cdef object _deferred             # DeferredQueue
    cdef object _by_instance          # instance -> topic
    cdef list _dirty                  # with messages to write, each once
    cdef list _woken                  # channels to serve
    cdef set _roomy                   # topics that may have room for what waits
    cdef int64_t _deferred_sync_ns
    cdef bint _deferred_dirty
    cdef bint _scheduled              # the loop is going to call
    cdef bint _running                # in run()
    cdef bint _tick_asked
    cdef bint _arm_wanted
    cdef object _timer
    cdef int64_t _timer_ns

    cpdef flush_later(self, topic)
    cpdef wake(self, channel)
    cpdef watch(self, channel)
    cpdef room_at(self, topic)
    cpdef run(self)
    cdef int ask(self) except -1
    cdef int schedule(self) except -1
    cdef int flush(self) except -1
    cdef int pump(self) except -1
