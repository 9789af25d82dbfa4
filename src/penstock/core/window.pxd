from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.core.block cimport Block
from penstock.core.buried cimport REASON_COUNT, Buried
from penstock.core.deadlines cimport DeadlineQueue
from penstock.core.entries cimport Entries, Entry
from penstock.core.latency cimport Latency
from penstock.core.runs cimport RunList

cdef enum:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2
    NO_ROOM = 3       # as many messages are buried as may be
    NOT_DURABLE = 4   # an ephemeral channel buries nothing

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
    # It gets nothing while anything is in flight to it: it has a message on its last attempt, or
    # will get one (R26).
    cdef public bint alone
    cdef public bint rested              # what it got last was not such a message
    cdef public str label                # names the client in the table of buried messages
    cdef readonly int32_t number         # in Window.consumers, -1 if it has not joined

    cdef inline bint is_ready(self) noexcept:
        return (self.writable and self.in_flight_count < self.ready_count
                and not (self.alone and self.in_flight_count))


cdef class Window(Entries):
    cdef readonly int64_t cursor       # the next index to deliver for the first time
    cdef public int64_t queued_count   # messages above the cursor; raised by the engine
    cdef public int64_t message_count  # all that ever arrived
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t ready_count  # entries in the ready lists
    cdef readonly int64_t lone_count   # those of them that must be delivered alone (R26)
    cdef readonly int64_t dropped_count    # given up after their last attempt, and not kept
    cdef readonly int64_t no_room_count    # not buried for lack of room
    cdef readonly int64_t kicked_count
    cdef public int64_t discarded_count    # buried messages that were finished
    cdef readonly Buried buried        # None before the first one
    cdef readonly int attempts_max     # failed deliveries of a message; 0: no limit
    cdef public bint movable           # buried messages may be moved to another topic
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
    cdef int32_t lone_head   # the same for messages to be delivered alone
    cdef int32_t lone_tail
    cdef int32_t kicked_slot  # the last one inserted, -1 if none
    cdef int32_t near_slot    # where the last search for unfinished messages ended, -1 if nowhere

    cdef bint strict              # there is a limit of attempts or a backoff
    cdef int on_failed            # what to do after the last attempt
    cdef Py_ssize_t buried_max
    cdef int64_t backoff_min_ns   # 0: none
    cdef int64_t backoff_max_ns
    cdef int64_t[REASON_COUNT] burial_counts  # all that ever were buried, by reason
    cdef list moving              # indexes that were buried to be moved

    cdef DeadlineQueue deadlines  # slots in flight, by monotonic deadline
    cdef DeadlineQueue deferrals  # deferred slots, by wall clock
    cdef RunList finished         # since the last drain()
    cdef list skips               # (start, end) finished above the cursor, ascending
    cdef int64_t next_skip        # start of the first of them
    cdef set marked               # indexes whose attempts changed since the last drain()
    cdef uint64_t random_state    # for sampling

    cdef int finish(self, Consumer consumer, int64_t index, int node_id, int64_t wall_ns) except -1
    cdef int requeue(self, Consumer consumer, int64_t index, int node_id, int64_t due_ns,
                     int64_t wall_ns=?) except -1
    cdef int bury(self, Consumer consumer, int64_t index, int node_id, int64_t wall_ns,
                  str text) except -1
    cdef int fail(self, int32_t slot, str client, int64_t due_ns, int64_t wall_ns) except -1
    cdef int64_t backoff(self, int attempts) noexcept
    cdef bint give_up(self, int32_t slot, str client, int64_t wall_ns) except -1
    cdef bint has_room(self) noexcept
    cdef int bury_entry(self, int32_t slot, int reason, str client, str text,
                        int64_t wall_ns) except -1
    cpdef bint set_apart(self) noexcept
    cpdef bytes redeliver(self, Consumer consumer, bytes frame, int64_t now_ns)
    cpdef bint was_kicked(self, int64_t index) noexcept
    cdef bint is_old(self, int32_t slot, int64_t end) noexcept
    cdef int unskip(self, int64_t index) except -1
    cdef bint must_be_alone(self, int32_t slot) noexcept
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
    cdef int32_t pop_lone(self) noexcept
    cdef int send_entry(self, int32_t slot, Consumer consumer, int64_t now_ns) except -1
    cdef int note_finished(self, int64_t start, int64_t end) except -1
    cdef int mark(self, int64_t index) except -1
    cdef uint64_t random(self) noexcept
    cdef Py_ssize_t frame_end(self, Py_ssize_t at, Py_ssize_t end) noexcept
    cdef int refuse_frame(self) except -1
    cdef int settle_cursor(self) except -1
    cdef int64_t stale_end(self, int64_t cutoff_ns, int64_t limit) except -1
