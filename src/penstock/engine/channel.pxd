from libc.stdint cimport int64_t

from penstock.core.block cimport Block
from penstock.core.marks cimport Marks
from penstock.core.ticket cimport Ticket
from penstock.core.window cimport Consumer, Window
from penstock.engine.feed cimport Feed
from penstock.engine.turn cimport Turn


cdef class Channel:
    cdef readonly object topic           # BaseTopic
    cdef readonly str name
    cdef readonly int number             # of this channel in the scan
    cdef readonly int64_t id             # in the journal; a seek gives it a new one
    cdef public int64_t first_id         # before the first seek
    cdef readonly Window window
    cdef readonly object policy          # Policy: the channel's effective one
    cdef public dict own_policy          # what was set for this very channel, as in the journal
    cdef readonly int64_t idle_from_ns   # when the last consumer left, or the channel was made
    cdef readonly list consumers
    cdef readonly object ready           # deque or NearestFirst of consumers that have room
    cdef readonly bint closed
    cdef public object moving            # set of buried messages that are on their way elsewhere
    cdef public int64_t moved_count      # messages moved to other topics
    cdef public int64_t move_failure_count
    cdef public bint paused
    cdef public bint named               # an nsqlookupd listed it, and nothing used it since
    cdef public bint partial             # a pull channel created where messages had been removed
    cdef public object reader            # ChannelReader of a pull channel that is bound, or None
    cdef public int64_t defer_stamp      # deferred publishes accepted before it are not delivered
    # Messages below begun_end count as appended at begun_ns, if they are older (TTL).
    cdef public int64_t begun_ns
    cdef public int64_t begun_end
    cdef public Ticket created           # settled when the channel is durable
    cdef readonly int64_t ttl_ns         # msg_ttl; 0: none
    cdef readonly int64_t expired_count  # messages that were too old to be delivered
    cdef readonly int64_t dropped_count  # messages dropped at the topic's bound
    cdef bint _expire_drops              # expired messages are dropped, not buried
    cdef int64_t _cutoff_ns              # what was appended before it is not delivered; 0: all is
    cdef Py_ssize_t _unaged_count        # ready messages that a search for old ones has not seen
    cdef readonly object _shared
    cdef readonly list _left_counts      # messages sent to consumers that have left, by locality
    cdef Feed _feed                      # of the topic
    cdef Turn _turn
    cdef Marks _progressed               # topics to journal
    cdef int64_t _watched_ns             # the earliest deadline that the scan knows, or later
    cdef int64_t _watched_wall_ns        # the same for deferrals
    cdef public object sweep             # Sweep of buried messages at a rate, or None
    cdef Consumer _held                  # gets nothing until it is empty, then a lone message (R26)
    cdef bint _woken
    cdef bint _reading
    cdef int _odd_to_fresh               # who gets the odd message of a share
    cdef int64_t _stuck_cursor           # where a read failed, until it succeeds; -1: nowhere
    cdef Block _redelivery               # the last blocks with messages to send again
    cdef Block _redelivery_before
    cdef tuple _cold_frame               # (index, frame)
    cdef dict _unreadable                # messages to redeliver whose read failed

    cpdef offer(self, Consumer consumer)
    cpdef wake(self)
    cpdef touched(self)
    cpdef arrive(self, Block block)
    cpdef pump(self, int64_t now_ns)
    cpdef bint _load(self) except -1
    cdef int watch(self) except -1
    cdef Py_ssize_t serve(self, Consumer consumer, int64_t even, int64_t now_ns,
                          Py_ssize_t* size) except -1
    cdef Py_ssize_t serve_lone(self, Consumer consumer, int64_t now_ns,
                               Py_ssize_t* size) except -1
    cdef Py_ssize_t _send_again(self, Consumer consumer, Py_ssize_t want, int64_t now_ns,
                                list parts) except -1
    cdef int _take_redelivery(self, Block block) except -1
    cdef int release_held(self) except -1
    cdef Py_ssize_t send_fresh(self, Consumer consumer, Py_ssize_t want, int64_t now_ns,
                               list parts) except -1
    cpdef take_block(self, Block block, int64_t released)
