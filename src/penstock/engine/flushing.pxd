from libc.stdint cimport int64_t

from penstock.core.appender cimport Appender, Batch
from penstock.storage.topic_log cimport TopicLog


cdef class Flushing:
    cdef public TopicLog log
    cdef public Appender _appender
    cdef public object _clock
    cdef public object _reserve
    cdef public object _visible
    cdef public object _fired
    cdef public object _parts
    cdef public object _lost
    cdef public bint _opened
    cdef public bint _busy
    cdef public bint _syncing
    cdef public bint _troubled
    cdef public int64_t _sync_every
    cdef public int64_t _append_ns
    cdef public int64_t _sync_ns
    cdef public int64_t _slow_until_ns

    cdef int write(self, Batch batch) except -1
    cpdef Batch _next(self)
    cpdef _written(self, Batch batch, int64_t now_ns)
