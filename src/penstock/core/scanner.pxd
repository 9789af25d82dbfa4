from libc.stdint cimport int64_t

from penstock.core.appender cimport Appender
from penstock.core.ticket cimport Ticket
from penstock.core.window cimport Consumer, Window

cdef struct Token:
    const unsigned char* at
    Py_ssize_t size  # bytes


# advance() returns this when it stopped before the input was used up.
cdef object WORKED

cdef enum:
    # Commands after which advance() returns, about a millisecond.  Counted rather than timed: on a
    # busy machine turns would end early, and each end copies the bytes that are left.  A packet
    # full of FINs is just below it.
    WORK_COUNT_MAX = 12_800


cdef class Owed:
    cdef readonly Ticket ticket  # of the batch that the messages are in
    cdef readonly int64_t count  # replies
    cdef readonly str command    # for the error if the ticket fails


cdef class Scanner:
    cdef public int state                # INIT, SUBSCRIBED or CLOSING; set by the connection
    cdef public Window window            # of the subscribed channel; set by the connection
    cdef public Consumer consumer        # of the subscription; set by the connection
    cdef public bint buries              # IDENTIFY offered BURY; set by the connection
    cdef public bint tls_required        # refuse everything but IDENTIFY; set by the connection
    cdef public int64_t msg_timeout_ns   # what TOUCH extends by; set by the connection
    cdef public bint progressed          # a command was consumed; cleared by the connection
    cdef public bint answered            # FIN, REQ, TOUCH or RDY ran; cleared by the connection
    cdef readonly int64_t command_count  # commands since the connection was made
    cdef readonly list owed              # Owed replies in order; settle() takes them off
    # Bytes of the unfinished command with its body; 0: not known yet.
    cdef readonly Py_ssize_t wanted

    cdef dict appenders              # bytes -> Appender; the connection's, filled by it
    cdef object on_settled           # called with each settled ticket
    cdef int64_t message_size_max    # --max-msg-size
    cdef int64_t body_size_max       # --max-body-size
    cdef int64_t ready_count_max     # --max-rdy-count
    cdef int64_t requeue_ms_max      # --max-req-timeout
    cdef int64_t defer_ms_max        # the longest delay of a DPUB
    cdef int64_t msg_timeout_max_ns  # --max-msg-timeout

    cdef object chunk              # owner of the bytes at ``at``; None: they are in ``held``
    cdef unsigned char* held       # copy of received bytes that are not consumed
    cdef Py_ssize_t held_capacity  # bytes of ``held``
    cdef const unsigned char* at   # the first byte not consumed
    cdef const unsigned char* end  # after the last byte received
    cdef Py_ssize_t line_scanned   # bytes after ``at`` known to hold no line end
    cdef int64_t multi_done        # messages of an unfinished MPUB that were checked
    cdef Py_ssize_t multi_at       # bytes of its command that were checked
    cdef tuple waiting             # error to send if the peer stops here, or None

    cdef Appender last           # of the last publish
    cdef bytes last_name         # its topic
    cdef int64_t last_published  # messages to it that ``published`` lacks
    cdef dict published          # topic -> messages, for /stats

    cdef int64_t now_ns      # monotonic, of the current call
    cdef int64_t wall_ns     # wall clock, of the current call
    cdef int64_t work_count  # what the current call has done, in commands

    cdef int take_in(self, owner, const unsigned char* data, Py_ssize_t size) except -1
    cpdef object next(self, int64_t now_ns, int64_t wall_ns)
    cdef object advance(self, int64_t now_ns, int64_t wall_ns, int64_t work_max)
    cdef object step(self)
    cdef object run_line(self, Py_ssize_t line_size)
    cdef object _run_rare(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish(self, str name, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish_deferred(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish_multi(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object check_multi(self, int64_t count, Py_ssize_t body_at)
    cdef object body_missing(self, str name, Py_ssize_t body_at, int64_t* size)
    cdef object with_body(self, str name, Py_ssize_t body_at, int64_t size_max)
    cdef object bury(self, Token* tokens, int count)
    cdef object answer(self, str name, Token* tokens, int count)
    cdef object set_ready(self, Token* tokens, int count)
    cdef object need(self, tuple waiting)
    cdef Appender appender_of(self, Token* name)
    cdef bint refused(self, Appender appender, str command, Py_ssize_t size) except -1
    cdef int owe(self, Appender appender, int64_t count, str command) except -1
    cpdef owe_ticket(self, Ticket ticket, str command)
    cdef Owed take_settled(self, int64_t* count)
    cdef void consume(self, Py_ssize_t size) noexcept
    cdef int keep_held(self, Py_ssize_t extra) except -1
