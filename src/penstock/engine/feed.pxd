from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.block cimport Block
from penstock.core.tail cimport Tail


cdef class Feed:
    cdef readonly Tail tail               # the newest blocks
    cdef readonly dict channels           # Channel by name
    cdef readonly bint paused
    cdef readonly bint awaiting_channels  # until those that nsqlookupds know exist
    cdef readonly int64_t shown_end       # one past the last message shown
    cdef readonly int64_t released        # one past the last message that channels may read
    cdef readonly int64_t message_count   # all that ever arrived
    cdef readonly int64_t message_bytes   # of their bodies
    cdef public bint room_wanted          # something waits for room at the topic's bound (R20)
    cdef readonly int64_t held_count      # shown and not released

    cdef bint is_frozen(self) noexcept
    cpdef show(self, Batch batch, int node_id)
    cpdef count_in(self, Block block, int64_t body_size)
