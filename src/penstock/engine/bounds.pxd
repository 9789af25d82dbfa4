from libc.stdint cimport int64_t

from penstock.clock cimport Clock
from penstock.core.appender cimport Appender
from penstock.engine.channel cimport Channel
from penstock.engine.feed cimport Feed
from penstock.engine.writer cimport TopicWriter


cdef class Bound:
    cdef readonly int64_t count_max      # messages; INT64_MAX: no bound
    cdef readonly int64_t size_max       # bytes; INT64_MAX: no bound
    cdef readonly bint bounded           # either of them is set
    cdef readonly bint full              # publishes were refused, or messages dropped, lately
    cdef readonly int64_t dropped_count  # messages of the fullest channel that were dropped
    cdef object _topic
    cdef object _deferred                # DeferredQueue
    cdef list _waiters                   # called when there is room
    cdef object _episodes                # of the broker
    cdef TopicWriter _writer
    cdef Appender _appender
    cdef Feed _feed
    cdef Clock _clock
    cdef Channel _fullest                # the channel that was the fullest; None: not known
    cdef int64_t _full_ns                # monotonic, when it last was
    cdef int64_t _counted                # refused or dropped before this episode
    cdef int64_t _size_ns                # monotonic, when the bytes were last found too many

    cdef int64_t load(self, Channel channel) except -1
    cdef int64_t arriving(self) noexcept
    cdef int64_t coming(self) except -1
    cdef str reached(self)
    cdef bint over_count(self) except -1
    cdef bint over_size(self) except -1
    cpdef bint judge(self) except -1
