from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.core.block cimport Block
from penstock.core.deadlines cimport DeadlineQueue
from penstock.core.entries cimport Entries, Entry
from penstock.core.latency cimport Latency
from penstock.core.runs cimport RunList

cdef enum:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2

cdef class Consumer:
    cdef public object client            # the connection; the engine calls it
    cdef public int64_t ready_count      # RDY; set by the scanner
    cdef public int64_t in_flight_count  # entries it owns
    cdef public int64_t message_count    # sent so far
    cdef public int64_t finish_count
    cdef public int64_t requeue_count
    cdef public int64_t msg_timeout_ns   # set by IDENTIFY
    cdef public int sample_rate          # percent; 0: everything
    cdef public int locality             # of engine/topology.py
    cdef public bint writable            # its output buffer has room; set by the connection
    cdef public bint offered             # it is in the channel's queue of ready consumers
    cdef readonly int32_t number         # in Window.consumers, -1 if it has not joined

    cdef inline bint is_ready(self) noexcept:
        return self.writable and self.in_flight_count < self.ready_count


cdef class Window(Entries):
    cdef readonly int64_t cursor       # the next index to deliver for the first time
    cdef public int64_t queued_count   # messages above the cursor; raised by the engine
    cdef public int64_t message_count  # all that ever arrived
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t ready_count  # entries in the ready list
    cdef public bint recording         # collect what the journal needs
    cdef readonly bint changed         # since the last drain()
    cdef public Latency latency        # publish-to-finish times; None: not measured
    cdef list consumers                # Consumer by number, None if free
    cdef list free_numbers

    cdef Block block        # that the cursor is in; None: load() one
    cdef Py_ssize_t span    # of the block
    cdef Py_ssize_t offset  # of the cursor's frame in the block

    cdef int32_t ready_head  # first slot of the ready list, -1 if none
    cdef int32_t ready_tail  # last slot of the ready list

    cdef DeadlineQueue deadlines  # slots in flight, by monotonic deadline
    cdef DeadlineQueue deferrals  # deferred slots, by wall clock
    cdef RunList finished         # since the last drain()
    cdef list skips               # (start, end) finished above the cursor, ascending
    cdef int64_t next_skip        # start of the first of them
    cdef set marked               # indexes whose attempts changed since the last drain()
    cdef uint64_t random_state    # for sampling

    cdef int finish(self, Consumer consumer, int64_t index, int node_id, int64_t wall_ns) except -1
    cdef int requeue(self, Consumer consumer, int64_t index, int node_id, int64_t due_ns) except -1
    cdef int touch(self, Consumer consumer, int64_t index, int node_id, int64_t now_ns,
                   int64_t timeout_ns, int64_t timeout_max_ns) except -1
    cpdef load(self, Block block)
    cdef object give(self, Consumer consumer, Py_ssize_t count_max, Py_ssize_t size_max,
                     int64_t limit, int64_t now_ns, Py_ssize_t* given_count)
    cdef bint holds(self, Consumer consumer) noexcept
    cdef int32_t owned(self, Consumer consumer, int64_t index, int node_id, int* status) noexcept
    cdef int forget(self, int32_t slot) except -1
    cdef void push_ready(self, int32_t slot) noexcept
    cdef int32_t pop_ready(self) noexcept
    cdef int send_entry(self, int32_t slot, Consumer consumer, int64_t now_ns) except -1
    cdef int note_finished(self, int64_t start, int64_t end) except -1
    cdef int mark(self, int64_t index) except -1
    cdef uint64_t random(self) noexcept
    cdef Py_ssize_t frame_end(self, Py_ssize_t at, Py_ssize_t end) noexcept
    cdef int refuse_frame(self) except -1
    cdef int settle_cursor(self) except -1
