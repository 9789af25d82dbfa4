from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t

from penstock.core.block cimport Block
from penstock.core.deadlines cimport DeadlineQueue
from penstock.core.latency cimport Latency

cdef enum:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2

# What a window remembers of one unfinished message.  With its place in the table and in the
# deadline queue that is about 90 bytes a message.
cdef struct Entry:
    int64_t index
    int64_t timestamp_ns    # when it was published
    int64_t delivered_ns    # monotonic; what TOUCH may extend counts from here
    int64_t due_ns          # wall clock; 0 unless deferred
    int32_t before          # neighbours in index order, -1 at the ends
    int32_t after
    int32_t next_ready
    int32_t owner           # consumer number, -1 when it has gone
    uint16_t node_id
    uint16_t attempts
    uint8_t state

cdef struct Run:
    int64_t start
    int64_t end


cdef class RunList:
    cdef Run* runs
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef int add(self, int64_t start, int64_t end) except -1
    cdef int grow(self) except -1
    cdef void merge(self, int64_t low) noexcept


cdef class Consumer:
    cdef public object client
    cdef public int64_t ready_count
    cdef public int64_t in_flight_count
    cdef public int64_t message_count
    cdef public int64_t finish_count
    cdef public int64_t requeue_count
    cdef public int64_t msg_timeout_ns
    cdef public int sample_rate
    cdef public int locality        # of engine/topology.py
    cdef public bint writable
    cdef public bint offered
    cdef readonly int32_t number

    cdef inline bint is_ready(self) noexcept:
        return self.writable and self.in_flight_count < self.ready_count


cdef class Window:
    cdef readonly int64_t cursor
    cdef public int64_t queued_count
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t ready_count
    cdef readonly Py_ssize_t unfinished_count
    cdef public bint recording
    cdef readonly bint changed
    cdef public Latency latency     # publish-to-finish times; None: not measured
    cdef list consumers
    cdef list free_numbers

    cdef Block block
    cdef Py_ssize_t span
    cdef Py_ssize_t offset

    cdef Entry* entries
    cdef Py_ssize_t entry_capacity
    cdef int32_t free_entry
    cdef int32_t head
    cdef int32_t tail
    cdef int32_t ready_head
    cdef int32_t ready_tail

    cdef int32_t* table
    cdef Py_ssize_t table_mask
    cdef int table_shift

    cdef DeadlineQueue deadlines
    cdef DeadlineQueue deferrals
    cdef RunList finished
    cdef list skips
    cdef int64_t next_skip
    cdef set marked
    cdef uint64_t random_state

    cdef int finish(self, Consumer consumer, int64_t index, int node_id, int64_t wall_ns) except -1
    cdef int requeue(self, Consumer consumer, int64_t index, int node_id, int64_t due_ns) except -1
    cdef int touch(self, Consumer consumer, int64_t index, int node_id, int64_t now_ns,
                   int64_t timeout_ns, int64_t timeout_max_ns) except -1
    cdef bint holds(self, Consumer consumer) noexcept
    cdef int32_t owned(self, Consumer consumer, int64_t index, int node_id, int* status) noexcept
    cdef int32_t find(self, int64_t index) noexcept
    cdef int32_t append_entry(self, int64_t index) except -1
    cdef int forget(self, int32_t slot) except -1
    cdef void push_ready(self, int32_t slot) noexcept
    cdef int32_t pop_ready(self) noexcept
    cdef int send_entry(self, int32_t slot, Consumer consumer, int64_t now_ns) except -1
    cdef int note_finished(self, int64_t start, int64_t end) except -1
    cdef int mark(self, int64_t index) except -1
    cdef uint64_t random(self) noexcept
    cdef Py_ssize_t frame_end(self, Py_ssize_t at, Py_ssize_t end) noexcept
    cdef int refuse_frame(self) except -1
    cdef Py_ssize_t home(self, int64_t index) noexcept
    cdef int settle_cursor(self) except -1
    cdef int grow_entries(self) except -1
    cdef int grow_table(self) except -1
    cdef void table_insert(self, int32_t slot) noexcept
    cdef void table_remove(self, int32_t slot) noexcept
